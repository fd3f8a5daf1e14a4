"""Requests that no good client sends, to the embedded broker in this process, with its time set by hand."""

import logging
from typing import Any

import pytest

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.homes import ID
from cyproducer.testing.broker.loop import Loop
from cyproducer.testing.broker.server import LoopWorld
from cyproducer.wire import messages
from cyproducer.wire.schema import Api
from tests.fuzz.fuzz_embedded import PRODUCER_ID, TRANSACTIONAL_ID, Broker, repaired
from tests.fuzz.fuzz_rig import Choices
from tests.fuzz.seeds import records, step
from tools.harness.reference_records import Batch, Record, encode_batch

IN_TRANSACTION: dict[str, Any] = {"producer_id": PRODUCER_ID, "producer_epoch": 0, "base_sequence": 0}


@pytest.fixture
def broker() -> Broker:
    return Broker()


def ask(broker: Broker, api: Api, version: int, **named: Any) -> Any:
    """Sends a request; returns its response, or None if it waits."""
    client = broker.client
    before = len(client.answers)
    broker.play(Choices(step(api, version, **named)))
    assert not client.line.is_closed
    return client.answers[-1] if len(client.answers) > before else None


def produce(broker: Broker, version: int, **named: Any) -> Any:
    return ask(broker, messages.PRODUCE, version, **named).responses[0].partition_responses[0]


@pytest.mark.parametrize("pattern", ["(", "a{99999999999999999999}", "(" * 2000])
def test_a_pattern_that_is_not_valid_is_refused(broker: Broker, pattern: str) -> None:
    answer = ask(broker, messages.LIST_TRANSACTIONS, 2, transactional_id_pattern=pattern)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_pattern_does_not_block_the_broker(broker: Broker) -> None:
    name = "a" * 40 + "!"
    broker.cluster.homes.home(ID, name).leader = 1
    init = ask(broker, messages.INIT_PRODUCER_ID, 4, transactional_id=name, producer_id=-1, producer_epoch=-1)
    assert init.error_code == 0
    for pattern, error in (("(a+)+$", 0), (r"(a)\1", ErrorCode.INVALID_REGULAR_EXPRESSION)):
        answer = ask(broker, messages.LIST_TRANSACTIONS, 2, transactional_id_pattern=pattern)
        assert answer.error_code == error
        assert answer.transaction_states == []


def test_records_of_an_open_transaction_can_be_deleted(broker: Broker) -> None:
    batch = records(**IN_TRANSACTION, transactional=True)
    assert produce(broker, 12, records=batch).error_code == 0
    (topic,) = ask(broker, messages.DELETE_RECORDS, 2, offset=1).topics
    assert topic.partitions[0].low_watermark == 1
    # No consumer is sent back before the first record.
    (topic,) = ask(broker, messages.LIST_OFFSETS, 7, isolation_level=1).topics
    assert topic.partitions[0].offset == 1


def test_a_transaction_ends_although_its_topic_was_deleted(broker: Broker) -> None:
    assert ask(broker, messages.DELETE_TOPICS, 5).responses[0].error_code == 0
    assert ask(broker, messages.END_TXN, 4, committed=True).error_code == 0
    broker.advance(0, b"")
    (state,) = ask(broker, messages.DESCRIBE_TRANSACTIONS, 0).transaction_states
    assert state.transaction_state == "CompleteCommit"


def test_a_transaction_ends_although_its_topic_has_fewer_partitions_now(broker: Broker) -> None:
    broker.cluster.add_partitions("u", 1)
    broker.cluster.transactions.add(TRANSACTIONAL_ID, PRODUCER_ID, 0, [("u", 1)], True, lambda code: None)
    broker.cluster.delete_topic("u")
    broker.cluster.create_topic("u", 1)
    assert ask(broker, messages.END_TXN, 4, committed=True).error_code == 0
    broker.advance(0, b"")
    (state,) = ask(broker, messages.DESCRIBE_TRANSACTIONS, 0).transaction_states
    assert state.transaction_state == "CompleteCommit"


def test_a_marker_with_an_older_epoch_than_the_log_is_not_written(broker: Broker) -> None:
    newer = records(producer_id=PRODUCER_ID, producer_epoch=5, base_sequence=0)
    assert produce(broker, 9, transactional_id=None, records=newer).error_code == 0
    assert ask(broker, messages.END_TXN, 4, committed=True).error_code == 0
    broker.advance(0, b"")
    assert len(broker.cluster.topics.topics["t"].partitions[0].entries) == 1
    (state,) = ask(broker, messages.DESCRIBE_TRANSACTIONS, 0).transaction_states
    assert state.transaction_state == "PrepareCommit"


@pytest.mark.parametrize(
    ("change", "code"),
    [("delete", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ("move", ErrorCode.NOT_LEADER_FOR_PARTITION)],
)
def test_a_batch_that_waited_for_its_coordinator_needs_the_partition_still(
    broker: Broker, change: str, code: int
) -> None:
    broker.cluster.transactions.manners.between_ms = (10.0, 10.0)
    batch = records(**IN_TRANSACTION, transactional=True)
    assert ask(broker, messages.PRODUCE, 12, records=batch) is None
    partition = broker.cluster.topics.topics["t"].partitions[0]
    if change == "delete":
        broker.cluster.delete_topic("t")
    else:
        broker.cluster.topics.move(partition, 2, True, (0.0, 0.0))
    broker.advance(3, b"")
    broker.check()
    (answer,) = broker.client.answers
    assert answer.responses[0].partition_responses[0].error_code == code
    assert partition.entries == []
    assert broker.cluster.bytes == 0


def test_a_group_of_static_members_without_a_rebalance_timeout_does_not_keep_the_broker_busy(
    broker: Broker,
) -> None:
    def joined(instance: str) -> Any:
        return ask(
            broker, messages.JOIN_GROUP, 5, member_id="", group_instance_id=instance, rebalance_timeout_ms=0
        )

    assert ask(broker, messages.LEAVE_GROUP, 5).members[0].error_code == 0
    first = joined("i")
    identity = {"member_id": first.member_id, "generation_id": first.generation_id}
    assert ask(broker, messages.SYNC_GROUP, 3, **identity).error_code == 0
    broker.change(1, b"")
    assert joined("j") is None
    broker.client.end()
    left = ask(broker, messages.LEAVE_GROUP, 5, member_id="", group_instance_id="j")
    assert left.members[0].error_code == 0
    # The session of the member that does not join again expires.
    broker.advance(6, b"")
    group = broker.cluster.groups.find("g")
    assert group is not None
    assert group.state == "Empty"


def test_a_timestamp_that_does_not_fit_overflows_as_in_java(broker: Broker) -> None:
    late = Record(0, 2**63 + 5, None, b"v")
    batch = repaired(encode_batch(Batch((late,), base_timestamp=2**62, max_timestamp=9)))
    assert produce(broker, 9, transactional_id=None, records=batch).error_code == 0
    (topic,) = ask(broker, messages.LIST_OFFSETS, 7, timestamp=-(2**63)).topics
    assert (topic.partitions[0].timestamp, topic.partitions[0].offset) == (-(2**63) + 5, 0)


@pytest.mark.parametrize(("first", "second"), [(11, 18), (13, 12)])
def test_a_fetch_session_has_names_or_ids_but_not_both(broker: Broker, first: int, second: int) -> None:
    session_id = ask(broker, messages.FETCH, first).session_id
    assert session_id > 0
    named = {"session_id": session_id, "session_epoch": 1, "topics": [], "forgotten_topics_data": []}
    answer = ask(broker, messages.FETCH, second, **named, min_bytes=0, max_wait_ms=0)
    assert answer.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert ask(broker, messages.FETCH, first, **named, max_wait_ms=0).error_code == 0


def test_a_response_that_cannot_be_encoded_ends_only_its_own_connection(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    # A member's id begins with its client id, so that this one is too long for a response.
    broker.cluster.groups.new_id = lambda prefix: prefix + "-1"  # type: ignore[method-assign]
    hostile = broker.client
    request = messages.JOIN_GROUP.request
    protocol = request.JoinGroupRequestProtocol("t", b"")
    join = request("g", 10_000, 10_000, "", None, "consumer", [protocol], None)
    hostile.send(messages.JOIN_GROUP.encode_request(3, 1, "x" * 32767, join)[4:])
    broker.change(1, b"")
    with caplog.at_level(logging.ERROR, "cyproducer.testing"):
        # The member of the group leaves, so that the generation begins with the hostile one.
        assert ask(broker, messages.LEAVE_GROUP, 5).members[0].error_code == 0
    assert "a response to JoinGroup v3" in caplog.text
    assert hostile.line.is_closed
    assert ask(broker, messages.HEARTBEAT, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_request_cannot_create_any_number_of_partitions(broker: Broker) -> None:
    request = messages.CREATE_TOPICS.request
    topics = [request.CreatableTopic(name, 60_000, 1, [], []) for name in ("a", "b", "c")]
    broker.client.send(messages.CREATE_TOPICS.encode_request(5, 1, None, request(topics, 1000, True))[4:])
    broker.check()
    (answer,) = broker.client.answers
    refused = ErrorCode.POLICY_VIOLATION
    assert [each.error_code for each in answer.topics] == [0, refused, refused]


def test_an_event_that_raises_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    world = LoopWorld(loop)
    world.after(1, int, "no number")
    world.after(1, loop.stop)
    with caplog.at_level("ERROR", "cyproducer.testing"):
        loop.run()
    assert [each.exc_info[0] for each in caplog.records if each.exc_info] == [ValueError]
