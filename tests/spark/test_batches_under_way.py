"""How many batches of ``produce_arrow`` are kept until their outcome, and options in other letters."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cyproducer.spark import mapping, produce_arrow
from cyproducer.spark.options import parse


class Slow:
    """A producer none of whose batches has an outcome before it is waited for."""

    def __init__(self) -> None:
        self.under_way = 0
        self.most = 0

    def send_arrow(self, topic: str, rows: pa.RecordBatch, **columns: str) -> Any:
        self.under_way += 1
        self.most = max(self.most, self.under_way)

        def get() -> Any:
            self.under_way -= 1
            places = pa.record_batch({"partition": pa.array([0], pa.int32()), "offset": pa.array([5])})
            return SimpleNamespace(rows=lambda: places)

        return SimpleNamespace(is_done=False, get=get)


def test_a_long_task_keeps_few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()

    @contextmanager
    def shared_producer(config: Any) -> Iterator[Any]:
        yield slow

    monkeypatch.setattr(mapping, "shared_producer", shared_producer)
    monkeypatch.setattr(mapping, "await_outcomes", lambda producer: None)
    produce = produce_arrow("t", bootstrap_servers="127.0.0.1:1")
    batch = pa.record_batch({"value": [b"v"]})
    outcomes = [row for told in produce(batch for _ in range(50)) for row in told.to_pylist()]
    assert outcomes == [{"partition": 0, "offset": 5, "error": None}] * 50
    assert slow.under_way == 0
    assert slow.most == 9


@pytest.mark.parametrize(("text", "headers"), [("True", True), ("FALSE", False), ("true", True)])
def test_truth_values_are_read_in_any_letters(text: str, headers: bool) -> None:
    options = {"kafka.bootstrap.servers": "localhost:1", "topic": "t", "includeHeaders": text}
    assert parse(options).headers is headers
