"""The open producers of this process, for the exporters, and the labels that keep their series distinct.

Owns the number of each producer among those with the same ``client_id``. Does not own the list of runtimes
(``_runtime``), names and forms (``observability/exports``) or the exporters.

Two series must not have the same labels. So while several producers have the same ``client_id``, all but one
get the label ``producer`` with a number, 2 or higher. A producer keeps its number as long as it is open.
After that, the next producer with this ``client_id`` gets the number, so that a program that makes one
producer after another has one series instead of one per producer.

Thread-safe. A forked child starts without numbers.
"""

import threading
import weakref
from collections.abc import Iterable, Iterator

from cyproducer._runtime import Runtime, open_runtimes
from cyproducer.base.forks import in_child
from cyproducer.producer import KafkaProducer

# Reentrant: a signal handler may close a producer in the middle of a scrape.
_lock = threading.RLock()
#: A runtime, or the object that holds the number of a closed one -> its client id and number.
_numbers: weakref.WeakKeyDictionary[object, tuple[str, int]] = weakref.WeakKeyDictionary()


def _begin_anew() -> None:
    # Another thread of the parent may have held the lock.
    global _lock, _numbers
    _lock = threading.RLock()
    _numbers = weakref.WeakKeyDictionary()


in_child(_begin_anew)


class Watched:
    """The producers that an exporter exposes: all of the process, or the given ones. Keeps none alive.

    A producer is exposed from its start until it is closed, also if it was collected and is being closed in
    the background. It is not exposed if its option ``metrics_enabled`` is False, or in a forked child that
    has not used it.
    """

    def __init__(self, producers: Iterable[KafkaProducer] | None = None) -> None:
        self._given: weakref.WeakSet[KafkaProducer] | None = None
        if producers is not None:
            self._given = weakref.WeakSet(producers)

    def runtimes(self) -> list[Runtime]:
        """Returns the runtimes of the producers that are currently exposed."""
        found = open_runtimes()
        if self._given is not None:
            given = {producer._running for producer in self._given}
            found = [runtime for runtime in found if runtime in given]
        return [runtime for runtime in found if runtime.config.metrics_enabled]


def numbered(runtimes: Iterable[Runtime]) -> Iterator[tuple[Runtime, dict[str, str]]]:
    """Yields each runtime with its labels: ``client_id``, and ``producer`` if the client id is not unique."""
    shown = list(runtimes)
    with _lock:
        for runtime in shown:
            if runtime not in _numbers:
                name = runtime.config.client_id
                taken = {
                    number
                    for holder, (other, number) in _numbers.items()
                    if other == name and not (isinstance(holder, Runtime) and holder.closed)
                }
                _numbers[runtime] = name, next(n for n in range(1, len(taken) + 2) if n not in taken)
        numbers = [_numbers[runtime][1] for runtime in shown]
    for runtime, number in zip(shown, numbers, strict=True):
        labels = {"client_id": runtime.config.client_id}
        if number > 1:
            labels["producer"] = str(number)
        yield runtime, labels


def hold_number(runtime: Runtime, holder: object) -> None:
    """Keeps the number of a closed runtime reserved as long as ``holder`` exists."""
    with _lock:
        _numbers[holder] = _numbers[runtime]
