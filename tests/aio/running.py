"""What the tests of ``AIOKafkaProducer`` share."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from cyproducer.aio import AIOKafkaProducer
from tests.scripted.producing import WAIT_S

MEMORY = 32 << 10
VALUE = bytes(1000)
OPTIONS: dict[str, Any] = {"retry_backoff_ms": 10, "reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 50}


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, WAIT_S * 2))


async def runs_on(condition: Callable[[], object]) -> None:
    """Lets the loop run until the condition is true: it is not blocked."""
    while not condition():
        await asyncio.sleep(0.001)


def threads_of(producer: AIOKafkaProducer) -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.endswith(f"| {producer.client_id}")]
