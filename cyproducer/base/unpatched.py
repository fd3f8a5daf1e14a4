"""The standard library's original functions and classes, even if gevent or eventlet has patched the process.

Owns finding them. A producer's threads must be system threads: patched functions would start greenlets, which
run only while the application's greenlets wait, and whose locks and sockets work within one thread only. A
function that was imported before the process was patched is the original. Otherwise the library that patched
the function has kept the original. Imports neither library.
"""

from __future__ import annotations

import _thread
import selectors
import socket
import sys
import time
from typing import TYPE_CHECKING, Any


def original(module: Any, name: str) -> Any:
    """Returns the attribute ``name`` of a module of the standard library as it was before any patch."""
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and patcher.already_patched:
        return getattr(patcher.original(module.__name__), name)
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None:
        return monkey.get_original(module.__name__, name)
    return getattr(module, name)


def _default_selector() -> Any:
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is None or not patcher.already_patched.get("select"):
        # gevent replaces DefaultSelector, and removes the classes that it could refer to.
        return original(selectors, "DefaultSelector")
    # eventlet has removed epoll and kqueue from `select`: load a selectors module that sees the original.
    import importlib.util

    spec = importlib.util.find_spec("selectors")
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    patched = sys.modules["select"]
    sys.modules["select"] = patcher.original("select")
    try:
        spec.loader.exec_module(copy)
    finally:
        sys.modules["select"] = patched
    return copy.DefaultSelector


if TYPE_CHECKING:
    from _thread import allocate_lock as allocate_lock
    from _thread import get_ident as get_ident
    from _thread import start_new_thread as start_new_thread
    from selectors import DefaultSelector as DefaultSelector
    from socket import getaddrinfo as getaddrinfo
    from socket import getnameinfo as getnameinfo
    from time import sleep as sleep

    Socket = socket.socket
else:
    allocate_lock = original(_thread, "allocate_lock")
    get_ident = original(_thread, "get_ident")
    start_new_thread = original(_thread, "start_new_thread")
    sleep = original(time, "sleep")
    Socket = original(socket, "socket")
    getaddrinfo = original(socket, "getaddrinfo")
    getnameinfo = original(socket, "getnameinfo")
    DefaultSelector = _default_selector()
