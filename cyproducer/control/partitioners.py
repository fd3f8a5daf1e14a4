"""Resolves the ``partitioner`` option: the table of the built-in ones, and the wrapper around a user's own.

Owns the mapping from names and aliases to ``PartitionerSpec`` (which rule hashes a key, and where a record
without a key goes), and one way to call every kind of user partitioner with its result checked. Does not hash
(``records/hashing``), keep a sticky partition, or know load or leaders: the caller passes a ``ClusterView``.
Has no state of its own; ``choose()`` runs on the thread that calls ``send()``.

How a configured value is read (``resolve_partitioner``):

1. None, or a string: a name in the table. Ignored are case, hyphens, underscores, a trailing "Partitioner",
   and the packages of Java's and kafka-python's own classes, so that
   ``org.apache.kafka.clients.producer.RoundRobinPartitioner`` is ``round_robin``.
2. ``DefaultPartitioner`` and ``StickyPartitioner`` of kafka-python, as a class or an instance but not a
   subclass: the built-in one that places keys identically.
3. A class: it is instantiated without arguments, and the instance is read as in 4 and 5.
4. An object with a ``partition`` method: kafka-python 3's interface, with six arguments; or with three,
   ``(topic, serialized_key, cluster)``, the form that kafka-python 3 calls deprecated. The method's signature
   decides which. If the object is also callable, ``partition`` is used.
5. Any other callable: kafka-python 2's ``(key_bytes, all_partitions, available_partitions)``. The lists are
   sorted, and are the same objects for every record until the metadata changes.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from typing import Any, Final, NamedTuple

from cyproducer.control.cluster_view import ClusterView
from cyproducer.errors import KafkaConfigurationError


class PartitionerSpec(NamedTuple):
    """A built-in partitioner."""

    key_hash: str
    """How a key chooses the partition: one of ``records.hashing.RULES``; "none" ignores keys."""
    keyless: str
    """Where other records go: one of ``accumulator.builtin_partitioner.KEYLESS``."""


BUILT_IN: Final[dict[str, PartitionerSpec]] = {
    # Java since KIP-794, with no partitioner.class: murmur2 by key, sticky otherwise.
    "default": PartitionerSpec("java", "sticky"),
    # kafka-python's StickyPartitioner: also hashes keys.
    "sticky": PartitionerSpec("java", "sticky"),
    # Java's UniformStickyPartitioner (until 4.0) and RoundRobinPartitioner ignore keys.
    "uniform_sticky": PartitionerSpec("none", "sticky"),
    "round_robin": PartitionerSpec("none", "round_robin"),
    # librdkafka's seven. "random" ignores keys. The "_random" ones are sticky for keyless records, as
    # librdkafka is unless sticky.partitioning.linger.ms is 0. The three without "_random" hash a missing
    # key, so their keyless policy only counts if keys are ignored.
    "random": PartitionerSpec("none", "random"),
    "consistent": PartitionerSpec("consistent", "sticky"),
    "consistent_random": PartitionerSpec("consistent_random", "sticky"),
    "murmur2": PartitionerSpec("murmur2", "sticky"),
    "murmur2_random": PartitionerSpec("murmur2_random", "sticky"),
    "fnv1a": PartitionerSpec("fnv1a", "sticky"),
    "fnv1a_random": PartitionerSpec("fnv1a_random", "sticky"),
    # Sarama's NewHashPartitioner and NewReferenceHashPartitioner choose at random for each keyless record.
    "sarama": PartitionerSpec("sarama", "random"),
    "sarama_reference": PartitionerSpec("sarama_reference", "random"),
    "murmur3": PartitionerSpec("murmur3", "sticky"),
    "single_broker": PartitionerSpec("java", "single_broker"),
}

_PACKAGES: Final = (
    # The longer first: the first match is removed from the start of a name.
    "org.apache.kafka.clients.producer.internals.",
    "org.apache.kafka.clients.producer.",
    "kafka.partitioner.default.",
    "kafka.partitioner.sticky.",
    "kafka.partitioner.",
)

_KAFKA_PYTHON_CLASSES: Final = {
    ("kafka.partitioner.default", "DefaultPartitioner"): "default",
    ("kafka.partitioner.sticky", "StickyPartitioner"): "sticky",
}


def _canonical(name: str) -> str:
    name = name.strip().lower()
    for package in _PACKAGES:
        if name.startswith(package):
            name = name.removeprefix(package)
            break
    return name.translate({ord(c): None for c in "-_ "}).removesuffix("partitioner")


_BY_CANONICAL_NAME: Final = {_canonical(name): spec for name, spec in BUILT_IN.items()}


class Partitioner(ABC):
    """Base class for custom partitioners, with kafka-python 3's interface; deriving from it is optional.

    Two more methods are called if a class has them: ``on_new_batch(topic, cluster, prev_partition)``
    before a keyless record would open a new batch in ``prev_partition`` (the partitioner is then asked
    again), and ``close()``, once, when the producer closes. Several threads may call any of them at once.
    """

    @abstractmethod
    def partition(
        self,
        topic: str,
        key: Any,
        serialized_key: bytes | None,
        value: Any,
        serialized_value: bytes | None,
        cluster: ClusterView,
    ) -> int:
        """Returns the partition of the record: one of ``cluster.partitions_for_topic(topic)``.

        ``key`` and ``value`` are the arguments of ``send()``. Exceptions reach the caller of ``send()``.
        """


_Ask = Callable[[str, Any, bytes | None, Any, bytes | None, ClusterView], Any]
_Keyed = Callable[[bytes | None, list[int], list[int]], Any]


class CustomPartitioner:
    """A user's partitioner of any kind: how to call it, and checking its result.

    ``keyed``: the callable (key_bytes, all_partitions, available_partitions), or None. ``ask``: without that,
    takes kafka-python 3's six arguments. ``on_new_batch``: the hook, or None.

    Raises KafkaConfigurationError if ``target`` cannot be called as a partitioner. Thread-safe as far as the
    user's partitioner is.
    """

    __slots__ = ("_close", "ask", "keyed", "name", "on_new_batch", "target")

    def __init__(self, target: Any) -> None:
        if isinstance(target, type):
            target = _instantiate(target)
        self.target: Final[Any] = target
        self.name: Final[str] = _qualified_name(target)
        ask, keyed = _calls(target, self.name)
        self.ask: Final[_Ask | None] = ask
        self.keyed: Final[_Keyed | None] = keyed
        self.on_new_batch: Final[Any] = getattr(target, "on_new_batch", None)
        self._close: Any = getattr(target, "close", None)

    def checked(self, answer: Any, topic: str, cluster: ClusterView) -> int:
        """Returns the partition that the user's partitioner has returned.

        Raises ValueError if the answer is not an integer, is not a partition of ``topic``, or if ``cluster``
        does not know the topic.
        """
        allowed = _known_partitions(topic, cluster)
        try:
            # True would be partition 1: a mistake, not a choice.
            partition = None if isinstance(answer, bool) else operator.index(answer)
        except TypeError:
            partition = None
        if partition is None or partition not in allowed:
            raise ValueError(
                f"partitioner {self.name} returned {answer!r} for topic {topic!r}:"
                f" must be an integer of {_describe(allowed)}"
            )
        return partition

    def close(self) -> None:
        """Calls the partitioner's ``close()``, once, if it has one."""
        close, self._close = self._close, None
        if close is not None:
            close()


def resolve_partitioner(
    value: Any, ignore_keys: bool = False, rack_aware: bool = False
) -> PartitionerSpec | CustomPartitioner:
    """Returns what the option ``partitioner`` means; the module's docstring has the rules.

    ``ignore_keys`` (KIP-794's ``partitioner.ignore.keys``) makes a built-in partitioner treat every record as
    keyless. ``rack_aware`` (KIP-1123's ``partitioner.rack.aware``) is for those that are sticky for keyless
    records. Raises KafkaConfigurationError for an unknown name, for a value that is not a partitioner, and
    for either flag with a partitioner that it is not for: a custom one gets the key and decides itself.
    """
    spec = _built_in(value)
    if rack_aware and (spec is None or spec.keyless != "sticky"):
        sticky = ", ".join(name for name, each in BUILT_IN.items() if each.keyless == "sticky")
        raise KafkaConfigurationError(
            f"partitioner_rack_aware=True: must be False with partitioner={value!r}; it is for built-in"
            f" partitioners that are sticky without a key ({sticky})"
        )
    if spec is not None:
        return spec._replace(key_hash="none") if ignore_keys else spec
    if ignore_keys:
        raise KafkaConfigurationError(
            f"partitioner_ignore_keys=True: must be False with partitioner={value!r}; it is for built-in"
            f" partitioners ({', '.join(BUILT_IN)})"
        )
    return value if isinstance(value, CustomPartitioner) else CustomPartitioner(value)


def _built_in(value: Any) -> PartitionerSpec | None:
    if value is None:
        return BUILT_IN["default"]
    if isinstance(value, PartitionerSpec):
        return value
    if isinstance(value, str):
        spec = _BY_CANONICAL_NAME.get(_canonical(value))
        if spec is None:
            raise _refusal(value)
        return spec
    cls = value if isinstance(value, type) else type(value)
    name = _KAFKA_PYTHON_CLASSES.get((cls.__module__, cls.__qualname__))
    return None if name is None else BUILT_IN[name]


def _known_partitions(topic: str, cluster: ClusterView) -> Set[int]:
    partitions = cluster.partitions_for_topic(topic)
    if not partitions:
        raise ValueError(f"topic {topic!r} has no partitions in the cluster metadata")
    return partitions


def _describe(partitions: Set[int]) -> str:
    if partitions == set(range(len(partitions))):
        return f"0..{len(partitions) - 1}"
    return str(sorted(partitions))


def _qualified_name(target: Any) -> str:
    named = target if hasattr(target, "__qualname__") else type(target)
    module = getattr(named, "__module__", None)
    return f"{module}.{named.__qualname__}" if module else str(named.__qualname__)


def _accepts(function: Any, count: int) -> bool | None:
    """Returns whether ``function`` takes ``count`` positional arguments; None if it has no signature."""
    # Imported here: it takes longer to import than all of this package, and few producers need it.
    import inspect

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _instantiate(cls: type) -> Any:
    # Checked before the call, so that a TypeError raised inside the constructor passes through.
    if _accepts(cls, 0) is False:
        raise KafkaConfigurationError(
            f"partitioner class {cls.__module__}.{cls.__qualname__} needs arguments: give a class"
            " that can be instantiated without arguments, or an instance"
        )
    return cls()


def _calls(target: Any, name: str) -> tuple[_Ask | None, _Keyed | None]:
    # str and bytes have an unrelated `partition` method.
    if not isinstance(target, (str, bytes, bytearray)):
        method = getattr(target, "partition", None)
        if callable(method):
            if _accepts(method, 6) is not False:
                return method, None
            if _accepts(method, 3):
                return (
                    lambda topic, _key, key_bytes, _value, _value_bytes, cluster: method(
                        topic, key_bytes, cluster
                    )
                ), None
            raise KafkaConfigurationError(
                f"partitioner {name}: its partition method takes neither"
                " (topic, key, serialized_key, value, serialized_value, cluster) nor"
                " (topic, serialized_key, cluster)"
            )
        if callable(target):
            if _accepts(target, 3) is False:
                raise KafkaConfigurationError(
                    f"partitioner {name} does not take (key_bytes, all_partitions, available_partitions)"
                )
            return None, target
    raise _refusal(target)


def _refusal(value: Any) -> KafkaConfigurationError:
    return KafkaConfigurationError(
        f"partitioner={value!r}: must be one of {', '.join(BUILT_IN)}, an object with a partition method,"
        " or a callable (key_bytes, all_partitions, available_partitions)"
    )
