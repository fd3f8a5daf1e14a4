"""Every exception cyproducer raises; the module to import them from.

Owns: the errors that arise on the client, and ``for_code``. The classes of the brokers' error codes
stand in ``errors.codes``, the roots of the tree in ``errors.base``; both are re-exported here. Any
thread may use all of it. Every error pickles, with its arguments and attributes, and has the class
attributes ``retriable`` and ``invalid_metadata``.

Names and hierarchy are kafka-python's (3.0; ``NoBrokersAvailable`` is from 2.x), so that programs
written for it need another import and nothing else. Cyproducer's own, below kafka-python's:

    KafkaError
    |- KafkaConfigurationError        also a ValueError, which kafka-python raises for an unknown option
    |- IllegalStateError
    |  `- ProducerClosedError
    |- SerializationError
    |- BulkSendError                  of send_arrow() and send_many(): rows of the call have failed
    |- RetriableError
    |  |- KafkaTimeoutError
    |  |  |- BufferExhaustedError
    |  |  `- DeliveryTimeoutError
    |  `- InvalidMetadataError
    |     `- KafkaConnectionError
    |        |- NoBrokersAvailable
    |        |- NameResolutionError
    |        `- BrokerProtocolError
    `- BrokerResponseError            one class for each error code
       |- MessageSizeTooLargeError
       |  `- RecordTooLargeError
       `- UnknownError
          `- UnrecognizedBrokerError  a code newer than this version
"""

# A star is what re-exports 140 names without a second list of them; mypy finds what ruff then can't.
# ruff: noqa: F403, F405

from typing import TYPE_CHECKING, Any

from cyproducer.errors.base import *
from cyproducer.errors.codes import *

if TYPE_CHECKING:
    from cyproducer.futures.bulk_future import BulkMetadata
    from cyproducer.structs import FailedRows

CorruptRecordException = CorruptRecordError
"""The name kafka-python had for it at first and still has."""


class KafkaConfigurationError(KafkaError, ValueError):
    """An option is unknown, has a value that is not allowed, or contradicts another one."""


class IllegalArgumentError(KafkaError):
    """An argument has a value that is not allowed."""


class IllegalStateError(KafkaError):
    """The object is not in a state that allows this call."""


class ProducerClosedError(IllegalStateError):
    """The producer has been closed, or was closed before the record could be sent."""


class SerializationError(KafkaError):
    """A key, a value or a header could not be turned into bytes; ``__cause__`` says why."""


class BulkSendError(KafkaError):
    """Rows of ``send_arrow()`` or ``send_many()`` were not acknowledged; every row has its outcome.

    ``failures``: a list of ``FailedRows`` (partition, error, rows), which together have every row that failed
    and why. ``metadata``: the ``BulkMetadata`` of the others. ``maybe_written``: False where no failed row is
    in the log for certain, True where some may be, None where that is not known. ``retriable``: whether all
    causes are.
    """

    metadata: "BulkMetadata | None" = None
    failures: "list[FailedRows]"

    def __init__(
        self,
        *args: object,
        metadata: "BulkMetadata | None" = None,
        failures: "list[FailedRows] | None" = None,
    ) -> None:
        super().__init__(*args)
        self.metadata = metadata
        self.failures = failures or []
        if self.failures:
            known = {each.error.__dict__.get("maybe_written") for each in self.failures}
            self.maybe_written = True if True in known else None if None in known else False
            # Of the class elsewhere; here the causes decide.
            self.__dict__["retriable"] = all(
                getattr(each.error, "retriable", False) for each in self.failures
            )


class UnsupportedCodecError(KafkaError):
    """The compression codec is not known or not installed."""


class QuotaViolationError(KafkaError):
    """A limit on a metric was exceeded."""


class UnrecognizedBrokerVersion(KafkaError):
    """The broker's version can't be told, or is one cyproducer can't talk to."""


class UnknownBrokerIdError(KafkaError):
    """The metadata names a broker that it does not list."""


class CommitFailedError(KafkaError):
    """The consumer group has moved on: the offsets given to a transaction can't be committed."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(args or ("the group has given the partitions to another member since",)))


class TransactionAbortedError(KafkaError):
    """The record was not sent because its transaction was aborted; the producer remains usable."""

    message = "The transaction was aborted before the record was sent"


class KafkaProtocolError(KafkaError):
    """What a broker sent does not follow Kafka's protocol."""


class InvalidReceiveError(KafkaProtocolError):
    """A response's size is negative or above ``receive_message_max_bytes``."""


class CorrelationIdError(RetriableError, KafkaProtocolError):
    """A response came that belongs to no request, or out of turn."""


class Cancelled(RetriableError):
    """The request was given up before it was answered."""


class NodeNotReadyError(RetriableError):
    """There is no connection to the broker yet."""


class TooManyInFlightRequests(RetriableError):
    """``max_in_flight_requests_per_connection`` is reached."""


class MetadataEmptyBrokerList(RetriableError):
    """The metadata lists no broker."""


class StaleMetadata(InvalidMetadataError):
    """The metadata at hand does not fit what a broker answered."""


class KafkaTimeoutError(RetriableError):
    """Something did not happen within the time given; the text says what, and what stood in its way."""


class BufferExhaustedError(KafkaTimeoutError):
    """``buffer_memory`` stayed in use for ``max_block_ms``: records come faster than brokers take them."""


class DeliveryTimeoutError(KafkaTimeoutError):
    """It was not acknowledged within ``delivery_timeout_ms``; ``maybe_written`` tells what is known."""


class KafkaConnectionError(InvalidMetadataError):
    """A connection could not be made, or broke."""


class NoBrokersAvailable(KafkaConnectionError):
    """None of the bootstrap servers could be reached."""


class NameResolutionError(KafkaConnectionError):
    """A host name has no address."""


class BrokerProtocolError(KafkaConnectionError):
    """The port answered something that is not Kafka: HTTP, or TLS where plain text was expected."""


class IncompatibleBrokerVersion(UnsupportedVersionError):
    """The broker is too old, or too new, for this request. Found by the client."""


class RecordTooLargeError(MessageSizeTooLargeError):
    """The record is larger than an option allows. Found by the client: nothing was sent.

    ``record_size`` and ``limit`` are in bytes; ``option`` names the limit that was hit.
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
        # No broker said this, so the code of the class above would mislead.
        return KafkaError.__str__(self)


class UnrecognizedBrokerError(UnknownError):
    """A broker answered with a code this version does not know: ``errno`` has it."""

    description = "This version of cyproducer does not know the code."

    def __reduce__(self) -> str | tuple[Any, ...]:
        if type(self) is UnrecognizedBrokerError:
            return super().__reduce__()
        # The class was made at run time, so it can't be found by its name on the other side.
        return _unrecognized, (self.errno, self.args), self.__dict__ or None


def for_code(error_code: int) -> type[BrokerResponseError]:
    """The class for a broker's error code; for one that is not known, a class made for it, and kept.

    Thread-safe. Codes are int16, so what is kept stays small.
    """
    found = kafka_errors.get(error_code)
    if found is None:
        made = type("UnrecognizedBrokerError", (UnrecognizedBrokerError,), {"errno": error_code})
        # Two threads may get here with the same code; both must leave with the same class.
        found = kafka_errors.setdefault(error_code, made)
    return found


def _unrecognized(error_code: int, args: tuple[object, ...]) -> BrokerResponseError:
    return for_code(error_code)(*args)
