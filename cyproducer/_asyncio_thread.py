"""Runs a blocking call on a thread of its own, and awaits it.

The loop's own executor is not used, for two reasons. At its end, ``asyncio.run()`` waits for the executor's
threads, however long their calls take, even if the tasks that awaited them were cancelled. And all of the
executor's threads may be busy with calls of the program that wait for this one.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from cyproducer.base.user_thread import start_thread

T = TypeVar("T")


async def in_thread(name: str, function: Callable[..., T], *args: Any) -> T:
    """Returns what the function returns, or raises its error. Does not block the loop.

    If the task is cancelled, the call continues, and its outcome is dropped.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = function(*args)
        except BaseException as raised:
            error = raised
        # The loop may be closed: then no task waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, outcome, result, error)

    start_thread(name, run)
    return await outcome


def _settle(outcome: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if outcome.done():
        return
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(result)
