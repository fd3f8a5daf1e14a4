"""The thread that compresses large batches which are due before they are full."""

import random
import threading
from pathlib import Path

import pytest

from cyproducer import KafkaProducer
from cyproducer.errors import ProducerClosedError
from cyproducer.records.compression import compressor_for
from tests.forked import in_child, needs_fork, needs_proc
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import ScriptedCluster
from tools.harness.rig import Rig
from tools.harness.until import until

SLOW = 19
noise = random.Random(7)
TEXT = b" ".join(b"%x" % noise.getrandbits(60) for _ in range(60_000))


def rigged(level: int = SLOW) -> Rig:
    compressor = compressor_for("zstd", level)
    assert compressor.native is not None
    return Rig(
        {"t": [1, 1]}, compressor=compressor, compression_thread=True, batch_size=1 << 20, linger_ms=60_000
    )


def threads() -> int:
    """How many threads compress in this process."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("cyp-compression")


def test_other_records_do_not_wait_for_a_large_batch() -> None:
    with rigged() as rig:
        large = rig.send("t", TEXT[:900_000], partition=0)
        small = rig.send("t", b"small", partition=1)
        rig.accumulator.flush(0)
        # The large one takes more than a tenth of a second.
        (request,) = rig.requests()
        assert request.places == [("t", 1)]
        rig.answer(request)
        assert small.is_done
        assert not large.is_done

        def answered() -> bool:
            rig.answer_all()
            return large.is_done

        until(answered, "the large batch")
        assert large.get(0).offset == 0
        (record,) = rig.log["t", 0]
        assert record.value == TEXT[:900_000]


def test_batches_of_a_partition_stay_in_order() -> None:
    values = [TEXT[i * 100 :][:40_000] + b"%d" % i for i in range(40)]
    with rigged(3) as rig:
        futures = []
        for value in values:
            futures.append(rig.send("t", value, partition=0))
            # Each of them is due at once.
            rig.accumulator.flush(0)
            rig.answer_all()

        def all_done() -> bool:
            rig.accumulator.flush(0)
            rig.answer_all()
            return all(future.is_done for future in futures)

        until(all_done, "the acknowledgements")
        assert [future.get(0).offset for future in futures] == list(range(40))
        assert [record.value for record in rig.log["t", 0]] == values


@needs_proc
def test_a_sender_that_ends_waits_for_no_queue_of_batches_and_leaves_no_thread() -> None:
    before = threads()
    with rigged(22) as rig:
        futures = [rig.send("t", TEXT[:900_000], partition=i) for i in range(2)]
        rig.accumulator.flush(0)
        assert rig.requests() == []
        until(lambda: threads() == before + 1, "the thread")
        rig.accumulator.close()
        until(lambda: not rig.sender.abort(ProducerClosedError("it is over")), "the end of all batches")
        for future in futures:
            assert isinstance(future.exception, ProducerClosedError)
    assert threads() == before


@needs_proc
def test_an_accumulator_that_was_dropped_leaves_no_thread() -> None:
    before = threads()
    rig = rigged(3)
    rig.send("t", TEXT[:100_000], partition=0)
    rig.accumulator.flush(0)
    rig.requests()
    until(lambda: threads() == before + 1, "the thread")
    rig.close()
    assert threads() == before


def test_a_small_batch_is_compressed_by_the_sender() -> None:
    with rigged(3) as rig:
        before = threads() if Path("/proc/self/task").is_dir() else 0
        rig.send("t", TEXT[:10_000], partition=0)
        rig.accumulator.flush(0)
        (request,) = rig.requests()
        assert request.places == [("t", 0)]
        assert request.batches["t", 0].codec == 4
        assert not before or threads() == before


@pytest.fixture
def unpacking_broker() -> None:
    """Skips a test here if there is no zstandard: a scripted broker's thread imports it, too late to skip."""
    pytest.importorskip("zstandard")


@pytest.mark.usefixtures("unpacking_broker")
def test_records_that_waited_for_metadata() -> None:
    # All of them become batches at once, when the metadata is there.
    with (
        ScriptedCluster(orders=1) as cluster,
        producing(cluster, compression_type="zstd", compression_level=9, batch_size=20_000) as producer,
    ):
        values = [TEXT[i * 90 :][:900] for i in range(2000)]
        futures = [producer.send("orders", value) for value in values]
        assert [future.get(WAIT_S).offset for future in futures] == list(range(2000))


@needs_fork
@pytest.mark.usefixtures("unpacking_broker")
def test_a_forked_child_has_a_thread_of_its_own() -> None:
    with (
        ScriptedCluster(orders=1) as cluster,
        producing(cluster, compression_type="zstd", linger_ms=1) as producer,
    ):

        def send(producer: KafkaProducer) -> int:
            future = producer.send("orders", TEXT[:50_000])
            return future.get(WAIT_S).offset

        assert send(producer) == 0
        assert in_child(lambda: (send(producer), threading.active_count() > 1)) == (1, True)
        assert send(producer) == 2


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_every_codec(codec: str) -> None:
    with Rig({"t": [1]}, compressor=codec, compression_thread=True, batch_size=1 << 20) as rig:
        values = [TEXT[i * 1000 :][:30_000] for i in range(10)]
        futures = [rig.send("t", value) for value in values]

        def all_done() -> bool:
            rig.answer_all()
            return all(future.is_done for future in futures)

        until(all_done, "the acknowledgements")
        assert [record.value for record in rig.log["t", 0]] == values
