"""librdkafka's codes, and the exceptions of ``cyproducer.confluent``."""

import pickle
import subprocess
import sys

import pytest

from cyproducer import errors
from cyproducer.confluent import (
    KafkaError,
    KafkaException,
    KeySerializationError,
    ProduceError,
    SerializationError,
    ValueSerializationError,
)
from cyproducer.confluent.errors import error_of


def test_the_codes_are_librdkafka_s() -> None:
    kafka = pytest.importorskip("confluent_kafka")
    theirs = {
        name: value
        for name in dir(kafka.KafkaError)
        if isinstance(value := getattr(kafka.KafkaError, name), int) and not name.startswith("__")
    }
    ours = {name: value for name, value in vars(KafkaError).items() if isinstance(value, int)}
    # An older librdkafka has not all of them.
    assert len(theirs) > 150
    assert theirs.items() <= ours.items()
    for value in theirs.values():
        assert KafkaError(value).name() == kafka.KafkaError(value).name()


def test_an_error_compares_by_its_code() -> None:
    error = KafkaError(KafkaError._MSG_TIMED_OUT)
    assert error == KafkaError._MSG_TIMED_OUT
    assert error == KafkaError(KafkaError._MSG_TIMED_OUT, "late")
    assert error != KafkaError(KafkaError._FAIL)
    assert error != "late"
    assert error < KafkaError.NO_ERROR
    assert error <= error
    assert KafkaError(1) > error
    assert KafkaError(1) >= 1
    assert len({error, KafkaError(KafkaError._MSG_TIMED_OUT)}) == 1
    with pytest.raises(TypeError):
        assert error < "late"


def test_an_error_in_words() -> None:
    assert str(KafkaError(-192, "late")) == 'KafkaError{code=_MSG_TIMED_OUT,val=-192,str="late"}'
    assert repr(KafkaError(0, fatal=True)) == 'KafkaError{FATAL,code=NO_ERROR,val=0,str="Success"}'
    assert KafkaError(KafkaError._ALL_BROKERS_DOWN).str() == "Local: All broker connections are down"
    assert KafkaError(KafkaError._WAIT_CACHE).str() == "Local: Wait cache"
    assert KafkaError(3).str().startswith("Broker: ")
    for _ in range(2):
        assert (KafkaError(12345).name(), KafkaError(12345).str()) == ("ERR_12345?", "Err-12345?")
        # Now this package has a class for it.
        assert issubclass(errors.for_code(12345), errors.UnrecognizedBrokerError)


def test_an_error_is_pickled_with_its_flags() -> None:
    error = pickle.loads(pickle.dumps(KafkaError(1, "text", True, True, True)))
    assert (error.code(), error.str()) == (1, "text")
    assert (error.fatal(), error.retriable(), error.txn_requires_abort()) == (True, True, True)


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (errors.DeliveryTimeoutError("late"), KafkaError._MSG_TIMED_OUT),
        (errors.TlsError("tls"), KafkaError._SSL),
        (errors.NameResolutionError("dns"), KafkaError._RESOLVE),
        (errors.NoBrokersAvailable("none"), KafkaError._TRANSPORT),
        (errors.SaslAuthenticationFailedError("no"), KafkaError._AUTHENTICATION),
        (errors.TopicAuthorizationFailedError("no"), KafkaError.TOPIC_AUTHORIZATION_FAILED),
        (errors.RecordTooLargeError(record_size=2, limit=1), KafkaError.MSG_SIZE_TOO_LARGE),
        (errors.ProducerClosedError("closed"), KafkaError._DESTROY),
        (errors.IllegalStateError("not now"), KafkaError._STATE),
        (errors.TransactionAbortedError("aborted"), KafkaError._PURGE_QUEUE),
        (errors.told(errors.TransactionAbortedError("aborted"), True), KafkaError._PURGE_INFLIGHT),
        (errors.KafkaConfigurationError("bad"), KafkaError._INVALID_ARG),
        (ConnectionResetError("reset"), KafkaError._TRANSPORT),
        (RuntimeError("else"), KafkaError._FAIL),
    ],
)
def test_what_an_exception_becomes(cause: BaseException, code: int) -> None:
    error = error_of(cause)
    assert error.code() == code
    assert str(cause) in error.str()
    assert error.retriable() is bool(getattr(cause, "retriable", False))


def test_errors_of_serializers_have_their_cause() -> None:
    cause = ValueError("no such field")
    for kind, code in (
        (KeySerializationError, KafkaError._KEY_SERIALIZATION),
        (ValueSerializationError, KafkaError._VALUE_SERIALIZATION),
    ):
        error = kind(cause)
        assert isinstance(error, ProduceError)
        assert isinstance(error, SerializationError)
        assert isinstance(error, KafkaException)
        assert (error.code, error.exception, error.args[0].str()) == (code, cause, "no such field")
        assert error.name.endswith("_SERIALIZATION")


PROGRAM = """
import sys
from cyproducer.confluent import KafkaError, KafkaException, ValueSerializationError
assert "confluent_kafka" not in sys.modules
try:
    raise KafkaException(KafkaError(1))
except KafkaException:
    pass
import confluent_kafka, confluent_kafka.error
for ours, theirs in (
    (KafkaException(KafkaError(1)), confluent_kafka.KafkaException),
    (ValueSerializationError(ValueError("x")), confluent_kafka.error.ValueSerializationError),
    (ValueSerializationError(ValueError("x")), confluent_kafka.KafkaException),
):
    try:
        raise ours
    except theirs as error:
        assert error.args[0].code() in (1, KafkaError._VALUE_SERIALIZATION)
print("caught")
"""


@pytest.mark.slow
def test_an_except_clause_of_confluent_kafka_catches_these() -> None:
    pytest.importorskip("confluent_kafka")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("caught\n", "")
