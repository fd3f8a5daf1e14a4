"""The interface that a ``Connector`` needs from the loop of its connections; ``Sender`` implements it."""

from __future__ import annotations

import socket
from typing import Protocol

from cyproducer.net.connection import Connection


class Loop(Protocol):
    """Every method but ``request_control`` is called with the loop lock held."""

    def request_control(self) -> None:
        """Makes the loop call the control plane soon. Any thread."""

    def open_connection(self, sock: socket.socket, node_id: int, where: str) -> Connection:
        """Takes over a non-blocking, connecting socket, and watches it."""

    def connected(self, connection: Connection) -> None:
        """Marks the socket as connected: the handshake begins."""

    def watch_write(self, connection: Connection, on: bool) -> None:
        """Sets whether to wait until the socket is writable."""

    def set_raw(self, connection: Connection, on: bool) -> None:
        """Sets whether the control plane reads the socket itself: a proxy's response, a TLS handshake."""

    def hold(self, connection: Connection, on: bool) -> None:
        """Sets whether Produce requests wait while the connection authenticates."""

    def ready(self, connection: Connection, produce_version: int) -> None:
        """Marks the handshake as complete: Produce requests of this version can be sent."""

    def count_failed_authentication(self) -> None:
        """Counts a failed authentication, for the metrics."""

    def flush_connection(self, connection: Connection) -> None:
        """Writes as much of the queued requests as the socket accepts."""

    def close_connection(self, connection: Connection, cause: BaseException | None) -> None:
        """Closes the connection. ``cause``: the failure; None if there is none."""
