"""Regular expressions of clients: what Python's ``re`` says, in linear time."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyproducer.testing.broker.patterns import MOST_STATES, Pattern

PARTS = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", r"\.", "", "^", "$"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join).map("({})".format),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "{0}"])).map(
            lambda both: f"(?:{both[0]}){both[1]}"
        ),
    ),
    max_leaves=6,
)


@given(PARTS, st.text("ab.", max_size=5))
def test_it_finds_what_python_finds(pattern: str, text: str) -> None:
    assert Pattern(pattern).matches(text) == bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("orders-(eu|us)", "orders-us", True),
        ("orders-(eu|us)", "orders-", False),
        ("(?i)ORDERS.*", "orders-us", True),
        ("ORDERS.*", "orders-us", False),
        ("(?P<name>a)b", "ab", True),
        ("[]a]+", "]a", True),
        ("a{b", "a{b", True),
        ("", "", True),
        ("^a$|^$", "a", True),
        ("a^b", "ab", False),
        (r"\d{2,3}", "1234", False),
        (r"\d{2,3}", "123", True),
        ("t\u00e4x", "t\u00e4x", True),
    ],
)
def test_patterns_as_programs_have_them(pattern: str, text: str, found: bool) -> None:
    assert Pattern(pattern).matches(text) is found


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*$", "(a*)*b", "(.*)*(.*)*(.*)*x", ".*.*.*.*.*.*.*.*.*.*x"]
)
def test_a_pattern_that_would_backtrack_for_ever_is_quick(pattern: str) -> None:
    assert not Pattern(pattern).matches("a" * 500 + "!")


@pytest.mark.parametrize(
    "pattern",
    [
        "[", "(", ")", "a**", "*", r"(a)\1", "(?=a)", "(?!a)", "(?<=a)b", "(?P<n>a)(?P=n)", r"\bx", "a*+",
        "(?>a)", "a(?i)b", "[b-a]", "a" * (MOST_STATES + 1), "(a{30}){30}", "a{1000}",
        "(((a{0}){400}){400}){400}",
        "((((){400}){400}){400}){400}", "(" * 5000 + ")" * 5000,
    ],
)  # fmt: skip
def test_what_is_not_a_pattern_or_needs_backtracking_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Pattern(pattern)
    assert str(caught.value).startswith(pattern)
