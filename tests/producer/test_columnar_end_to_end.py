"""Tables and sequences, end to end, over librdkafka's mock cluster; read back by librdkafka's consumer."""

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from cyproducer import errors
from cyproducer.futures.bulk_future import BulkFuture
from cyproducer.producer import KafkaProducer
from cyproducer.testing import EmbeddedBroker
from tests.forked import in_child, needs_fork
from tests.integration.consume import Fetched, read_all
from tests.scripted.producing import WAIT_S, options, producing
from tests.scripted.scripted_broker import ScriptedCluster

PARTITIONS = 3
ROWS = 3000


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(brokers=2) as broker:
        yield broker


def columns() -> dict[str, list[Any]]:
    return {
        "key": [None if i % 7 == 0 else f"key-{i % 101}" for i in range(ROWS)],
        "value": [None if i % 7 == 1 else f"value {i} ".encode() * (i % 5) for i in range(ROWS)],
    }


def same(found: list[Fetched], future: BulkFuture, data: dict[str, list[Any]]) -> None:
    """Checks that each row is where its future says, and that there are no other records."""
    rows = future.get(WAIT_S).rows()
    at = {(record.partition, record.offset): record for record in found}
    assert len(found) == len(rows) == ROWS
    for i, place in enumerate(zip(rows.partitions, rows.offsets, strict=True)):
        key = data["key"][i]
        assert (at[place].key, at[place].value) == (None if key is None else key.encode(), data["value"][i])


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_a_table_arrives_unchanged(broker: EmbeddedBroker, codec: str | None) -> None:
    topic = f"table-{codec}"
    broker.create_topic(topic, PARTITIONS)
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    table = pa.table(
        {
            **columns(),
            "headers": pa.array([[{"key": "n", "value": b"%d" % i}] for i in range(ROWS)], pa.list_(pair)),
            "at": pa.array([10**12 + i for i in range(ROWS)], pa.timestamp("ms")),
        }
    )
    with producing(
        bootstrap_servers=broker.bootstrap_servers, compression_type=codec, batch_size=4000
    ) as producer:
        future = producer.send_arrow(topic, table, key="key", headers="headers", timestamp="at")
        found = read_all(broker.bootstrap_servers, topic, ROWS)
        same(found, future, columns())
        rows = future.get(0).rows()
        number = {place: i for i, place in enumerate(zip(rows.partitions, rows.offsets, strict=True))}
        for record in found:
            i = number[record.partition, record.offset]
            assert (record.headers, record.timestamp_ms) == ([("n", b"%d" % i)], 10**12 + i)


def frames() -> list[Any]:
    """The same table as each installed library represents it."""
    found = [pytest.param(lambda: pa.table(columns()).to_reader(max_chunksize=700), id="pyarrow-reader")]

    def polars(chunked: bool) -> Any:
        library = pytest.importorskip("polars")
        frame = library.DataFrame(columns())
        return library.concat([frame[:1000], frame[1000:]], rechunk=False) if chunked else frame

    def pandas() -> Any:
        return pytest.importorskip("pandas").DataFrame(columns())

    def duckdb() -> Any:
        relation = pytest.importorskip("duckdb").from_arrow(pa.table(columns()))
        if not hasattr(relation, "__arrow_c_stream__"):
            pytest.skip("this duckdb has no __arrow_c_stream__")
        return relation

    found += [
        pytest.param(lambda: polars(False), id="polars"),
        pytest.param(lambda: polars(True), id="polars-chunks"),
        pytest.param(pandas, id="pandas"),
        pytest.param(duckdb, id="duckdb"),
    ]
    return found


@pytest.mark.parametrize("make", frames())
@pytest.mark.slow
def test_tables_of_every_library_are_accepted(broker: EmbeddedBroker, make: Any, request: Any) -> None:
    topic = "frame-" + request.node.callspec.id
    broker.create_topic(topic, PARTITIONS)
    with producing(bootstrap_servers=broker.bootstrap_servers) as producer:
        future = producer.send_arrow(topic, make(), key="key")
        same(read_all(broker.bootstrap_servers, topic, ROWS), future, columns())


def test_rows_get_the_partitions_that_send_chooses(broker: EmbeddedBroker) -> None:
    keys = [b"key-%d" % i for i in range(200)]
    broker.create_topic("keys", 7)
    with producing(bootstrap_servers=broker.bootstrap_servers) as producer:
        futures = [producer.send("keys", b"x", key) for key in keys]
        many = producer.send_many("keys", [b"x"] * 200, keys)
        assert list(many.get(WAIT_S).rows().partitions) == [
            future.get(WAIT_S).partition for future in futures
        ]


def test_calls_and_sends_of_several_threads(broker: EmbeddedBroker) -> None:
    broker.create_topic("threads", PARTITIONS)
    with producing(bootstrap_servers=broker.bootstrap_servers, batch_size=2000) as producer:
        done: list[BulkFuture] = []

        def many() -> None:
            done.extend(producer.send_many("threads", [b"m"] * 500) for _ in range(10))

        def single() -> None:
            for _ in range(3000):
                producer.send("threads", b"s")

        threads = [threading.Thread(target=target) for target in (many, many, single)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        producer.flush(WAIT_S)
        found = read_all(broker.bootstrap_servers, "threads", 13_000)
        assert len(found) == 13_000
        at = {(record.partition, record.offset): record.value for record in found}
        for future in done:
            rows = future.get(0).rows()
            assert {at[place] for place in zip(rows.partitions, rows.offsets, strict=True)} == {b"m"}


def test_rows_for_an_unknown_topic_time_out() -> None:
    with (
        ScriptedCluster(t=1) as cluster,
        producing(cluster, max_block_ms=50) as producer,
        pytest.raises(errors.KafkaTimeoutError, match="no metadata of topic 'unknown'"),
    ):
        producer.send_many("unknown", [b"x"])


def test_a_closed_producer_accepts_no_rows(broker: EmbeddedBroker) -> None:
    with producing(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.close()
        with pytest.raises(errors.ProducerClosedError, match=r"send_many\(\) on a closed producer"):
            producer.send_many("t", [b"x"])


class Interceptor:
    """Does nothing."""

    def on_send(self, record: Any) -> Any:
        return record


@pytest.mark.parametrize(
    ("option", "value"),
    [("interceptors", [Interceptor]), ("value_serializer", str.encode), ("key_serializer", str.encode)],
)
def test_options_for_single_records_are_not_bypassed(option: str, value: Any) -> None:
    with (
        producing(bootstrap_servers="localhost:1", **{option: value}) as producer,
        pytest.raises(errors.IllegalStateError, match=f"this producer has {option}"),
    ):
        producer.send_arrow("t", pa.table({"value": [b"x"], "k": [b"k"]}), key="k")


def choose(key: bytes, all_partitions: list[int], available: list[int]) -> int:
    raise AssertionError("it is not asked")


def test_a_custom_partitioner_is_not_needed_if_partitions_are_given(broker: EmbeddedBroker) -> None:
    broker.create_topic("given", PARTITIONS)
    table = pa.table({"value": [b"x", b"y"], "p": [2, 1], "hole": [2, None]})
    with producing(bootstrap_servers=broker.bootstrap_servers, partitioner=choose) as producer:
        with pytest.raises(ValueError, match="partition: must be given"):
            producer.send_arrow("given", table)
        with pytest.raises(ValueError, match="column 'hole', row 1: is null, and send_arrow"):
            producer.send_arrow("given", table, partition="hole")
        first = producer.send_arrow("given", table, partition="p")
        second = producer.send_many("given", [b"z"], partition=0)
        assert list(first.get(WAIT_S).rows().partitions) == [2, 1]
        assert list(second.get(WAIT_S).rows().partitions) == [0]


@needs_fork
@pytest.mark.slow
def test_parent_and_child_each_send_their_own_rows(broker: EmbeddedBroker) -> None:
    broker.create_topic("forked", 1)
    producer = KafkaProducer(**options(bootstrap_servers=broker.bootstrap_servers, linger_ms=60_000))
    future = producer.send_many("forked", [b"parent"])

    def child() -> tuple[list[str], int]:
        said = []
        for wait in (
            lambda: future.get(1),
            lambda: future.add_callback(print),
            lambda: future.as_concurrent().result(1),
        ):
            try:
                wait()
            except errors.IllegalStateError as error:
                said.append(str(error))
        count = producer.send_many("forked", [b"child"] * 2, partition=0)
        producer.flush(WAIT_S)
        return said, count.get(WAIT_S).count

    said, count = in_child(child)
    assert len(said) == 3
    assert all("belongs to the parent process" in text for text in said)
    assert count == 2
    producer.flush(WAIT_S)
    assert future.get(0).count == 1
    producer.close()
    values = sorted(record.value or b"" for record in read_all(broker.bootstrap_servers, "forked", 3))
    assert values == [b"child", b"child", b"parent"]


@pytest.mark.parametrize("keyed", [False, True])
def test_the_largest_row_counts_in_the_metrics_like_a_record(broker: EmbeddedBroker, keyed: bool) -> None:
    values = [b"x" * (10 + i % 400) for i in range(ROWS)]
    keys = [b"key-%d" % (i % 9) for i in range(ROWS)] if keyed else None
    found: list[tuple[float, float]] = []
    for name in ("singly", "together"):
        topic = f"metrics-{name}-{keyed}"
        broker.create_topic(topic, 1)
        # The size of a batch header depends on when the batch is sent; a record's size only on its position.
        given: dict[str, Any] = {"linger_ms": 60_000, "batch_size": 1 << 20}
        with producing(bootstrap_servers=broker.bootstrap_servers, **given) as producer:
            if name == "singly":
                for i, value in enumerate(values):
                    producer.send(topic, value, keys and keys[i], timestamp_ms=10**12)
            else:
                producer.send_many(topic, values, keys, timestamp_ms=10**12)
            producer.flush(WAIT_S)
            metrics = producer.metrics()["producer-metrics"]
            found.append((metrics["record-size-max"], metrics["record-send-total"]))
    assert found[0] == found[1]
    assert found[0][0] > 410
