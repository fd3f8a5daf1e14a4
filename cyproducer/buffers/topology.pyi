from typing_extensions import disjoint_base

@disjoint_base
class TopicState:
    @property
    def name(self) -> str: ...
