"""Runs an embedded cluster on a separate thread, or in a separate process.

Owns the thread or the process, and the transport of calls and results. Does not own the functions that are
called (``control``). Thread-safe.
"""

import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from cyproducer.testing.broker import control
from cyproducer.testing.broker.cluster import EmbeddedCluster
from cyproducer.testing.broker.loop import Loop

if TYPE_CHECKING:
    import subprocess
    from multiprocessing.connection import Connection

CALL_S: Final = 30.0
STOP_S: Final = 5.0


class ClusterThread:
    """A cluster on a daemon thread of this process. ``options`` are the arguments of ``EmbeddedCluster``."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._loop = Loop()
        self._cluster: EmbeddedCluster | None = None
        self._thread = threading.Thread(target=self._loop.run, name="cyproducer-embedded-broker", daemon=True)
        self.pid = os.getpid()

    def start(self) -> None:
        """Starts the cluster. Returns once all nodes listen; raises the error of a node that cannot."""
        self._thread.start()
        try:
            self._on_loop(self._begin)
        except BaseException:
            self.stop()
            raise

    def _begin(self) -> None:
        cluster = self._cluster = EmbeddedCluster(self._loop, **self._options)
        for node in cluster.nodes.values():
            node.start(cluster.tls)

    def _on_loop(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """Calls ``act`` on the loop's thread, and waits for its result. Raises ``TimeoutError`` if there is
        none after ``CALL_S``."""
        outcome: list[tuple[bool, Any]] = []
        is_over = threading.Event()

        def carry_out() -> None:
            outcome.append(_outcome(act, *arguments))
            is_over.set()

        self._loop.call_soon_threadsafe(carry_out)
        if not is_over.wait(CALL_S):
            raise TimeoutError(f"the embedded broker has not responded within {CALL_S:.0f} s")
        ((succeeded, result),) = outcome
        if succeeded:
            return result
        raise result

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls ``function(cluster, *arguments)`` on the loop's thread. Returns its result, or raises its
        exception."""
        return self._on_loop(self._call, function, arguments)

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        assert self._cluster is not None
        self._cluster.world.touch()
        return function(self._cluster, *arguments)

    def stop(self) -> None:
        """Closes everything, and ends the thread."""
        if not self._thread.is_alive():
            return
        if self._cluster is not None:
            self.call(_close)
        # Run one more iteration of the loop, so that connections that were cut are notified.
        self._loop.call_soon_threadsafe(self._loop.call_soon, self._loop.stop)
        self._thread.join(CALL_S)


def _outcome(act: Callable[..., Any], *arguments: Any) -> tuple[bool, Any]:
    """Returns whether a call succeeded, and its result or its exception."""
    try:
        return True, act(*arguments)
    except Exception as error:
        return False, error


def _close(cluster: EmbeddedCluster) -> None:
    for node in cluster.nodes.values():
        node.stop()
    cluster.world.close()


class Ended(Exception):
    """The process has ended; the message has its exit status."""


class ClusterProcess:
    """A cluster in a separate process, which ends when this process ends."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection[Any, Any] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts the process. Returns once all nodes listen; raises the error of a node that cannot."""
        # Imported here: a cluster on a thread needs neither, and both take long.
        import subprocess
        from multiprocessing.connection import Pipe

        ours, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "cyproducer.testing.broker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C must reach only the parent, which may still want to drain.
                start_new_session=True,
            )
        self._pipe = ours
        try:
            ours.send(dict(self._options))
            self._result()
        except BaseException:
            self.stop()
            raise

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function of ``control`` in the process."""
        assert self._pipe is not None
        with self._lock:
            try:
                self._pipe.send((function.__name__, arguments))
            except OSError:
                raise self._ended() from None
            return self._result()

    def _result(self) -> Any:
        assert self._pipe is not None
        try:
            succeeded, result = self._pipe.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if succeeded:
            return result
        raise result

    def _ended(self) -> Ended:
        assert self._process is not None
        return Ended(f"its process ended with status {self._process.wait(STOP_S)}; its stderr says why")

    def stop(self) -> None:
        """Ends the process."""
        if self._process is not None:
            # Closing the pipe is not enough: a forked child may hold it open. There is nothing to save.
            self._process.kill()
            self._process.wait(STOP_S)
        if self._pipe is not None:
            self._pipe.close()


def serve(pipe: "Connection[Any, Any]") -> None:
    """Carries out the calls of a ``ClusterProcess``, until the other end of the pipe is closed."""
    cluster = ClusterThread(pipe.recv())
    pipe.send(_outcome(cluster.start))
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(_outcome(cluster.call, getattr(control, name), *arguments))
