"""One producer a configuration and process, shared by the tasks that come and go in it.

Owns: counting who uses which producer, and closing those nobody uses. Does not own: the producers' threads,
nor what becomes of them in a forked child, which they know themselves (``docs/processes.md``). Thread-safe.

Spark keeps its Python workers and gives them task after task. A producer for each task would connect anew,
ask for metadata and an identity, and start with small batches; one that stays for ever would hold memory and
connections that nobody uses.
"""

import hashlib
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from cyproducer.errors import KafkaConfigurationError, KafkaError, KafkaTimeoutError
from cyproducer.producer import KafkaProducer

IDLE_S: Final = 60.0
"""How long a producer without users stays, for the next task."""


class SharedConfig:
    """A producer's configuration that can be pickled and compared, callables included.

    ``key`` is equal where the pickled configurations are, in whichever process: a function that travelled to
    two tasks is two objects there.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = dict(config)
        self.key = hashlib.sha256(
            repr([_fixed(*item) for item in sorted(self.config.items())]).encode()
        ).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedConfig) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)


def _fixed(name: str, value: Any) -> tuple[str, object]:
    """An option as something whose representation is the same in every process."""
    if value is None or isinstance(value, str | bytes | int | float):
        return name, value
    try:
        return name, _pickled(value)
    except Exception as error:
        raise KafkaConfigurationError(
            f"{name}={value!r}: can't be pickled, and so can't travel to Spark's workers: {error}"
        ) from error


def _pickled(value: object) -> bytes:
    """By Spark's own pickler where it is there, which takes functions that are not importable."""
    try:
        from pyspark import cloudpickle
    except ModuleNotFoundError:
        return pickle.dumps(value)
    dumps: Callable[[object], bytes] = cloudpickle.dumps
    return dumps(value)


class _Shared:
    """A producer and its users; fields are guarded by ``_lock``."""

    def __init__(self, producer: KafkaProducer) -> None:
        self.producer = producer
        self.users = 0
        self.timer: threading.Timer | None = None


_lock = threading.Lock()
_shared: dict[str, _Shared] = {}


@contextmanager
def shared_producer(config: SharedConfig) -> Iterator[KafkaProducer]:
    """The process's producer of that configuration, made where there is none.

    What was sent through it has its outcome when the block ends, unless that ends by an exception. Afterwards
    it stays ``IDLE_S`` seconds for whoever comes next. Thread-safe.

    Raises:
        KafkaConfigurationError, NoBrokersAvailableError: as ``KafkaProducer`` does.
        KafkaTimeoutError: not everything had its outcome within ``delivery_timeout_ms``.
    """
    shared = _take(config)
    try:
        try:
            yield shared.producer
        except GeneratorExit:
            # Who takes a few of a generator's items leaves what was sent for the others: it was accepted.
            _drain(shared.producer)
            raise
        _drain(shared.producer)
    except Exception:
        # It may have failed for good. Whoever comes next gets another one.
        _evict(config.key, shared)
        raise
    finally:
        _give_back(config.key, shared)


def _drain(producer: KafkaProducer) -> None:
    producer.flush(producer.config.delivery_timeout_ms / 1000)


def await_outcomes(producer: KafkaProducer) -> None:
    """Waits until everything that was accepted has its outcome, which the futures then tell. As nothing
    lingers while somebody flushes, it comes sooner than by waiting for the futures."""
    with suppress(KafkaTimeoutError):
        _drain(producer)


def _evict(key: str, shared: _Shared) -> None:
    with _lock:
        if _shared.get(key) is shared:
            del _shared[key]


def _take(config: SharedConfig) -> _Shared:
    with _lock:
        shared = _shared.get(config.key)
        if shared is None:
            shared = _shared[config.key] = _Shared(KafkaProducer(**config.config))
        shared.users += 1
        if shared.timer is not None:
            shared.timer.cancel()
            shared.timer = None
        return shared


def _give_back(key: str, shared: _Shared) -> None:
    with _lock:
        shared.users -= 1
        if shared.users == 0:
            idle_s = IDLE_S if _shared.get(key) is shared else 0
            shared.timer = threading.Timer(idle_s, _close_idle, (key, shared))
            shared.timer.daemon = True
            shared.timer.start()


def _close_idle(key: str, shared: _Shared) -> None:
    with _lock:
        # A race the lock settles: the time runs out while a task takes the producer. Either the task comes
        # first, and it has a user, or it finds none in the dictionary and makes its own.
        if shared.users:
            return
        if _shared.get(key) is shared:
            del _shared[key]
    shared.producer.close()


def _after_fork() -> None:
    """In a child the lock may be held by a thread that it has not got, and the users are the parent's."""
    global _lock
    _lock = threading.Lock()
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def close_all() -> None:
    """Closes the producers that nobody uses now; those in use are closed when they are idle."""
    with _lock:
        idle = {key: shared for key, shared in _shared.items() if shared.users == 0}
        for key, shared in idle.items():
            del _shared[key]
            if shared.timer is not None:
                shared.timer.cancel()
    errors: list[KafkaError] = []
    for shared in idle.values():
        try:
            shared.producer.close()
        except KafkaError as error:
            errors.append(error)
    if errors:
        raise errors[0]
