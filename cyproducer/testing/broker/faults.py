"""Injected faults: errors, cut connections and throttling for the next requests of a kind.

Owns the rules that a test has set, and how often each rule still applies. Does not own the position of an
error in a response: the handlers call ``Call.fault()`` for each topic and partition.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cyproducer.wire.schema import Api

if TYPE_CHECKING:
    from cyproducer.testing.broker.server import Call

FAIL, CUT_BEFORE, CUT_AFTER, THROTTLE = "fail", "cut before", "cut after", "throttle"
ALWAYS: Final = -1


class Rule:
    """A fault of some requests. A field that is None matches all requests."""

    __slots__ = ("api", "kind", "node", "partition", "times", "topic", "value")

    def __init__(
        self,
        kind: str,
        api: Api,
        value: int = 0,
        times: int = 1,
        node: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        self.kind = kind
        self.api = api
        #: The error code, or the throttle time in milliseconds.
        self.value = value
        self.times = times
        self.node = node
        self.topic = topic
        self.partition = partition

    def concerns(self, call: "Call") -> bool:
        return self.api is call.api and self.node in (None, call.node.id)


class Faults:
    """The rules, oldest first. The oldest rule that still applies takes effect."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def add(self, rule: Rule) -> None:
        self.rules.append(rule)

    def clear(self) -> None:
        self.rules.clear()

    def code(self, call: "Call", topic: str | None, partition: int | None) -> int:
        """Returns the error code for a part of a request. A rule counts each request once."""
        if not self.rules and not call.seen:
            return 0
        return self._first(
            call,
            FAIL,
            lambda rule: (
                rule.topic in (None, topic) and (rule.partition is None or rule.partition == partition)
            ),
        )

    def cuts(self, call: "Call", before: bool) -> bool:
        """Whether to close the connection instead of handling the request (``before``) or responding."""
        return bool(self.rules) and bool(self._first(call, CUT_BEFORE if before else CUT_AFTER))

    def throttle_ms(self, call: "Call") -> int:
        return self._first(call, THROTTLE) if self.rules else 0

    def _first(self, call: "Call", kind: str, fits: Callable[[Rule], bool] = lambda rule: True) -> int:
        for rule in [*call.seen, *self.rules]:
            if rule.kind != kind or not rule.concerns(call) or not fits(rule):
                continue
            if rule not in call.seen:
                call.seen[rule] = rule.value
                if rule.times != ALWAYS:
                    rule.times -= 1
                    if rule.times <= 0:
                        self.rules.remove(rule)
            return rule.value if kind != CUT_BEFORE and kind != CUT_AFTER else 1
        return 0
