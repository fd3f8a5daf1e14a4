from typing import final

@final
class Items: ...

@final
class RowSource: ...
