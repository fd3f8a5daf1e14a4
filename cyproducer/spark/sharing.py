"""One producer a configuration and process, shared by the tasks that come and go in it.

Owns: counting who uses which producer, and closing those nobody uses. Does not own: the producers' threads,
nor what becomes of them in a forked child, which they know themselves (``docs/processes.md``). Thread-safe.

Spark keeps its Python workers and gives them task after task. A producer for each task would connect anew,
ask for metadata and an identity, and start with small batches; one that stays for ever would hold memory and
connections that nobody uses.
"""

import hashlib
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from cyproducer.errors import KafkaError
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
        self.key = hashlib.sha256(_pickled(sorted(self.config.items()))).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedConfig) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)


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
        yield shared.producer
        shared.producer.flush(shared.producer.config.delivery_timeout_ms / 1000)
    finally:
        _give_back(config.key, shared)


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
            shared.timer = threading.Timer(IDLE_S, _close_idle, (key, shared))
            shared.timer.daemon = True
            shared.timer.start()


def _close_idle(key: str, shared: _Shared) -> None:
    with _lock:
        # A race the lock settles: the time runs out while a task takes the producer. Either the task comes
        # first, and it has a user, or it finds none in the dictionary and makes its own.
        if shared.users or _shared.get(key) is not shared:
            return
        del _shared[key]
    shared.producer.close()


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
