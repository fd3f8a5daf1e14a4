from typing import Any

from typing_extensions import disjoint_base

from cyproducer.send.extensions import Extensions

@disjoint_base
class ExtendedRows:
    """The rows of one call. The steps are called in the order of the methods."""
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
    def columns(self) -> tuple[Any, Any, Any, Any, Any]:
        """The arguments of ``send_many()`` except the topic.

        If interceptors get the outcomes, rows without a timestamp get the current time.
        """

@disjoint_base
class RowAcknowledgements:
    """Passes the outcomes of rows to interceptors, in the order of the rows: a callback of their future."""

    def __call__(self, outcome: Any) -> None: ...
