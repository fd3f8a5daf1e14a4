"""One cause, such as a connection that broke, of batches of which different things are known."""

import pytest

from cyproducer.control.batch_fate import Failure
from cyproducer.errors import KafkaConnectionError
from cyproducer.errors.base import told
from tests.control.test_batch_fate import NOW_MS, Case


def test_each_batch_has_an_error_of_its_own_that_says_what_is_known_of_it() -> None:
    case = Case(retries=0)
    cause = KafkaConnectionError("the connection broke")
    failure = Failure(0, None, cause)
    errors = [
        case.policy.decide(case.batch(), failure, written, NOW_MS).verdict.error
        for written in (True, False, True)
    ]
    assert [getattr(error, "maybe_written", None) for error in errors] == [True, False, True]
    assert len({id(error) for error in (cause, *errors)}) == 4
    assert cause.maybe_written is None
    assert [str(error) for error in errors] == [str(cause)] * 3


def test_a_copy_has_the_cause_and_the_fields_of_the_original_and_no_traceback() -> None:
    with pytest.raises(OSError, match="reset") as caught:
        raise OSError(104, "Connection reset by peer", "socket") from LookupError("why")
    error = caught.value
    error.add_note("noted")
    copy = told(error, False)
    assert isinstance(copy, OSError)
    assert (copy.errno, copy.strerror, copy.filename) == (104, "Connection reset by peer", "socket")
    assert copy.__cause__ is error.__cause__
    assert copy.__notes__ == ["noted"]
    assert copy.__traceback__ is None
    assert error.__traceback__ is not None
    assert "maybe_written" not in vars(error)
