"""Text in a Produce response that is not UTF-8 ends neither the sender nor a connection."""

import pytest

from cyproducer import errors
from tools.harness.reference_records import PartitionResponse, encode_produce_response
from tools.harness.rig import Rig

INVALID_RECORD = 87


@pytest.mark.parametrize("of_record", [False, True])
def test_an_error_message_that_is_not_utf_8_reaches_the_future(of_record: bool) -> None:
    with Rig({"t": [1]}) as rig:
        future = rig.send("t", b"v")
        (seen,) = rig.requests()
        rig.pending.remove(seen)
        response = PartitionResponse(
            0,
            INVALID_RECORD,
            -1,
            -1,
            error_message=None if of_record else "cut: ????",
            record_errors=[(0, "cut: ????")] if of_record else (),
        )
        version, number = seen.request.api_version, seen.request.correlation_id
        frame = encode_produce_response(version, number, [("t", [response])])
        assert b"????" in frame
        seen.peer.sock.sendall(frame.replace(b"????", b"a\xff\xc3z"))
        rig.step()
        with pytest.raises(errors.InvalidRecordError, match="cut: a��z"):
            future.get(0)
        assert rig.control.broken == []
        again = rig.send("t", b"w")
        rig.answer_all()
        assert again.succeeded()
