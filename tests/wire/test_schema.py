"""The interpreter of declarations: defaults, refusals, bounds, and errors that name the field."""

import re
from typing import Any

import pytest

from cyproducer.errors import KafkaProtocolError
from cyproducer.wire import messages
from cyproducer.wire.primitives import Reader, Writer
from cyproducer.wire.requests import decode_request, read_header
from cyproducer.wire.schema import NO_UUID, Api, Message, Versions

DECLARED = """
    id uuid 1+
    name string nullable 2+
    note text 2+ ignorable
    parts [Part] nullable 0+
        number int32
        sizes [int64] 1+ most 2
    place Place 3+ tag 0 3+
        x int8 = -1
        y int16
    owner Owner 3+ nullable 3+ = null
        name string
"""


def message(strict: bool = True) -> Message:
    return Message("Thing", 2, DECLARED, strict)


def written(value: Any, version: int, strict: bool = True) -> bytes:
    writer = Writer("Thing", version >= 2, False)
    message(strict).write(writer, version, value)
    return writer.finish()


def read(data: bytes, version: int) -> Any:
    return message().read(Reader(data, "Thing", version >= 2), version)


def test_what_a_version_has_no_field_for_has_its_default() -> None:
    thing = message()
    made = thing(name="a", parts=[])
    assert made == (NO_UUID, "a", "", [], (-1, 0), None)
    assert made._fields == ("id", "name", "note", "parts", "place", "owner")
    assert read(written(made, 0), 0) == made
    # Each message has lists of its own.
    assert thing(parts=[]).parts is not thing(parts=[]).parts


def test_bytes_of_each_form() -> None:
    thing = message()
    one = thing.Part(7, [9])
    old = thing(name="a", parts=[one._replace(sizes=[])])
    assert written(old, 0).hex() == "0001610000000100000007"
    new = thing(b"i" * 16, None, "n", [one], thing.Place(y=5), thing.Owner("o"))
    body = "69" * 16 + "00026e" + "020000000702000000000000000900" + "01026f00"
    assert written(new, 3).hex() == body + "010004ff000500"
    assert read(written(new, 3), 3) == new
    # An unknown tag is skipped, and the known one may be missing.
    assert read(bytes.fromhex(body + "010701aa"), 3) == new._replace(place=thing.Place())


@pytest.mark.parametrize(
    ("version", "changed", "problem"),
    [
        (0, {"id": b"i" * 16}, "id=b'iiiiiiiiiiiiiiii' needs version 1 or newer"),
        (0, {"parts": [(1, [2])]}, "parts.sizes=[2] needs version 1 or newer"),
        (2, {"id": b"short"}, "id is b'short', it must be 16 bytes"),
        (1, {"name": None}, "name is None, it must be a str"),
        (2, {"parts": 5}, "parts is 5, it must be a list"),
        (2, {"parts": [5]}, "parts is 5, it must be a Part"),
        (
            2,
            {"parts": [(1 << 31, [])]},
            "parts.number is 2147483648, it must be an int of 32 bits with a sign",
        ),
        (2, {"parts": [("1", [])]}, "parts.number is '1', it must be an int of 32 bits with a sign"),
        (3, {"owner": ("\ud800",)}, r"owner.name '\ud800' is not valid Unicode text"),
    ],
)
def test_a_value_that_cannot_be_written_is_named(version: int, changed: dict[str, Any], problem: str) -> None:
    value = message()(name="a", parts=[])._replace(**changed)
    with pytest.raises(ValueError, match=re.escape(f"Thing: {problem}")):
        written(value, version)


def test_a_request_is_strict_and_a_response_is_not() -> None:
    value = message()(b"i" * 16, "a", "note", [])
    assert written(value, 0, strict=False) == written(value._replace(id=NO_UUID, note=""), 0)
    # It is ignorable.
    assert written(value, 1) == written(value._replace(note=""), 1)


@pytest.mark.parametrize(
    ("version", "data", "problem"),
    [
        (0, "000161" "00000003" "00000007", "parts claims 3 elements of at least 4 bytes"),
        (2, "69" * 16 + "00" "026e" "03" "00000007" "010000", "parts claims 2 elements of at least 6 bytes"),
        (1, "69" * 16 + "000161" "00000001" "00000007" "00000003" + "00" * 24, "parts.sizes has 3 elements"),
        (0, "ffff", "name is null, but must not be"),
        (3, "69" * 16 + "00" "026e" "01" "ff" "01" "00" "02" "ff00", "place.y needs 2 bytes"),
        (3, "69" * 16 + "00" "026e" "01" "ff" "01" "00" "05" "ff00050000", "end was expected"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(version: int, data: str, problem: str) -> None:
    with pytest.raises(KafkaProtocolError, match=re.escape(f"Thing: {problem}")):
        read(bytes.fromhex(data), version)


@pytest.mark.parametrize(
    ("kind", "old", "flexible"),
    [
        ("boolean", 1, 1),
        ("int16", 2, 2),
        ("uuid", 16, 16),
        ("string", 2, 1),
        ("text nullable 0+", 2, 1),
        ("bytes", 4, 1),
        ("records", 4, 1),
        ("[int64]", 4, 1),
        ("[Inner]", 4, 1),
        ("Inner", 8, 9),
        ("Inner nullable 0+", 1, 1),
        ("int8 1+ tag 0 1+", 0, 0),
    ],
)
def test_the_smallest_elements_are_read_and_more_than_fit_are_refused(
    kind: str, old: int, flexible: int
) -> None:
    """Each kind has its least size, in bytes. With tagged fields, an element has one byte more."""
    inner = "\n        y int64" if "Inner" in kind else ""
    thing = Message("Thing", 1, f"parts [Part]\n    x int8\n    z {kind}{inner}", True)
    value = thing([thing.Part(0, thing.structs["Part"].fields[1].zero())] * 3)
    for version, count, least in ((0, 4, 1 + old), (1, 1, 2 + flexible)):
        writer = Writer("Thing", version == 1, False)
        thing.write(writer, version, value)
        data = writer.finish()
        assert len(data) == count + 3 * least + version
        assert thing.read(Reader(data, "Thing", version == 1), version) == value
        with pytest.raises(KafkaProtocolError, match=f"parts claims 3 elements of at least {least} bytes"):
            thing.read(Reader(data[: count + 3 * least - 1], "Thing", version == 1), version)


def test_a_structure_that_a_message_lacks_is_named() -> None:
    with pytest.raises(AttributeError, match="Thing has no structure 'Party', only Thing, Part,"):
        message().Party  # noqa: B018


@pytest.mark.parametrize("text", ["", "x", "3-", "-3", "3+4"])
def test_versions_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{text!r} are no versions: write them as 3, 3-5 or 3+")):
        Versions.parse(text)


def test_a_request_of_another_api_or_version_is_refused() -> None:
    api = messages.END_TXN
    frame = api.encode_request(3, 7, "me", api.request("tx", 1, 2, True))[4:]
    assert read_header(frame) == (26, 3, 7, "me")
    for other in (messages.INIT_PRODUCER_ID, Api(26, "EndTxn", "4-5", flexible=3, request="", response="")):
        with pytest.raises(KafkaProtocolError, match="is no request of"):
            decode_request(other, frame)


def test_a_client_may_use_fewer_versions_than_are_declared() -> None:
    assert messages.FETCH.versions == (4, 12)
    assert tuple(messages.FETCH.declared) == (4, 18)
    assert messages.FETCH.since == "Kafka 2.1"
    assert messages.FETCH.releases[-1] == ((4, 1), 18)
