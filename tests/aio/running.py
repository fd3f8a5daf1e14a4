"""What the tests of ``AIOKafkaProducer`` share."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from cyproducer.aio import AIOKafkaProducer, BatchBuilder
from tests.scripted.producing import WAIT_S

MEMORY = 32 << 10
VALUE = bytes(1000)
OPTIONS: dict[str, Any] = {"retry_backoff_ms": 10, "reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 50}


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, WAIT_S * 2))


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine function. pytest calls this hook for the folders whose ``conftest.py``
    has it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


async def runs_on(condition: Callable[[], object]) -> None:
    """Lets the loop run until the condition is true: it is not blocked."""
    while not condition():
        await asyncio.sleep(0.001)


def threads_of(producer: AIOKafkaProducer) -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.endswith(f"| {producer.client_id}")]


def batch_of(producer: AIOKafkaProducer, *values: bytes) -> BatchBuilder:
    batch = producer.create_batch()
    for value in values:
        assert batch.append(timestamp=None, key=None, value=value) is not None
    return batch
