from typing import final

@final
class RowSource: ...
