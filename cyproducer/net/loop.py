"""What a ``Connector`` needs of the loop that reads and writes its connections; ``Sender`` is one."""

import socket
from typing import Protocol

from cyproducer.net.connection import Connection


class Loop(Protocol):
    """Every method but ``request_control`` is called with the loop lock held."""

    def request_control(self) -> None:
        """Makes the loop call the control plane soon. Any thread."""

    def open_connection(self, sock: socket.socket, node_id: int, where: str) -> Connection:
        """Takes a non-blocking, connecting socket over, and watches it."""

    def connected(self, connection: Connection) -> None:
        """The connection speaks Kafka's protocol from here on."""

    def watch_write(self, connection: Connection, on: bool) -> None:
        """Sets whether to wait until the socket can be written."""

    def set_raw(self, connection: Connection, on: bool) -> None:
        """Sets whether what arrives is left to the control plane: a proxy's answer, a TLS handshake."""

    def hold(self, connection: Connection, on: bool) -> None:
        """Sets whether Produce requests wait, while the connection authenticates."""

    def ready(self, connection: Connection, produce_version: int) -> None:
        """The handshake is over: Produce requests of this version may follow."""

    def count_failed_authentication(self) -> None:
        """Counts a refusal of this client's credentials, for the metrics."""

    def flush_connection(self, connection: Connection) -> None:
        """Writes what is queued, as far as the socket takes it."""

    def close_connection(self, connection: Connection, cause: BaseException | None) -> None:
        """Closes the connection; ``cause`` None: not because of a failure."""
