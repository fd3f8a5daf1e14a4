"""Topics of one request whose names begin alike: each gets its own outcome."""

import pytest

from cyproducer.errors import TopicAuthorizationFailedError
from tests.scripted.scripted_model import Answers
from tests.scripted.sender_steps import one
from tools.harness.reference_records import PartitionResponse, encode_produce_response
from tools.harness.rig import Rig

NOT_AUTHORIZED = 29
NAMES = ["a" * length for length in range(1, 7)]


@pytest.mark.parametrize("refused", NAMES)
@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_a_topic_whose_name_begins_another_name_is_not_taken_for_it(version: int, refused: str) -> None:
    with Rig({name: [1] for name in NAMES}, produce_version=version, linger_ms=1) as rig:
        futures = {name: rig.send(name, b"v") for name in NAMES}
        rig.clock.advance_ms(1)
        seen = one(rig)
        rig.pending.remove(seen)
        # The longest name first: each of the others begins it.
        answers: Answers = [
            (name, [PartitionResponse(0, NOT_AUTHORIZED if name == refused else 0, base_offset=0)])
            for name in reversed(NAMES)
        ]
        number = seen.request.correlation_id
        seen.peer.sock.sendall(encode_produce_response(version, number, answers))
        rig.step()
        assert rig.control.broken == []
        for name, future in futures.items():
            assert isinstance(
                future.exception, TopicAuthorizationFailedError if name == refused else type(None)
            )
