"""The broker's side of SASL: PLAIN, SCRAM-SHA-256 and -512 (RFC 5802), OAUTHBEARER (RFC 7628).

Owns the exchange of messages that determines a principal. Does not own the requests that carry the messages,
or which requests are allowed before authentication (``access``).
"""

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Generator, Mapping
from typing import Final

ITERATIONS: Final = 4096
Exchange = Generator[bytes, bytes, str]
"""Receives the client's messages, yields the responses, and returns the user's name. Raises ``Denied``."""
Validator = Callable[[str], str]
"""Receives a token and returns its user; raises ``ValueError`` with the reason if the token is invalid."""


class Denied(Exception):
    """Authentication has failed; the message is for the client."""


def plain(users: Mapping[str, str]) -> Exchange:
    """RFC 4616: one message, with an empty response."""
    message = yield b""
    parts = message.split(b"\0")
    if len(parts) != 3:
        raise Denied("Invalid SASL/PLAIN response: expected 3 tokens, got " + str(len(parts)))
    authorized, name, password = (part.decode("utf-8", "replace") for part in parts)
    known = users.get(name)
    if known is None or not hmac.compare_digest(known.encode(), password.encode()):
        raise Denied("Authentication failed: Invalid username or password")
    if authorized not in ("", name):
        raise Denied(
            "Authentication failed: Client requested an authorization id that is different from username"
        )
    yield b""
    return name


def scram(users: Mapping[str, str], algorithm: str) -> Exchange:
    """RFC 5802, without channel binding; ``algorithm``: "sha256" or "sha512"."""
    failed = Denied(
        "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM"
    )
    first = (yield b"").decode("utf-8", "replace")
    flag, _, rest = first.partition(",")
    authorized, _, bare = rest.partition(",")
    fields = _fields(bare)
    if flag not in ("n", "y") or "n" not in fields or "r" not in fields:
        raise failed
    name = fields["n"].replace("=2C", ",").replace("=3D", "=")
    if authorized and authorized != f"a={fields['n']}":
        raise failed
    known = users.get(name)
    # An unknown user also gets a salt, and fails at the end.
    salt = secrets.token_bytes(16)
    nonce = fields["r"] + secrets.token_urlsafe(18)
    challenge = f"r={nonce},s={base64.b64encode(salt).decode()},i={ITERATIONS}"
    final = (yield challenge.encode()).decode("utf-8", "replace")
    without_proof, _, proof = final.rpartition(",p=")
    fields = _fields(without_proof)
    binding = base64.b64encode(f"{flag},{authorized},".encode()).decode()
    if known is None or fields.get("r") != nonce or fields.get("c") != binding:
        raise failed
    salted = hashlib.pbkdf2_hmac(algorithm, known.encode(), salt, ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    signed = f"{bare},{challenge},{without_proof}".encode()
    signature = hmac.digest(hashlib.new(algorithm, client_key).digest(), signed, algorithm)
    expected = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    try:
        given = base64.b64decode(proof, validate=True)
    except ValueError:
        raise failed from None
    if not hmac.compare_digest(expected, given):
        raise failed
    server = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), signed, algorithm)
    yield b"v=" + base64.b64encode(server)
    return name


def _fields(text: str) -> dict[str, str]:
    pairs = (each.partition("=") for each in text.split(","))
    return {key: value for key, _, value in pairs}


def oauthbearer(validator: Validator) -> Exchange:
    """RFC 7628. If the token is refused, the client first gets a description. The failure follows the
    client's confirmation."""
    message = (yield b"").decode("utf-8", "replace")
    fields = dict(pair.partition("=")[::2] for pair in message.split("\1")[1:] if pair)
    scheme, _, token = fields.get("auth", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Denied("Authentication failed: there is no bearer token")
    try:
        name = validator(token)
    except ValueError as error:
        yield json.dumps({"status": "invalid_token"}).encode()
        raise Denied(f"Authentication failed: {error}") from None
    yield b""
    return name


def exchange(mechanism: str, users: Mapping[str, str], validator: Validator | None) -> Exchange:
    """Begins an exchange; ``mechanism`` is one of the enabled mechanisms."""
    made: Exchange
    if mechanism == "PLAIN":
        made = plain(users)
    elif mechanism == "OAUTHBEARER":
        assert validator is not None
        made = oauthbearer(validator)
    else:
        made = scram(users, mechanism.removeprefix("SCRAM-").replace("-", "").lower())
    next(made)
    return made
