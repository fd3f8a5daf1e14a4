"""``wait_ready()`` and its timeout."""

import time

import pytest

from cyproducer import errors
from cyproducer.producer import KafkaProducer
from tests.scripted.odd_servers import is_silent, odd_server
from tests.scripted.producing import WAIT_S, options


def test_with_a_timeout_of_0_it_looks_and_does_not_wait() -> None:
    with (
        odd_server(is_silent) as silent,
        KafkaProducer(**options(bootstrap_servers=silent, max_block_ms=WAIT_S * 1000)) as producer,
    ):
        began = time.monotonic()
        with pytest.raises(errors.NoBrokersAvailable):
            producer.wait_ready(0)
        assert time.monotonic() - began < WAIT_S / 4
        producer.close(0)
