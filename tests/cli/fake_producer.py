"""A producer that records its calls, for tests of the command line. Tests decide the outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from cyproducer.errors import BulkSendError, KafkaConfigurationError
from cyproducer.structs import FailedRows

MAX_REQUEST_SIZE = 100_000


class Future:
    """The outcome of a record, or of several."""

    def __init__(self, is_done: bool = True, exception: BaseException | None = None) -> None:
        self.is_done = is_done
        self.exception = exception


class Producer:
    """kafka-python's methods and ``send_many``.

    ``on_record`` decides the outcome of a record: its future, or what it raises. As with the real producer,
    ``send_many`` refuses all records with what is raised for one, and fails with the outcomes of all.
    """

    made: ClassVar[list[Producer]] = []
    on_record: Callable[[dict[str, Any]], Future] = staticmethod(lambda record: Future())
    on_flush: Callable[[float], None] = staticmethod(lambda timeout: None)
    on_init: Callable[[None], None] = staticmethod(lambda _: None)
    on_commit: Callable[[float], None] = staticmethod(lambda timeout: None)
    on_abort: Callable[[float], None] = staticmethod(lambda timeout: None)
    ready: ClassVar[BaseException | None] = None

    def __init__(self, **settings: Any) -> None:
        if "unknown" in settings:
            raise KafkaConfigurationError("unknown is not an option")
        self.settings = settings
        self.config = SimpleNamespace(
            max_request_size=MAX_REQUEST_SIZE,
            delivery_timeout_ms=100_000,
            max_block_ms=60_000,
            transactional_id=settings.get("transactional_id"),
            transaction_timeout_ms=60_000,
        )
        self.sent: list[dict[str, Any]] = []
        #: How many records each call was given.
        self.calls: list[int] = []
        self.flushed: list[float] = []
        #: The steps of transactions.
        self.steps: list[str] = []
        self.closed_with: float | None = None
        self.made.append(self)

    def wait_ready(self, timeout: float) -> None:
        self.waited = timeout
        if self.ready is not None:
            raise self.ready

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Sequence[Any] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Future:
        self.calls.append(1)
        whole: dict[str, Any] = {"topic": topic, "value": value, "key": key, "headers": [*headers]}
        whole |= {"partition": partition, "timestamp_ms": timestamp_ms}
        future = type(self).on_record(whole)
        self.sent.append(whole)
        return future

    def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        **rest: Any,
    ) -> Future:
        self.calls.append(len(values))
        records = [
            {"topic": topic, "value": value, "key": key, "headers": [], **rest}
            for value, key in zip(values, keys or [None] * len(values), strict=True)
        ]
        outcomes = [type(self).on_record(record) for record in records]
        self.sent += records
        future = Future(all(outcome.is_done for outcome in outcomes))
        failures = [
            FailedRows(0, outcome.exception, [row])  # type: ignore[arg-type]
            for row, outcome in enumerate(outcomes)
            if outcome.exception is not None
        ]
        if failures:
            # In no particular order, as those of several partitions are.
            future.exception = BulkSendError("some failed", failures=failures[::-1])
        return future

    def flush(self, timeout: float) -> None:
        self.flushed.append(timeout)
        type(self).on_flush(timeout)

    def init_transactions(self) -> None:
        self.steps.append("init")
        type(self).on_init(None)

    def begin_transaction(self) -> None:
        self.steps.append("begin")

    def commit_transaction(self, timeout: float) -> None:
        self.steps.append("commit")
        type(self).on_commit(timeout)

    def abort_transaction(self, timeout: float) -> None:
        self.steps.append("abort")
        type(self).on_abort(timeout)

    def close(self, timeout: float) -> None:
        self.closed_with = timeout

    @property
    def values(self) -> list[bytes | None]:
        return [record["value"] for record in self.sent]
