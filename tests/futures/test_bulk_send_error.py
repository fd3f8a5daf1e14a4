"""What ``BulkSendError`` says of rows that failed for different reasons."""

from array import array

import pytest

from cyproducer import errors
from cyproducer.structs import FailedRows

RETRIABLE = errors.NotLeaderForPartitionError("moved")
FINAL = errors.RecordTooLargeError("large")


@pytest.mark.parametrize(
    ("causes", "retriable"),
    [([RETRIABLE], True), ([FINAL], False), ([RETRIABLE, FINAL], False), ([FINAL, RETRIABLE], False)],
)
def test_it_is_retriable_only_if_all_causes_are(causes: list[errors.KafkaError], retriable: bool) -> None:
    failures = [FailedRows(0, cause, array("q", [row])) for row, cause in enumerate(causes)]
    assert errors.BulkSendError("rows failed", failures=failures).retriable is retriable
