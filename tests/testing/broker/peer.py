"""A client of an embedded broker that sends what a test says, in declared messages."""

import socket
from typing import Any

from cyproducer.wire.schema import Api
from tools.harness.until import PATIENCE_S


class Peer:
    """A connection. As a context manager, it is closed at the end."""

    def __init__(self, address: str, client_id: str | None = "peer") -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self._file = self._socket.makefile("rb")
        self._client_id = client_id
        self._waiting: list[tuple[Api, int]] = []

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._file.close()
        self._socket.close()

    def send(self, api: Api, version: int, **fields: Any) -> None:
        """Sends a request. Fields that are not given have their defaults."""
        values = {field.name: field.zero() for field in api.request.root.fields} | fields
        self.send_frame(api.encode_request(version, 7, self._client_id, api.request(**values)), api, version)

    def send_frame(self, frame: bytes, api: Api, version: int) -> None:
        """Sends bytes, to which a response of this kind is expected."""
        self._waiting.append((api, version))
        self._socket.sendall(frame)

    def receive(self) -> Any:
        """Returns the response to the oldest request that has none. Raises ``EOFError``: there is no more."""
        api, version = self._waiting.pop(0)
        return api.decode_response(version, self._read(int.from_bytes(self._read(4), "big")))

    def _read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise EOFError(f"the broker has closed the connection after {len(data)} of {size} bytes")
        return data

    def ask(self, api: Api, version: int, **fields: Any) -> Any:
        """Sends a request and returns its response."""
        self.send(api, version, **fields)
        return self.receive()
