"""Key hashes and partitions, compared with the clients' test vectors, their real code and a plain
reference."""

import array
import ctypes
import json
import random
import zlib
from pathlib import Path
from typing import Any

import kafka.partitioner  # type: ignore[import-untyped]
import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyproducer.records import hashing
from cyproducer.records.hashing import RULES, crc32, fnv1a, murmur2, murmur3, partition_for_key
from tests.records import hash_reference as reference
from tests.records.capsules import c_function

GOLDEN = Path(__file__).parent / "golden"
KINDS = list(RULES)
RANDOM_KEYS = [random.Random(7).randbytes(length) for length in range(130) for _ in range(3)]

keys = st.binary(max_size=200)
partition_counts = st.integers(1, 100) | st.integers(1, 2**31 - 1)


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


# --- hashes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # Kafka's UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_matches_kafkas_own_test(key: bytes, expected: int) -> None:
    assert reference.signed(murmur2(key)) == expected


@pytest.mark.parametrize(
    ("key", "murmur2_hash", "fnv1a_magnitude"),
    [
        # librdkafka's unittest_murmur2 and unittest_fnv1a
        (b"kafka", 0xD067CF64, 0x0D33C4E1),
        (b"giberish123456789", 0x8F552B0C, 0x77A58295),
        (b"1234", 0x9FC97B14, 0x023BDD03),
        (b"234", 0xE7C009CA, 0x2DEA3CD2),
        (b"34", 0x873930DA, 0x740FA83E),
        (b"4", 0x5A4B5CA1, 0x310CA263),
        (b"PreAmbleWillBeRemoved,ThePrePartThatIs", 0x78424F1C, 0x65CBD69C),
        (b"reAmbleWillBeRemoved,ThePrePartThatIs", 0x4A62B377, 0x6E49C79A),
        (b"eAmbleWillBeRemoved,ThePrePartThatIs", 0xE0E4E09E, 0x69EED356),
        (b"AmbleWillBeRemoved,ThePrePartThatIs", 0x62B8B43F, 0x6ABCC023),
        (b"", 0x106E08D9, 0x7EE3623B),
    ],
)
def test_hashes_match_librdkafkas_unit_tests(key: bytes, murmur2_hash: int, fnv1a_magnitude: int) -> None:
    assert murmur2(key) == murmur2_hash
    assert abs(reference.signed(fnv1a(key))) == fnv1a_magnitude


@pytest.mark.slow
@pytest.mark.parametrize("key", RANDOM_KEYS, ids=len)
def test_hashes_agree_with_kafka_python_zlib_and_mmh3(key: bytes) -> None:
    assert murmur2(key) == kafka.partitioner.murmur2(key)
    assert crc32(key) == zlib.crc32(key)
    assert murmur3(key) == mmh3.hash(key, signed=False)


@given(keys)
def test_hashes_agree_with_the_plain_reference(key: bytes) -> None:
    assert murmur2(key) == reference.murmur2(key)
    assert crc32(key) == reference.crc32(key)
    assert fnv1a(key) == reference.fnv1a(key)
    assert murmur3(key) == reference.murmur3(key)


def test_a_hash_does_not_depend_on_the_alignment_of_the_key() -> None:
    data = random.Random(3).randbytes(64)
    for offset in range(9):
        shifted = memoryview(bytes(offset) + data)[offset:]
        for function in (murmur2, crc32, fnv1a, murmur3):
            assert function(shifted) == function(data)


@pytest.mark.parametrize("function", [murmur2, crc32, fnv1a, murmur3])
def test_any_contiguous_buffer_is_hashed_and_nothing_else(function: Any) -> None:
    words = array.array("I", [1, 2**31, 77])
    assert function(words) == function(words.tobytes()) == function(bytearray(words.tobytes()))
    assert function(memoryview(words)) == function(words.tobytes())
    with pytest.raises(TypeError, match="str"):
        function("text")
    with pytest.raises(TypeError, match="NoneType"):
        function(None)
    with pytest.raises(BufferError):
        function(memoryview(b"abcdef")[::2])


@pytest.mark.parametrize(
    "function", [murmur2, crc32, fnv1a, murmur3, lambda b: partition_for_key("java", b, 3)]
)
def test_a_hash_releases_the_buffer(function: Any) -> None:
    buffer = bytearray(b"key")
    function(buffer)
    buffer.append(0)  # BufferError while a view is held
    assert len(buffer) == 4


# --- from key to partition --------------------------------------------------------------------------------


def test_java_partitions_match_the_java_client() -> None:
    document = golden("murmur2_java.json")
    for vector in document["vectors"]:
        key = bytes.fromhex(vector["key"])
        assert reference.signed(murmur2(key)) == vector["murmur2"]
        got = [partition_for_key("java", key, count) for count in document["partition_counts"]]
        assert got == vector["partitions"]


@pytest.mark.parametrize("kind", ["sarama", "sarama_reference", "consistent"])
def test_sarama_partitions_match_sarama(kind: str) -> None:
    document = golden("sarama.json")
    assert "31343638353039353732323234" in {vector["key"] for vector in document["vectors"]}  # hash 2**31
    for vector in document["vectors"]:
        key = bytes.fromhex(vector["key"])
        assert fnv1a(key) == vector["fnv1a"]
        assert [partition_for_key(kind, key, n) for n in document["partition_counts"]] == vector[kind]


@pytest.mark.parametrize("kind", ["sarama", "sarama_reference"])
def test_sarama_hashes_an_empty_key_but_not_a_missing_one(kind: str) -> None:
    document = golden("sarama.json")
    assert document["empty_key_is_hashed"]
    assert not document["nil_key_is_hashed"]
    assert partition_for_key(kind, b"", 50) == {"sarama": 35, "sarama_reference": 13}[kind]
    assert partition_for_key(kind, None, 50) == -1


# The keys of librdkafka's tests/0048-partitioner.c, which states the hash whose remainder is expected.
PARTITIONER_KEYS = [None, b"", b"23456", b"this is another string with more length to it perhaps", b"hejsan"]


@pytest.mark.parametrize("partitions", [7, 17])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("none", [-1, -1, -1, -1, -1]),
        ("consistent", [0x0, 0x0, 0xB1B451D7, 0xB0150DF7, 0xD077037E]),
        ("consistent_random", [-1, -1, 0xB1B451D7, 0xB0150DF7, 0xD077037E]),
        ("murmur2", [0x106E08D9, 0x106E08D9, 0x058D780F, 0x4F7703DA, 0x5EC19395]),
        ("murmur2_random", [-1, 0x106E08D9, 0x058D780F, 0x4F7703DA, 0x5EC19395]),
        ("fnv1a", [0x7EE3623B, 0x7EE3623B, 0x27E6F469, 0x155E3E5F, 0x17B1E27A]),
        ("fnv1a_random", [-1, 0x7EE3623B, 0x27E6F469, 0x155E3E5F, 0x17B1E27A]),
    ],
)
def test_partitions_match_librdkafkas_test(kind: str, expected: list[int], partitions: int) -> None:
    got = [partition_for_key(kind, key, partitions) for key in PARTITIONER_KEYS]
    assert got == [-1 if value == -1 else value % partitions for value in expected]


@given(st.sampled_from(KINDS), st.none() | keys, partition_counts)
def test_partitions_agree_with_the_plain_reference(kind: str, key: bytes | None, partitions: int) -> None:
    got = partition_for_key(kind, key, partitions)
    assert got == reference.partition_for_key(kind, key, partitions)
    assert -1 <= got < partitions


@given(keys, partition_counts)
def test_murmur3_partitions_match_programs_that_use_mmh3(key: bytes, partitions: int) -> None:
    assert partition_for_key("murmur3", key, partitions) == (mmh3.hash(key) & 0x7FFFFFFF) % partitions


def test_the_error_names_an_unknown_rule_and_the_allowed_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown key hash 'md5': allowed are none, java, .*, murmur3"):
        partition_for_key("md5", b"", 1)


@pytest.mark.parametrize("partitions", [0, -1, 2**31])
def test_a_partition_count_must_be_a_positive_int32(partitions: int) -> None:
    with pytest.raises(ValueError, match=rf"partitions is {partitions}: allowed are 1\.\.2147483647"):
        partition_for_key("java", b"", partitions)


def test_a_key_that_is_not_a_buffer_is_refused() -> None:
    with pytest.raises(TypeError, match="str"):
        partition_for_key("java", "key", 3)  # type: ignore[arg-type]


def test_the_c_function_accepts_null_with_no_bytes_and_a_topic_without_partitions() -> None:
    bytes_and_size = (ctypes.c_char_p, ctypes.c_ssize_t)
    place = c_function(
        hashing, "partition_of", ctypes.c_int32, ctypes.c_int32, *bytes_and_size, ctypes.c_int32
    )
    assert place(RULES.index("java"), b"kafka", 5, 7) == partition_for_key("java", b"kafka", 7)
    assert place(RULES.index("murmur2"), None, -1, 7) == 0x106E08D9 % 7
    assert place(RULES.index("java"), None, 0, 7) == partition_for_key("java", b"", 7)
    for partitions in (0, -3):
        assert [place(rule, b"kafka", 5, partitions) for rule in range(len(RULES))] == [-1] * len(RULES)
