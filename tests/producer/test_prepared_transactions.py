"""PreparedTransaction: what ``prepare_transaction()`` hands out, as text and pickled, and who may use it."""

import json
import pickle
from typing import Any

import pytest

from cyproducer.structs import PreparedTransaction, TopicPartition
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import END_TXN, INIT_PRODUCER_ID, PRODUCE, ScriptedCluster
from tests.scripted.scripted_transactions import InitProducerId

PREPARED = PreparedTransaction(
    "téléphone-1",
    (1 << 62) + 1,
    32766,
    1,
    False,
    {
        TopicPartition("a", 0): (0, 7),
        TopicPartition("a", 11): (1 << 40, 1 << 40),
        TopicPartition("b", 2): (3, 3),
    },
)
IDENTITY = {"transactional_id": "tx", "producer_id": 7, "epoch": 3}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_can_be_pickled(protocol: int) -> None:
    data = pickle.dumps(PREPARED, protocol)
    copy = pickle.loads(data)
    assert copy == PREPARED
    assert type(copy) is PreparedTransaction
    assert {type(place) for place in copy.offsets} == {TopicPartition}
    assert len(data) < 500


def test_it_can_be_written_as_json() -> None:
    text = PREPARED.to_json()
    assert "\n" not in text
    assert json.loads(text) == {
        "transactional_id": "téléphone-1",
        "producer_id": (1 << 62) + 1,
        "epoch": 32766,
        "protocol": 1,
        "empty": False,
        "offsets": {"a": {"0": [0, 7], "11": [1 << 40, 1 << 40]}, "b": {"2": [3, 3]}},
    }
    for written in (text, text.encode(), json.dumps(json.loads(text), indent=2)):
        assert PreparedTransaction.from_json(written) == PREPARED


def test_an_identity_is_enough() -> None:
    read = PreparedTransaction.from_json(json.dumps(IDENTITY))
    assert read == PreparedTransaction("tx", 7, 3, 2, False, {})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"transactional_id": None}, "transactional_id of a prepared transaction is a text, not None"),
        ({"producer_id": -1}, "producer_id of a prepared transaction is .*, not negative, not -1"),
        ({"producer_id": 1 << 63}, "producer_id of a prepared transaction is"),
        ({"producer_id": "7"}, "producer_id of a prepared transaction is"),
        ({"producer_id": 7.0}, "producer_id of a prepared transaction is"),
        ({"producer_id": True}, "producer_id of a prepared transaction is"),
        ({"epoch": 1 << 15}, "epoch of a prepared transaction is a number of 16 bits"),
        ({"protocol": 3}, "protocol of a prepared transaction is 1 or 2, not 3"),
        ({"empty": 0}, "empty of a prepared transaction is true or false, not 0"),
        ({"offsets": []}, "offsets of a prepared transaction are"),
        ({"offsets": {"a": [1]}}, "offsets of a prepared transaction are"),
        ({"offsets": {"a": {"0": [1]}}}, "offsets of a prepared transaction are"),
        ({"offsets": {"a": {"x": [1, 2]}}}, "offsets of a prepared transaction are"),
        ({"topic": "a"}, "a prepared transaction has no field 'topic'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match="^" + problem):
        PreparedTransaction.from_json(json.dumps(IDENTITY | change))


@pytest.mark.parametrize("missing", list(IDENTITY))
def test_the_identity_is_needed(missing: str) -> None:
    left = {name: value for name, value in IDENTITY.items() if name != missing}
    with pytest.raises(ValueError, match=f"^{missing} of a prepared transaction"):
        PreparedTransaction.from_json(json.dumps(left))


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "Expecting value"), ("{", "Expecting"), ("[]", "is an object, not"), ("7", "is an object, not 7")],
)
def test_other_texts_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        PreparedTransaction.from_json(text)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("level", [2, 0])
def test_an_identity_that_was_handed_out_has_no_other_transaction(commit: bool, level: int) -> None:
    with ScriptedCluster(t=1) as cluster:
        cluster.set_transaction_version(level, 5)
        with producing(cluster, transactional_id="tx") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"1")
            prepared = producer.prepare_transaction(WAIT_S)
            assert prepared.offsets == {TopicPartition("t", 0): (0, 0)}
            end = producer.commit_transaction if commit else producer.abort_transaction
            end(WAIT_S)
            ends = len(cluster.received(END_TXN))
            inits = len(cluster.received(INIT_PRODUCER_ID))
            with producer.transaction():
                producer.send("t", b"2")
            # With the first protocol a late EndTxn with that identity would end this one otherwise.
            bumps = [received.transaction for received in cluster.received(INIT_PRODUCER_ID)[inits:]]
            bump = InitProducerId("tx", 60000, prepared.producer_id, prepared.epoch)
            assert bumps == ([bump] if level < 2 else [])
            (received,) = cluster.received(END_TXN)[ends:]
            assert received.transaction is not None
            assert received.transaction[1:3] != (prepared.producer_id, prepared.epoch)
            with producer.transaction():
                producer.send("t", b"3")
            assert len(cluster.received(INIT_PRODUCER_ID)) == inits + len(bumps)
        epochs = [next(iter(each.batches.values())).producer_epoch for each in cluster.received(PRODUCE)]
        assert epochs == ([0, 1, 2] if level == 2 else [0, 1, 1])


def test_without_it_the_first_protocol_keeps_its_epoch() -> None:
    with ScriptedCluster(t=1) as cluster, producing(cluster, transactional_id="tx") as producer:
        producer.init_transactions()
        for value in (b"1", b"2"):
            with producer.transaction():
                producer.send("t", value)
        assert len(cluster.received(INIT_PRODUCER_ID)) == 1
