"""What is exchanged on a connected socket before Kafka's protocol begins, in stages.

Owns the interface of a stage, and the one that waits. The others: ``tls_handshake``, ``proxy``.
"""

import socket
from typing import Any, Protocol, TypeVar

from cyproducer import errors
from cyproducer.net.blocking_tasks import Task

#: For ``send()``: a closed connection is an error, and no SIGPIPE, which ends programs that leave it at its
#: default.
NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)

B = TypeVar("B", bytes, memoryview)


def send_some(sock: socket.socket, data: B) -> B:
    """Sends what the socket takes; returns the rest."""
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
        """Reads and writes what is possible.

        Returns None when the stage is complete, else whether it has bytes to write. Raises OSError or
        KafkaError if it failed.
        """

    def release(self) -> None:
        """Frees what the stage holds; it is not used afterwards."""


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
        # Otherwise the loop would come here again and again.
        if early:
            raise errors.KafkaProtocolError("it sent data before this client did")
        raise errors.KafkaConnectionError("it closed the connection before anything was sent")

    def release(self) -> None:
        """See ``Stage.release``."""
