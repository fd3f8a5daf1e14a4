"""A record's outcome as a ``concurrent.futures.Future``.

Owns: refusing waits that could never end. Does not own: the outcome (``delivery``), nor the thread that
passes it on. A module of its own because ``concurrent.futures`` takes long to import. Any thread may call
anything.
"""

from concurrent.futures import Future

from cyproducer.buffers.delivery import RecordFuture
from cyproducer.structs import RecordMetadata


class ConcurrentFuture(Future[RecordMetadata]):
    """What ``RecordFuture.as_concurrent()`` returns.

    It is set by a callback. So in a callback, or in a forked child, nothing would ever set it: there the
    record itself is asked, which knows its outcome or refuses to wait.
    """

    def __init__(self, record: RecordFuture) -> None:
        super().__init__()
        self._record = record

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """The metadata, or raises the record's error; see ``RecordFuture.get`` for what else it raises.

        ``timeout``: seconds (None: as long as it takes); ``TimeoutError`` when they are over.
        """
        if self._record.is_done:
            return self._record.get()
        self._record._refuse_wait("result()")
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The record's error, or None where it was acknowledged; waits as ``result`` does."""
        if self._record.is_done:
            return self._record.exception
        self._record._refuse_wait("exception()")
        return super().exception(timeout)
