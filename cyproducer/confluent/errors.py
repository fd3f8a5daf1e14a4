"""librdkafka's error codes, and the exceptions and error objects of confluent-kafka's API.

Owns ``KafkaError``, ``KafkaException`` with its subclasses, and the translation of this package's exceptions.
Works without confluent-kafka; if the application imports it as well, ``except
confluent_kafka.KafkaException`` catches these (``cyproducer.errors.other_clients``). Immutable; any thread
may call.
"""

import builtins
import sys
from typing import Any, Final

from cyproducer import errors
from cyproducer.control.transaction_calls import State
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
    UNKNOWN: Final = -1
    NO_ERROR: Final = 0
    OFFSET_OUT_OF_RANGE: Final = 1
    INVALID_MSG: Final = 2
    UNKNOWN_TOPIC_OR_PART: Final = 3
    INVALID_MSG_SIZE: Final = 4
    LEADER_NOT_AVAILABLE: Final = 5
    NOT_LEADER_FOR_PARTITION: Final = 6
    REQUEST_TIMED_OUT: Final = 7
    BROKER_NOT_AVAILABLE: Final = 8
    REPLICA_NOT_AVAILABLE: Final = 9
    MSG_SIZE_TOO_LARGE: Final = 10
    STALE_CTRL_EPOCH: Final = 11
    OFFSET_METADATA_TOO_LARGE: Final = 12
    NETWORK_EXCEPTION: Final = 13
    COORDINATOR_LOAD_IN_PROGRESS: Final = 14
    COORDINATOR_NOT_AVAILABLE: Final = 15
    NOT_COORDINATOR: Final = 16
    TOPIC_EXCEPTION: Final = 17
    RECORD_LIST_TOO_LARGE: Final = 18
    NOT_ENOUGH_REPLICAS: Final = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND: Final = 20
    INVALID_REQUIRED_ACKS: Final = 21
    ILLEGAL_GENERATION: Final = 22
    INCONSISTENT_GROUP_PROTOCOL: Final = 23
    INVALID_GROUP_ID: Final = 24
    UNKNOWN_MEMBER_ID: Final = 25
    INVALID_SESSION_TIMEOUT: Final = 26
    REBALANCE_IN_PROGRESS: Final = 27
    INVALID_COMMIT_OFFSET_SIZE: Final = 28
    TOPIC_AUTHORIZATION_FAILED: Final = 29
    GROUP_AUTHORIZATION_FAILED: Final = 30
    CLUSTER_AUTHORIZATION_FAILED: Final = 31
    INVALID_TIMESTAMP: Final = 32
    UNSUPPORTED_SASL_MECHANISM: Final = 33
    ILLEGAL_SASL_STATE: Final = 34
    UNSUPPORTED_VERSION: Final = 35
    TOPIC_ALREADY_EXISTS: Final = 36
    INVALID_PARTITIONS: Final = 37
    INVALID_REPLICATION_FACTOR: Final = 38
    INVALID_REPLICA_ASSIGNMENT: Final = 39
    INVALID_CONFIG: Final = 40
    NOT_CONTROLLER: Final = 41
    INVALID_REQUEST: Final = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT: Final = 43
    POLICY_VIOLATION: Final = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
    DUPLICATE_SEQUENCE_NUMBER: Final = 46
    INVALID_PRODUCER_EPOCH: Final = 47
    INVALID_TXN_STATE: Final = 48
    INVALID_PRODUCER_ID_MAPPING: Final = 49
    INVALID_TRANSACTION_TIMEOUT: Final = 50
    CONCURRENT_TRANSACTIONS: Final = 51
    TRANSACTION_COORDINATOR_FENCED: Final = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
    SECURITY_DISABLED: Final = 54
    OPERATION_NOT_ATTEMPTED: Final = 55
    KAFKA_STORAGE_ERROR: Final = 56
    LOG_DIR_NOT_FOUND: Final = 57
    SASL_AUTHENTICATION_FAILED: Final = 58
    UNKNOWN_PRODUCER_ID: Final = 59
    REASSIGNMENT_IN_PROGRESS: Final = 60
    DELEGATION_TOKEN_AUTH_DISABLED: Final = 61
    DELEGATION_TOKEN_NOT_FOUND: Final = 62
    DELEGATION_TOKEN_OWNER_MISMATCH: Final = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: Final = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED: Final = 65
    DELEGATION_TOKEN_EXPIRED: Final = 66
    INVALID_PRINCIPAL_TYPE: Final = 67
    NON_EMPTY_GROUP: Final = 68
    GROUP_ID_NOT_FOUND: Final = 69
    FETCH_SESSION_ID_NOT_FOUND: Final = 70
    INVALID_FETCH_SESSION_EPOCH: Final = 71
    LISTENER_NOT_FOUND: Final = 72
    TOPIC_DELETION_DISABLED: Final = 73
    FENCED_LEADER_EPOCH: Final = 74
    UNKNOWN_LEADER_EPOCH: Final = 75
    UNSUPPORTED_COMPRESSION_TYPE: Final = 76
    STALE_BROKER_EPOCH: Final = 77
    OFFSET_NOT_AVAILABLE: Final = 78
    MEMBER_ID_REQUIRED: Final = 79
    PREFERRED_LEADER_NOT_AVAILABLE: Final = 80
    GROUP_MAX_SIZE_REACHED: Final = 81
    FENCED_INSTANCE_ID: Final = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE: Final = 83
    ELECTION_NOT_NEEDED: Final = 84
    NO_REASSIGNMENT_IN_PROGRESS: Final = 85
    GROUP_SUBSCRIBED_TO_TOPIC: Final = 86
    INVALID_RECORD: Final = 87
    UNSTABLE_OFFSET_COMMIT: Final = 88
    THROTTLING_QUOTA_EXCEEDED: Final = 89
    PRODUCER_FENCED: Final = 90
    RESOURCE_NOT_FOUND: Final = 91
    DUPLICATE_RESOURCE: Final = 92
    UNACCEPTABLE_CREDENTIAL: Final = 93
    INCONSISTENT_VOTER_SET: Final = 94
    INVALID_UPDATE_VERSION: Final = 95
    FEATURE_UPDATE_FAILED: Final = 96
    PRINCIPAL_DESERIALIZATION_FAILURE: Final = 97
    UNKNOWN_TOPIC_ID: Final = 100
    INCONSISTENT_TOPIC_ID: Final = 103
    FENCED_MEMBER_EPOCH: Final = 110
    UNRELEASED_INSTANCE_ID: Final = 111
    UNSUPPORTED_ASSIGNOR: Final = 112
    STALE_MEMBER_EPOCH: Final = 113
    MISMATCHED_ENDPOINT_TYPE: Final = 114
    UNSUPPORTED_ENDPOINT_TYPE: Final = 115
    UNKNOWN_CONTROLLER_ID: Final = 116
    UNKNOWN_SUBSCRIPTION_ID: Final = 117
    TELEMETRY_TOO_LARGE: Final = 118
    INVALID_REGISTRATION: Final = 119
    TRANSACTION_ABORTABLE: Final = 120
    INVALID_RECORD_STATE: Final = 121
    SHARE_SESSION_NOT_FOUND: Final = 122
    INVALID_SHARE_SESSION_EPOCH: Final = 123
    FENCED_STATE_EPOCH: Final = 124
    INVALID_VOTER_KEY: Final = 125
    DUPLICATE_VOTER: Final = 126
    VOTER_NOT_FOUND: Final = 127
    INVALID_REGULAR_EXPRESSION: Final = 128
    REBOOTSTRAP_REQUIRED: Final = 129
    STREAMS_INVALID_TOPOLOGY: Final = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH: Final = 131
    STREAMS_TOPOLOGY_FENCED: Final = 132
    SHARE_SESSION_LIMIT_REACHED: Final = 133

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

    def __le__(self, other: object) -> bool:
        code = _code(other)
        return NotImplemented if code is None else self._code <= code

    def __gt__(self, other: object) -> bool:
        code = _code(other)
        return NotImplemented if code is None else self._code > code

    def __ge__(self, other: object) -> bool:
        code = _code(other)
        return NotImplemented if code is None else self._code >= code

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
