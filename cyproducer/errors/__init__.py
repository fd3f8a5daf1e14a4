"""Every exception that cyproducer raises; import them from here.

Owns the client's own errors and ``for_code``. ``errors.codes`` and ``errors.other_codes`` have the classes of
the brokers' error codes, ``errors.base`` the roots of the tree; all are re-exported here, those of
``other_codes`` once one of them is used. All of it is thread-safe. Every error can be
pickled, with its arguments and attributes, and has the class attributes ``retriable`` and
``invalid_metadata``.

Names and hierarchy are kafka-python's (3.0; ``NoBrokersAvailable`` is from 2.x), so that a program written
for it only needs another import. An ``except kafka.errors.X`` or ``except aiokafka.errors.X`` that is left in
the program also catches these errors (``errors/other_clients``). Cyproducer's own errors, below
kafka-python's:

    KafkaError
    |- KafkaConfigurationError        also a ValueError, which kafka-python raises for an unknown option
    |- IllegalStateError
    |  `- ProducerClosedError
    |- AbortableError                 abort the transaction
    |  |- TransactionFailedError
    |  `- TransactionAbortableError   code 120
    |- ApplicationRecoverableError    make a new producer
    |  |- TransactionalProducerFailedError
    |  `- ProducerFencedError, InvalidProducerEpochError, InvalidProducerIdMappingError
    |- InvalidSetupError      change rights, options or brokers
    |  `- AuthorizationError, UnsupportedVersionError, InvalidTransactionTimeoutError
    |- SerializationError
    |- BulkSendError                  from send_arrow() and send_many(): rows of the call have failed
    |- RetriableError
    |  |- KafkaTimeoutError
    |  |  |- BufferExhaustedError
    |  |  `- DeliveryTimeoutError
    |  `- InvalidMetadataError
    |     `- KafkaConnectionError
    |        |- NoBrokersAvailable
    |        |- NameResolutionError
    |        |- TlsError
    |        `- BrokerProtocolError
    `- BrokerResponseError            one class for each error code
       |- MessageSizeTooLargeError
       |  `- RecordTooLargeError
       `- UnknownError
          `- UnrecognizedBrokerError  a code newer than this version
"""

from __future__ import annotations

# The star re-exports 140 names without a second list of them. mypy checks what ruff then can't.
# ruff: noqa: F403, F405
from typing import TYPE_CHECKING, Any

from cyproducer.errors.base import *
from cyproducer.errors.codes import *

if TYPE_CHECKING:
    from cyproducer.errors.other_codes import *
    from cyproducer.futures.bulk_future import BulkMetadata
    from cyproducer.structs import FailedRows

    kafka_errors: dict[int, type[BrokerResponseError]]

CorruptRecordException = CorruptRecordError
"""kafka-python's original name for it, which still works there."""


class KafkaConfigurationError(KafkaError, ValueError):
    """An option is unknown, has a value that is not allowed, or contradicts another one."""


class IllegalArgumentError(KafkaError):
    """An argument has a value that is not allowed."""


class IllegalStateError(KafkaError):
    """The object is not in a state that allows this call."""


class ProducerClosedError(IllegalStateError):
    """The producer is closed, or was closed before the record could be sent."""


class SerializationError(KafkaError):
    """A key, a value or a header could not be turned into bytes; ``__cause__`` says why."""


class BulkSendError(KafkaError):
    """Rows of ``send_arrow()`` or ``send_many()`` were not acknowledged; every row has its outcome.

    ``failures`` is a list of ``FailedRows`` (partition, error, rows), which together contain every failed row
    and its error. ``metadata`` is the ``BulkMetadata`` of the other rows. ``maybe_written`` is False if
    certainly no failed row is in the log, True if some may be, None if that is not known. ``retriable`` says
    whether all causes are retriable.
    """

    metadata: BulkMetadata | None = None
    failures: list[FailedRows]

    def __init__(
        self,
        *args: object,
        metadata: BulkMetadata | None = None,
        failures: list[FailedRows] | None = None,
    ) -> None:
        super().__init__(*args)
        self.metadata = metadata
        self.failures = failures or []
        if self.failures:
            known = {each.error.__dict__.get("maybe_written") for each in self.failures}
            self.maybe_written = True if True in known else None if None in known else False
            # A class attribute elsewhere; here the causes decide.
            self.__dict__["retriable"] = all(
                getattr(each.error, "retriable", False) for each in self.failures
            )


class UnsupportedCodecError(KafkaError):
    """The compression codec is unknown or not installed."""


class QuotaViolationError(KafkaError):
    """A limit on a metric was exceeded."""


class UnrecognizedBrokerVersion(KafkaError):
    """The broker's version is unknown, or is one that cyproducer does not support."""


class UnknownBrokerIdError(KafkaError):
    """The metadata refers to a broker that it does not list."""


class CommitFailedError(KafkaError):
    """The consumer group has a newer generation: the transaction's offsets can't be committed."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(args or ("the group has given the partitions to another member since",)))


class TransactionFailedError(AbortableError):
    """The open transaction cannot be committed: abort it. ``__cause__`` is the first error."""


class TransactionalProducerFailedError(ApplicationRecoverableError):
    """This producer cannot begin another transaction: make a new one. ``__cause__`` is the first error."""


class TransactionAbortedError(KafkaError):
    """The record was not sent because its transaction was aborted; the producer remains usable."""

    message = "The transaction was aborted before the record was sent"


class KafkaProtocolError(KafkaError):
    """A broker sent something that does not follow Kafka's protocol."""


class InvalidReceiveError(KafkaProtocolError):
    """A response's size is negative or above ``receive_message_max_bytes``."""


class CorrelationIdError(RetriableError, KafkaProtocolError):
    """A response belongs to no request, or arrived in the wrong order."""


class Cancelled(RetriableError):
    """The request was cancelled before its response arrived."""


class NodeNotReadyError(RetriableError):
    """There is no connection to the broker yet."""


class TooManyInFlightRequests(RetriableError):
    """The connection has ``max_in_flight_requests_per_connection`` requests in flight."""


class MetadataEmptyBrokerList(RetriableError):
    """The metadata lists no broker."""


class StaleMetadata(InvalidMetadataError):
    """The current metadata does not match a broker's response."""


class KafkaTimeoutError(RetriableError):
    """Something did not happen in time; the message says what, and what prevented it."""


class BufferExhaustedError(KafkaTimeoutError):
    """``buffer_memory`` stayed full for ``max_block_ms``: records arrive faster than brokers accept them."""


class DeliveryTimeoutError(KafkaTimeoutError):
    """The record was not acknowledged within ``delivery_timeout_ms``; see ``maybe_written``."""


class KafkaConnectionError(InvalidMetadataError):
    """A connection could not be established, or was lost."""


class NoBrokersAvailable(KafkaConnectionError):
    """None of the bootstrap servers could be reached."""


class NameResolutionError(KafkaConnectionError):
    """A host name has no address."""


class TlsError(KafkaConnectionError):
    """TLS could not be set up, or ended with an error; the message says which option to change."""


class BrokerProtocolError(KafkaConnectionError):
    """The server answered with something other than Kafka: HTTP, or TLS instead of plain text."""


class IncompatibleBrokerVersion(UnsupportedVersionError):
    """The broker is too old, or too new, for this request. Detected by the client."""


class RecordTooLargeError(MessageSizeTooLargeError):
    """The record is larger than an option allows. Detected by the client: nothing was sent.

    ``record_size`` and ``limit`` are in bytes; ``option`` names the limit that was exceeded.
    """

    record_size: int | None = None
    limit: int | None = None
    option: str | None = None

    def __init__(
        self,
        *args: object,
        record_size: int | None = None,
        limit: int | None = None,
        option: str = "max_request_size",
    ) -> None:
        if record_size is not None:
            self.record_size, self.limit, self.option = record_size, limit, option
            args = args or (f"the record takes {record_size} bytes, {option} allows {limit}",)
        super().__init__(*args)

    def __str__(self) -> str:
        # No broker reported this, so the code of the parent class would mislead.
        return KafkaError.__str__(self)


def record_too_large(what: str, size: int, limit: int) -> RecordTooLargeError:
    """Returns the error for ``what``, a record whose batch would take ``size`` bytes."""
    return RecordTooLargeError(
        f"{what} takes {size} bytes, batch header included, and max_request_size is {limit}: raise it, and "
        "the topic's max.message.bytes if that is lower",
        record_size=size,
        limit=limit,
    )


class UnrecognizedBrokerError(UnknownError):
    """A broker responded with a code that this version does not know; ``errno`` is the code."""

    description = "This version of cyproducer does not know the code."

    def __reduce__(self) -> str | tuple[Any, ...]:
        if type(self) is UnrecognizedBrokerError:
            return super().__reduce__()
        # The class was made at run time, so unpickling can't find it by its name.
        return _unrecognized, (self.errno, self.args), self.__dict__ or None


def for_code(error_code: int) -> type[BrokerResponseError]:
    """Returns the class for a broker's error code. For an unknown code it makes a class and keeps it.

    Thread-safe. Codes are int16, so the number of kept classes stays small.
    """
    found = classes_by_code.get(error_code) or _with_other_codes().get(error_code)
    if found is None:
        made = type("UnrecognizedBrokerError", (UnrecognizedBrokerError,), {"errno": error_code})
        # Two threads may get here with the same code; both must return the same class.
        found = classes_by_code.setdefault(error_code, made)
    return found


def _with_other_codes() -> dict[int, type[BrokerResponseError]]:
    """Adds the classes of ``errors.other_codes`` to this module; returns error code -> class."""
    import cyproducer.errors.other_codes as others

    classes = {name: each for name, each in vars(others).items() if isinstance(each, type)}
    globals().update(classes, kafka_errors=classes_by_code)
    return classes_by_code


if not TYPE_CHECKING:  # A type checker would take every name for one of this module's.

    def __getattr__(name: str) -> Any:
        # ``import *`` asks for __all__. There is none: then it takes all names that are there.
        if name == "__all__" or not name.startswith("_"):
            _with_other_codes()
        try:
            return globals()[name]
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None

    def __dir__() -> list[str]:
        _with_other_codes()
        return list(globals())


def _unrecognized(error_code: int, args: tuple[object, ...]) -> BrokerResponseError:
    return for_code(error_code)(*args)
