"""Tests that Python code that never releases the GIL does not stop the sender, unless there are errors."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cyproducer.producer import KafkaProducer
from cyproducer.records import codec_libraries
from perf import null_broker
from perf.null_broker import NullBroker
from tests.scripted.producing import WAIT_S

pytestmark = [
    pytest.mark.skipif(null_broker.unavailable() is not None, reason=str(null_broker.unavailable())),
]

FOREVER_S = 1000.0


@pytest.fixture
def nobody_else() -> Iterator[None]:
    """A thread that runs Python code releases the GIL only when it blocks."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(FOREVER_S)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("idempotent", [True, False])
def test_records_are_acknowledged_while_python_code_holds_the_gil(
    idempotent: bool, nobody_else: None
) -> None:
    with (
        NullBroker(brokers=2, partitions=4) as broker,
        KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, enable_idempotence=idempotent, batch_size=4096
        ) as producer,
    ):
        for partition in range(4):
            producer.send("t", b"first", partition=partition).get(WAIT_S)
        for _ in range(3):
            futures = [producer.send("t", bytes(100), partition=i % 4) for i in range(20_000)]
            # No call here blocks, which would release the GIL.
            deadline = time.monotonic() + WAIT_S
            while not all(future.is_done for future in futures) and time.monotonic() < deadline:
                pass
            assert all(future.succeeded() for future in futures)
        requests = producer._runtime.sender.counters()["requests"]
        # Not a single request with everything: batches were drained, sent and acknowledged one after the
        # other.
        assert requests > 50


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_no_codec_waits_for_the_gil(codec: Any, nobody_else: None) -> None:
    if codec and codec_libraries.functions_of(codec) is None:
        pytest.skip(f"there is no library of {codec}: its Python functions take the GIL")
    # Keeps the GIL, as a function in C does that computes.
    usleep = ctypes.PyDLL(None).usleep
    with (
        NullBroker(brokers=2, partitions=4) as broker,
        # Batches are due before they are full: the sender compresses them.
        KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, compression_type=codec, linger_ms=1
        ) as producer,
    ):
        for partition in range(4):
            producer.send("t", b"first", partition=partition).get(WAIT_S)
        futures = [producer.send("t", bytes(100), partition=i % 4) for i in range(20_000)]
        for _ in range(100):
            usleep(100_000)
            if all(future.is_done for future in futures):
                break
        assert sum(future.succeeded() for future in futures) == 20_000
