"""Partitioner names, and custom partitioners of every kind behind one checked call."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import kafka.partitioner  # type: ignore[import-untyped]
import pytest

from cyproducer.control.cluster_view import BrokerMetadata, ClusterView, TopicView
from cyproducer.control.partitioners import (
    BUILT_IN,
    CustomPartitioner,
    Partitioner,
    PartitionerSpec,
    resolve_partitioner,
)
from cyproducer.errors import KafkaConfigurationError
from cyproducer.futures.delivery import RecordFuture, failed_future
from cyproducer.records.hashing import partition_for_key
from cyproducer.send.bulk_path import BulkPath
from cyproducer.send.extensions import Extensions
from cyproducer.structs import ProducerRecord
from tools.harness.rig import Rig

#: "orders" has partitions 0..4, of which 3 has no leader; "sparse" has 64 and 1.
LEADERS = {"orders": {0: 1, 1: 2, 2: 1, 3: -1, 4: 2}, "sparse": {64: 1, 1: 1}}


def view_of(leaders: dict[str, dict[int, int]]) -> ClusterView:
    brokers = {node_id: BrokerMetadata(node_id, f"broker-{node_id}", 9092, None) for node_id in (1, 2)}
    topics = {name: TopicView(of_topic, False) for name, of_topic in leaders.items()}
    return ClusterView(brokers, topics, None, None)


CLUSTER = view_of(LEADERS)


class Chooser(BulkPath[Any, Any]):
    """Chooses partitions as ``send()`` does, for the key "key" and the value "value", which is b"v"."""

    def __init__(self, custom: CustomPartitioner, key: bytes | None = b"k") -> None:
        self._rig = Rig({})
        self.view = CLUSTER
        used = Extensions(
            custom=custom, key_serializer=lambda _: key, value_serializer=lambda _: b"v", accepts=True
        )
        used.use(self)
        self._open_path(self._rig.accumulator, 1 << 20, 60_000, used)

    def _view_of(self, topic: str, timeout_s: float) -> ClusterView:
        return self.view

    def _accept(self, record: ProducerRecord, *given: Any) -> RecordFuture:
        self.chosen = given[4]
        return failed_future(record.topic, KafkaConfigurationError("not sent"))

    def choose(self, topic: str = "orders") -> int:
        self.send(topic, "value", "key")
        return int(self.chosen)


def choose(value: Any, topic: str = "orders", key: bytes | None = b"k") -> int:
    partitioner = resolve_partitioner(value)
    assert isinstance(partitioner, CustomPartitioner)
    return Chooser(partitioner, key).choose(topic)


def returning(answer: Any) -> Callable[..., Any]:
    return lambda key, everything, available: answer


class Modern(Partitioner):
    """kafka-python 3's interface; ``seen`` has the arguments of the calls."""

    def __init__(self) -> None:
        self.seen: tuple[Any, ...] = ()

    def partition(
        self,
        topic: str,
        key: Any,
        serialized_key: bytes | None,
        value: Any,
        serialized_value: bytes | None,
        cluster: ClusterView,
    ) -> int:
        self.seen = (topic, key, serialized_key, value, serialized_value, cluster)
        return 2


# --- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key_hash", "keyless"),
    [
        ("default", "java", "sticky"),
        ("sticky", "java", "sticky"),
        ("uniform_sticky", "none", "sticky"),
        ("round_robin", "none", "round_robin"),
        ("random", "none", "random"),
        ("consistent", "consistent", "sticky"),
        ("consistent_random", "consistent_random", "sticky"),
        ("murmur2", "murmur2", "sticky"),
        ("murmur2_random", "murmur2_random", "sticky"),
        ("fnv1a", "fnv1a", "sticky"),
        ("fnv1a_random", "fnv1a_random", "sticky"),
        ("sarama", "sarama", "random"),
        ("sarama_reference", "sarama_reference", "random"),
        ("murmur3", "murmur3", "sticky"),
        ("single_broker", "java", "single_broker"),
    ],
)
def test_every_name_has_a_rule_for_keys_and_one_for_keyless_records(
    name: str, key_hash: str, keyless: str
) -> None:
    assert resolve_partitioner(name) == PartitionerSpec(key_hash, keyless)
    ignoring = resolve_partitioner(name, ignore_keys=True)
    assert ignoring == PartitionerSpec("none", keyless)
    assert name in BUILT_IN
    assert len(BUILT_IN) == 15


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        (None, "default"),
        ("DefaultPartitioner", "default"),
        ("org.apache.kafka.clients.producer.internals.DefaultPartitioner", "default"),
        ("org.apache.kafka.clients.producer.RoundRobinPartitioner", "round_robin"),
        ("org.apache.kafka.clients.producer.UniformStickyPartitioner", "uniform_sticky"),
        ("\torg.apache.kafka.clients.producer.RoundRobinPartitioner\n", "round_robin"),
        ("RoundRobinPartitioner", "round_robin"),
        ("UniformStickyPartitioner", "uniform_sticky"),
        ("kafka.partitioner.DefaultPartitioner", "default"),
        ("kafka.partitioner.sticky.StickyPartitioner", "sticky"),
        ("Round-Robin", "round_robin"),
        ("roundRobin", "round_robin"),
        (" MURMUR2-Random ", "murmur2_random"),
        ("consistent random", "consistent_random"),
        (BUILT_IN["sarama"], "sarama"),
    ],
)
def test_the_case_and_hyphens_of_aliases_do_not_matter(alias: Any, name: str) -> None:
    assert resolve_partitioner(alias) == BUILT_IN[name]


@pytest.mark.parametrize("name", ["", "md5", "partitioner", "org.apache.kafka.clients.producer.Mine"])
def test_the_error_for_an_unknown_name_lists_the_allowed_ones(name: str) -> None:
    with pytest.raises(KafkaConfigurationError, match="must be one of") as caught:
        resolve_partitioner(name)
    assert f"partitioner={name!r}: must" in str(caught.value)
    assert all(known in str(caught.value) for known in BUILT_IN)


def test_a_spec_is_frozen() -> None:
    with pytest.raises(AttributeError):
        BUILT_IN["default"].key_hash = "java"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (kafka.partitioner.DefaultPartitioner, "default"),
        (kafka.partitioner.DefaultPartitioner(), "default"),
        (kafka.partitioner.StickyPartitioner, "sticky"),
        (kafka.partitioner.StickyPartitioner(), "sticky"),
    ],
)
def test_kafka_pythons_own_partitioners_become_the_built_in_ones(value: Any, name: str) -> None:
    assert resolve_partitioner(value) == BUILT_IN[name]


def test_kafka_pythons_default_places_keys_as_its_replacement_does() -> None:
    generator = random.Random(5)
    theirs = kafka.partitioner.DefaultPartitioner()
    for _ in range(200):
        key = generator.randbytes(generator.randint(0, 30))
        expected = theirs.partition("orders", None, key, None, None, CLUSTER)
        assert partition_for_key(BUILT_IN["default"].key_hash, key, 5) == expected


def test_a_subclass_of_kafka_pythons_partitioner_is_a_custom_one() -> None:
    class Mine(kafka.partitioner.DefaultPartitioner):  # type: ignore[misc]
        def partition(self, *arguments: Any) -> int:
            return (super().partition(*arguments) + 1) % 5  # type: ignore[no-any-return]

    assert choose(Mine(), key=b"k") == (partition_for_key("java", b"k", 5) + 1) % 5


def test_ignore_keys_is_refused_with_a_custom_partitioner() -> None:
    with pytest.raises(
        KafkaConfigurationError,
        match=r"partitioner_ignore_keys=True: must be False with partitioner=.*Modern",
    ):
        resolve_partitioner(Modern(), ignore_keys=True)


@pytest.mark.parametrize("value", [Modern(), "round_robin", "random", "sarama", "single_broker"])
def test_rack_awareness_is_refused_with_a_partitioner_that_is_not_sticky(value: Any) -> None:
    with pytest.raises(
        KafkaConfigurationError,
        match=r"partitioner_rack_aware=True: must be False with partitioner=.*\(default, .*fnv1a_random",
    ):
        resolve_partitioner(value, rack_aware=True)


@pytest.mark.parametrize("value", [None, "default", "murmur2_random", "uniform_sticky"])
def test_rack_awareness_is_allowed_with_a_sticky_partitioner(value: Any) -> None:
    assert resolve_partitioner(value, rack_aware=True) == resolve_partitioner(value)


# --- kinds of custom partitioners -------------------------------------------------------------------------


def test_a_partition_method_of_six_arguments_gets_all_six() -> None:
    modern = Modern()
    assert choose(modern) == 2
    assert modern.seen == ("orders", "key", b"k", "value", b"v", CLUSTER)


@pytest.mark.parametrize("star", [False, True])
def test_no_base_class_is_needed(star: bool) -> None:
    class Six:
        def partition(self, topic: str, key: Any, kb: Any, value: Any, vb: Any, cluster: ClusterView) -> int:
            return len(topic) - 2

    class Star:
        def partition(self, *arguments: Any) -> int:
            return len(arguments) - 2

    assert choose(Star() if star else Six()) == 4


def test_a_partition_method_of_three_arguments_gets_topic_key_and_cluster() -> None:
    seen: list[Any] = []

    class Deprecated:
        def partition(self, topic: str, serialized_key: bytes | None, cluster: ClusterView) -> int:
            seen.append((topic, serialized_key, cluster))
            return 1

    assert choose(Deprecated()) == 1
    assert seen == [("orders", b"k", CLUSTER)]


@pytest.mark.parametrize("key", [b"k", None])
def test_a_callable_gets_key_bytes_all_and_available_partitions_sorted(key: bytes | None) -> None:
    seen: list[Any] = []

    def two_x(key_bytes: bytes | None, everything: list[int], available: list[int]) -> int:
        seen.append((key_bytes, everything, available))
        return available[-1]

    assert choose(two_x, key=key) == 4
    assert seen == [(key, [0, 1, 2, 3, 4], [0, 1, 2, 4])]


def test_a_callable_gets_sorted_partitions_of_an_unsorted_set() -> None:
    assert list(CLUSTER.partitions_for_topic("sparse") or ()) == [64, 1]
    assert choose(lambda key, everything, available: everything[0], topic="sparse") == 1
    assert choose(lambda key, everything, available: available[0], topic="sparse") == 1


def test_a_callable_gets_an_empty_list_if_no_partition_is_available() -> None:
    leaderless = view_of({"orders": dict.fromkeys(range(5), -1)})
    chooser = Chooser(CustomPartitioner(lambda key, everything, available: 3 if available == [] else 0))
    chooser.view = leaderless
    assert chooser.choose() == 3


def test_a_callable_without_a_signature_is_accepted() -> None:
    class Opaque:
        __signature__ = "unreadable"

        def __call__(self, key: bytes | None, everything: list[int], available: list[int]) -> int:
            return len(available)

    assert choose(Opaque()) == 4


def test_an_object_with_both_forms_is_used_through_partition() -> None:
    class Both(Modern):
        def __call__(self, key: Any, everything: Any, available: Any) -> int:
            return 4

    assert choose(Both()) == 2


def test_a_class_is_instantiated_once() -> None:
    created: list[Any] = []

    class Counting(Modern):
        def __init__(self) -> None:
            super().__init__()
            created.append(self)

    partitioner = resolve_partitioner(Counting)
    assert isinstance(partitioner, CustomPartitioner)
    chooser = Chooser(partitioner)
    for _ in range(3):
        assert chooser.choose() == 2
    assert created == [partitioner.target]


def test_a_class_of_2_x_callables_is_instantiated() -> None:
    class Last:
        def __call__(self, key: bytes | None, everything: list[int], available: list[int]) -> int:
            return everything[-1]

    assert choose(Last) == 4


def test_the_error_for_a_class_that_needs_arguments_names_it() -> None:
    class Configured(Modern):
        def __init__(self, seed: int) -> None:
            super().__init__()

    with pytest.raises(KafkaConfigurationError, match=r"Configured needs arguments: give a class"):
        resolve_partitioner(Configured)


def test_a_type_error_from_inside_a_constructor_is_not_replaced() -> None:
    class Broken(Modern):
        def __init__(self) -> None:
            raise TypeError("no such shard")

    with pytest.raises(TypeError, match=r"^no such shard$"):
        resolve_partitioner(Broken)


@pytest.mark.parametrize("value", [42, object(), b"murmur2", bytearray(b"x"), str, ["default"]])
def test_the_error_for_a_value_that_is_no_partitioner_says_what_is_allowed(value: Any) -> None:
    with pytest.raises(
        KafkaConfigurationError, match=r"partitioner=.*: must be one of default, .* a partition"
    ):
        resolve_partitioner(value)


def test_a_wrong_number_of_arguments_is_detected_before_the_first_record() -> None:
    class Four:
        def partition(self, a: Any, b: Any, c: Any, d: Any) -> int:
            return 0

    with pytest.raises(
        KafkaConfigurationError, match=r"Four: its partition method takes neither \(topic, key, "
    ):
        resolve_partitioner(Four())
    with pytest.raises(
        KafkaConfigurationError, match=r"lambda.* does not take \(key_bytes, all_partitions, "
    ):
        resolve_partitioner(lambda key: 0)


def test_a_wrapped_partitioner_is_not_wrapped_again() -> None:
    wrapped = CustomPartitioner(Modern())
    assert resolve_partitioner(wrapped) is wrapped


# --- results ----------------------------------------------------------------------------------------------


class Index:
    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


@pytest.mark.parametrize(("answer", "expected"), [(0, 0), (4, 4), (Index(3), 3)])
def test_an_integer_of_the_topics_partitions_is_accepted(answer: Any, expected: int) -> None:
    got = choose(returning(answer))
    assert got == expected
    assert type(got) is int


@pytest.mark.parametrize("answer", [5, -1, None, True, 1.0, "1", Index(7)])
def test_the_error_for_another_result_names_partitioner_result_and_allowed(answer: Any) -> None:
    with pytest.raises(ValueError, match="partitioner") as caught:
        choose(returning(answer))
    message = str(caught.value)
    assert message.startswith(f"partitioner {__name__}.returning.<locals>.<lambda> returned {answer!r} for")
    assert message.endswith("topic 'orders': must be an integer of 0..4")


def test_a_gap_between_partitions_is_refused_and_the_error_shows_it() -> None:
    assert choose(returning(64), topic="sparse") == 64
    with pytest.raises(ValueError, match=r"returned 2 for topic 'sparse': .* \[1, 64\]$"):
        choose(returning(2), topic="sparse")


def test_for_a_topic_without_metadata_the_partitioner_is_not_called() -> None:
    modern = Modern()
    with pytest.raises(ValueError, match="topic 'nowhere' has no partitions"):
        choose(modern, topic="nowhere")
    assert modern.seen == ()


def test_the_name_of_an_object_is_that_of_its_class() -> None:
    assert CustomPartitioner(Modern()).name == CustomPartitioner(Modern).name == f"{__name__}.Modern"


def test_a_partitioners_exception_passes_through() -> None:
    class Broken(Modern):
        def partition(self, *arguments: Any) -> int:
            raise TypeError("bad key")

    with pytest.raises(TypeError, match=r"^bad key$"):
        choose(Broken())


def test_a_partitioner_sees_the_current_leaders() -> None:
    class OnBroker(Modern):
        def partition(self, topic: str, *rest: Any) -> int:
            cluster: ClusterView = rest[-1]
            led: Iterator[int] = (
                partition
                for partition in sorted(cluster.partitions_for_topic(topic) or ())
                if (leader := cluster.leader_for_partition(topic, partition)) and leader.nodeId == 2
            )
            return next(led)

    chooser = Chooser(CustomPartitioner(OnBroker))
    assert chooser.choose() == 1
    chooser.view = view_of({"orders": {**LEADERS["orders"], 1: -1}})
    assert chooser.choose() == 4


# --- the optional methods ---------------------------------------------------------------------------------


def test_on_new_batch_is_called_if_there_is_one() -> None:
    calls: list[Any] = []

    class Rotating(Modern):
        def on_new_batch(self, topic: str, cluster: ClusterView, prev_partition: int) -> None:
            calls.append((topic, cluster, prev_partition))

    assert Chooser(CustomPartitioner(Rotating())).choose() == 2
    assert calls == []
    assert Chooser(CustomPartitioner(Rotating()), None).choose() == 2
    assert calls == [("orders", CLUSTER, 2)]


def test_close_is_called_once_if_there_is_one() -> None:
    calls: list[str] = []

    class Closing(Modern):
        def close(self) -> None:
            calls.append("closed")

    for partitioner in (CustomPartitioner(Closing()), CustomPartitioner(Modern())):
        partitioner.close()
        partitioner.close()
    assert calls == ["closed"]


def test_the_base_class_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        resolve_partitioner(Partitioner)


class Counting(dict[int, int]):
    """Leaders by partition, and a count of how often they were iterated over."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        self.walks += 1
        return super().__iter__()

    def items(self) -> Any:
        self.walks += 1
        return super().items()


class ThreeArguments:
    def partition(self, topic: str, key: bytes | None, cluster: ClusterView) -> int:
        return min(7, len(cluster.partitions_for_topic(topic) or ()) - 1)


class SixArguments:
    def partition(self, topic: str, *rest: Any) -> int:
        return min(7, len(rest[-1].available_partitions_for_topic(topic)) - 1)


@pytest.mark.parametrize(
    "target", [lambda key, everywhere, available: available[7], ThreeArguments(), SixArguments()]
)
def test_the_cost_of_a_record_does_not_depend_on_the_partitions(target: Any) -> None:
    leaders = Counting(dict.fromkeys(range(5000), 1))
    view = ClusterView({1: BrokerMetadata(1, "b", 9092, None)}, {"t": TopicView(leaders, False)}, None, None)
    chooser = Chooser(CustomPartitioner(target))
    chooser.view = view
    for _ in range(100):
        assert view.knows("t")
        assert chooser.choose("t") == 7
    assert leaders.walks <= 3


@pytest.mark.parametrize(
    "change",
    [
        lambda partitions: partitions.pop(),
        lambda partitions: partitions.remove(1),
        lambda partitions: partitions.append(9),
        lambda partitions: partitions.sort(reverse=True),
        lambda partitions: random.shuffle(partitions),
    ],
)
def test_a_callable_that_changes_its_lists_fails_with_advice_to_copy(
    change: Callable[[list[int]], Any],
) -> None:
    with pytest.raises(TypeError, match="change a copy"):
        choose(lambda key, everything, available: change(available))
    assert choose(lambda key, everything, available: len(available)) == 4
