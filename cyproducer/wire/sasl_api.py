"""Decodes the responses to the requests of SASL.

As in ``protocol``, which encodes the requests, every function is pure and callable from any thread. Imported
only where connections authenticate, because each type takes 0.1 ms to create.
"""

from typing import NamedTuple

from cyproducer.wire.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE
from cyproducer.wire.protocol import DECODERS
from cyproducer.wire.schema import Frame


class SaslHandshakeResponse(NamedTuple):
    """Whether the broker has the mechanism enabled, and the names of all enabled mechanisms (KIP-43)."""

    error_code: int
    mechanisms: list[str]


class SaslAuthenticateResponse(NamedTuple):
    """The mechanism's next message from the server (KIP-152, KIP-368)."""

    error_code: int
    error_message: str | None
    auth_bytes: bytes
    #: How long the connection remains authenticated; 0: until it closes.
    session_lifetime_ms: int


def decode_sasl_handshake(version: int, frame: Frame) -> SaslHandshakeResponse:
    """Decodes a SaslHandshake response v1."""
    return SaslHandshakeResponse(*SASL_HANDSHAKE.decode_response(version, frame))


def decode_sasl_authenticate(version: int, frame: Frame) -> SaslAuthenticateResponse:
    """Decodes a SaslAuthenticate response v0-v2."""
    return SaslAuthenticateResponse(*SASL_AUTHENTICATE.decode_response(version, frame))


DECODERS[SASL_HANDSHAKE] = decode_sasl_handshake
DECODERS[SASL_AUTHENTICATE] = decode_sasl_authenticate
