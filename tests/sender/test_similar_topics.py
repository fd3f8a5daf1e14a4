"""Topics and partitions of one request, whatever their names and order: each gets its own outcome."""

import random

import pytest

from cyproducer.errors import TopicAuthorizationFailedError
from tests.scripted.scripted_model import Answers
from tests.scripted.sender_steps import one
from tools.harness.reference_records import PartitionResponse
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
        # The longest name first: each of the others begins it.
        answers: Answers = [
            (name, [PartitionResponse(0, NOT_AUTHORIZED if name == refused else 0, base_offset=0)])
            for name in reversed(NAMES)
        ]
        rig.respond(seen, answers)
        assert rig.control.broken == []
        for name, future in futures.items():
            assert isinstance(
                future.exception, TopicAuthorizationFailedError if name == refused else type(None)
            )


@pytest.mark.parametrize("count", [5, 32, 33, 300])
def test_batches_and_outcomes_in_any_order_stay_with_their_records(count: int) -> None:
    topics = {f"topic-{number}": [1] * 600 for number in range(3)}
    order = random.Random(count)
    places = order.sample([(name, partition) for name in topics for partition in range(600)], count)
    with Rig(topics, linger_ms=1) as rig:
        futures = {
            (name, partition): rig.send(name, f"{name}/{partition}".encode(), partition=partition)
            for name, partition in places
        }
        rig.clock.advance_ms(1)
        seen = one(rig)
        assert seen.places == sorted(places)
        assert [seen.batches[name, partition].records[0].value for name, partition in seen.places] == [
            f"{name}/{partition}".encode() for name, partition in seen.places
        ]
        # In the order of `places`, which is random, too.
        answers: dict[str, list[PartitionResponse]] = {}
        for name, partition in places:
            answers.setdefault(name, []).append(PartitionResponse(partition, base_offset=partition))
        rig.respond(seen, list(answers.items()))
        assert rig.control.broken == []
        assert [futures[place].get(0).offset for place in places] == [partition for _, partition in places]
