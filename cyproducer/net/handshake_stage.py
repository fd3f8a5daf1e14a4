"""The stages of a handshake that precede Kafka's protocol on a connected socket.

Owns the interface of a stage, and the stage that waits. The other stages: ``tls_handshake``, ``proxy``.
"""

from __future__ import annotations

import socket
from typing import Any, Protocol, TypeVar

from cyproducer import errors
from cyproducer.net.blocking_tasks import Task

#: A flag for ``send()``: a closed connection raises an error instead of SIGPIPE, which by default terminates
#: the process.
NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)

B = TypeVar("B", bytes, memoryview)


def send_some(sock: socket.socket, data: B) -> B:
    """Sends the bytes that the socket accepts; returns the rest."""
    while data:
        try:
            sent = sock.send(data, NO_SIGNAL)
        except BlockingIOError:
            break
        data = data[sent:]
    return data


class Stage(Protocol):
    """Takes one step whenever the socket is ready, with the loop lock held."""

    def step(self, sock: socket.socket) -> bool | None:
        """Reads and writes as much as possible without blocking.

        Returns None when the stage is complete, otherwise whether it has bytes to write. Raises OSError or
        KafkaError if the stage failed.
        """

    def release(self) -> None:
        """Frees the stage's resources; the stage is not used afterwards."""


class Waiting:
    """Exchanges nothing until a background task is done."""

    def __init__(self, task: Task[Any]) -> None:
        self.task = task

    def step(self, sock: socket.socket) -> bool | None:
        """See ``Stage.step``."""
        if self.task.done:
            return None
        try:
            early = sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        # Both raise: the socket would stay readable, and the loop would spin.
        if early:
            raise errors.KafkaProtocolError("it sent data before this client did")
        raise errors.KafkaConnectionError("it closed the connection before anything was sent")

    def release(self) -> None:
        """See ``Stage.release``."""
