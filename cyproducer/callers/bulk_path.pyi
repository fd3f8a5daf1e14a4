from collections.abc import Sequence
from typing import Any

from typing_extensions import Buffer, disjoint_base

from cyproducer.callers.send_path import SendPath
from cyproducer.futures.bulk_future import BulkFuture

@disjoint_base
class BulkPath(SendPath):
    def send_arrow(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        value: str | None = "value",
        headers: str | None = None,
        partition: int | str | None = None,
        timestamp: int | str | None = None,
    ) -> BulkFuture: ...
    def send_many(
        self,
        topic: str,
        values: Sequence[Buffer | None],
        keys: Sequence[Buffer | None] | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BulkFuture: ...
    def _before_bulk(self, method: str, keyed: bool, valued: bool) -> bool: ...
    def _wait_for_topic(self, name: str, timeout_s: float) -> object: ...
