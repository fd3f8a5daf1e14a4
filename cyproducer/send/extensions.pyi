from collections.abc import Iterable
from typing import Any

from typing_extensions import disjoint_base

from cyproducer.control.cluster_view import HasView
from cyproducer.control.partitioners import CustomPartitioner

@disjoint_base
class TopicPartitions: ...

@disjoint_base
class Extensions:
    """A producer's serializers, interceptors and custom partitioner. Thread-safe if they are thread-safe."""

    def __init__(
        self,
        *,
        key_serializer: Any = None,
        value_serializer: Any = None,
        interceptors: Iterable[Any] = (),
        custom: CustomPartitioner | None = None,
        accepts: bool = False,
    ) -> None:
        """
        Args:
            key_serializer: a callable, an object with ``serialize``, or None.
            value_serializer: like ``key_serializer``.
            interceptors: objects with ``on_send``, ``on_acknowledgement``, or both.
            custom: the ``CustomPartitioner``, or None.
            accepts: whether the producer's ``_accept`` gets each record instead of the accumulator.
        """
    @property
    def interceptors(self) -> tuple[Any, ...]: ...
    @property
    def custom(self) -> CustomPartitioner | None: ...
    @property
    def accepts(self) -> bool: ...
    @property
    def needed(self) -> bool:
        """Whether there is anything to call."""
    def use(self, client: HasView) -> None:
        """Sets the client whose ``view`` has the partitions; called again in a forked child."""

@disjoint_base
class Acknowledgement:
    """A callback that passes the outcomes of records to interceptors.

    Consecutive records with the same topic and partition share one. ``partition``: the partition that was
    given for the record, or None.
    """

    def __call__(self, outcome: Any) -> None: ...
