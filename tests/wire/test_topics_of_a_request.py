"""The topics of a Metadata request, which are written in C, are the bytes that the declaration says."""

from __future__ import annotations

import pytest

from cyproducer.wire import protocol
from cyproducer.wire.messages import METADATA

NAMES = ["t", "name-of-a-topic", "ü", "x" * 249, *(f"topic-{number}" for number in range(3000))]


@pytest.mark.parametrize("version", range(1, 14))
@pytest.mark.parametrize("names", [None, [], NAMES], ids=["all", "none", "many"])
def test_topics_are_written_as_declared(version: int, names: list[str] | None) -> None:
    make = METADATA.request.MetadataRequestTopic
    declared = METADATA.request(None if names is None else [make(name=name) for name in names], True)
    expected = METADATA.encode_request(version, 7, "client", declared)
    assert protocol.encode_metadata(version, 7, "client", names, True) == expected


@pytest.mark.parametrize("name", ["\ud800", "x" * 32768])
def test_a_name_that_cannot_be_written_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=r"topics\.name"):
        protocol.encode_metadata(9, 7, "client", ["t", name], True)
