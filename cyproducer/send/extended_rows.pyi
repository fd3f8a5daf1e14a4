from typing import Any

from typing_extensions import disjoint_base

from cyproducer.send.extensions import Extensions

@disjoint_base
class ExtendedRows:
    def __init__(
        self,
        extensions: Extensions,
        topic: Any,
        values: Any,
        keys: Any,
        headers: Any,
        partition: Any,
        timestamp_ms: Any,
    ) -> None: ...
    def columns(self) -> tuple[Any, Any, Any, Any, Any]: ...

@disjoint_base
class RowAcknowledgements:
    def __call__(self, outcome: Any) -> None: ...
