"""The topics of a Metadata response, which are read in C, are not visited by the garbage collector."""

from __future__ import annotations

import gc

from cyproducer.wire.messages import METADATA
from cyproducer.wire.protocol import decode_metadata


def test_no_topic_of_a_response_is_tracked() -> None:
    response = METADATA.response
    partition = response.MetadataResponsePartition(0, 0, 1, 5, [1], [1], [])
    topic = response.MetadataResponseTopic(0, "t", bytes(16), False, [partition])
    frame = METADATA.encode_response(9, 1, response(0, [], None, 1, [topic]))[4:]
    [found] = decode_metadata(9, frame).topics
    assert found.name == "t"
    assert not gc.is_tracked(found)
    assert not gc.is_tracked(found.partitions)
    assert not gc.is_tracked(found.partitions[0])
