"""How a line is parsed in each of the command line's formats."""

from __future__ import annotations

import pytest

from cyproducer.cli.line_format import LineError, Record, json_line, keyed_line, whole_line


@pytest.mark.parametrize("line", [b"", b"text", b"\xff\x00 not UTF-8", b"a:b"])
def test_a_whole_line_is_the_value(line: bytes) -> None:
    assert whole_line(line) == Record(line)


@pytest.mark.parametrize(
    ("separator", "line", "key", "value"),
    [
        (":", b"k:v", b"k", b"v"),
        (":", b"k:v:w", b"k", b"v:w"),
        ("\t", b"\t", b"", b""),
        ("=>", b"a=>b", b"a", b"b"),
        ("é", "aéb".encode(), b"a", b"b"),
    ],
)
def test_the_text_before_the_first_separator_is_the_key(
    separator: str, line: bytes, key: bytes, value: bytes
) -> None:
    assert keyed_line(separator)(line) == Record(value, key)


def test_a_line_without_the_separator_is_refused_and_quoted_in_part() -> None:
    with pytest.raises(LineError, match=r"^no separator ':' between key and value: 'x{57}\.\.\.'$"):
        keyed_line(":")(b"x" * 1000)


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ('{"value": "text"}', Record(b"text")),
        ('{"value": "é\\u0000"}', Record("é\0".encode())),
        ('{"value": ""}', Record(b"")),
        ('{"value": {"b": [1, null], "a": "é"}}', Record('{"b":[1,null],"a":"é"}'.encode())),
        ('{"value": 1.5, "key": 7}', Record(b"1.5", b"7")),
        ('{"value": true, "key": false}', Record(b"true", b"false")),
        ('{"value": null, "key": "k"}', Record(None, b"k")),
        ('{"value": "v", "key": null}', Record(b"v")),
        (
            '{"value": "v", "headers": {"a": "1", "b": [2]}}',
            Record(b"v", headers=(("a", b"1"), ("b", b"[2]"))),
        ),
        ('{"value": "v", "headers": null}', Record(b"v")),
        ('{"value": "v", "partition": 0, "timestamp_ms": 99}', Record(b"v", partition=0, timestamp_ms=99)),
    ],
)
def test_a_json_line_is_parsed_to_a_record(line: str, record: Record) -> None:
    assert json_line(line.encode()) == record


@pytest.mark.parametrize("line", [b"", b"  \t"])
def test_a_blank_json_line_is_not_a_record(line: bytes) -> None:
    assert json_line(line) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nothing", r"not JSON \(Expecting value.*\): 'nothing'"),
        (b"\xff", "not JSON"),
        (b"[1]", r"not a JSON object: '\[1\]'"),
        (b"{}", 'no "value": use null for a tombstone'),
        (b'{"key": "k"}', 'no "value"'),
        (b'{"value": null}', "no key and no value"),
        (
            b'{"value": 1, "Key": 2}',
            "unknown name 'Key': allowed are key, value, headers, partition, timestamp_ms",
        ),
        (b'{"value": 1, "headers": [["a", "b"]]}', r"headers must be an object .*, not \[\[\"a\", \"b\"\]\]"),
        (b'{"value": 1, "headers": {"a": null}}', "header 'a' is null"),
        (b'{"value": 1, "partition": -1}', "partition must be a whole number >= 0, not -1"),
        (b'{"value": 1, "partition": true}', "partition must be a whole number >= 0, not true"),
        (b'{"value": 1, "timestamp_ms": 1.5}', "timestamp_ms must be a whole number >= 0, not 1.5"),
        (b'{"value": "\\ud800"}', "unpaired surrogate"),
    ],
)
def test_an_invalid_json_line_is_refused_in_one_line(line: bytes, reason: str) -> None:
    with pytest.raises(LineError, match=reason) as refusal:
        json_line(line)

    assert "\n" not in str(refusal.value)
