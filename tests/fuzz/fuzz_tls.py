"""Fuzz target in Python, over a ``Rig`` with TLS: the encrypted bytes arrive as the input says.

A real TLS server encrypts the responses of ``fuzz_rig``, and the line changes them: it cuts them anywhere,
damages, repeats or drops TLS records, or sends records of its own. The sender reads them in C, or through
Python's ``ssl`` module. The checks are those of ``fuzz_rig``: connections end with an error that names the
broker, and each record arrives once the line is honest.
"""

from __future__ import annotations

import socket
from typing import Any

from cyproducer.net.tls_transport import TlsSession
from tests.fuzz import fuzz_rig
from tests.fuzz.fuzz_rig import Choices
from tests.scripted.tls_pair import AUTHORITY, TlsPair

#: Shared, because issuing a certificate takes longer than an input.
CLIENT, SERVER = AUTHORITY.client(), AUTHORITY.server()
#: Alerts, handshake messages, application data, and types that TLS does not have.
TYPES = (20, 21, 22, 23, 24, 0, 128, 255)
LENGTHS = (0, 1, 2, 17, 16384, 16640, 16641, 65535)


class Line:
    """The broker's socket. What it sends arrives as the input says; at the end of the input, as it is."""

    def __init__(self, sock: socket.socket, choices: Choices) -> None:
        self._sock, self._choices = sock, choices
        self._held = b""

    def sendall(self, data: bytes) -> None:
        kind = self._choices.byte() % 8
        if kind >= 4:
            data = self._tampered(data, kind)
        self._held += data
        # Otherwise a piece goes with each ``recv``, after which the sender takes a step.
        if kind % 4 == 0:
            self._let_go(len(self._held))

    def recv(self, size: int) -> bytes:
        if self._held:
            self._let_go(1 + self._choices.byte() if self._choices else len(self._held))
        return self._sock.recv(size)

    def _let_go(self, size: int) -> None:
        piece, self._held = self._held[:size], self._held[size:]
        self._sock.sendall(piece)

    def _tampered(self, data: bytes, kind: int) -> bytes:
        """One or several TLS records, changed."""
        choices = self._choices
        at = choices.two() % (len(data) + 1)
        if kind == 4:
            return data[:at] + choices.some(1 + choices.byte() % 4) + data[at + choices.byte() % 4 :]
        if kind == 5:
            return data[:at] + data
        if kind == 6:
            return data[at:]
        length = LENGTHS[choices.byte() % len(LENGTHS)]
        head = bytes([TYPES[choices.byte() % len(TYPES)], 3, choices.byte() % 5]) + length.to_bytes(2)
        return head + choices.some(choices.byte() % 32) + data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class TamperedPair(TlsPair):
    """TLS with a ``Line`` between the two ends. The input chooses how the producer reads."""

    def __init__(self, choices: Choices) -> None:
        super().__init__(choices.byte() % 2 == 0, CLIENT, SERVER)
        self._choices = choices

    def __call__(self, theirs: Any) -> tuple[TlsSession, Any]:
        return super().__call__(Line(theirs, self._choices))  # type: ignore[arg-type]


def play(data: bytes) -> int:
    """Plays one input; see ``fuzz_rig.play``."""
    return fuzz_rig.play(data, TamperedPair)
