"""SCRAM, the client's side: RFC 5802 with SHA-256 (RFC 7677) and SHA-512, as Kafka's brokers implement it.

A ``Scram`` object makes and reads the four messages of one exchange. It does no I/O and reads no clock. Not
thread-safe. Without channel binding: Kafka's brokers offer none.

Kafka deviates from the RFC: user names and passwords are plain UTF-8, without SASLprep.
"""

import base64
import hashlib
import hmac
import re
import secrets

from cyproducer.config.option_kinds import Hidden, Secret
from cyproducer.errors import SaslAuthenticationFailedError

#: Brokers refuse fewer iterations. A million take one to two seconds of this client's CPU (sha512).
FEWEST_ITERATIONS, MOST_ITERATIONS = 4096, 1_000_000
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_FIELD = re.compile(r"^([a-zA-Z])=(.*)$", re.DOTALL)


class Scram:
    """One exchange: ``first()``, ``read_first()``, ``salted_password()``, ``final()``, ``read_final()``."""

    def __init__(
        self, mechanism: str, user: str, password: Secret, *, token: bool = False, nonce: str | None = None
    ) -> None:
        """
        Args:
            mechanism: SCRAM-SHA-256 or SCRAM-SHA-512.
            user: the user name, or the id of a delegation token.
            password: the password, or the token's HMAC.
            token: whether it is a delegation token (KIP-48).
            nonce: for tests; by default 128 random bits.
        """
        self._hash = _HASHES[mechanism]
        self._password = Hidden(password.reveal().encode())
        self._nonce = nonce or secrets.token_urlsafe(16)
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={self._nonce}" + (",tokenauth=true" if token else "")
        self._first_server = ""
        self._server_nonce = ""
        self._signature = Hidden(b"")
        #: From the server's first message.
        self.salt = b""
        self.iterations = 0

    def first(self) -> bytes:
        """Returns the client's first message."""
        return f"n,,{self._first_bare}".encode()

    def read_first(self, message: bytes) -> None:
        """Reads the server's first message: salt and iteration count.

        Raises SaslAuthenticationFailedError if it is an error or violates the protocol.
        """
        text, fields = _fields(message)
        if "m" in fields:
            raise SaslAuthenticationFailedError("the broker demands an extension of SCRAM that is not known")
        nonce, salt, count = fields.get("r", ""), fields.get("s", ""), fields.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise SaslAuthenticationFailedError("the broker's SCRAM nonce does not continue this client's")
        try:
            self.salt = base64.b64decode(salt, validate=True)
        except ValueError:
            self.salt = b""
        if not self.salt:
            raise SaslAuthenticationFailedError("the broker's SCRAM message has no valid salt")
        if not (count.isascii() and count.isdigit() and len(count) <= 10):
            raise SaslAuthenticationFailedError("the broker's SCRAM message has no iteration count")
        if not FEWEST_ITERATIONS <= int(count) <= MOST_ITERATIONS:
            raise SaslAuthenticationFailedError(
                f"the broker's SCRAM iteration count is {count}: allowed are {FEWEST_ITERATIONS} to "
                f"{MOST_ITERATIONS}"
            )
        self.iterations = int(count)
        self._first_server, self._server_nonce = text, nonce

    def salted_password(self) -> Hidden[bytes]:
        """Hashes the password ``iterations`` times: 1 ms per 4096 with SHA-256. Releases the GIL."""
        return Hidden(hashlib.pbkdf2_hmac(self._hash, self._password.reveal(), self.salt, self.iterations))

    def final(self, salted_password: Hidden[bytes]) -> bytes:
        """Returns the client's final message."""
        return self._final(salted_password.reveal())

    def _final(self, salted_password: bytes) -> bytes:
        without_proof = f"c=biws,r={self._server_nonce}"
        signed = f"{self._first_bare},{self._first_server},{without_proof}".encode()
        client_key = hmac.digest(salted_password, b"Client Key", self._hash)
        stored_key = hashlib.new(self._hash, client_key).digest()
        client_signature = hmac.digest(stored_key, signed, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, client_signature, strict=True))
        server_key = hmac.digest(salted_password, b"Server Key", self._hash)
        self._signature = Hidden(hmac.digest(server_key, signed, self._hash))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def read_final(self, message: bytes) -> None:
        """Checks the server's signature, which proves that the server also knows the password.

        Raises SaslAuthenticationFailedError if the signature is wrong, or if the server reports an error.
        """
        _, fields = _fields(message)
        try:
            signature = base64.b64decode(fields.get("v", ""), validate=True)
        except ValueError:
            signature = b""
        expected = self._signature
        if not expected.reveal() or not hmac.compare_digest(signature, expected.reveal()):
            raise SaslAuthenticationFailedError(
                "the broker's SCRAM signature is wrong: it does not know the password of this user"
            )


def _fields(message: bytes) -> tuple[str, dict[str, str]]:
    try:
        text = message.decode()
    except UnicodeDecodeError as error:
        raise SaslAuthenticationFailedError("the broker's SCRAM message is not UTF-8") from error
    fields: dict[str, str] = {}
    for part in text.split(","):
        found = _FIELD.match(part)
        if found is None:
            raise SaslAuthenticationFailedError("the broker's SCRAM message is malformed")
        fields.setdefault(found[1], found[2])
    if "e" in fields:
        raise SaslAuthenticationFailedError(f"the broker reports the SCRAM error {fields['e'][:500]!r}")
    return text, fields
