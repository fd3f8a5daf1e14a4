"""Properties files: what ``java.util.Properties`` reads."""

import pytest

from cyproducer.config.properties import parse


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", {}),
        ("# a comment\n! another\n\n   \n", {}),
        ("a=1\nb:2\nc 3\nd\t=\t4\n  e = 5 ", {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5 "}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a=b=c:d e", {"a": "b=c:d e"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1,\\\n   2,\\\n   3", {"a": "1,2,3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\n# no comment", {"a": "1# no comment"}),
        (r"a\=b\:c\ d=1", {"a=b:c d": "1"}),
        (r"a=\t\n\r\f\\\z\u00fc\"", {"a": '\t\n\r\f\\zü"'}),
        (r"\ud83d\ude00=a\ud83d\ude00b", {"😀": "a😀b"}),
        ("a=1\na=2", {"a": "2"}),
        ("a = x # no comment", {"a": "x # no comment"}),
        ("a=1\\", {"a": "1"}),
    ],
)
def test_entries(text: str, entries: dict[str, str]) -> None:
    assert parse(text.encode()) == entries


def test_utf_8_and_latin_1() -> None:
    assert (
        parse("a=ü".encode())
        == parse("a=ü".encode("latin-1"))
        == parse("a=ü".encode("utf-8-sig"))
        == {"a": "ü"}
    )


def test_a_password_of_jaas_with_escapes() -> None:
    # A backslash vanishes in the file: JAAS gets one of two.
    text = 'sasl.jaas.config=C required username="u" \\\n  password="a\\\\"b";'
    assert parse(text.encode()) == {"sasl.jaas.config": 'C required username="u" password="a\\"b";'}
