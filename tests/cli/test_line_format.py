"""How a line is parsed in each of the command line's formats."""

from __future__ import annotations

import pytest

from cyproducer.cli.line_format import (
    Columns,
    HeaderSeparators,
    JsonFormat,
    LineError,
    Record,
    TextFormat,
    unescaped,
)

json_line = JsonFormat().parse


@pytest.mark.parametrize("line", [b"", b"text", b"\xff\x00 not UTF-8", b"a:b"])
def test_a_whole_line_is_the_value(line: bytes) -> None:
    assert TextFormat().parse(line) == Record(line)
    assert TextFormat().columns([line]) == Columns([line], None)


@pytest.mark.parametrize(
    ("separator", "line", "key", "value"),
    [
        (b":", b"k:v", b"k", b"v"),
        (b":", b"k:v:w", b"k", b"v:w"),
        (b"\t", b"\t", b"", b""),
        (b"=>", b"a=>b", b"a", b"b"),
        (b"\xff", b"a\xffb", b"a", b"b"),
    ],
)
def test_the_text_before_the_first_separator_is_the_key(
    separator: bytes, line: bytes, key: bytes, value: bytes
) -> None:
    assert TextFormat(separator).parse(line) == Record(value, key)
    assert TextFormat(separator).columns([line, line]) == Columns([value, value], [key, key])


def test_a_line_without_the_separator_is_refused_and_quoted_in_part() -> None:
    with pytest.raises(
        LineError, match=r"^no separator ':' between key and value: 'x{57}\.\.\.'$"
    ) as refusal:
        TextFormat(b":").parse(b"x" * 1000)

    assert refusal.value.cause == "no separator ':' between key and value"
    assert TextFormat(b":").columns([b"a:b", b"x"]) is None


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (b"NULL:v", Record(b"v", None)),
        (b"k:NULL", Record(None, b"k")),
        (b"k:", Record(None, b"k")),
        (b":NULLS", Record(b"NULLS", None)),
    ],
)
def test_text_that_means_null(line: bytes, record: Record) -> None:
    format = TextFormat(b":", nulls=frozenset({b"NULL", b""}))

    assert format.parse(line) == record
    assert format.columns([line]) == Columns([record.value], [record.key])
    assert TextFormat(nulls=frozenset({b"NULL"})).columns([b"NULL", b""]) == Columns([None, b""], None)


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (b"a:1,b:2\tkey\tvalue", Record(b"value", b"key", (("a", b"1"), ("b", b"2")))),
        (b"a:1,a:2:3\tkey\tv\tv", Record(b"v\tv", b"key", (("a", b"1"), ("a", b"2:3")))),
        (b"\tkey\tvalue", Record(b"value", b"key")),
        (b"NULL\tkey\tvalue", Record(b"value", b"key")),
        (b"a:NULL,:\xff\tNULL\tNULL", Record(None, None, (("a", None), ("", b"\xff")))),
    ],
)
def test_headers_at_the_beginning_of_a_line(line: bytes, record: Record) -> None:
    format = TextFormat(b"\t", HeaderSeparators(), frozenset({b"NULL"}))

    assert format.parse(line) == record
    assert format.columns([line]) is None


@pytest.mark.parametrize(
    ("line", "cause", "reason"),
    [
        (b"a:1", r"no delimiter '\t' after the headers", "'a:1'"),
        (b"a:1\tvalue", r"no separator '\t' between key and value", "'a:1\\tvalue'"),
        (b"a\tk\tv", "no separator ':' between a header's name and value", "'a'"),
        (b"\xff:1\tk\tv", "a header's name is not UTF-8", "'\ufffd'"),
    ],
)
def test_headers_that_are_not_well_formed_are_refused(line: bytes, cause: str, reason: str) -> None:
    with pytest.raises(LineError) as refusal:
        TextFormat(b"\t", HeaderSeparators()).parse(line)

    assert refusal.value.cause == cause
    assert str(refusal.value) == f"{cause}: {reason}"


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
        ('{"value": "v", "headers": null, "headers_base64": null}', Record(b"v")),
        (
            '{"value": "v", "headers": [["a", "1"], ["a", null], ["", {"b": 2}]]}',
            Record(b"v", headers=(("a", b"1"), ("a", None), ("", b'{"b":2}'))),
        ),
        (
            '{"value": "v", "headers_base64": [["a", "/w=="], ["a", null]], "headers": {"b": "c"}}',
            Record(b"v", headers=(("b", b"c"), ("a", b"\xff"), ("a", None))),
        ),
        ('{"value_base64": "/wA=", "key_base64": ""}', Record(b"\xff\0", b"")),
        ('{"value_base64": null, "key": "k"}', Record(None, b"k")),
        ('{"value": "v", "partition": 0, "timestamp_ms": 99}', Record(b"v", partition=0, timestamp_ms=99)),
    ],
)
def test_a_json_line_is_parsed_to_a_record(line: str, record: Record) -> None:
    assert json_line(line.encode()) == record


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("text", ['{"value": "\u00e9"}', '{ "value": "\u00e9"}', ' \t{"value": "\u00e9"} \r'])
def test_json_may_have_any_encoding_of_json_and_spaces_around_it(text: str, encoding: str) -> None:
    assert json_line(text.encode(encoding)) == Record("\u00e9".encode())


def test_what_follows_a_json_object_is_an_error() -> None:
    with pytest.raises(LineError, match=r"Extra data: line 1 column 14 \(char 13\)"):
        json_line(b'{"value": 1} {"value": 2}')


@pytest.mark.parametrize("line", [b"", b"  \t"])
def test_a_blank_json_line_is_not_a_record(line: bytes) -> None:
    assert json_line(line) is None


@pytest.mark.parametrize(
    ("line", "cause", "detail"),
    [
        (b"nothing", "not JSON", "Expecting value: line 1 column 1 (char 0): 'nothing'"),
        (b"\xff", "not JSON", "'utf-8' codec"),
        (b"[" * 100_000, "not JSON that can be read", "nested too deeply: '[[["),
        (b"[1]", "not a JSON object", "'[1]'"),
        (b"{}", 'no "value"', "use null for a tombstone"),
        (b'{"key": "k"}', 'no "value"', "use null for a tombstone"),
        (b'{"value": null}', "no key and no value", "a tombstone needs a key"),
        (
            b'{"value": 1, "Key": 2}',
            "unknown name",
            "'Key': allowed are key, value, headers, partition, timestamp_ms, key_base64, value_base64, "
            "headers_base64",
        ),
        (
            b'{"value": 1, "headers": [["a", "b", "c"]]}',
            "headers must be an object of names and values, or a list of [name, value]",
            '[["a", "b", "c"]]',
        ),
        (b'{"value": 1, "headers": [[1, "b"]]}', "headers must be an object", '[[1, "b"]]'),
        (b'{"value": 1, "headers_base64": "a"}', "headers_base64 must be an object", '"a"'),
        (
            b'{"value": 1, "headers_base64": {"a": "AA==", "b": "%"}}',
            "headers_base64 is not base64",
            "headers_base64[1] ('b'): ",
        ),
        (
            b'{"value": 1, "headers_base64": {"a": 1}}',
            "headers_base64 must be base64, as a string, or null",
            "headers_base64[0] ('a'): 1",
        ),
        (b'{"value_base64": "AAA"}', "value_base64 is not base64", 'value_base64: Incorrect padding: "AAA"'),
        (b'{"value": 1, "key_base64": "\xc3\xa9"}', "key_base64 is not base64", "key_base64: "),
        (b'{"value": 1, "key": 1, "key_base64": ""}', "both key and key_base64 are given", "leave one of"),
        (b'{"value": 1, "partition": -1}', "partition must be a whole number >= 0", "not -1"),
        (b'{"value": 1, "partition": true}', "partition must be a whole number >= 0", "not true"),
        (b'{"value": 1, "timestamp_ms": 1.5}', "timestamp_ms must be a whole number >= 0", "not 1.5"),
        (b'{"value": "\\ud800"}', "value has an unpaired surrogate", "value: '\\ud800'"),
        (
            b'{"value": 1, "headers": {"a": "\\ud800"}}',
            "headers has an unpaired surrogate",
            "headers[0] ('a')",
        ),
        (b'{"value": 1, "headers": {"\\ud800": ""}}', "headers has a name with an unpaired", "'\\ud800'"),
    ],
)
def test_an_invalid_json_line_is_refused_in_one_line(line: bytes, cause: str, detail: str) -> None:
    with pytest.raises(LineError) as refusal:
        json_line(line)

    assert refusal.value.cause.startswith(cause)
    assert detail in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        (":", b":"),
        (r"\t", b"\t"),
        (r"\n\r\0\\t", b"\n\r\0\\t"),
        (r"\x01\xfFa", b"\x01\xffa"),
        ("é\udcff", b"\xc3\xa9\xff"),
        ("\n", b"\n"),
    ],
)
def test_separators_are_written_with_escapes(text: str, separator: bytes) -> None:
    assert unescaped(text) == separator


@pytest.mark.parametrize("text", ["", "\\", r"\x0", r"\xg0", r"\q", "\\\n"])
def test_other_escapes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        unescaped(text)
