"""``except`` clauses with kafka-python's classes catch this package's errors, whichever is imported first."""

import json

import pytest

from tests.programs import run_to_exit

PROGRAM = """
import inspect, json, sys
{imports}
import cyproducer.errors as ours

def made(cls):
    try:
        return cls("text")
    except TypeError:
        return None  # its constructor takes more

def caught(error, by):
    try:
        raise error
    except by:
        return True
    except Exception:
        return False

first = made(ours.KafkaTimeoutError)
assert caught(first, ours.KafkaTimeoutError)
found = {{"before": caught(first, theirs.KafkaTimeoutError)}}
for name in dir(ours):
    cls = getattr(ours, name)
    if inspect.isclass(cls) and issubclass(cls, ours.KafkaError) and (error := made(cls)) is not None:
        twin = getattr(theirs, name, None)
        if inspect.isclass(twin) and issubclass(twin, Exception):
            found[name] = caught(error, twin)
        found[f"{{name}} by the root"] = caught(error, theirs.KafkaError) and caught(error, ours.KafkaError)
error = made(ours.NotLeaderForPartitionError)
found["text"] = str(error) == "[Error 6] NotLeaderForPartitionError: text"
found["others"] = not caught(error, theirs.KafkaTimeoutError)
found["below"] = caught(ours.DeliveryTimeoutError("text"), theirs.KafkaTimeoutError)
found["ours alone"] = not caught(theirs.KafkaTimeoutError("text"), ours.KafkaError)
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import kafka.errors as theirs\nimport cyproducer",
        "import cyproducer\nimport kafka.errors as theirs",
        # An error was made before.
        "import cyproducer\ncyproducer.errors.KafkaError()\nimport kafka.errors as theirs",
    ],
    ids=["theirs first", "ours first", "between"],
)
@pytest.mark.slow
def test_kafka_pythons_classes_catch_ours(imports: str) -> None:
    done = run_to_exit(PROGRAM.format(imports=imports))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) > 250
    assert [name for name, caught in found.items() if not caught] == []


def test_classes_that_are_imported_later_are_caught_too() -> None:
    done = run_to_exit(
        "import kafka.errors, sys, cyproducer\n"
        "cyproducer.errors.KafkaTimeoutError('text')\n"
        "print('cyproducer.errors.other_codes' in sys.modules)\n"
        "try:\n"
        "    raise cyproducer.errors.for_code(22)('text')\n"
        "except kafka.errors.IllegalGenerationError as error:\n"
        "    print(error)"
    )
    assert done.stdout.splitlines() == ["False", "[Error 22] IllegalGenerationError: text"], done.stderr


def test_kafka_python_is_not_imported() -> None:
    done = run_to_exit(
        "import sys, cyproducer\n"
        "cyproducer.errors.KafkaTimeoutError('text')\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'kafka'])\n"
        "print(len(cyproducer.errors.KafkaError.__bases__))"
    )
    assert done.stdout.splitlines() == ["[]", "1"]


def test_another_module_of_that_name_changes_nothing() -> None:
    done = run_to_exit(
        "import sys, types, cyproducer\n"
        "sys.modules['kafka.errors'] = other = types.ModuleType('kafka.errors')\n"
        "other.KafkaTimeoutError = other.KafkaError = 'no class'\n"
        "print(str(cyproducer.errors.KafkaTimeoutError('text')))\n"
        "print(len(cyproducer.errors.KafkaError.__bases__))"
    )
    assert done.stdout.splitlines() == ["KafkaTimeoutError: text", "1"]
