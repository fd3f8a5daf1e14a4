"""Switches from a waiting greenlet to its gevent or eventlet hub, and back.

Owns everything that depends on the interfaces of these libraries, except ``unpatched``. Does not own which
greenlet waits for what, or waking greenlets from other threads (``greenlets``). Imports neither library.
Everything runs on the hub's own thread.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from cyproducer.base.greenlets import Doorbell, Event
from cyproducer.base.unpatched import get_ident

_NAME = "_cyproducer_bell"


def is_patched() -> bool:
    """Whether gevent or eventlet has patched anything in this process."""
    monkey = sys.modules.get("gevent.monkey")
    patcher = sys.modules.get("eventlet.patcher")
    return bool((monkey is not None and monkey.saved) or (patcher is not None and patcher.already_patched))


def current() -> Bell | None:
    """The bell of this thread's hub; None if the caller must block as a thread does.

    There are two such callers. One is a thread without a hub, which has no other greenlets, for example a
    thread of a thread pool. The other is the hub itself, in which a signal handler may run.
    """
    found = _hub()
    if found is None:
        return None
    kind, hub = found
    bell = hub.__dict__.get(_NAME)
    if bell is None:
        bell = hub.__dict__[_NAME] = kind(hub)
    return None if sys.modules["greenlet"].getcurrent() is bell.greenlet() else bell


def greenlet_ident() -> int:
    """Identifies the current greenlet while it exists."""
    return id(sys.modules["greenlet"].getcurrent())


def spawner(function: Callable[[], object]) -> Callable[[], object] | None:
    """Returns a callable with which any thread can schedule ``function`` in a greenlet of this thread's hub.

    Returns None if a thread can run ``function`` instead, because the locks in this process are not patched
    and therefore work between threads. A second thread can't wait for eventlet's locks, because the thread
    that releases one tries to switch to the waiting greenlet. If a second thread waits for gevent's locks, a
    hub with nothing else to wait for ends (``LoopExit``). Also returns None in a thread without a hub, except
    in the main thread, where the first greenlet that waits makes a hub.
    """
    monkey = sys.modules.get("gevent.monkey")
    patcher = sys.modules.get("eventlet.patcher")
    if monkey is not None and monkey.is_module_patched("threading"):
        # gevent has replaced the ident that threading.main_thread() has.
        if get_ident() != sys.modules["gevent.hub"].MAIN_THREAD_IDENT and _hub() is None:
            return None
        loop, spawn = sys.modules["gevent"].get_hub().loop, sys.modules["gevent"].spawn
        return lambda: loop.run_callback_threadsafe(spawn, function)
    if patcher is None or not patcher.already_patched.get("thread"):
        return None
    if get_ident() != threading.main_thread().ident and _hub() is None:
        return None
    wake = [Event()]

    def run() -> None:
        while True:
            called = wake[0] = Event()
            # Calls made before this line have set the previous event.
            function()
            called.wait()

    sys.modules["eventlet"].spawn_n(run)
    return lambda: wake[0].set()


def renew() -> None:
    """In a forked child: see ``greenlets.renew``."""
    found = _hub()
    if found is not None and (bell := found[1].__dict__.get(_NAME)) is not None:
        bell.renew()


def _hub() -> tuple[type[Bell], Any] | None:
    gevent = sys.modules.get("gevent._hub_local")
    if gevent is not None and (hub := gevent.get_hub_if_exists()) is not None and hub.loop is not None:
        return GeventBell, hub
    eventlet = sys.modules.get("eventlet.hubs")
    if eventlet is not None and (hub := getattr(eventlet._threadlocal, "hub", None)) is not None:
        return EventletBell, hub
    return None


class Bell(Doorbell, ABC):
    """One hub. It watches the descriptor only while greenlets wait: it ends if it watches nothing."""

    def __init__(self, hub: Any) -> None:
        self.hub = hub
        self.waiting: set[Any] = set()

    @abstractmethod
    def greenlet(self) -> Any:
        """The greenlet in which the hub runs."""

    @abstractmethod
    def waiter(self) -> Any:
        """Makes an object that the current greenlet waits for; its ``switch(None)`` ends the wait."""

    @abstractmethod
    def pause(self, waiter: Any, seconds: float | None) -> None:
        """Runs other greenlets until the waiter is switched to, for up to ``seconds`` (None: no limit)."""

    @abstractmethod
    def renew(self) -> None:
        """In a forked child: ends all waits. From then on the child uses a descriptor of its own."""

    def _rang(self, *_: Any) -> None:
        # In a forked child of eventlet, the parent also rings this bell.
        if self.hub.__dict__.get(_NAME) is self:
            for waiter in self.take():
                waiter.switch(None)


class GeventBell(Bell):
    """A ``gevent.hub.Hub``."""

    def __init__(self, hub: Any) -> None:
        super().__init__(hub)
        self._watcher = hub.loop.io(self.fd, 1)

    def greenlet(self) -> Any:
        return self.hub

    def waiter(self) -> Any:
        return sys.modules["gevent.hub"].Waiter(self.hub)

    def pause(self, waiter: Any, seconds: float | None) -> None:
        if not self.waiting:
            self._watcher.start(self._rang)
        self.waiting.add(waiter)
        timer = None
        try:
            if seconds is not None:
                timer = self.hub.loop.timer(seconds)
                timer.start(waiter.switch, None)
            waiter.get()
        finally:
            if timer is not None:
                timer.close()
            self.waiting.discard(waiter)
            if not self.waiting:
                self._watcher.stop()

    def renew(self) -> None:
        self._watcher.close()
        self.reopen()
        self._watcher = self.hub.loop.io(self.fd, 1)
        if self.waiting:
            self._watcher.start(self._rang)
        for waiter in self.waiting:
            self.hub.loop.run_callback(waiter.switch, None)


class EventletBell(Bell):
    """A hub of ``eventlet.hubs``."""

    def __init__(self, hub: Any) -> None:
        super().__init__(hub)
        self._listener: Any = None

    def greenlet(self) -> Any:
        return self.hub.greenlet

    def waiter(self) -> Any:
        return _Waiter()

    def pause(self, waiter: Any, seconds: float | None) -> None:
        waiter.greenlet = sys.modules["greenlet"].getcurrent()
        if self._listener is None:
            self._listener = self.hub.add(self.hub.READ, self.fd, self._rang, self._failed, None)
        self.waiting.add(waiter)
        timer = None
        try:
            if seconds is not None:
                timer = self.hub.schedule_call_global(seconds, waiter.switch, None)
            self.hub.switch()
        finally:
            waiter.greenlet = None
            if timer is not None:
                timer.cancel()
            self.waiting.discard(waiter)
            if not self.waiting and self._listener is not None:
                self.hub.remove(self._listener)
                self._listener = None

    def renew(self) -> None:
        self.hub.__dict__.pop(_NAME, None)
        # Removing the listener would remove the parent's: a child of eventlet shares its parent's epoll.
        self._listener = None
        for waiter in self.waiting:
            self.hub.schedule_call_global(0, waiter.switch, None)

    def _failed(self, *_: Any) -> None:
        """eventlet would call this to end a wait whose descriptor is closed. This hub's descriptor is not."""


class _Waiter:
    """An eventlet greenlet that waits, or has stopped waiting."""

    greenlet: Any = None

    def switch(self, value: None) -> None:
        if self.greenlet is not None:
            self.greenlet.switch(value)
