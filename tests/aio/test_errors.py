"""aiokafka's names of errors, and ``except`` clauses with aiokafka's classes, whichever is imported first."""

import inspect
import json

import aiokafka.errors as theirs  # type: ignore[import-untyped]
import pytest

from cyproducer.aio import errors
from tests.programs import run_to_exit

OF_CONSUMERS = {
    "AuthenticationFailedError",
    "AuthenticationMethodNotSupported",
    "ConsumerStoppedError",
    "KafkaUnavailableError",
    "NoOffsetForPartitionError",
}
"""No producer raises these, aiokafka's neither."""

THEIRS = {
    name: cls
    for name, cls in vars(theirs).items()
    if inspect.isclass(cls) and issubclass(cls, Exception) and cls.__module__ == theirs.__name__
}

PROGRAM = """
import inspect, json, sys
{imports}
import cyproducer.aio.errors as ours

def caught(error, by):
    try:
        raise error
    except by:
        return True
    except Exception:
        return False

found = {{}}
for name in {names}:
    error = getattr(ours, name)("text")
    found[name] = caught(error, getattr(theirs, name)) and caught(error, theirs.KafkaError)
    found[f"{{name}} by ours"] = caught(error, getattr(ours, name)) and caught(error, ours.KafkaError)
    if "kafka.errors" in sys.modules:
        found[f"{{name}} by kafka-python's"] = caught(error, sys.modules["kafka.errors"].KafkaError)
error = ours.NotLeaderForPartitionError("text")
found["text"] = str(error) == "[Error 6] NotLeaderForPartitionError: text"
found["retriable"] = error.retriable is True and error.invalid_metadata is True
found["text of its own"] = str(ours.CommitFailedError("late")) == "CommitFailedError: late"
found["others"] = not caught(error, theirs.KafkaTimeoutError)
found["below"] = caught(ours.DeliveryTimeoutError("text"), theirs.KafkaTimeoutError)
found["no brokers"] = caught(ours.NoBrokersAvailable("text"), theirs.KafkaConnectionError)
found["too large"] = caught(ours.RecordTooLargeError("text"), theirs.MessageSizeTooLargeError)
found["fenced"] = caught(ours.InvalidProducerEpoch("text"), theirs.ProducerFenced)
found["out of order"] = caught(ours.IllegalStateError("text"), theirs.IllegalStateError)
print(json.dumps(found))
"""


def test_every_name_of_a_producers_error_can_be_imported() -> None:
    missing = {name for name in THEIRS if not hasattr(errors, name)}
    assert missing == OF_CONSUMERS
    for name, cls in THEIRS.items():
        code = vars(cls).get("errno")
        if code is not None and hasattr(errors, name):
            assert getattr(errors, name).errno == code, name


@pytest.mark.parametrize(
    "imports",
    [
        "import aiokafka.errors as theirs\nimport cyproducer",
        "import cyproducer\nimport aiokafka.errors as theirs",
        "import cyproducer\ncyproducer.errors.KafkaError()\nimport aiokafka.errors as theirs",
        "import aiokafka.errors as theirs\nimport cyproducer\nimport kafka.errors",
        "import kafka.errors, cyproducer\ncyproducer.errors.KafkaError()\nimport aiokafka.errors as theirs",
    ],
    ids=["theirs first", "ours first", "between", "kafka-python last", "kafka-python first"],
)
@pytest.mark.slow
def test_aiokafkas_classes_catch_ours(imports: str) -> None:
    names = sorted(THEIRS.keys() - OF_CONSUMERS - {"CommitFailedError"})
    done = run_to_exit(PROGRAM.format(imports=imports, names=names))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) > 180
    assert [name for name, caught in found.items() if not caught] == []


def test_aiokafka_is_not_imported() -> None:
    done = run_to_exit(
        "import sys, cyproducer.aio\n"
        "cyproducer.aio.errors.KafkaTimeoutError('text')\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'aiokafka'])\n"
        "print(len(cyproducer.aio.errors.KafkaError.__bases__))"
    )
    assert done.stdout.splitlines() == ["[]", "1"]
