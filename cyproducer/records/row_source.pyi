from typing import Any, final

@final
class Items: ...

@final
class RowSource: ...

def is_header_list(headers: Any) -> bool:
    """Whether this is one list of headers, and not a sequence of such lists. An empty list means no
    headers."""
