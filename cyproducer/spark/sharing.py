"""Shares one producer per configuration and process among the tasks of that process.

Owns the count of each producer's users, and closes idle producers. Does not own the producers' threads or
their state in a forked child, which the producers handle themselves (``docs/processes.md``). Thread-safe.

Spark reuses its Python workers for one task after another. A producer per task would connect again, fetch
metadata and a producer ID again, and start with small batches. A producer that is never closed would hold
unused memory and connections.
"""

import hashlib
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final

from cyproducer.base.forks import in_child
from cyproducer.config import concealed, shown_option
from cyproducer.config.option_kinds import Secret
from cyproducer.config.spelling import java_spelling, rename
from cyproducer.errors import KafkaConfigurationError, KafkaError, KafkaTimeoutError
from cyproducer.producer import KafkaProducer

IDLE_S: Final = 60.0
"""Seconds for which a producer without users is kept for the next task."""


class SharedConfig:
    """A producer's configuration that can be pickled and compared, including callables.

    ``key`` is equal for equal pickled configurations, in any process. The objects themselves can't be
    compared: a function that is sent to two tasks becomes two objects.

    A pickle contains passwords and keys that were given as strings, regardless of ``pickle_secrets``: its
    purpose is to be sent to the workers, which need them. Nothing else shows them.
    """

    def __init__(self, config: Mapping[str, Any], *, of_sink: bool = False) -> None:
        """
        Args:
            config: the options of ``KafkaProducer``.
            of_sink: errors name options as the options of a write do: ``kafka.linger.ms``.
        """
        config = {name: concealed(name, value) for name, value in config.items()}
        self.config = config
        self.of_sink = of_sink
        self.key = hashlib.sha256(
            repr([_fixed(*item) for item in sorted(self.config.items())]).encode()
        ).hexdigest()

    def producer(self, **changes: Any) -> KafkaProducer:
        """Returns a new producer. ``changes``: other options. Raises the errors of ``KafkaProducer``."""
        try:
            return KafkaProducer(**{**self.config, **changes})
        except KafkaConfigurationError as error:
            if self.of_sink:
                rename(error, sink_spelling)
            raise

    def __getstate__(self) -> tuple[str, dict[str, Any], bool]:
        revealed = {name: _revealed(value) for name, value in self.config.items()}
        return self.key, revealed, self.of_sink

    def __setstate__(self, state: tuple[str, dict[str, Any], bool]) -> None:
        # The driver's key is kept, because a callable may be pickled differently here.
        self.key, _, self.of_sink = state
        self.config = {name: concealed(name, value) for name, value in state[1].items()}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={shown_option(name, value)}" for name, value in self.config.items())
        return f"{type(self).__name__}({shown})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedConfig) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)


def sink_spelling(name: str) -> str:
    """Returns the name of a producer's option as an option of a write."""
    return f"kafka.{java_spelling(name)}"


def _revealed(value: Any) -> Any:
    return value.reveal() if isinstance(value, Secret) else value


def _fixed(name: str, value: Any) -> tuple[str, object]:
    """Returns an option as an object whose ``repr()`` is the same in every process."""
    plain = (type(None), str, bytes, int, float)
    if isinstance(value, plain) or (isinstance(value, Secret) and isinstance(value.reveal(), plain)):
        return name, _revealed(value)
    try:
        return name, _pickled(value)
    except Exception as error:
        raise KafkaConfigurationError(
            f"{name}={shown_option(name, value)}: can't be pickled, and so can't be sent to Spark's workers: "
            f"{error}"
        ) from error


def _pickled(value: object) -> bytes:
    """Pickles with Spark's cloudpickle if it is installed: it supports functions that can't be imported."""
    try:
        from pyspark import cloudpickle
    except ModuleNotFoundError:
        return pickle.dumps(value)
    dumps: Callable[[object], bytes] = cloudpickle.dumps
    return dumps(value)


class _Shared:
    """A producer and its users. ``_lock`` guards the fields."""

    def __init__(self, producer: KafkaProducer) -> None:
        self.producer = producer
        self.users = 0
        self.timer: threading.Timer | None = None


_lock = threading.Lock()
_shared: dict[str, _Shared] = {}


def shared_producer(config: SharedConfig) -> AbstractContextManager[KafkaProducer]:
    """Provides the process's producer for that configuration to a ``with`` block; creates it if there is
    none.

    When the block ends without an exception, all records sent through the producer have their outcome. The
    producer is then kept for ``IDLE_S`` seconds for the next user. Thread-safe.

    Raises:
        TypeError: the configuration is not a ``SharedConfig``.
        KafkaConfigurationError, NoBrokersAvailableError: when the block begins, as from ``KafkaProducer``.
        KafkaTimeoutError: not all records had their outcome within ``delivery_timeout_ms``.
    """
    if not isinstance(config, SharedConfig):
        raise TypeError(
            f"shared_producer() is called with {type(config).__name__}: must be a SharedConfig, as in "
            "shared_producer(SharedConfig({'bootstrap_servers': ...}))"
        )
    return _Loan(config)


class _Loan(AbstractContextManager[KafkaProducer]):
    """What ``shared_producer`` returns."""

    def __init__(self, config: SharedConfig) -> None:
        self._block = _lend(config)

    def __enter__(self) -> KafkaProducer:
        return self._block.__enter__()

    def __exit__(self, *raised: Any) -> bool | None:
        return self._block.__exit__(*raised)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"shared_producer() returns no producer, and has no {name!r}: use it in a with block, as in "
            "'with shared_producer(config) as producer', which waits for all records at its end"
        )


@contextmanager
def _lend(config: SharedConfig) -> Iterator[KafkaProducer]:
    shared = _take(config)
    try:
        try:
            yield shared.producer
        except GeneratorExit:
            # The caller closed a generator early. The records that it has sent were accepted, so they are
            # awaited.
            _drain(shared.producer)
            raise
        _drain(shared.producer)
    except Exception:
        # The producer may have failed permanently. The next user gets a new one.
        _evict(config.key, shared)
        raise
    finally:
        _give_back(config.key, shared)


def _drain(producer: KafkaProducer) -> None:
    producer.flush(producer.config.delivery_timeout_ms / 1000)


def await_outcomes(producer: KafkaProducer) -> None:
    """Waits until all accepted records have their outcome, which their futures then report. Faster than
    waiting for the futures, because batches don't linger during a flush."""
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
            shared = _shared[config.key] = _Shared(config.producer())
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
        # The timer may fire while a task takes the producer. The lock decides which is first. If the task is
        # first, the producer has a user. If the timer is first, the task finds no producer and creates one.
        if shared.users:
            return
        if _shared.get(key) is shared:
            del _shared[key]
    shared.producer.close()


def _after_fork() -> None:
    """Resets the state in a forked child: a thread of the parent may hold the lock, and the users are the
    parent's."""
    global _lock
    _lock = threading.Lock()
    _shared.clear()


in_child(_after_fork)


def close_all() -> None:
    """Closes the producers that have no user. Producers in use are closed when they become idle."""
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
