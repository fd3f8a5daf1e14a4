"""The exception tree: kafka-python's names and hierarchy, Kafka's codes, and the behaviour of errors."""

import copy
import inspect
import pickle
import subprocess
import sys
import threading

import pytest

from cyproducer import errors
from cyproducer.errors import (
    BrokerResponseError,
    InvalidMetadataError,
    KafkaError,
    RecordTooLargeError,
    RetriableError,
    UnrecognizedBrokerError,
    for_code,
    other_codes,
)
from cyproducer.errors import codes as error_codes
from cyproducer.errors.error_code import ErrorCode
from tests.programs import run_to_exit
from tools.harness.until import Running

# Code, name of the code, retriable: the error table of the Kafka protocol guide, 4.1. The names of
# 0, 6, 10, 17, 39 and -1 are kafka-python's, which kept the older ones.
PROTOCOL_RETRIABLE = {
    *(2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89),
    *(100, 103, 106, 122, 123, 133),
}
NEEDS_METADATA = {3, 5, 6, 9, 13, 56, 72, 74, 75, 80, 83, 84, 100, 103}
AUTHORIZATION = {29, 30, 31, 53, 65}
NAMES = {
    -1: ("UnknownError", "UNKNOWN"),
    0: ("NoError", "NO_ERROR"),
    2: ("CorruptRecordError", "CORRUPT_MESSAGE"),
    3: ("UnknownTopicOrPartitionError", "UNKNOWN_TOPIC_OR_PARTITION"),
    4: ("InvalidFetchRequestError", "INVALID_FETCH_SIZE"),
    6: ("NotLeaderForPartitionError", "NOT_LEADER_FOR_PARTITION"),
    7: ("RequestTimedOutError", "REQUEST_TIMED_OUT"),
    10: ("MessageSizeTooLargeError", "MESSAGE_SIZE_TOO_LARGE"),
    17: ("InvalidTopicError", "INVALID_TOPIC"),
    18: ("RecordListTooLargeError", "RECORD_LIST_TOO_LARGE"),
    20: ("NotEnoughReplicasAfterAppendError", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"),
    29: ("TopicAuthorizationFailedError", "TOPIC_AUTHORIZATION_FAILED"),
    39: ("InvalidReplicationAssignmentError", "INVALID_REPLICATION_ASSIGNMENT"),
    40: ("InvalidConfigurationError", "INVALID_CONFIG"),
    45: ("OutOfOrderSequenceNumberError", "OUT_OF_ORDER_SEQUENCE_NUMBER"),
    46: ("DuplicateSequenceNumberError", "DUPLICATE_SEQUENCE_NUMBER"),
    47: ("InvalidProducerEpochError", "INVALID_PRODUCER_EPOCH"),
    56: ("KafkaStorageError", "KAFKA_STORAGE_ERROR"),
    59: ("UnknownProducerIdError", "UNKNOWN_PRODUCER_ID"),
    90: ("ProducerFencedError", "PRODUCER_FENCED"),
    100: ("UnknownTopicIdError", "UNKNOWN_TOPIC_ID"),
    106: ("FetchSessionTopicIdError", "FETCH_SESSION_TOPIC_ID_ERROR"),
    120: ("TransactionAbortableError", "TRANSACTION_ABORTABLE"),
    128: ("InvalidRegularExpressionError", "INVALID_REGULAR_EXPRESSION"),
    129: ("RebootstrapRequiredError", "REBOOTSTRAP_REQUIRED"),
    130: ("StreamsInvalidTopologyError", "STREAMS_INVALID_TOPOLOGY"),
    131: ("StreamsInvalidTopologyEpochError", "STREAMS_INVALID_TOPOLOGY_EPOCH"),
    132: ("StreamsTopologyFencedError", "STREAMS_TOPOLOGY_FENCED"),
    133: ("ShareSessionLimitReachedError", "SHARE_SESSION_LIMIT_REACHED"),
}
KNOWN_CODES = range(-1, 134)

# Class -> base classes that also catch it in an ``except``.
CLIENT_TREE = {
    "Cancelled": ("RetriableError",),
    "CommitFailedError": ("KafkaError",),
    "CorrelationIdError": ("RetriableError", "KafkaProtocolError"),
    "IllegalArgumentError": ("KafkaError",),
    "IllegalStateError": ("KafkaError",),
    "IncompatibleBrokerVersion": ("UnsupportedVersionError",),
    "InvalidReceiveError": ("KafkaProtocolError",),
    "KafkaConfigurationError": ("KafkaError",),
    "KafkaConnectionError": ("InvalidMetadataError",),
    "KafkaProtocolError": ("KafkaError",),
    "KafkaTimeoutError": ("RetriableError",),
    "MetadataEmptyBrokerList": ("RetriableError",),
    "NodeNotReadyError": ("RetriableError",),
    "QuotaViolationError": ("KafkaError",),
    "StaleMetadata": ("InvalidMetadataError",),
    "TooManyInFlightRequests": ("RetriableError",),
    "TransactionAbortedError": ("KafkaError",),
    "UnknownBrokerIdError": ("KafkaError",),
    "UnrecognizedBrokerVersion": ("KafkaError",),
    "UnsupportedCodecError": ("KafkaError",),
    "NoBrokersAvailable": ("KafkaConnectionError",),
    "BufferExhaustedError": ("KafkaTimeoutError",),
    "DeliveryTimeoutError": ("KafkaTimeoutError",),
    "RecordTooLargeError": ("MessageSizeTooLargeError",),
    "SerializationError": ("KafkaError",),
    "ProducerClosedError": ("IllegalStateError",),
    "BrokerProtocolError": ("KafkaConnectionError",),
    "NameResolutionError": ("KafkaConnectionError",),
}
# Raised only by consumers.
CONSUMER_ONLY = {"NoOffsetForPartitionError", "LogTruncationError"}


def every_class() -> list[type[KafkaError]]:
    return [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, KafkaError)]


@pytest.mark.parametrize("name", CLIENT_TREE)
def test_a_client_error_has_kafka_pythons_base_classes(name: str) -> None:
    for parent in CLIENT_TREE[name]:
        assert issubclass(getattr(errors, name), getattr(errors, parent))


def test_an_error_is_retriable_exactly_if_its_class_is() -> None:
    for cls in every_class():
        if cls not in errors.kafka_errors.values():
            assert cls.retriable is issubclass(cls, RetriableError), cls
            assert cls.invalid_metadata is issubclass(cls, InvalidMetadataError), cls


def test_a_configuration_error_is_also_a_value_error() -> None:
    with pytest.raises(ValueError, match="no such option"):
        raise errors.KafkaConfigurationError("no such option")


def test_there_is_one_class_for_each_code_of_the_protocol() -> None:
    classes = [for_code(code) for code in KNOWN_CODES]
    assert len(set(classes)) == len(KNOWN_CODES)
    for code, cls in zip(KNOWN_CODES, classes, strict=True):
        assert cls.errno == code
        assert cls.__module__ in {error_codes.__name__, other_codes.__name__}
        assert getattr(errors, cls.__name__) is cls
        assert cls.__doc__ == cls.description
        assert cls.description


@pytest.mark.parametrize("code", NAMES)
def test_code_has_kafka_pythons_class_and_message(code: int) -> None:
    cls = for_code(code)
    assert (cls.__name__, cls.message) == NAMES[code]


def test_retriable_codes_are_those_of_the_protocol_guide() -> None:
    assert {code for code in KNOWN_CODES if for_code(code).retriable} == PROTOCOL_RETRIABLE
    assert {code for code in KNOWN_CODES if issubclass(for_code(code), RetriableError)} == PROTOCOL_RETRIABLE


def test_codes_that_need_fresh_metadata_are_marked() -> None:
    assert {code for code in KNOWN_CODES if for_code(code).invalid_metadata} == NEEDS_METADATA
    assert {c for c in KNOWN_CODES if issubclass(for_code(c), InvalidMetadataError)} == NEEDS_METADATA


def test_authorization_codes_have_a_common_base_class() -> None:
    assert {c for c in KNOWN_CODES if issubclass(for_code(c), errors.AuthorizationError)} == AUTHORIZATION


def test_tree_agrees_with_the_installed_kafka_python() -> None:
    theirs = pytest.importorskip("kafka.errors")
    for name, cls in inspect.getmembers(theirs, inspect.isclass):
        if name in CONSUMER_ONLY:
            continue
        ours = getattr(errors, name)
        assert {base.__name__ for base in cls.__mro__} <= {base.__name__ for base in ours.__mro__}, name
        if issubclass(cls, theirs.BrokerResponseError):
            assert [getattr(cls, key) for key in ("errno", "message")] == [ours.errno, ours.message], name


def test_one_code_cannot_have_two_classes() -> None:
    with pytest.raises(TypeError, match="error code 6 already belongs to NotLeaderForPartitionError"):
        type("Another", (BrokerResponseError,), {}, code=ErrorCode.NOT_LEADER_FOR_PARTITION)


def test_an_unknown_code_gets_one_permanent_class() -> None:
    cls = for_code(7001)
    assert for_code(7001) is cls
    assert issubclass(cls, UnrecognizedBrokerError)
    assert (cls.errno, cls.retriable, cls.__name__) == (7001, False, "UnrecognizedBrokerError")
    assert for_code(7002) is not cls
    assert str(cls()).startswith("[Error 7001] UnrecognizedBrokerError: ")


def test_threads_that_look_up_an_unknown_code_at_once_get_one_class() -> None:
    codes = range(8000, 8200)
    barrier = threading.Barrier(4)

    def look_up() -> list[type[BrokerResponseError]]:
        barrier.wait()
        return [for_code(code) for code in codes]

    calls = [Running(look_up) for _ in range(4)]
    first, *others = [call.outcome() for call in calls]
    assert others == [first] * 3


def test_text_of_a_client_error_is_its_class_and_arguments() -> None:
    assert str(errors.KafkaTimeoutError()) == "KafkaTimeoutError"
    assert str(errors.KafkaTimeoutError("no metadata", 5)) == "KafkaTimeoutError: no metadata, 5"


def test_text_of_a_broker_error_has_the_code_and_the_reason() -> None:
    text = str(errors.NotLeaderForPartitionError())
    assert text == f"[Error 6] NotLeaderForPartitionError: {errors.NotLeaderForPartitionError.description}"
    assert str(errors.NotLeaderForPartitionError("t-0")) == "[Error 6] NotLeaderForPartitionError: t-0"
    assert str(BrokerResponseError()) == "[Error None] BrokerResponseError"


def test_errors_are_equal_by_class_and_arguments_and_hashable_with_any_arguments() -> None:
    error = errors.KafkaTimeoutError([1])
    assert error == errors.KafkaTimeoutError([1])
    assert error != errors.KafkaTimeoutError([2])
    assert error != errors.BufferExhaustedError([1])
    assert error != "KafkaTimeoutError: [1]"
    assert len({error, errors.KafkaTimeoutError([1]), errors.KafkaTimeoutError([2])}) == 2


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_survives_pickling_with_its_attributes(protocol: int) -> None:
    for cls in every_class():
        error = cls("what", 3)
        error.partition = 7  # type: ignore[attr-defined]
        again = pickle.loads(pickle.dumps(error, protocol))
        assert again == error
        assert again.partition == 7


def test_an_error_of_an_unknown_code_survives_pickling_into_another_process() -> None:
    error = for_code(7003)("the broker said so")
    error.partition = 7  # type: ignore[attr-defined]
    program = "import pickle, sys; e = pickle.load(sys.stdin.buffer); print(e, e.partition)"
    done = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(error), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == "[Error 7003] UnrecognizedBrokerError: the broker said so 7"
    assert type(copy.copy(error)) is for_code(7003)


def test_each_class_of_kip_1050_catches_what_it_says() -> None:
    """As written in an ``except`` clause: with the name that ``cyproducer.errors`` exports."""
    groups: dict[type[Exception], set[int]] = {
        errors.AbortableError: {120},
        errors.ApplicationRecoverableError: {47, 49, 90},
        # Rights, versions, the timeout of transactions.
        errors.InvalidSetupError: {29, 30, 31, 35, 50, 53, 65},
    }
    for group, codes in groups.items():
        assert {code for code in range(-1, 134) if issubclass(for_code(code), group)} == codes
    assert issubclass(errors.AuthorizationError, errors.InvalidSetupError)
    assert (errors.AuthorizationError.errno, errors.AuthorizationError.message) == (None, None)
    assert str(errors.AuthorizationError()) == "[Error None] AuthorizationError"
    assert issubclass(errors.TransactionFailedError, errors.AbortableError)
    assert issubclass(errors.TransactionalProducerFailedError, errors.ApplicationRecoverableError)


def test_record_too_large_names_both_sizes_and_the_option() -> None:
    error = RecordTooLargeError(record_size=2_000_000, limit=1_048_576)
    text = "RecordTooLargeError: the record takes 2000000 bytes, max_request_size allows 1048576"
    assert str(error) == text
    assert (error.record_size, error.limit, error.option) == (2_000_000, 1_048_576, "max_request_size")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.record_size, again.limit) == (text, 2_000_000, 1_048_576)
    assert "buffer_memory" in str(RecordTooLargeError(record_size=2, limit=1, option="buffer_memory"))
    assert for_code(10) is errors.MessageSizeTooLargeError


def test_commit_failed_has_a_default_reason() -> None:
    assert "another member" in str(errors.CommitFailedError())
    assert str(errors.CommitFailedError("late")) == "CommitFailedError: late"


@pytest.mark.parametrize(
    "program",
    [
        "from cyproducer import errors; print(errors.IllegalGenerationError.errno)",
        "from cyproducer.errors import IllegalGenerationError; print(IllegalGenerationError.errno)",
        "from cyproducer.errors import *; print(IllegalGenerationError.errno)",
        "from cyproducer import errors; print(errors.for_code(22).errno)",
        "from cyproducer import errors; print(errors.kafka_errors[22].errno)",
        "from cyproducer import errors; print(22 if 'IllegalGenerationError' in dir(errors) else 0)",
        "import cyproducer, pickle; print(pickle.loads(PICKLED).errno)",
    ],
    ids=["attribute", "import", "star", "code", "register", "dir", "pickle"],
)
def test_errors_that_producers_do_not_get_are_imported_when_they_are_used(program: str) -> None:
    pickled = repr(pickle.dumps(errors.IllegalGenerationError("text")))
    done = run_to_exit(
        "import sys, cyproducer; before = 'cyproducer.errors.other_codes' in sys.modules\n"
        + program.replace("PICKLED", pickled)
        + "\nprint(before)"
    )
    assert done.stdout.splitlines() == ["22", "False"], done.stderr


def test_a_name_that_no_error_has_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'cyproducer\.errors' has no attribute 'NoSuchError'"):
        errors.NoSuchError  # type: ignore[attr-defined]  # noqa: B018
