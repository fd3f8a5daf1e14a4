from typing import Any, final

@final
class Items: ...

@final
class RowSource: ...

def is_header_list(headers: Any) -> bool:
    """Whether these are one record's headers, and not a sequence of them. An empty list has none for all."""
