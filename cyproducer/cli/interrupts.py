"""Ends a command cleanly after SIGINT (Ctrl-C) or SIGTERM: accepted records are still delivered.

Owns the handlers of these signals while a command runs, and calls to the producer that a signal can
interrupt. Runs on the main thread, where Python delivers signals.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from cyproducer.base.clock import monotonic_s
from cyproducer.errors import KafkaError, KafkaTimeoutError

SLICE_S = 0.5
"""A signal is noticed within this time: a call itself would wait for its whole timeout."""


class Interrupts:
    """Handles SIGINT and SIGTERM for a program that must not lose what it has accepted. A context manager.

    The first signal is recorded and interrupts only code inside `breaking`. The second raises
    KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.count = 0
        self.number = 0
        """The number of the first signal, or 0."""
        self._breaking = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def requested(self) -> bool:
        return self.count > 0

    @property
    def name(self) -> str:
        """The first signal's name."""
        return signal.Signals(self.number).name

    @property
    def exit_status(self) -> int:
        """The status that shells report for a program that the first signal terminated: 130 or 143."""
        return 128 + self.number

    @contextlib.contextmanager
    def breaking(self) -> Iterator[None]:
        """A block that may wait forever and is safe to interrupt at any point."""
        self._breaking = True
        try:
            # This check must follow the line above: an interrupt before that line is detected here, and one
            # after it raises.
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._breaking = False

    def in_slices(
        self,
        call: Callable[[float], object],
        timeout_s: float,
        interrupted_timeout_s: float,
        waiting: Callable[[], object] = lambda: None,
    ) -> None:
        """Calls ``call(seconds)`` until it returns, for at most ``timeout_s``, or ``interrupted_timeout_s``
        after a signal. Each call must join what an earlier one has begun, as a producer's ``flush`` does.

        ``waiting`` is called after each call that timed out. Raises the last KafkaTimeoutError.
        """
        deadline_s = monotonic_s() + timeout_s
        while True:
            if self.requested:
                deadline_s = min(deadline_s, monotonic_s() + interrupted_timeout_s)
            try:
                call(max(0.0, min(SLICE_S, deadline_s - monotonic_s())))
                return
            except KafkaTimeoutError:
                waiting()
                if monotonic_s() >= deadline_s:
                    raise

    def _interrupt(self, number: int, _frame: object) -> None:
        self.count += 1
        self.number = self.number or number
        if self.count > 1 or self._breaking:
            raise KeyboardInterrupt


class Accepted(NamedTuple):
    """The outcome of the records of one producer call. The first ``records`` records were accepted."""

    future: Any
    """The future of the accepted records; ``None`` if there are none."""
    records: int
    error: BaseException | None
    """Why the other records were not accepted: KeyboardInterrupt after a signal."""


def accept(send: Callable[[Any], Any], given: Any, records: int, interrupts: Interrupts) -> Accepted:
    """Calls ``send(given)`` to send ``records`` records. The first signal ends a wait in that call.

    Args:
        send: A producer's ``send`` or ``send_many`` with its other arguments bound by `functools.partial`.
        given: The value, or the values.

    Raises:
        KeyboardInterrupt: A second signal was received.
    """
    futures, error = accept_each(send, ((given,),), interrupts)
    if not futures:
        return Accepted(getattr(error, "future", None), getattr(error, "accepted", None) or 0, error)
    return Accepted(futures[0], records, None)


def accept_each(
    send: Callable[..., Any], columns: Iterable[Iterable[Any]], interrupts: Interrupts
) -> tuple[list[Any], BaseException | None]:
    """Calls ``send(*row)`` for each row of ``columns``, until an error or the first signal.

    Args:
        send: A producer's ``send``, or another function in C that accepts records.
        columns: The arguments of the calls: all first arguments, all second arguments, and so on.

    Returns:
        The futures of the calls that returned, and the error that ended the calls. After a signal, the error
        is KeyboardInterrupt, even if all calls had returned.

    Raises:
        KeyboardInterrupt: A second signal was received.
    """
    futures: list[Any] = []
    try:
        with interrupts.breaking():
            # A signal handler may run after a call has returned and before its result is assigned: the
            # accepted records would then have no future. No signal handler runs between map() and extend().
            futures.extend(map(send, *columns))
    except (KafkaError, TypeError, ValueError, MemoryError, KeyboardInterrupt) as error:
        if interrupts.count > 1:
            raise KeyboardInterrupt from error
        return futures, error
    return futures, None
