import selectors

from typing_extensions import disjoint_base

@disjoint_base
class Poller:
    def __init__(self, selector: selectors.BaseSelector) -> None: ...
    @property
    def selector(self) -> selectors.BaseSelector: ...
