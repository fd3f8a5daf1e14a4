"""``send_many()`` of a producer with interceptors, serializers and a custom partitioner."""

import logging
import random
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.producer import ProducerRecord
from cyproducer.structs import TopicPartition
from cyproducer.testing import MockProducer
from tests.producer.interceptors import Rude, Spy
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import PRODUCE, Act, ScriptedCluster


def text(value: Any) -> bytes | None:
    return None if value is None else str(value).encode()


def change(record: ProducerRecord) -> ProducerRecord:
    """Changes every field but the topic, of some records."""
    number = record.value or 0
    return record._replace(
        value=record.value if number % 2 else f"{number}!",
        key=record.key if number % 3 else f"key of {number}",
        headers=record.headers if number % 5 else [*(record.headers or ()), ("seen", b"%d" % number)],
        partition=record.partition if number % 7 else 0,
        timestamp_ms=record.timestamp_ms if number % 11 else 77 + number,
    )


def choose(key: bytes | None, every: list[int], available: list[int]) -> int:
    return every[sum(key or b"x") % len(every)]


@pytest.mark.parametrize("shape", range(12))
def test_rows_are_what_single_records_would_be(shape: int) -> None:
    """Each combination of columns that are given for all, for each row and not at all."""
    dice = random.Random(shape)
    rows = dice.choice([1, 3, 20, 300])
    values = list(range(rows))
    keys = dice.choice([None, [f"k{row % 5}" for row in range(rows)]])
    headers: Any = dice.choice(
        [None, [("all", b"1")], [dice.choice([None, [], [("h", b"2")]]) for _ in range(rows)]]
    )
    partition: Any = dice.choice([None, 1, [dice.choice([None, 0, 2]) for _ in range(rows)]])
    times: Any = dice.choice([5, [dice.randrange(1, 9999) for _ in range(rows)]])

    def of(column: Any, row: int) -> Any:
        shared = not isinstance(column, list) or (column is headers and column == [("all", b"1")])
        return column if shared else column[row]

    found = []
    for bulk in (True, False):
        first, second = Spy(change), Spy()
        with (
            ScriptedCluster(orders=3) as cluster,
            producing(
                cluster,
                interceptors=[first, second],
                key_serializer=text,
                value_serializer=text,
                partitioner=choose,
            ) as producer,
        ):
            if bulk:
                future = producer.send_many(
                    "orders", values, keys, headers=headers, partition=partition, timestamp_ms=times
                )
                assert future.get(WAIT_S).count == rows
            else:
                for row in range(rows):
                    producer.send(
                        "orders",
                        values[row],
                        of(keys, row),
                        of(headers, row),
                        of(partition, row),
                        of(times, row),
                    )
                producer.flush()
            second.wait(rows)
            logs = [
                [(r.key, r.value, r.headers, r.timestamp) for r in each.records]
                for each in cluster.topics["orders"].partitions
            ]
            # Callbacks of single records run in the order in which their batches completed.
            told = sorted(
                (m.partition, m.offset, m.timestamp, m.serialized_key_size, m.serialized_value_size, error)
                for m, error in second.outcomes
            )
            found.append((first.seen, second.seen, logs, told))
    assert found[0] == found[1]


def test_interceptors_learn_of_rows_in_their_order() -> None:
    spy = Spy()
    with ScriptedCluster(orders=2) as cluster, producing(cluster, interceptors=[spy]) as producer:
        producer.send_many("orders", [b"a", b"b", b"c", b"d"], partition=[1, 0, 1, 0]).get(WAIT_S)
        spy.wait(4)
        assert [(m.partition, m.offset) for m, _ in spy.outcomes] == [(1, 0), (0, 0), (1, 1), (0, 1)]


def test_interceptors_learn_which_rows_failed() -> None:
    spy = Spy()
    with ScriptedCluster(orders=2) as cluster, producing(cluster, interceptors=[spy]) as producer:
        producer.send_many("orders", [b"0"], partition=1).get(WAIT_S)
        spy.wait(1)
        cluster.act(PRODUCE, Act(error={("orders", 0): 10}))
        future = producer.send_many("orders", [b"a", b"b"], partition=[0, 1])
        with pytest.raises(errors.BulkSendError):
            future.get(WAIT_S)
        spy.wait(2)
        (_, failed), (second, none) = spy.outcomes[1:]
        assert isinstance(failed, errors.MessageSizeTooLargeError)
        assert (spy.outcomes[1][0].partition, spy.outcomes[1][0].offset) == (0, -1)
        assert (second.partition, second.offset, none) == (1, 1, None)


def test_headers_that_an_interceptor_adds_are_for_one_row(cluster: ScriptedCluster) -> None:
    def add(record: ProducerRecord) -> ProducerRecord:
        assert isinstance(record.headers, list)
        record.headers.append(("seen", record.value))
        return record

    given = [("all", b"1")]
    with producing(cluster, interceptors=[Spy(add)]) as producer:
        producer.send_many("orders", [b"a", b"b"], headers=given).get(WAIT_S)
        assert [r.headers for r in cluster.topics["orders"].partitions[0].records] == [
            (("all", b"1"), ("seen", b"a")),
            (("all", b"1"), ("seen", b"b")),
        ]
    assert given == [("all", b"1")]


def test_nothing_is_sent_if_a_serializer_raises_and_interceptors_learn_of_it(
    cluster: ScriptedCluster,
) -> None:
    def serialize(value: Any) -> bytes:
        if value == 2:
            raise RuntimeError("no 2")
        return b"%d" % value

    spy = Spy()
    with producing(cluster, interceptors=[spy], value_serializer=serialize) as producer:
        with pytest.raises(RuntimeError, match="no 2") as caught:
            producer.send_many("orders", [1, 2, 3], partition=[0, None, 0])
        assert caught.value.__notes__[-1] == "values[1]: no row was sent"
        assert [(m.partition, error) for m, error in spy.outcomes] == [
            (0, caught.value),
            (-1, caught.value),
            (0, caught.value),
        ]
        assert cluster.received(PRODUCE) == []


def test_nothing_is_sent_if_the_partitioner_raises(cluster: ScriptedCluster) -> None:
    def refuse(key: bytes, every: list[int], available: list[int]) -> int:
        if key == b"b":
            raise RuntimeError("no b")
        return 0

    with producing(cluster, partitioner=refuse) as producer:
        with pytest.raises(RuntimeError, match="no b") as caught:
            producer.send_many("orders", [b"1", b"2"], [b"a", b"b"])
        assert "values[1]: no row was sent" in caught.value.__notes__
        assert cluster.received(PRODUCE) == []


def test_an_interceptor_may_not_change_the_topic(cluster: ScriptedCluster) -> None:
    spy = Spy(lambda record: record._replace(topic="other") if record.value == b"2" else record)
    with producing(cluster, interceptors=[spy]) as producer:
        with pytest.raises(ValueError, match=r"values\[1\]: an interceptor changed the topic to 'other'"):
            producer.send_many("orders", [b"1", b"2"])
        assert [type(error) for _, error in spy.outcomes] == [ValueError, ValueError]
        assert cluster.received(PRODUCE) == []


@pytest.mark.parametrize(
    "columns",
    [
        {"values": [b"1", b"2"], "keys": [b"1"]},
        {"values": [b"1", b"2"], "headers": [[("h", b"1")]]},
        {"values": [b"1", b"2"], "partition": [0]},
        {"values": [b"1", b"2"], "timestamp_ms": [5]},
        {"values": b"12"},
    ],
)
def test_nothing_is_called_for_columns_that_do_not_fit(
    columns: dict[str, Any], cluster: ScriptedCluster
) -> None:
    def never(*given: Any) -> Any:
        raise AssertionError("called for rows that are refused")

    spy = Spy(never)
    with (
        producing(cluster, interceptors=[spy], value_serializer=never, partitioner=never) as producer,
        pytest.raises((TypeError, ValueError)),
    ):
        producer.send_many("orders", **columns)
    assert (spy.seen, spy.outcomes) == ([], [])


def test_interceptors_learn_of_rows_that_found_no_memory(cluster: ScriptedCluster) -> None:
    spy = Spy()
    with producing(
        cluster, interceptors=[spy], buffer_memory=1 << 16, max_block_ms=50, batch_size=1 << 14
    ) as producer:
        producer.send_many("orders", [b"first"]).get(WAIT_S)
        spy.wait(1)
        cluster.act(PRODUCE, *[Act(silent=True)] * 5)
        with pytest.raises(errors.KafkaTimeoutError) as caught:
            producer.send_many("orders", [bytes(10_000) for _ in range(20)])
        accepted = caught.value.accepted
        assert accepted is not None
        assert 0 < accepted < 20
        assert [error for _, error in spy.outcomes[1:]] == [caught.value] * (20 - accepted)
        producer.close(0)
        spy.wait(20)
        assert len(spy.outcomes) == 21
        assert all(isinstance(error, errors.KafkaError) for _, error in spy.outcomes[1:])


def test_an_interceptor_that_raises_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    spy = Spy()
    with (
        caplog.at_level(logging.ERROR, "cyproducer"),
        ScriptedCluster(orders=1) as cluster,
        producing(cluster, interceptors=[Rude(), spy]) as producer,
    ):
        producer.send_many("orders", [b"1", b"2"]).get(WAIT_S)
        spy.wait(2)
    assert sum("in on_send" in each.message for each in caplog.records) == 2
    assert sum("in on_acknowledgement" in each.message for each in caplog.records) == 2


def test_a_mock_producer_keeps_rows_as_interceptors_changed_them() -> None:
    spy = Spy(lambda record: record._replace(key=f"key of {record.value}", partition=1))
    with MockProducer(
        interceptors=[spy], value_serializer=text, key_serializer=str.encode, partitions={"t": 2}
    ) as producer:
        producer.send_many("t", [1, 2], headers=[("h", b"1")]).get(WAIT_S)
        kept = producer.history()
        assert [(r.value, r.key, r.partition, r.headers) for r in kept] == [
            (1, "key of 1", 1, [("h", b"1")]),
            (2, "key of 2", 1, [("h", b"1")]),
        ]
        assert [r.serialized_key for r in kept] == [b"key of 1", b"key of 2"]
        place = TopicPartition("t", 1)
        assert [m.topic_partition for m, _ in spy.outcomes] == [place, place]
