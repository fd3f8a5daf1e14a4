"""An OpenID Connect provider for tests: an endpoint for tokens, and the keys that brokers verify them with.

Owns an HTTP server on a free port of 127.0.0.1, and an RSA key. Uses PyJWT and Python's ``http.server`` only.
"""

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

KEY_ID = "the-key"


@dataclass(frozen=True)
class Asked:
    """A request for a token."""

    headers: dict[str, str]
    form: dict[str, str]

    @property
    def basic(self) -> str:
        """The decoded credentials of the Authorization header."""
        kind, _, encoded = self.headers["Authorization"].partition(" ")
        assert kind == "Basic"
        return base64.b64decode(encoded, validate=True).decode()


@dataclass
class Answer:
    """An answer of the endpoint."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    piece: int = 0
    """With a number, the body is sent in pieces of this size, until the client closes the connection."""


class TokenServer:
    """A context manager. ``answer`` may be replaced; any thread may read ``asked``.

    Args:
        lifetime_s: how long its tokens last.
        tls: the context of a server that speaks https.
    """

    def __init__(self, lifetime_s: float = 600, tls: ssl.SSLContext | None = None) -> None:
        self.lifetime_s = lifetime_s
        self.asked: list[Asked] = []
        self.answer: Callable[[Asked], Answer] = self.grant
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._scheme = "http" if tls is None else "https"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def base(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        return f"{self.base}/token"

    @property
    def jwks_url(self) -> str:
        return f"{self.base}/jwks"

    def token(self, **claims: Any) -> str:
        """Returns a token with these claims; None leaves one out."""
        now = time.time()
        given = {
            "iss": self.base,
            "aud": "kafka",
            "sub": "alice",
            "iat": int(now),
            "exp": now + self.lifetime_s,
            **claims,
        }
        kept = {name: value for name, value in given.items() if value is not None}
        return jwt.encode(kept, self._key, "RS256", headers={"kid": KEY_ID})

    def user(self, token: str) -> str:
        """Verifies a token as a broker does, and returns its user.

        Raises:
            ValueError: It is not from this server, not for Kafka, too old, or for nobody.
        """
        try:
            claims = jwt.decode(
                token,
                self._key.public_key(),
                ["RS256"],
                audience="kafka",
                issuer=self.base,
                options={"require": ["exp", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise ValueError(str(error)) from None
        return str(claims["sub"])

    def grant(self, asked: Asked) -> Answer:
        """The answer with a token."""
        body = {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.lifetime_s}
        return Answer(body=json.dumps(body).encode())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _keys(self) -> Answer:
        key = jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return Answer(body=json.dumps({"keys": [{**key, "kid": KEY_ID, "alg": "RS256"}]}).encode())

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(server._keys() if self.path == "/jwks" else Answer(404))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                asked = Asked(dict(self.headers), dict(parse_qsl(body, keep_blank_values=True)))
                server.asked.append(asked)
                self._send(server.answer(asked))

            def _send(self, answer: Answer) -> None:
                self.send_response(answer.status)
                for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                    self.send_header(name, value)
                if answer.piece == 0:
                    self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                try:
                    if answer.piece == 0:
                        self.wfile.write(answer.body)
                    while answer.piece:
                        self.wfile.write(bytes(answer.piece))
                except OSError:
                    pass  # the client has had enough

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler
