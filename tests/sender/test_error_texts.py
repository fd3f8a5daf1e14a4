"""Texts of Produce responses: what is not UTF-8 ends neither the sender nor a connection, and a record
without a text has that of its batch."""

import pytest

from cyproducer import errors
from tools.harness.reference_records import PartitionResponse
from tools.harness.rig import Rig

INVALID_RECORD = 87


@pytest.mark.parametrize("of_record", [False, True])
def test_an_error_message_that_is_not_utf_8_reaches_the_future(of_record: bool) -> None:
    with Rig({"t": [1]}) as rig:
        future = rig.send("t", b"v")
        (seen,) = rig.requests()
        response = PartitionResponse(
            0,
            INVALID_RECORD,
            -1,
            -1,
            error_message=None if of_record else "cut: ????",
            record_errors=[(0, "cut: ????")] if of_record else (),
        )
        rig.respond(seen, [("t", [response])], edit=lambda frame: frame.replace(b"????", b"a\xff\xc3z"))
        with pytest.raises(errors.InvalidRecordError, match="cut: a��z"):
            future.get(0)
        assert rig.control.broken == []
        again = rig.send("t", b"w")
        rig.answer_all()
        assert again.succeeded()


@pytest.mark.parametrize("of_record", [None, ""])
def test_a_refused_record_without_a_text_has_that_of_its_batch(of_record: str | None) -> None:
    """Kafka 2.4 answers so if a compacted topic gets a record without a key."""
    with Rig({"t": [1]}, linger_ms=1) as rig:
        refused, accepted = rig.send("t", b"v"), rig.send("t", b"v", b"k")
        rig.advance_ms(1)
        (seen,) = rig.requests()
        response = PartitionResponse(
            0, INVALID_RECORD, -1, -1, error_message="needs a key", record_errors=[(0, of_record)]
        )
        rig.respond(seen, [("t", [response])])
        with pytest.raises(errors.InvalidRecordError, match="t-0: needs a key"):
            refused.get(0)
        rig.answer_all()
        assert accepted.succeeded()
