"""Servers that are not Kafka brokers: each accepts connections and behaves in one way, on its own thread."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

HTTP = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
TLS_ALERT = bytes.fromhex("15030300020246")
SSH = b"SSH-2.0-OpenSSH_9.6\r\n"


def says(answer: bytes) -> Callable[[socket.socket], None]:
    """Reads the first bytes, sends ``answer``, and waits for the client to close."""

    def serve(peer: socket.socket) -> None:
        peer.recv(65536)
        peer.sendall(answer)
        while peer.recv(65536):
            pass

    return serve


def greets(greeting: bytes) -> Callable[[socket.socket], None]:
    """Sends ``greeting`` first, like SSH."""

    def serve(peer: socket.socket) -> None:
        peer.sendall(greeting)
        while peer.recv(65536):
            pass

    return serve


def hangs_up(peer: socket.socket) -> None:
    """Closes the connection in an orderly way after the first bytes."""
    peer.recv(65536)


def resets(peer: socket.socket) -> None:
    """Closes the connection with RST."""
    peer.recv(1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def is_silent(peer: socket.socket) -> None:
    """Reads and never responds."""
    while peer.recv(65536):
        pass


@contextmanager
def odd_server(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Yields the address of a server that calls ``serve`` for each connection, one after the other."""
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()
    closing = threading.Event()
    open_now: list[socket.socket] = []
    lock = threading.Lock()

    def run() -> None:
        while True:
            peer, _ = listener.accept()
            with peer:
                with lock:
                    if closing.is_set():
                        return
                    open_now[:] = [peer]
                with suppress(OSError):
                    serve(peer)

    thread = threading.Thread(target=run, name="odd-server", daemon=True)
    thread.start()
    try:
        yield f"{host}:{port}"
    finally:
        with lock:
            closing.set()
            for peer in open_now:
                with suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)
        socket.create_connection((host, port), 10).close()
        thread.join(10)
        listener.close()
        assert not thread.is_alive()


def refusing_address() -> str:
    """Returns an address where no server listens: its port was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    return f"{host}:{port}"
