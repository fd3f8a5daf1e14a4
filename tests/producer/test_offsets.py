"""What ``send_offsets_to_transaction()`` accepts: every client's offsets and groups in, one form out."""

import enum
import struct
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import aiokafka.structs  # type: ignore[import-untyped]
import confluent_kafka
import kafka  # type: ignore[import-untyped]
import kafka.structs  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.consumer.fetcher import ConsumerRecord  # type: ignore[import-untyped]

from cyproducer import ConsumerGroupMetadata, KafkaProducer, OffsetAndMetadata, RecordMetadata, TopicPartition
from cyproducer._consumer_offsets import is_fenced, read_group, read_offsets
from cyproducer.errors import InvalidTopicError
from cyproducer.testing import EmbeddedBroker

NOWHERE = "127.0.0.1:1"
PLACE = TopicPartition("orders", 2)
ORDERS_2 = confluent_kafka.TopicPartition("orders", 2, 7)


class Topic(enum.StrEnum):
    """A ``str`` with its own text, as programs name their topics."""

    ORDERS = "orders"

    def __str__(self) -> str:
        return "the orders"


class OffsetOf20(NamedTuple):
    """``OffsetAndMetadata`` of kafka-python 2.0, and of aiokafka."""

    offset: int
    metadata: str


class OffsetOf21(NamedTuple):
    """``OffsetAndMetadata`` of kafka-python 2.1 to 2.3, without defaults."""

    offset: int
    metadata: str | None
    leader_epoch: int | None


class EpochFirst(NamedTuple):
    """Java's order."""

    offset: int
    leader_epoch: int
    metadata: str


def only(value: Any) -> OffsetAndMetadata:
    """What becomes of one value of a mapping."""
    found = read_offsets({PLACE: value})
    assert list(found) == [PLACE]
    return found[PLACE]


def test_the_structs_have_kafka_pythons_names_and_order() -> None:
    assert OffsetAndMetadata._fields == kafka.structs.OffsetAndMetadata._fields
    # Newer versions add ``state``, which concerns the consumer alone.
    assert ConsumerGroupMetadata._fields == kafka.structs.ConsumerGroupMetadata._fields[:4]
    assert OffsetAndMetadata(5) == kafka.structs.OffsetAndMetadata(5) == (5, "", -1)
    assert ConsumerGroupMetadata("g") == kafka.structs.ConsumerGroupMetadata("g")[:4] == ("g", -1, "", None)


@pytest.mark.parametrize(
    "key",
    [
        PLACE,
        kafka.TopicPartition("orders", 2),
        aiokafka.structs.TopicPartition("orders", 2),
        ("orders", 2),
        (Topic.ORDERS, np.int32(2)),
        (np.str_("orders"), 2),
    ],
    ids=["ours", "kafka-python", "aiokafka", "tuple", "subclasses", "numpy"],
)
def test_every_kind_of_key_becomes_a_topic_partition(key: Any) -> None:
    (place,) = read_offsets({key: 7})
    assert place == PLACE
    assert (type(place), type(place.topic), type(place.partition)) == (TopicPartition, str, int)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, (7, "", -1)),
        (0, (0, "", -1)),
        (2**63 - 1, (2**63 - 1, "", -1)),
        (np.int64(7), (7, "", -1)),
        (np.uint8(7), (7, "", -1)),
        (OffsetAndMetadata(7), (7, "", -1)),
        (OffsetAndMetadata(7, "by host 1", 3), (7, "by host 1", 3)),
        (OffsetAndMetadata(7, None, None), (7, "", -1)),
        (kafka.structs.OffsetAndMetadata(np.int64(7), np.str_("m"), np.int32(3)), (7, "m", 3)),
        (kafka.structs.OffsetAndMetadata(7), (7, "", -1)),
        (kafka.structs.OffsetAndMetadata(7, "m", 3), (7, "m", 3)),
        (OffsetOf20(7, "m"), (7, "m", -1)),
        (OffsetOf21(7, "m", 3), (7, "m", 3)),
        (OffsetOf21(7, None, -1), (7, "", -1)),
        (EpochFirst(7, 3, "m"), (7, "m", 3)),
        (aiokafka.structs.OffsetAndMetadata(7, "m"), (7, "m", -1)),
        ((7, "m"), (7, "m", -1)),
        (SimpleNamespace(offset=7, metadata="m", leader_epoch=2**31 - 1), (7, "m", 2**31 - 1)),
        (OffsetAndMetadata(7, "ü" * (2**14 - 1) + "m"), (7, "ü" * (2**14 - 1) + "m", -1)),
    ],
)
def test_every_kind_of_value_becomes_the_same(value: Any, expected: tuple[int, str, int]) -> None:
    found = only(value)
    assert found == expected
    assert (type(found), *map(type, found)) == (OffsetAndMetadata, int, str, int)


def test_all_mappings_are_read_in_their_order() -> None:
    given = {("b", 1): 1, ("a", 0): 2, ("b", 0): 3}
    assert list(read_offsets(MappingProxyType(given)).items()) == [
        (key, OffsetAndMetadata(value)) for key, value in given.items()
    ]


def test_what_is_returned_is_accepted_again_and_independent_of_the_argument() -> None:
    given = {PLACE: OffsetAndMetadata(7, "m", 3)}
    found = read_offsets(given)
    assert found == given == read_offsets(found)
    del given[PLACE]
    assert len(found) == 1


def test_a_list_of_confluent_kafkas_partitions_becomes_the_same() -> None:
    with_all = confluent_kafka.TopicPartition("orders", 0, 5, metadata="m", leader_epoch=3)
    entries = [with_all, ORDERS_2, confluent_kafka.TopicPartition("orders", 1, 0)]
    expected = {
        TopicPartition("orders", 0): OffsetAndMetadata(5, "m", 3),
        PLACE: OffsetAndMetadata(7),
        TopicPartition("orders", 1): OffsetAndMetadata(0),
    }
    assert list(read_offsets(entries).items()) == list(expected.items())
    assert read_offsets(tuple(entries)) == expected
    twins = [SimpleNamespace(topic="orders", partition=2, offset=7, metadata=None)]
    assert read_offsets(twins) == {PLACE: OffsetAndMetadata(7)}


def test_entries_without_a_position_are_left_out_of_a_list() -> None:
    unread = [confluent_kafka.TopicPartition("orders", 0), confluent_kafka.TopicPartition("orders")]
    assert unread[0].offset == confluent_kafka.OFFSET_INVALID
    assert read_offsets([unread[0], ORDERS_2, unread[1]]) == {PLACE: OffsetAndMetadata(7)}
    assert read_offsets(unread) == {}
    with pytest.raises(ValueError, match="offset -1001: must be"):
        only(confluent_kafka.OFFSET_INVALID)


@pytest.mark.parametrize("name", ["OFFSET_END", "OFFSET_BEGINNING", "OFFSET_STORED"])
def test_librdkafkas_other_logical_offsets_are_named(name: str) -> None:
    entry = confluent_kafka.TopicPartition("orders", 2, getattr(confluent_kafka, name))
    with pytest.raises(
        ValueError, match=rf"^offsets\[1\], TopicPartition{{topic=orders,.*: {name} is no offset"
    ):
        read_offsets([ORDERS_2, entry])


@pytest.mark.parametrize("empty", [{}, [], (), MappingProxyType({})])
def test_nothing_is_nothing(empty: Any) -> None:
    assert read_offsets(empty) == {}


RECORD = ConsumerRecord("orders", 2, 0, 7, 0, 0, None, b"1", [], None, -1, 1, -1)
SENT = RecordMetadata("orders", 2, PLACE, 7, 0, None, -1, 1, -1)
WHOLE = "must be a whole number or an OffsetAndMetadata, not "
OFFSET = "must be a whole number from 0 to 9223372036854775807"
INT32 = "must be a whole number from 0 to 2147483647"
LIST = "must have topic, partition, offset and metadata"


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (-1, ValueError, f"offset -1: {OFFSET}"),
        (-5, ValueError, f"offset -5: {OFFSET}"),
        (2**63, ValueError, f"offset 9223372036854775808: {OFFSET}"),
        (np.uint64(2**63), ValueError, f"offset 9223372036854775808: {OFFSET}"),
        (True, TypeError, f"offset True: {OFFSET}, not bool"),
        (np.True_, TypeError, WHOLE),
        (7.0, TypeError, f"{WHOLE}7.0"),
        (float("nan"), TypeError, f"{WHOLE}nan"),
        (np.float64(7), TypeError, WHOLE),
        (np.array([7]), TypeError, f"offset array([7]): {OFFSET}, not ndarray"),
        ("7", TypeError, f"{WHOLE}'7'"),
        (b"7", TypeError, f"{WHOLE}b'7'"),
        (None, TypeError, f"{WHOLE}None"),
        ((7,), TypeError, f"{WHOLE}(7,)"),
        ((7, "m", 3), TypeError, f"{WHOLE}(7, 'm', 3)"),
        ((7, 3), TypeError, "metadata 3: must be a str or None, not int"),
        (PLACE, TypeError, f"{WHOLE}TopicPartition(topic='orders', partition=2)"),
        (SimpleNamespace(metadata="m"), TypeError, f"{WHOLE}namespace(metadata='m')"),
        (SimpleNamespace(offset=7), TypeError, f"{WHOLE}namespace(offset=7)"),
        (RECORD, TypeError, f"{WHOLE}ConsumerRecord(topic='orders', partition=2"),
        (SENT, TypeError, f"{WHOLE}RecordMetadata(topic='orders', partition=2"),
        (ORDERS_2, TypeError, f"{WHOLE}TopicPartition{{topic=orders,partition=2"),
        (OffsetAndMetadata(-5), ValueError, f"offset -5: {OFFSET}"),
        (OffsetAndMetadata(7.0), TypeError, f"offset 7.0: {OFFSET}, not float"),  # type: ignore[arg-type]
        (kafka.structs.OffsetAndMetadata(), TypeError, f"offset None: {OFFSET}, not NoneType"),
        (OffsetAndMetadata(7, b"m"), TypeError, "metadata b'm': must be a str or None, not bytes"),  # type: ignore[arg-type]
        (OffsetAndMetadata(7, "\ud800"), ValueError, "metadata '\\ud800': can't be encoded as UTF-8: surr"),
        (OffsetAndMetadata(7, "ü" * 2**14), ValueError, "must have at most 32767 bytes, has 32768"),
        (
            OffsetAndMetadata(7, "", -2),
            ValueError,
            "leader epoch -2: must be a whole number from -1 to 2147483647",
        ),
        (OffsetAndMetadata(7, "", 2**31), ValueError, "leader epoch 2147483648: must be"),
        (OffsetAndMetadata(7, "", False), TypeError, "leader epoch False: must be"),
        (OffsetAndMetadata(7, "", "3"), TypeError, "leader epoch '3': must be"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_value_is_refused_with_its_partition(value: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        read_offsets({("fine", 0): 1, PLACE: value})
    assert type(caught.value) is kind
    assert str(caught.value).startswith("offsets[TopicPartition(topic='orders', partition=2)]: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("key", "kind", "message"),
    [
        ("orders", TypeError, "offsets['orders']: the key must be a tuple (topic, partition)"),
        (("orders",), TypeError, "offsets[('orders',)]: the key must be a tuple"),
        (("orders", 2, 1), TypeError, "offsets[('orders', 2, 1)]: the key must be a tuple"),
        (None, TypeError, "offsets[None]: the key must be a tuple"),
        (ORDERS_2, TypeError, "confluent-kafka's TopicPartition, which has an offset too, pass a list"),
        ((2, "orders"), TypeError, "offsets[(2, 'orders')]: topic: must be a str, not int"),
        ((b"orders", 2), TypeError, "offsets[(b'orders', 2)]: topic: must be a str, not bytes"),
        (("", 2), InvalidTopicError, "offsets[('', 2)]: topic '': a name must have 1 to 249"),
        (("a b", 2), InvalidTopicError, "offsets[('a b', 2)]: topic 'a b': a name must have"),
        (("..", 2), InvalidTopicError, "offsets[('..', 2)]: topic '..': a name must have"),
        (("orders", -1), ValueError, f"offsets[('orders', -1)]: partition -1: {INT32}"),
        (("orders", 2**31), ValueError, f"partition 2147483648: {INT32}"),
        (("orders", True), TypeError, f"partition True: {INT32}, not bool"),
        (("orders", 2.0), TypeError, f"partition 2.0: {INT32}, not float"),
        (("orders", "2"), TypeError, f"partition '2': {INT32}, not str"),
        (("orders", None), TypeError, f"partition None: {INT32}, not NoneType"),
    ],
)
def test_a_wrong_key_is_refused(key: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        read_offsets({key: 7})
    assert type(caught.value) is kind
    assert message in caught.value.args[0]


@pytest.mark.parametrize(
    ("entry", "kind", "message"),
    [
        (confluent_kafka.TopicPartition("orders", 3, -5), ValueError, f"offset -5: {OFFSET}"),
        (confluent_kafka.TopicPartition("orders", 3, -2001), ValueError, f"offset -2001: {OFFSET}"),
        (confluent_kafka.TopicPartition("orders", -1, 5), ValueError, f"partition -1: {INT32}"),
        (confluent_kafka.TopicPartition("a b", 3, 5), InvalidTopicError, "topic 'a b': a name must"),
        (ORDERS_2, ValueError, "partition 2 of topic 'orders' occurs twice"),
        (RECORD, TypeError, LIST),
        (SENT, TypeError, LIST),
        (PLACE, TypeError, LIST),
        ((PLACE, 7), TypeError, LIST),
        ("orders", TypeError, LIST),
        (None, TypeError, LIST),
        (
            SimpleNamespace(topic="orders", partition=3, offset=1.5, metadata=""),
            TypeError,
            "offset 1.5: must",
        ),
        (SimpleNamespace(topic="orders", partition=3, offset=1, metadata=5), TypeError, "metadata 5: must"),
    ],
)
def test_a_wrong_entry_of_a_list_is_refused_with_its_place(
    entry: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        read_offsets([ORDERS_2, entry])
    assert type(caught.value) is kind
    text = caught.value.args[0]
    assert text.startswith("offsets[1], ")
    # What the entry is; a long one is shortened in the middle.
    assert repr(entry)[:30] in text
    assert message in text


def test_two_keys_of_a_mapping_may_not_be_the_same_partition() -> None:
    class Unequal(str):
        __slots__ = ()
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            return self is other

    with pytest.raises(ValueError, match="partition 2 of topic 'orders' occurs twice"):
        read_offsets({PLACE: 7, (Unequal("orders"), 2): 8})


def test_a_collection_may_change_while_it_is_read() -> None:
    given: Any = {}

    class Clearing(SimpleNamespace):
        topic, partition, metadata = "orders", 1, ""

        @property
        def offset(self) -> int:
            given.clear()
            return 7

    expected = {("orders", 1): OffsetAndMetadata(7), PLACE: OffsetAndMetadata(8)}
    given = [Clearing(), SimpleNamespace(topic="orders", partition=2, offset=8, metadata="")]
    assert read_offsets(given) == expected
    changing = Clearing()
    # An OffsetAndMetadata has none.
    del Clearing.partition
    given = {("orders", 1): changing, PLACE: 8}
    assert read_offsets(given) == expected


@pytest.mark.parametrize(
    "offsets", [None, 5, "orders", b"orders", {PLACE}, {PLACE: 7}.items(), iter([]), ORDERS_2]
)
def test_anything_else_is_no_collection_of_offsets(offsets: Any) -> None:
    with pytest.raises(TypeError, match=r"^offsets: must be a mapping of .* or a list of .*, not "):
        read_offsets(offsets)


def test_a_message_repeats_no_more_than_a_part_of_a_huge_value() -> None:
    with pytest.raises(TypeError) as caught:
        only("x" * 10**6)
    assert len(str(caught.value)) < 500


def cgmd(group: bytes, generation: int, member: bytes, instance: bytes | None) -> bytes:
    """What librdkafka makes of group metadata."""
    head = b"CGMDv2:" + struct.pack("=i", generation) + group + b"\0" + member + b"\0"
    return head + (b"\1" if instance is None else b"\0" + instance + b"\0")


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("billing", ("billing", -1, "", None)),
        (np.str_("billing"), ("billing", -1, "", None)),
        (Topic.ORDERS, ("orders", -1, "", None)),
        (ConsumerGroupMetadata("g"), ("g", -1, "", None)),
        (ConsumerGroupMetadata("g", 5, "m", "i"), ("g", 5, "m", "i")),
        (ConsumerGroupMetadata("g", 5, "m", ""), ("g", 5, "m", "")),
        (kafka.structs.ConsumerGroupMetadata("g", np.int32(5), "m"), ("g", 5, "m", None)),
        (kafka.structs.ConsumerGroupMetadata("g", 5, "m", "i"), ("g", 5, "m", "i")),
        (kafka.structs.ConsumerGroupMetadata("g"), ("g", -1, "", None)),
        (
            SimpleNamespace(group_id="g", generation_id=2**31 - 1, member_id="m", group_instance_id=None),
            ("g", 2**31 - 1, "m", None),
        ),
        (cgmd(b"g", 5, b"m", None), ("g", 5, "m", None)),
        (cgmd(b"g", 0, b"m", b"i"), ("g", 0, "m", "i")),
        (cgmd(b"g", -1, b"", b""), ("g", -1, "", "")),
        (cgmd("gü".encode(), 1, b"m", "ü".encode()), ("gü", 1, "m", "ü")),
    ],
)
def test_every_kind_of_group_becomes_the_same(group: Any, expected: tuple[str, int, str, str | None]) -> None:
    found = read_group(group)
    assert found == expected
    assert (type(found), *map(type, found)) == (ConsumerGroupMetadata, str, int, str, type(expected[3]))
    assert read_group(found) == found


def test_a_consumer_of_kafka_python_gives_its_group() -> None:
    consumer = kafka.KafkaConsumer(group_id="billing", bootstrap_servers=NOWHERE, api_version=(2, 5))
    try:
        assert read_group(consumer.group_metadata()) == ConsumerGroupMetadata("billing")
        with pytest.raises(
            TypeError, match=r"^group: .* not <kafka\..*KafkaConsumer.*, which has no group_id$"
        ):
            read_group(consumer)
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("billing", -1, "", None)),
        ({"group.instance.id": ""}, ("billing", -1, "", None)),
        ({"group.instance.id": "billing-ü"}, ("billing", -1, "", "billing-ü")),
    ],
)
def test_a_consumer_of_confluent_kafka_gives_its_group(options: dict[str, str], expected: Any) -> None:
    consumer = confluent_kafka.Consumer(
        {"group.id": "billing", "bootstrap.servers": NOWHERE, "log_level": 0, **options}
    )
    try:
        assert read_group(consumer.consumer_group_metadata()) == expected
    finally:
        consumer.close()


@pytest.mark.slow
def test_a_member_of_confluent_kafka_gives_its_positions_generation_and_id() -> None:
    with EmbeddedBroker(topics={"orders": 2}) as broker:
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for _ in range(3):
                producer.send("orders", b"1", partition=1).get(30)
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "billing",
                "group.instance.id": "billing-1",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        try:
            consumer.subscribe(["orders"])
            for _ in range(3):
                message = consumer.poll(30)
                assert message is not None
                assert message.error() is None
            positions = consumer.position(consumer.assignment())
            group = read_group(consumer.consumer_group_metadata())
        finally:
            consumer.close()
    assert len(positions) == 2
    assert {place: found.offset for place, found in read_offsets(positions).items()} == {("orders", 1): 3}
    assert (group.group_id, group.group_instance_id) == ("billing", "billing-1")
    assert 0 <= group.generation_id < 100
    assert group.member_id
    assert is_fenced(group)


PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
IDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(IDS.filter(bool), st.integers(-1, 2**31 - 1), IDS, st.none() | IDS)
def test_librdkafkas_bytes_contain_what_was_written(
    group: str, generation: int, member: str, instance: str | None
) -> None:
    data = cgmd(group.encode(), generation, member.encode(), None if instance is None else instance.encode())
    assert read_group(data) == (group, generation, member, instance)
    assert read_group(type("Own", (bytes,), {})(data)) == (group, generation, member, instance)


@pytest.fixture(scope="module")
def librdkafka_reads() -> Callable[[bytes], bool]:
    """Whether librdkafka reads these bytes: a producer that has no offsets to send does no more than that."""
    options = {"bootstrap.servers": NOWHERE, "transactional.id": "billing", "log_level": 0}
    producer = confluent_kafka.Producer(options)

    def reads(data: bytes) -> bool:
        try:
            producer.send_offsets_to_transaction([], data, 0)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() == confluent_kafka.KafkaError._BAD_MSG:
                return False
            raise
        return True

    return reads


@given(
    PRINTABLE.filter(bool),
    st.integers(-1, 2**31 - 1),
    PRINTABLE,
    st.none() | PRINTABLE,
    st.binary(max_size=3),
)
def test_librdkafka_reads_and_refuses_the_same(
    librdkafka_reads: Callable[[bytes], bool],
    group: str,
    generation: int,
    member: str,
    instance: str | None,
    after: bytes,
) -> None:
    data = cgmd(group.encode(), generation, member.encode(), None if instance is None else instance.encode())
    assert librdkafka_reads(data)
    assert read_group(data) == (group, generation, member, instance)
    if after:
        assert not librdkafka_reads(data + after)
        with pytest.raises(ValueError, match="is not what consumer_group_metadata"):
            read_group(data + after)


@given(st.binary() | st.binary().map(lambda data: b"CGMDv2:" + data))
@example(b"CGMDv2:\0\0\0\0g\0m\0\1")
@example(b"CGMDv2:\0\0\0\0g\0m\0\2")
def test_any_bytes_are_read_whole_or_refused(data: bytes) -> None:
    try:
        found = read_group(data)
    except ValueError:
        return
    instance = found.group_instance_id
    assert found.group_id
    assert data == cgmd(
        found.group_id.encode(),
        found.generation_id,
        found.member_id.encode(),
        None if instance is None else instance.encode(),
    )


@pytest.mark.parametrize("cut", range(1, len(cgmd(b"g", 5, b"m", b"i"))))
def test_a_part_of_librdkafkas_bytes_is_refused(cut: int) -> None:
    with pytest.raises(ValueError, match=r"^group: b'.* is not what consumer_group_metadata\(\) of confl"):
        read_group(cgmd(b"g", 5, b"m", b"i")[:cut])


GENERATION = "must be a whole number from -1 to 2147483647"
STRANGER = "must be a group id, ConsumerGroupMetadata, or what group_metadata()"


@pytest.mark.parametrize(
    ("group", "kind", "message"),
    [
        ("", ValueError, "group: group_id '': must be the id of a group, which is not empty"),
        (ConsumerGroupMetadata(""), ValueError, "group: group_id '': must be the id of a group"),
        (cgmd(b"", 5, b"m", None), ValueError, "group: group_id '': must be the id of a group"),
        (kafka.structs.ConsumerGroupMetadata(None), ValueError, "group: group_id None: must be the id of"),
        (b"billing", ValueError, "group: b'billing' is not what consumer_group_metadata() of confluent"),
        (
            b"CGMDv1:" + cgmd(b"g", 5, b"m", None)[7:],
            ValueError,
            "is not what consumer_group_metadata() of confluent",
        ),
        (cgmd(b"g", 5, b"m", None)[:-1] + b"\2", ValueError, "is not what consumer_group_metadata() of conf"),
        (
            cgmd(b"g", 5, b"m", None)[:-1] + b"\2i\0",
            ValueError,
            "is not what consumer_group_metadata() of conf",
        ),
        (cgmd(b"g", -2, b"m", None), ValueError, f"group: generation_id -2: {GENERATION}"),
        (cgmd(b"\xff", 5, b"m", None), ValueError, "its ids must be UTF-8: 'utf-8' codec can't decode"),
        (cgmd(b"g", 5, b"m", b"\xff"), ValueError, "its ids must be UTF-8: 'utf-8' codec can't decode"),
        ("\ud800", ValueError, "group: group_id '\\ud800': can't be encoded as UTF-8: surrogates not"),
        ("g" * 2**15, ValueError, "must have at most 32767 bytes, has 32768"),
        (ConsumerGroupMetadata(5), TypeError, "group: group_id 5: must be a str, not int"),  # type: ignore[arg-type]
        (ConsumerGroupMetadata("g", "5"), TypeError, f"generation_id '5': {GENERATION}, not str"),  # type: ignore[arg-type]
        (ConsumerGroupMetadata("g", True), TypeError, f"generation_id True: {GENERATION}, not bool"),
        (ConsumerGroupMetadata("g", 2**31), ValueError, f"generation_id 2147483648: {GENERATION}"),
        (ConsumerGroupMetadata("g", 5, None), TypeError, "member_id None: must be a str, not NoneType"),  # type: ignore[arg-type]
        (ConsumerGroupMetadata("g", 5, "m", 1), TypeError, "group_instance_id 1: must be a str or None"),  # type: ignore[arg-type]
        (None, TypeError, STRANGER),
        (5, TypeError, STRANGER),
        (("g", 5, "m", None), TypeError, "not ('g', 5, 'm', None), which has no group_id"),
        ({"group_id": "g"}, TypeError, STRANGER),
        (bytearray(cgmd(b"g", 5, b"m", None)), TypeError, STRANGER),
        (SimpleNamespace(group_id="g", generation_id=5), TypeError, "which has no member_id"),
        (
            SimpleNamespace(group_id="g", generation_id=5, member_id="m"),
            TypeError,
            "which has no group_instance_id",
        ),
    ],
)
def test_a_wrong_group_is_refused(group: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        read_group(group)
    assert type(caught.value) is kind
    assert str(caught.value).startswith("group: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("group", "fenced"),
    [
        (ConsumerGroupMetadata("g"), False),
        # The instance alone is not a member.
        (ConsumerGroupMetadata("g", -1, "", "i"), False),
        (ConsumerGroupMetadata("g", 0), True),
        (ConsumerGroupMetadata("g", -1, "m"), True),
        (ConsumerGroupMetadata("g", 5, "m"), True),
    ],
)
def test_only_a_member_can_be_fenced(group: ConsumerGroupMetadata, fenced: bool) -> None:
    assert is_fenced(group) is fenced
