"""librdkafka's error codes, and the exceptions and error objects of confluent-kafka's API.

Owns ``KafkaError``, ``KafkaException`` with its subclasses, and the translation of this package's exceptions.
Works without confluent-kafka; if the application imports it as well, ``except
confluent_kafka.KafkaException`` catches these (``cyproducer.errors.other_clients``). Immutable; any thread
may call.
"""

import builtins
import functools
import sys
from typing import Any, Final

from cyproducer import errors
from cyproducer.control.transaction_calls import State
from cyproducer.errors.error_code import ErrorCode
from cyproducer.errors.other_clients import adopt

# Texts that applications compare. The others are derived from the name.
_TEXTS: Final = {
    "_MSG_TIMED_OUT": "Message timed out",
    "_ALL_BROKERS_DOWN": "All broker connections are down",
    "_TRANSPORT": "Broker transport failure",
    "_RESOLVE": "Host resolution failure",
    "_SSL": "SSL error",
    "_AUTHENTICATION": "Authentication failure",
    "_INVALID_ARG": "Invalid argument or configuration",
    "_PURGE_INFLIGHT": "Purged in flight",
    "_PURGE_QUEUE": "Purged in queue",
    "_STATE": "Erroneous state",
    "_FENCED": "This instance has been fenced by a newer instance",
    "_INCONSISTENT": "Inconsistent state encountered",
    "_FATAL": "Fatal error",
}


@functools.total_ordering
class KafkaError:
    """The error that callbacks receive and ``KafkaException`` holds; confluent-kafka's ``KafkaError``.

    Compares equal to a ``KafkaError`` or an int with the same code. Codes below 0 are the client's, the
    others the brokers'. Thread-safe.
    """

    _BAD_MSG: Final = -199
    _BAD_COMPRESSION: Final = -198
    _DESTROY: Final = -197
    _FAIL: Final = -196
    _TRANSPORT: Final = -195
    _CRIT_SYS_RESOURCE: Final = -194
    _RESOLVE: Final = -193
    _MSG_TIMED_OUT: Final = -192
    _PARTITION_EOF: Final = -191
    _UNKNOWN_PARTITION: Final = -190
    _FS: Final = -189
    _UNKNOWN_TOPIC: Final = -188
    _ALL_BROKERS_DOWN: Final = -187
    _INVALID_ARG: Final = -186
    _TIMED_OUT: Final = -185
    _QUEUE_FULL: Final = -184
    _ISR_INSUFF: Final = -183
    _NODE_UPDATE: Final = -182
    _SSL: Final = -181
    _WAIT_COORD: Final = -180
    _UNKNOWN_GROUP: Final = -179
    _IN_PROGRESS: Final = -178
    _PREV_IN_PROGRESS: Final = -177
    _EXISTING_SUBSCRIPTION: Final = -176
    _ASSIGN_PARTITIONS: Final = -175
    _REVOKE_PARTITIONS: Final = -174
    _CONFLICT: Final = -173
    _STATE: Final = -172
    _UNKNOWN_PROTOCOL: Final = -171
    _NOT_IMPLEMENTED: Final = -170
    _AUTHENTICATION: Final = -169
    _NO_OFFSET: Final = -168
    _OUTDATED: Final = -167
    _TIMED_OUT_QUEUE: Final = -166
    _UNSUPPORTED_FEATURE: Final = -165
    _WAIT_CACHE: Final = -164
    _INTR: Final = -163
    _KEY_SERIALIZATION: Final = -162
    _VALUE_SERIALIZATION: Final = -161
    _KEY_DESERIALIZATION: Final = -160
    _VALUE_DESERIALIZATION: Final = -159
    _PARTIAL: Final = -158
    _READ_ONLY: Final = -157
    _NOENT: Final = -156
    _UNDERFLOW: Final = -155
    _INVALID_TYPE: Final = -154
    _RETRY: Final = -153
    _PURGE_QUEUE: Final = -152
    _PURGE_INFLIGHT: Final = -151
    _FATAL: Final = -150
    _INCONSISTENT: Final = -149
    _GAPLESS_GUARANTEE: Final = -148
    _MAX_POLL_EXCEEDED: Final = -147
    _UNKNOWN_BROKER: Final = -146
    _NOT_CONFIGURED: Final = -145
    _FENCED: Final = -144
    _APPLICATION: Final = -143
    _ASSIGNMENT_LOST: Final = -142
    _NOOP: Final = -141
    _AUTO_OFFSET_RESET: Final = -140
    _LOG_TRUNCATION: Final = -139
    _INVALID_DIFFERENT_RECORD: Final = -138
    _DESTROY_BROKER: Final = -137
    # Those of brokers, under librdkafka's names. They are written out for type checkers.
    UNKNOWN: Final = ErrorCode.UNKNOWN.value
    NO_ERROR: Final = ErrorCode.NO_ERROR.value
    OFFSET_OUT_OF_RANGE: Final = ErrorCode.OFFSET_OUT_OF_RANGE.value
    INVALID_MSG: Final = ErrorCode.CORRUPT_MESSAGE.value
    UNKNOWN_TOPIC_OR_PART: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.value
    INVALID_MSG_SIZE: Final = ErrorCode.INVALID_FETCH_SIZE.value
    LEADER_NOT_AVAILABLE: Final = ErrorCode.LEADER_NOT_AVAILABLE.value
    NOT_LEADER_FOR_PARTITION: Final = ErrorCode.NOT_LEADER_FOR_PARTITION.value
    REQUEST_TIMED_OUT: Final = ErrorCode.REQUEST_TIMED_OUT.value
    BROKER_NOT_AVAILABLE: Final = ErrorCode.BROKER_NOT_AVAILABLE.value
    REPLICA_NOT_AVAILABLE: Final = ErrorCode.REPLICA_NOT_AVAILABLE.value
    MSG_SIZE_TOO_LARGE: Final = ErrorCode.MESSAGE_SIZE_TOO_LARGE.value
    STALE_CTRL_EPOCH: Final = ErrorCode.STALE_CONTROLLER_EPOCH.value
    OFFSET_METADATA_TOO_LARGE: Final = ErrorCode.OFFSET_METADATA_TOO_LARGE.value
    NETWORK_EXCEPTION: Final = ErrorCode.NETWORK_EXCEPTION.value
    COORDINATOR_LOAD_IN_PROGRESS: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS.value
    COORDINATOR_NOT_AVAILABLE: Final = ErrorCode.COORDINATOR_NOT_AVAILABLE.value
    NOT_COORDINATOR: Final = ErrorCode.NOT_COORDINATOR.value
    TOPIC_EXCEPTION: Final = ErrorCode.INVALID_TOPIC.value
    RECORD_LIST_TOO_LARGE: Final = ErrorCode.RECORD_LIST_TOO_LARGE.value
    NOT_ENOUGH_REPLICAS: Final = ErrorCode.NOT_ENOUGH_REPLICAS.value
    NOT_ENOUGH_REPLICAS_AFTER_APPEND: Final = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND.value
    INVALID_REQUIRED_ACKS: Final = ErrorCode.INVALID_REQUIRED_ACKS.value
    ILLEGAL_GENERATION: Final = ErrorCode.ILLEGAL_GENERATION.value
    INCONSISTENT_GROUP_PROTOCOL: Final = ErrorCode.INCONSISTENT_GROUP_PROTOCOL.value
    INVALID_GROUP_ID: Final = ErrorCode.INVALID_GROUP_ID.value
    UNKNOWN_MEMBER_ID: Final = ErrorCode.UNKNOWN_MEMBER_ID.value
    INVALID_SESSION_TIMEOUT: Final = ErrorCode.INVALID_SESSION_TIMEOUT.value
    REBALANCE_IN_PROGRESS: Final = ErrorCode.REBALANCE_IN_PROGRESS.value
    INVALID_COMMIT_OFFSET_SIZE: Final = ErrorCode.INVALID_COMMIT_OFFSET_SIZE.value
    TOPIC_AUTHORIZATION_FAILED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED.value
    GROUP_AUTHORIZATION_FAILED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED.value
    CLUSTER_AUTHORIZATION_FAILED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED.value
    INVALID_TIMESTAMP: Final = ErrorCode.INVALID_TIMESTAMP.value
    UNSUPPORTED_SASL_MECHANISM: Final = ErrorCode.UNSUPPORTED_SASL_MECHANISM.value
    ILLEGAL_SASL_STATE: Final = ErrorCode.ILLEGAL_SASL_STATE.value
    UNSUPPORTED_VERSION: Final = ErrorCode.UNSUPPORTED_VERSION.value
    TOPIC_ALREADY_EXISTS: Final = ErrorCode.TOPIC_ALREADY_EXISTS.value
    INVALID_PARTITIONS: Final = ErrorCode.INVALID_PARTITIONS.value
    INVALID_REPLICATION_FACTOR: Final = ErrorCode.INVALID_REPLICATION_FACTOR.value
    INVALID_REPLICA_ASSIGNMENT: Final = ErrorCode.INVALID_REPLICATION_ASSIGNMENT.value
    INVALID_CONFIG: Final = ErrorCode.INVALID_CONFIG.value
    NOT_CONTROLLER: Final = ErrorCode.NOT_CONTROLLER.value
    INVALID_REQUEST: Final = ErrorCode.INVALID_REQUEST.value
    UNSUPPORTED_FOR_MESSAGE_FORMAT: Final = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT.value
    POLICY_VIOLATION: Final = ErrorCode.POLICY_VIOLATION.value
    OUT_OF_ORDER_SEQUENCE_NUMBER: Final = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER.value
    DUPLICATE_SEQUENCE_NUMBER: Final = ErrorCode.DUPLICATE_SEQUENCE_NUMBER.value
    INVALID_PRODUCER_EPOCH: Final = ErrorCode.INVALID_PRODUCER_EPOCH.value
    INVALID_TXN_STATE: Final = ErrorCode.INVALID_TXN_STATE.value
    INVALID_PRODUCER_ID_MAPPING: Final = ErrorCode.INVALID_PRODUCER_ID_MAPPING.value
    INVALID_TRANSACTION_TIMEOUT: Final = ErrorCode.INVALID_TRANSACTION_TIMEOUT.value
    CONCURRENT_TRANSACTIONS: Final = ErrorCode.CONCURRENT_TRANSACTIONS.value
    TRANSACTION_COORDINATOR_FENCED: Final = ErrorCode.TRANSACTION_COORDINATOR_FENCED.value
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED.value
    SECURITY_DISABLED: Final = ErrorCode.SECURITY_DISABLED.value
    OPERATION_NOT_ATTEMPTED: Final = ErrorCode.OPERATION_NOT_ATTEMPTED.value
    KAFKA_STORAGE_ERROR: Final = ErrorCode.KAFKA_STORAGE_ERROR.value
    LOG_DIR_NOT_FOUND: Final = ErrorCode.LOG_DIR_NOT_FOUND.value
    SASL_AUTHENTICATION_FAILED: Final = ErrorCode.SASL_AUTHENTICATION_FAILED.value
    UNKNOWN_PRODUCER_ID: Final = ErrorCode.UNKNOWN_PRODUCER_ID.value
    REASSIGNMENT_IN_PROGRESS: Final = ErrorCode.REASSIGNMENT_IN_PROGRESS.value
    DELEGATION_TOKEN_AUTH_DISABLED: Final = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED.value
    DELEGATION_TOKEN_NOT_FOUND: Final = ErrorCode.DELEGATION_TOKEN_NOT_FOUND.value
    DELEGATION_TOKEN_OWNER_MISMATCH: Final = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH.value
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: Final = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.value
    DELEGATION_TOKEN_AUTHORIZATION_FAILED: Final = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED.value
    DELEGATION_TOKEN_EXPIRED: Final = ErrorCode.DELEGATION_TOKEN_EXPIRED.value
    INVALID_PRINCIPAL_TYPE: Final = ErrorCode.INVALID_PRINCIPAL_TYPE.value
    NON_EMPTY_GROUP: Final = ErrorCode.NON_EMPTY_GROUP.value
    GROUP_ID_NOT_FOUND: Final = ErrorCode.GROUP_ID_NOT_FOUND.value
    FETCH_SESSION_ID_NOT_FOUND: Final = ErrorCode.FETCH_SESSION_ID_NOT_FOUND.value
    INVALID_FETCH_SESSION_EPOCH: Final = ErrorCode.INVALID_FETCH_SESSION_EPOCH.value
    LISTENER_NOT_FOUND: Final = ErrorCode.LISTENER_NOT_FOUND.value
    TOPIC_DELETION_DISABLED: Final = ErrorCode.TOPIC_DELETION_DISABLED.value
    FENCED_LEADER_EPOCH: Final = ErrorCode.FENCED_LEADER_EPOCH.value
    UNKNOWN_LEADER_EPOCH: Final = ErrorCode.UNKNOWN_LEADER_EPOCH.value
    UNSUPPORTED_COMPRESSION_TYPE: Final = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE.value
    STALE_BROKER_EPOCH: Final = ErrorCode.STALE_BROKER_EPOCH.value
    OFFSET_NOT_AVAILABLE: Final = ErrorCode.OFFSET_NOT_AVAILABLE.value
    MEMBER_ID_REQUIRED: Final = ErrorCode.MEMBER_ID_REQUIRED.value
    PREFERRED_LEADER_NOT_AVAILABLE: Final = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE.value
    GROUP_MAX_SIZE_REACHED: Final = ErrorCode.GROUP_MAX_SIZE_REACHED.value
    FENCED_INSTANCE_ID: Final = ErrorCode.FENCED_INSTANCE_ID.value
    ELIGIBLE_LEADERS_NOT_AVAILABLE: Final = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE.value
    ELECTION_NOT_NEEDED: Final = ErrorCode.ELECTION_NOT_NEEDED.value
    NO_REASSIGNMENT_IN_PROGRESS: Final = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS.value
    GROUP_SUBSCRIBED_TO_TOPIC: Final = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC.value
    INVALID_RECORD: Final = ErrorCode.INVALID_RECORD.value
    UNSTABLE_OFFSET_COMMIT: Final = ErrorCode.UNSTABLE_OFFSET_COMMIT.value
    THROTTLING_QUOTA_EXCEEDED: Final = ErrorCode.THROTTLING_QUOTA_EXCEEDED.value
    PRODUCER_FENCED: Final = ErrorCode.PRODUCER_FENCED.value
    RESOURCE_NOT_FOUND: Final = ErrorCode.RESOURCE_NOT_FOUND.value
    DUPLICATE_RESOURCE: Final = ErrorCode.DUPLICATE_RESOURCE.value
    UNACCEPTABLE_CREDENTIAL: Final = ErrorCode.UNACCEPTABLE_CREDENTIAL.value
    INCONSISTENT_VOTER_SET: Final = ErrorCode.INCONSISTENT_VOTER_SET.value
    INVALID_UPDATE_VERSION: Final = ErrorCode.INVALID_UPDATE_VERSION.value
    FEATURE_UPDATE_FAILED: Final = ErrorCode.FEATURE_UPDATE_FAILED.value
    PRINCIPAL_DESERIALIZATION_FAILURE: Final = ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE.value
    UNKNOWN_TOPIC_ID: Final = ErrorCode.UNKNOWN_TOPIC_ID.value
    INCONSISTENT_TOPIC_ID: Final = ErrorCode.INCONSISTENT_TOPIC_ID.value
    FENCED_MEMBER_EPOCH: Final = ErrorCode.FENCED_MEMBER_EPOCH.value
    UNRELEASED_INSTANCE_ID: Final = ErrorCode.UNRELEASED_INSTANCE_ID.value
    UNSUPPORTED_ASSIGNOR: Final = ErrorCode.UNSUPPORTED_ASSIGNOR.value
    STALE_MEMBER_EPOCH: Final = ErrorCode.STALE_MEMBER_EPOCH.value
    MISMATCHED_ENDPOINT_TYPE: Final = ErrorCode.MISMATCHED_ENDPOINT_TYPE.value
    UNSUPPORTED_ENDPOINT_TYPE: Final = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE.value
    UNKNOWN_CONTROLLER_ID: Final = ErrorCode.UNKNOWN_CONTROLLER_ID.value
    UNKNOWN_SUBSCRIPTION_ID: Final = ErrorCode.UNKNOWN_SUBSCRIPTION_ID.value
    TELEMETRY_TOO_LARGE: Final = ErrorCode.TELEMETRY_TOO_LARGE.value
    INVALID_REGISTRATION: Final = ErrorCode.INVALID_REGISTRATION.value
    TRANSACTION_ABORTABLE: Final = ErrorCode.TRANSACTION_ABORTABLE.value
    INVALID_RECORD_STATE: Final = ErrorCode.INVALID_RECORD_STATE.value
    SHARE_SESSION_NOT_FOUND: Final = ErrorCode.SHARE_SESSION_NOT_FOUND.value
    INVALID_SHARE_SESSION_EPOCH: Final = ErrorCode.INVALID_SHARE_SESSION_EPOCH.value
    FENCED_STATE_EPOCH: Final = ErrorCode.FENCED_STATE_EPOCH.value
    INVALID_VOTER_KEY: Final = ErrorCode.INVALID_VOTER_KEY.value
    DUPLICATE_VOTER: Final = ErrorCode.DUPLICATE_VOTER.value
    VOTER_NOT_FOUND: Final = ErrorCode.VOTER_NOT_FOUND.value
    INVALID_REGULAR_EXPRESSION: Final = ErrorCode.INVALID_REGULAR_EXPRESSION.value
    REBOOTSTRAP_REQUIRED: Final = ErrorCode.REBOOTSTRAP_REQUIRED.value
    STREAMS_INVALID_TOPOLOGY: Final = ErrorCode.STREAMS_INVALID_TOPOLOGY.value
    STREAMS_INVALID_TOPOLOGY_EPOCH: Final = ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH.value
    STREAMS_TOPOLOGY_FENCED: Final = ErrorCode.STREAMS_TOPOLOGY_FENCED.value
    SHARE_SESSION_LIMIT_REACHED: Final = ErrorCode.SHARE_SESSION_LIMIT_REACHED.value

    __slots__ = ("_code", "_fatal", "_reason", "_retriable", "_txn_requires_abort")

    def __init__(
        self,
        error: int,
        reason: builtins.str | None = None,
        fatal: bool = False,
        retriable: bool = False,
        txn_requires_abort: bool = False,
    ) -> None:
        """
        Args:
                error: the code.
                reason: the text; None: the default text of the code.
                fatal: whether the producer can no longer be used.
                retriable: whether the same operation may succeed later.
                txn_requires_abort: whether the transaction must be aborted.
        """
        self._code = int(error)
        self._reason = reason
        self._fatal = bool(fatal)
        self._retriable = bool(retriable)
        self._txn_requires_abort = bool(txn_requires_abort)

    def code(self) -> int:
        """The code, one of the constants of this class."""
        return self._code

    def name(self) -> builtins.str:
        """The name of the code's constant."""
        return _NAMES.get(self._code, f"ERR_{self._code}?")

    def str(self) -> builtins.str:
        """A description of the error."""
        return text_of(self._code) if self._reason is None else self._reason

    def fatal(self) -> bool:
        """Whether the producer can no longer be used."""
        return self._fatal

    def retriable(self) -> bool:
        """Whether the same operation may succeed later."""
        return self._retriable

    def txn_requires_abort(self) -> bool:
        """Whether the transaction must be aborted."""
        return self._txn_requires_abort

    def __eq__(self, other: object) -> bool:
        code = _code(other)
        return NotImplemented if code is None else self._code == code

    def __lt__(self, other: object) -> bool:
        code = _code(other)
        return NotImplemented if code is None else self._code < code

    def __hash__(self) -> int:
        return self._code

    def __repr__(self) -> builtins.str:
        fatal = "FATAL," if self._fatal else ""
        return f'KafkaError{{{fatal}code={self.name()},val={self._code},str="{self.str()}"}}'

    def __reduce__(self) -> tuple[Any, ...]:
        return KafkaError, (
            self._code,
            self._reason,
            self._fatal,
            self._retriable,
            self._txn_requires_abort,
        )


_NAMES: Final = {
    value: name
    for name, value in vars(KafkaError).items()
    if isinstance(value, int) and name.strip("_").isupper()
}


def _code(other: object) -> int | None:
    if isinstance(other, int):
        return other
    code = getattr(other, "code", None)
    found = code() if callable(code) else None
    return found if isinstance(found, int) else None


def text_of(code: int) -> str:
    """Returns the text of a code."""
    name = _NAMES.get(code, f"ERR_{code}?")
    if code < -1:
        return f"Local: {_TEXTS.get(name) or name.strip('_').replace('_', ' ').capitalize()}"
    known = errors.kafka_errors.get(code)
    # An unknown broker code has its own class.
    if code == 0 or known is None or issubclass(known, errors.UnrecognizedBrokerError):
        return "Success" if code == 0 else f"Err-{code}?"
    return f"Broker: {known.description or name.replace('_', ' ').capitalize()}"


class _Root(Exception):
    """Only a base: Python can't change the bases of a class whose only base is ``Exception``."""


#: The confluent-kafka modules whose classes are already bases.
_adopted: set[str] = set()

_THEIRS: Final = ("confluent_kafka.cimpl", "confluent_kafka.serialization", "confluent_kafka.error")


class KafkaException(_Root):
    """The exception that methods raise; its only argument is the ``KafkaError``."""

    def __init__(self, *args: Any) -> None:
        # Not super(): the next class may be confluent-kafka's, which takes other arguments.
        Exception.__init__(self, *args)
        for module in _THEIRS:
            if module not in _adopted and module in sys.modules and adopt(KafkaException, module):
                _adopted.add(module)


class SerializationError(KafkaException):
    """A serializer failed."""


class ProduceError(KafkaException):
    """A record was not accepted. ``exception`` is the original exception, ``kafka_message`` is None."""

    def __init__(self, kafka_error: KafkaError, exception: Exception | None = None) -> None:
        KafkaException.__init__(self, kafka_error)
        self.exception = exception
        self.kafka_message = None

    @property
    def code(self) -> int:
        """The code of the ``KafkaError``."""
        code: int = self.args[0].code()
        return code

    @property
    def name(self) -> str:
        """The name of the ``KafkaError``'s code."""
        name: str = self.args[0].name()
        return name


class KeySerializationError(ProduceError, SerializationError):
    """The serializer of the keys raised ``exception``."""

    def __init__(self, exception: Exception | None = None) -> None:
        super().__init__(KafkaError(KafkaError._KEY_SERIALIZATION, str(exception)), exception)


class ValueSerializationError(ProduceError, SerializationError):
    """The serializer of the values raised ``exception``."""

    def __init__(self, exception: Exception | None = None) -> None:
        super().__init__(KafkaError(KafkaError._VALUE_SERIALIZATION, str(exception)), exception)


class PurgedError(errors.KafkaError):
    """The error, inside this package, of a record that ``purge()`` dropped."""


# The first match wins; checked before the codes of brokers.
_CODES: Final = (
    (PurgedError, KafkaError._PURGE_QUEUE),
    (errors.TransactionAbortedError, KafkaError._PURGE_QUEUE),
    (errors.UnknownTopicOrPartitionError, KafkaError._UNKNOWN_PARTITION),
    (errors.SaslAuthenticationFailedError, KafkaError._AUTHENTICATION),
    (errors.KafkaTimeoutError, KafkaError._MSG_TIMED_OUT),
    (errors.TlsError, KafkaError._SSL),
    (errors.NameResolutionError, KafkaError._RESOLVE),
    (errors.KafkaConnectionError, KafkaError._TRANSPORT),
    (errors.ProducerClosedError, KafkaError._DESTROY),
    (errors.IllegalStateError, KafkaError._STATE),
    (errors.KafkaConfigurationError, KafkaError._INVALID_ARG),
    (errors.InvalidTopicError, KafkaError.TOPIC_EXCEPTION),
    (OSError, KafkaError._TRANSPORT),
)


def error_of(cause: BaseException) -> KafkaError:
    """Translates an exception of this package."""
    code = next((code for kind, code in _CODES if isinstance(cause, kind)), None)
    if code == KafkaError._PURGE_QUEUE and getattr(cause, "maybe_written", False):
        code = KafkaError._PURGE_INFLIGHT
    elif code == KafkaError._MSG_TIMED_OUT and isinstance(
        cause.__cause__, errors.UnknownTopicOrPartitionError
    ):
        code = KafkaError._UNKNOWN_TOPIC
    elif code is None:
        errno = cause.errno if isinstance(cause, errors.BrokerResponseError) else None
        code = KafkaError._FAIL if errno is None else errno
    return KafkaError(code, f"{text_of(code)}: {cause}", retriable=bool(getattr(cause, "retriable", False)))


def refusal_of(cause: errors.KafkaError) -> KafkaError:
    """Returns the error of ``produce()`` for a record that was not accepted.

    If its transaction has failed, the error states the required action, not the cause, as in librdkafka.
    """
    if isinstance(cause, errors.AbortableError):
        return KafkaError(
            KafkaError._STATE, f"{text_of(KafkaError._STATE)}: {cause}", txn_requires_abort=True
        )
    if isinstance(cause, errors.ApplicationRecoverableError):
        return KafkaError(KafkaError._FATAL, f"{text_of(KafkaError._FATAL)}: {cause}", fatal=True)
    return error_of(cause)


def transaction_error_of(cause: BaseException, state: State) -> KafkaError:
    """Returns the error of a transactional call.

    Args:
        cause: the exception that the call of ``KafkaProducer`` raised.
        state: the producer's transaction state after the call.
    """
    retriable = isinstance(cause, errors.KafkaTimeoutError)
    fatal = isinstance(cause, errors.ApplicationRecoverableError) or state is State.FATAL_ERROR
    abortable = not fatal and (isinstance(cause, errors.AbortableError) or state is State.ABORTABLE_ERROR)
    first = cause
    if isinstance(cause, errors.TransactionFailedError | errors.TransactionalProducerFailedError):
        first = cause.__cause__ or cause
    if retriable:
        code = KafkaError._TIMED_OUT
    elif isinstance(first, errors.ProducerFencedError | errors.InvalidProducerEpochError):
        code = KafkaError._FENCED
    elif isinstance(first, errors.UnsupportedVersionError):
        code = KafkaError._UNSUPPORTED_FEATURE
    elif isinstance(first, errors.BrokerResponseError) and first.errno is not None:
        code = first.errno
    elif fatal:
        code = KafkaError._FATAL
    elif isinstance(cause, errors.AbortableError):
        # A record was not delivered, for a reason on the client's side.
        code = KafkaError._INCONSISTENT
    else:
        code = error_of(cause).code()
    return KafkaError(code, f"{text_of(code)}: {cause}", fatal, retriable, abortable)
