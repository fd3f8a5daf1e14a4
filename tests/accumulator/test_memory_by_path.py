"""Records of several kilobytes leak no memory, whichever way their batches end.

``test_delivery`` tests small records. Here a record is a hundred times as large as the structures around it,
so that a single leaked buffer of a batch, of a compressor's output, or of a parked record shows.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from cyproducer.errors import DeliveryTimeoutError, KafkaTimeoutError
from cyproducer.send.bulk_path import BulkPath
from cyproducer.send.extensions import Extensions
from cyproducer.structs import ProducerRecord
from tests.malloc import lent_bytes, needs_glibc
from tools.harness.rig import Rig

pytestmark = needs_glibc

VALUE = bytes(range(256)) * 16
ROUNDS = 150
MOST_LEFT = ROUNDS * len(VALUE) // 8
"""The most bytes that 150 rounds may leave; one leaked record per round would be eight times as much."""
REQUEST_TIMED_OUT, TOO_LARGE, DENIED = 7, 10, 29


def acknowledged(rig: Rig) -> None:
    future = rig.send("t", VALUE)
    rig.answer_all()
    assert future.succeeded()


def filled(rig: Rig) -> None:
    """Batches that the appending thread compresses, and one that the sender compresses."""
    futures = [rig.send("t", VALUE) for _ in range(9)]
    rig.answer_all()
    assert all(future.succeeded() for future in futures)


def retried(rig: Rig) -> None:
    future = rig.send("t", VALUE)
    (seen,) = rig.requests()
    rig.answer(seen, REQUEST_TIMED_OUT)
    rig.clock.advance_ms(200)
    rig.answer_all()
    assert future.succeeded()


def cut(rig: Rig) -> None:
    future = rig.send("t", VALUE)
    rig.requests()
    rig.cut(1)
    rig.clock.advance_ms(200)
    rig.answer_all()
    assert future.succeeded()


def split(rig: Rig) -> None:
    """A batch is split in half, and one half again. Needs a rig of its own: later batches are smaller."""
    with Rig({"t": [1]}, compressor=rig.accumulator.compressor, batch_size=20_000) as other:
        futures = [other.send("t", VALUE) for _ in range(4)]
        for _ in range(2):
            large = next(seen for seen in other.requests() if len(seen.batches["t", 0].records) > 1)
            other.answer(large, TOO_LARGE)
        other.answer_all()
        assert all(future.succeeded() for future in futures)
        assert other.accumulator.counters()["batches_split"] == 2


def expired_in_its_queue(rig: Rig) -> None:
    rig.sender.apply_topic("t", b"", [-1])
    future = rig.send("t", VALUE)
    rig.step()
    rig.advance_ms(1100)
    assert isinstance(future.exception, DeliveryTimeoutError)
    rig.sender.apply_topic("t", b"", [1])


def expired_on_the_wire(rig: Rig) -> None:
    """The batch's memory stays until the request is over."""
    future = rig.send("t", VALUE)
    (seen,) = rig.requests()
    rig.advance_ms(1100)
    assert isinstance(future.exception, DeliveryTimeoutError)
    assert rig.pool.used_bytes > 0
    rig.answer(seen)


def parked(rig: Rig) -> None:
    rig.sender.forget_topic("t")
    futures = [rig.send("t", VALUE, b"k", headers=[("h", VALUE)]) for _ in range(3)]
    rig.sender.apply_topic("t", b"", [1])
    rig.answer_all()
    assert all(future.succeeded() for future in futures)


def expired_while_parked(rig: Rig) -> None:
    rig.sender.forget_topic("t")
    future = rig.send("t", VALUE, headers=[("h", VALUE)])
    rig.advance_ms(1100)
    assert isinstance(future.exception, KafkaTimeoutError)
    rig.sender.apply_topic("t", b"", [1])


def refused(rig: Rig) -> None:
    """Invalid arguments that are found after the headers were encoded."""
    with pytest.raises(TypeError, match="header"):
        rig.send("t", VALUE, headers=[("h", VALUE), ("h", 1)])


def many(rig: Rig) -> None:
    future = rig.path.send_many("t", [VALUE] * 9)
    rig.answer_all()
    assert future.get(0).count == 9


def many_refused(rig: Rig) -> None:
    with pytest.raises(TypeError):
        rig.path.send_many("t", [*[VALUE] * 9, 1])


def many_with_columns(rig: Rig) -> None:
    rows: Any = [[("h", VALUE)] * 2] * 9
    future = rig.path.send_many("t", [VALUE] * 9, headers=rows, partition=[0] * 9, timestamp_ms=[None] * 9)
    rig.answer_all()
    assert future.get(0).count == 9


def many_with_a_wrong_column(rig: Rig) -> None:
    rows: Any = [[("h", VALUE)], [("h", 1)]]
    times: Any = [1, "2"]
    with pytest.raises(TypeError, match=r"headers\[1\]"):
        rig.path.send_many("t", [VALUE] * 2, headers=rows)
    with pytest.raises(TypeError, match=r"timestamp_ms\[1\]"):
        rig.path.send_many("t", [VALUE] * 2, headers=rows[0], partition=[0, 0], timestamp_ms=times)


class Interceptor:
    """Keeps what its methods get, until the next record."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.sent = record
        return record

    def on_acknowledgement(self, metadata: Any, error: BaseException | None) -> None:
        self.seen = metadata, error


def extended(rig: Rig) -> None:
    """Through serializers that make new bytes, an interceptor and a callback."""
    path = BulkPath[Any, Any]()
    given: Any = {"value_serializer": lambda data: bytes(data) + b"!", "interceptors": [Interceptor()]}
    path._open_path(rig.accumulator, 1 << 20, 1000, Extensions(**given))
    seen: list[Any] = []
    with pytest.raises(TypeError):
        path.send("t", 1.5)
    for error in (0, DENIED):
        future = path.send("t", bytearray(VALUE), headers=[("h", VALUE)]).add_both(seen.append)
        for request in rig.requests():
            rig.answer(request, error)
        rig.run_callbacks()
        assert future.is_done
    assert len(seen) == 2


def columns(rig: Rig) -> None:
    headers = pa.array([[("h", VALUE)]] * 9, pa.list_(pa.struct([("k", pa.string()), ("v", pa.binary())])))
    rows = pa.record_batch({"value": pa.array([VALUE] * 9), "headers": headers})
    future = rig.path.send_arrow("t", rows, headers="headers")
    rig.answer_all()
    rows = pa.record_batch(future.get(0).rows())
    assert rows.num_rows == 9


@pytest.mark.parametrize("codec", [None, "gzip"])
@pytest.mark.parametrize(
    "path",
    [
        acknowledged, filled, retried, cut, split, expired_in_its_queue, expired_on_the_wire, parked,
        expired_while_parked, refused, many, many_refused, many_with_columns, many_with_a_wrong_column,
        extended, columns,
    ],
    ids=lambda path: path.__name__,
)  # fmt: skip
@pytest.mark.slow
def test_no_path_of_a_record_leaks_memory(path: Callable[[Rig], None], codec: str | None) -> None:
    options: dict[str, Any] = {"delivery_timeout_ms": 1000, "max_block_ms": 1000, "batch_size": 20_000}
    with Rig({"t": [1]}, compressor=codec, **options) as rig:

        def rounds(count: int) -> None:
            for _ in range(count):
                path(rig)
                rig.log.clear()
            rig.fates.failures.clear()
            rig.control.broken.clear()
            rig.pending.clear()

        rounds(30)
        left = 0
        # A leak grows with each round; memory that Python or Arrow keep for later is allocated once.
        for _ in range(3):
            # The pool caches buffers for the next batches, which grow as the compression estimate falls.
            before = lent_bytes() - rig.pool.cached_bytes
            rounds(ROUNDS)
            left = lent_bytes() - rig.pool.cached_bytes - before
            if left < MOST_LEFT:
                break
        assert left < MOST_LEFT
        assert rig.pool.used_bytes == 0
