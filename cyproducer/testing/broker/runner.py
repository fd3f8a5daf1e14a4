"""Runs an embedded cluster on a thread of its own.

Owns the thread and its event loop, and calls from other threads. Thread-safe.
"""

import asyncio
import concurrent.futures
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from cyproducer.testing.broker.cluster import EmbeddedCluster

T = TypeVar("T")
CALL_S: Final = 30.0


class ClusterThread:
    """A cluster and its thread. ``make`` makes the cluster, on the thread of the loop."""

    def __init__(
        self, make: Callable[[asyncio.AbstractEventLoop], EmbeddedCluster], tls: ssl.SSLContext | None = None
    ) -> None:
        self._make = make
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._cluster: EmbeddedCluster | None = None
        self._thread = threading.Thread(target=self._run, name="cyproducer-embedded-broker", daemon=True)

    def start(self) -> None:
        """Returns once all nodes listen. Raises what kept one from it."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result(CALL_S)
        except BaseException:
            self.stop()
            raise

    async def _begin(self) -> None:
        self._cluster = self._make(self._loop)
        for node in self._cluster.nodes.values():
            await node.start(self._tls)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls ``function(cluster, *arguments)`` on the loop's thread; returns, or raises, what it does."""
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            assert self._cluster is not None
            self._cluster.world.touch()
            try:
                outcome.set_result(function(self._cluster, *arguments))
            except BaseException as error:
                outcome.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return outcome.result(CALL_S)

    def start_node(self, number: int) -> None:
        """Makes a node listen again, on its port."""
        assert self._cluster is not None
        start = self._cluster.nodes[number].start(self._tls)
        asyncio.run_coroutine_threadsafe(start, self._loop).result(CALL_S)

    def stop(self) -> None:
        """Closes everything, and ends the thread."""
        if not self._thread.is_alive():
            return
        if self._cluster is not None:
            self.call(_close)
        # One more turn: connections that were cut learn of it.
        self._loop.call_soon_threadsafe(self._loop.call_soon, self._loop.stop)
        self._thread.join(CALL_S)


def _close(cluster: EmbeddedCluster) -> None:
    for node in cluster.nodes.values():
        node.stop()
    cluster.world.close()
