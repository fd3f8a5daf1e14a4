"""Regular expressions that clients send, matched in time linear in the text.

Kafka matches them with RE2, Python's ``re`` by backtracking: ``(a+)+$`` would block the broker. Here a set of
states advances by one character at a time, and no state is visited twice for a character. So there are no
backreferences and no lookarounds, as in RE2.

Owns the syntax, which is what Python and RE2 have in common. Every function is thread-safe.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

MOST_STATES: Final = 500
"""The size of a pattern: its characters, with repetitions written out."""
_TOKEN: Final = re.compile(
    r"(?P<open>\((?:\?:|\?P<\w+>)?)|\[\^?\]?(?:\\.|[^\]\\])*\]|\\[^AbBzZ1-9]|[^\\()|]", re.DOTALL
)
_REPEAT: Final = re.compile(r"(?:([*+?])|\{(\d+)(,?)(\d*)\})(\??)")
_SIGNS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}

Emit = Callable[[int], int]
"""Adds the states of a part of a pattern before a state, and returns the first one."""


class Pattern:
    """A parsed pattern. Raises ``ValueError`` if it is not one, is too large, or needs backtracking."""

    def __init__(self, text: str) -> None:
        flags = re.IGNORECASE if text.startswith("(?i)") else re.NOFLAG
        self._text = text.removeprefix("(?i)")
        self._at = 0
        self._flags = flags
        #: What a state does with a character, and the states that follow.
        self._states: list[tuple[Callable[[str], object] | str | None, list[int]]] = [(None, [])]
        try:
            # Raises what the parser here does not see, such as a bad range.
            re.compile(text)
            emit = self._branches()
            if self._at < len(self._text):
                raise self._wrong()
            self._first = emit(0)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{text}: {error}") from None

    def matches(self, text: str) -> bool:
        """Whether the pattern matches the whole text."""
        now = self._reached([self._first], True, not text)
        for at, character in enumerate(text, 1):
            after = [
                follower
                for test, followers in map(self._states.__getitem__, now)
                if callable(test) and test(character)
                for follower in followers
            ]
            now = self._reached(after, False, at == len(text))
        return 0 in now

    def _reached(self, states: Iterable[int], is_start: bool, is_end: bool) -> set[int]:
        """Adds the states that can be reached without a character."""
        found, left = set[int](), list(states)
        while left:
            state = left.pop()
            if state not in found:
                found.add(state)
                test, followers = self._states[state]
                if test is None or (test == "^" and is_start) or (test == "$" and is_end):
                    left += followers
        return found

    # Parsing

    def _wrong(self) -> ValueError:
        return ValueError(f"{self._text}: {self._text[self._at :]!r} is not supported")

    def _add(self, test: Callable[[str], object] | str | None, followers: list[int]) -> int:
        if len(self._states) >= MOST_STATES:
            raise ValueError(f"{self._text}: it has more than {MOST_STATES} states")
        self._states.append((test, followers))
        return len(self._states) - 1

    def _branches(self) -> Emit:
        found = [self._sequence()]
        while self._text.startswith("|", self._at):
            self._at += 1
            found.append(self._sequence())
        if len(found) == 1:
            return found[0]
        return lambda after: self._add(None, [emit(after) for emit in found])

    def _sequence(self) -> Emit:
        parts: list[Emit] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._repeated(self._atom()))

        def emit(after: int) -> int:
            if not parts:
                # Whatever is repeated has a size.
                return self._add(None, [after])
            for part in reversed(parts):
                after = part(after)
            return after

        return emit

    def _atom(self) -> Emit:
        token = _TOKEN.match(self._text, self._at)
        if token is None:
            raise self._wrong()
        if token["open"]:
            if self._text.startswith("(?", self._at) and token["open"] == "(":
                raise self._wrong()
            self._at = token.end()
            inner = self._branches()
            if not self._text.startswith(")", self._at):
                raise self._wrong()
            self._at += 1
            return inner
        self._at = token.end()
        if token[0] in "^$":
            return lambda after: self._add(token[0], [after])
        test = re.compile(token[0], self._flags).match
        return lambda after: self._add(test, [after])

    def _repeated(self, emit: Emit) -> Emit:
        found = _REPEAT.match(self._text, self._at)
        if found is None:
            return emit
        self._at = found.end()
        sign, low, comma, high, _ = found.groups()
        if sign:
            least, most = _SIGNS[sign]
        else:
            least = int(low)
            most = int(high) if high else None if comma else least
        if max(least, most or 0) > MOST_STATES:
            raise ValueError(f"{self._text}: it repeats something more than {MOST_STATES} times")

        def repeat(after: int) -> int:
            if most == 0:
                return self._add(None, [after])
            if most is None:
                followers = [after]
                first = self._add(None, followers)
                followers.append(emit(first))
            else:
                first = after
                for _ in range(most - least):
                    first = self._add(None, [after, emit(first)])
            for _ in range(least):
                first = emit(first)
            return first

        return repeat


@lru_cache(maxsize=100)
def compiled(pattern: str) -> Pattern:
    """Returns a pattern. Raises ``ValueError``, as ``Pattern`` does."""
    return Pattern(pattern)


@lru_cache(maxsize=10_000)
def matches(pattern: str, text: str) -> bool:
    """Whether a pattern that ``compiled`` takes matches the whole text. The cache is for topics, whose names
    are matched in each heartbeat."""
    return compiled(pattern).matches(text)
