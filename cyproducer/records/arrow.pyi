from typing import final

@final
class ArrowTable: ...
