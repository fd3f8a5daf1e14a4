"""What the tests of writing rows share."""

from array import array
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from cyproducer.errors import BulkSendError, InvalidRecordError
from cyproducer.producer import KafkaProducer
from cyproducer.spark.columns import Columns
from cyproducer.structs import FailedRows

PLAIN = Columns(value="value")


def values(*given: bytes | None) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(given, pa.binary())})


class Picky:
    """A producer whose brokers refuse batches of more than one record."""

    def __init__(self, producer: KafkaProducer) -> None:
        self.config = producer.config
        self._runtime = producer._runtime
        self.under_way = 0
        self.taken: list[bytes] = []

    def flush(self, timeout: float) -> None:
        pass

    def send_arrow(self, topic: str, rows: pa.RecordBatch, **columns: Any) -> Any:
        # If both halves were sent at once, they would be in one batch again.
        assert rows.num_rows > 1 or self.under_way == 0
        self.under_way += 1
        return SimpleNamespace(is_done=False, get=lambda: self.answer(rows))

    def answer(self, rows: pa.RecordBatch) -> Any:
        self.under_way -= 1
        metadata: Any = SimpleNamespace(ranges=())
        if rows.num_rows == 1:
            self.taken += rows.column("value").to_pylist()
            return metadata
        cause = InvalidRecordError("two")
        cause.maybe_written = False
        failed = FailedRows(0, cause, array("q", range(rows.num_rows)))
        raise BulkSendError("refused", metadata=metadata, failures=[failed])
