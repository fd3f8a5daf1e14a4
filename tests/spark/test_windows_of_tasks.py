"""How much of a task may be under way, what many ranges come to, and refusals of which nothing is known."""

from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cyproducer.errors import BulkSendError, InvalidRecordError
from cyproducer.spark import rows as rows_module
from cyproducer.spark.rows import produce_partitions
from cyproducer.spark.sending import RowsFailedError, TaskWriter, write_all
from cyproducer.structs import FailedRows
from tests.spark.writing import PLAIN, values

# Elements


class Sent:
    """A record under way, whose outcome is there when it is waited for."""

    is_done = False

    def __init__(self, number: int, events: list[tuple[str, int]]) -> None:
        self.number = number
        self.events = events

    def get(self) -> int:
        self.events.append(("outcome", self.number))
        return self.number


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What a task does where each element is a record by itself, and four may be under way."""
    events: list[tuple[str, int]] = []

    class Senders:
        def __init__(self, producer: Any, topic: str | None) -> None:
            pass

        def send_all(self, elements: Iterable[int]) -> Iterator[tuple[int, Sent]]:
            for number in elements:
                events.append(("send", number))
                yield 1, Sent(number, events)

    @contextmanager
    def shared_producer(config: Any) -> Iterator[None]:
        yield None

    monkeypatch.setattr(rows_module, "_Senders", Senders)
    monkeypatch.setattr(rows_module, "WINDOW", 4)
    monkeypatch.setattr(rows_module, "shared_producer", shared_producer)
    monkeypatch.setattr(rows_module, "await_outcomes", lambda producer: events.append(("await", -1)))
    return events


def test_a_window_of_records_stays_under_way(events: list[tuple[str, int]]) -> None:
    produce: Any = produce_partitions("t", bootstrap_servers="127.0.0.1:1")
    assert list(produce(iter(range(20)))) == list(range(20))
    assert events.index(("outcome", 0)) == events.index(("send", 4)) + 1
    for number in range(5, 20):
        assert events.index(("outcome", number - 4)) == events.index(("send", number)) + 1
    assert events[-5:] == [("await", -1), *(("outcome", number) for number in range(16, 20))]


def test_who_takes_a_few_outcomes_has_the_others_awaited_at_once(events: list[tuple[str, int]]) -> None:
    """By a flush: one after the other, records that linger would be waited for."""
    produce: Any = produce_partitions("t", bootstrap_servers="127.0.0.1:1")
    outcomes = produce(iter(range(20)))
    assert next(outcomes) == 0
    outcomes.close()
    assert events[-6:] == [("await", -1), *(("outcome", number) for number in range(5))]


# Batches


class Answering:
    """A producer whose batches end as ``outcome`` says."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(
            metrics_enabled=False, delivery_timeout_ms=1000, max_request_size=1 << 20
        )
        self.error: BaseException | None = None
        self.ranges: list[Any] = []

    def flush(self, timeout: float) -> None:
        pass

    def send_arrow(self, topic: str, rows: pa.RecordBatch, **columns: Any) -> Any:
        return SimpleNamespace(is_done=False, get=self.get)

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(ranges=self.ranges)


def test_no_record_is_forgotten_where_ranges_of_many_partitions_are_merged() -> None:
    answering: Any = Answering()
    answering.ranges = [
        SimpleNamespace(partition=number, offset=10 * number, records=2) for number in range(6000)
    ]
    summary = write_all(TaskWriter(answering, PLAIN, "t", None), [values(b"1"), values(b"2")])
    assert summary.rows == 24_000
    assert len(summary.ranges) == 6000
    assert {each.records for each in summary.ranges} == {4}


@pytest.mark.parametrize("maybe", [True, None])
def test_a_refused_row_that_may_be_written_is_no_dead_letter(maybe: bool | None) -> None:
    answering: Any = Answering()
    cause = InvalidRecordError("refused")
    cause.maybe_written = maybe
    failed = FailedRows(0, cause, array("q", [0]))
    metadata: Any = SimpleNamespace(ranges=())
    answering.error = BulkSendError("refused", metadata=metadata, failures=[failed])
    letters: Any = SimpleNamespace(send=lambda *letter: pytest.fail("a dead letter"), finish=lambda: 0)
    with pytest.raises(RowsFailedError) as caught:
        write_all(TaskWriter(answering, PLAIN, "t", letters), [values(b"1")])
    assert caught.value.__cause__ is cause
