"""The topics of a Metadata response, which are read in C: the garbage collector does not visit them, and
other threads run meanwhile."""

from __future__ import annotations

import gc
import time

import pytest

from cyproducer.wire.messages import METADATA
from cyproducer.wire.protocol import decode_metadata
from tools.harness.neighbour import Neighbour


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


@pytest.mark.parametrize(("topics", "partitions"), [(10_000, 3), (1, 60_000), (300, 200)])
def test_other_threads_run_while_a_large_response_is_decoded(topics: int, partitions: int) -> None:
    response = METADATA.response
    partition = response.MetadataResponsePartition(0, 0, 1, 5, [1], [1], [])
    topic = response.MetadataResponseTopic(0, "t", bytes(16), False, [partition] * partitions)
    frame = METADATA.encode_response(9, 1, response(0, [], None, 1, [topic] * topics))[4:]
    shares = []
    for _ in range(5):
        with Neighbour() as neighbour:
            begun = time.perf_counter()
            decode_metadata(9, frame)
            took = time.perf_counter() - begun
        shares.append(neighbour.longest / took)
    # Nearly the whole call without pauses. The system may take a CPU away for some milliseconds.
    assert min(shares) < 0.5
