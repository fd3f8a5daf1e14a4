from collections.abc import Iterable
from typing import Any

from typing_extensions import disjoint_base

from cyproducer.control.cluster_view import HasView
from cyproducer.control.partitioners import CustomPartitioner

@disjoint_base
class TopicPartitions: ...

@disjoint_base
class Extensions:
    def __init__(
        self,
        *,
        key_serializer: Any = None,
        value_serializer: Any = None,
        interceptors: Iterable[Any] = (),
        custom: CustomPartitioner | None = None,
        accepts: bool = False,
    ) -> None: ...
    @property
    def interceptors(self) -> tuple[Any, ...]: ...
    @property
    def custom(self) -> CustomPartitioner | None: ...
    @property
    def accepts(self) -> bool: ...
    @property
    def needed(self) -> bool: ...
    def use(self, client: HasView) -> None: ...

@disjoint_base
class Acknowledgement:
    def __call__(self, outcome: Any) -> None: ...
