"""Partitions compared with the real librdkafka: its partitioner functions, and a producer on its mock
cluster."""

import ctypes
import random
from collections.abc import Iterator

import confluent_kafka
import confluent_kafka.cimpl
import pytest

from cyproducer.records.hashing import partition_for_key

TOPIC = "keys"
# Not a power of two, because then the sign of a hash would not affect its remainder.
PARTITIONS = 7
KINDS = ["consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random"]
# The lookup of a symbol in the extension continues in the library it is linked to.
LIBRDKAFKA = ctypes.CDLL(confluent_kafka.cimpl.__file__)


def random_keys(count: int, seed: int) -> list[bytes]:
    generator = random.Random(seed)
    return [generator.randbytes(generator.randint(1, 40)) for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_gets_the_partition_of_librdkafkas_function(kind: str) -> None:
    function = getattr(LIBRDKAFKA, f"rd_kafka_msg_partitioner_{kind}")
    function.restype = ctypes.c_int32
    function.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_int32,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    # 1468509572224: its FNV-1a is 2**31, which has no absolute value as an int32.
    for key in [*random_keys(1000, seed=1), b"1468509572224"]:
        for partitions in (1, 2, 3, 7, 50, 1000, 2**31 - 1):
            expected = function(None, key, len(key), partitions, None, None)
            assert partition_for_key(kind, key, partitions) == expected


@pytest.fixture(scope="module")
def bootstrap_servers() -> Iterator[str]:
    """A mock cluster whose topic has PARTITIONS partitions; one made through the configuration has four."""
    library = LIBRDKAFKA
    library.rd_kafka_conf_new.restype = ctypes.c_void_p
    library.rd_kafka_conf_set.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    library.rd_kafka_new.restype = ctypes.c_void_p
    library.rd_kafka_new.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
    library.rd_kafka_handle_mock_cluster.argtypes = [ctypes.c_void_p]
    library.rd_kafka_mock_topic_create.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_int,
    ]
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    library.rd_kafka_mock_cluster_bootstraps.argtypes = [ctypes.c_void_p]
    library.rd_kafka_destroy.argtypes = [ctypes.c_void_p]
    library.rd_kafka_destroy.restype = None

    error = ctypes.create_string_buffer(512)
    conf = library.rd_kafka_conf_new()
    assert library.rd_kafka_conf_set(conf, b"test.mock.num.brokers", b"1", error, 512) == 0, error.value
    handle = library.rd_kafka_new(0, conf, error, 512)
    assert handle, error.value
    cluster = library.rd_kafka_handle_mock_cluster(handle)
    assert library.rd_kafka_mock_topic_create(cluster, TOPIC.encode(), PARTITIONS, 1) == 0
    yield library.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    library.rd_kafka_destroy(handle)


def delivered_partitions(servers: str, partitioner: str, keys: list[bytes | None]) -> list[int | None]:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": servers,
            "partitioner": partitioner,
            # 0: each keyless record gets its own random partition, which distinguishes it from a hashed one.
            "sticky.partitioning.linger.ms": 0,
        }
    )
    partitions: list[int | None] = [None] * len(keys)

    def delivered_at(index: int):  # type: ignore[no-untyped-def]
        def delivered(error: object, message: confluent_kafka.Message) -> None:
            assert error is None
            partitions[index] = message.partition()

        return delivered

    for index, key in enumerate(keys):
        producer.produce(TOPIC, b"value", key, on_delivery=delivered_at(index))
    assert producer.flush(30) == 0
    return partitions


@pytest.mark.parametrize("kind", KINDS)
def test_records_get_the_partitions_of_a_real_librdkafka_producer(kind: str, bootstrap_servers: str) -> None:
    keys = random_keys(300, seed=2)
    delivered = delivered_partitions(bootstrap_servers, kind, [*keys])
    assert delivered == [partition_for_key(kind, key, PARTITIONS) for key in keys]
    assert set(delivered) == set(range(PARTITIONS))


@pytest.mark.parametrize("key", [None, b""])
@pytest.mark.parametrize("kind", KINDS)
def test_missing_and_empty_keys_are_hashed_exactly_if_librdkafka_hashes_them(
    kind: str, key: bytes | None, bootstrap_servers: str
) -> None:
    delivered = set(delivered_partitions(bootstrap_servers, kind, [key] * 200))
    expected = partition_for_key(kind, key, PARTITIONS)
    assert delivered == (set(range(PARTITIONS)) if expected == -1 else {expected})


def test_random_ignores_keys_like_the_rule_none(bootstrap_servers: str) -> None:
    assert set(delivered_partitions(bootstrap_servers, "random", [b"key"] * 200)) == set(range(PARTITIONS))
    assert partition_for_key("none", b"key", PARTITIONS) == -1
