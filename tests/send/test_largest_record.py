"""The largest record that ``max_request_size`` allows, to the byte."""

from cyproducer.errors import RecordTooLargeError
from tools.harness.rig import Rig

LIMIT = 2000


def test_a_record_of_exactly_the_limit_is_accepted_and_the_next_byte_is_not() -> None:
    with Rig({"t": [1]}, max_request_size=LIMIT, batch_size=LIMIT) as rig:
        for size in range(LIMIT - 100, LIMIT):
            future = rig.send("t", bytes(size))
            if future.is_done:
                break
            rig.answer_all()
            assert future.succeeded()
        assert isinstance(future.exception, RecordTooLargeError)
        assert (future.exception.record_size, future.exception.limit) == (LIMIT + 1, LIMIT)
