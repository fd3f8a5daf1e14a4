"""Gets bearer tokens from an OpenID Connect endpoint, or from a file (KIP-768, KIP-1139, KIP-1258).

Owns the request, its retries, and what its failures mean. Does not own when a token is fetched (``tokens``).
Blocks: called on background threads only.

Grants: the client's credentials (RFC 6749, section 4.4), with a secret or with a signed JWT instead of the
secret (RFC 7523, section 2.2), and a signed JWT itself (RFC 7523, section 2.1).
"""

import base64
import io
import json
import ssl
import uuid
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote_plus, unquote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from cyproducer import errors
from cyproducer.base import unpatched
from cyproducer.base.clock import monotonic_s, unix_ms
from cyproducer.base.text import MOST_TEXT, printable
from cyproducer.config import ProducerConfig
from cyproducer.config.option_kinds import Secret, hidden
from cyproducer.errors import KafkaConfigurationError

#: Maximum duration of one call of ``token()``, including retries.
MOST_S = 10.0
FIRST_WAIT_S = 0.1
MOST_BYTES = 1 << 20
#: Status codes after which a request is retried. It is also retried after 5xx, except ``_NOT_REPEATED``.
#: After other status codes, the answer would be the same again.
_REPEATED = (408, 425, 429)
_NOT_REPEATED = (501, 505)
_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_CLIENT_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirects: a redirected request would send the credentials to another server."""

    def redirect_request(self, *_: object) -> None:
        return None


class OidcTokens:
    """A token provider with the same interface as those that users write, made from a producer's
    ``sasl_oauthbearer_*`` options.

    Raises KafkaConfigurationError if a file cannot be used.
    """

    def __init__(
        self,
        config: ProducerConfig,
        *,
        now_ms: Callable[[], int] = unix_ms,
        sleep: Callable[[float], None] = unpatched.sleep,
    ) -> None:
        self._config = config
        self._now_ms = now_ms
        self._sleep = sleep
        self._url: str = config.sasl_oauthbearer_token_endpoint_url or ""
        self._is_file = urlsplit(self._url).scheme == "file"
        if self._is_file:
            return
        if config.sasl_oauthbearer_assertion_private_key_file is not None:
            # Done now, and not on the thread that signs: a mistake is reported at once, and importing takes
            # long.
            self._signed()
        if config.https_ca_location is not None:
            self._tls_context()

    def extensions(self) -> Mapping[str, str]:
        return self._config.sasl_oauthbearer_extensions or {}

    def token(self) -> tuple[str, float | None]:
        """Returns a token, and its expiry, in seconds since 1970.

        Raises KafkaConnectionError if the endpoint does not answer, and SaslAuthenticationFailedError if it
        refuses.
        """
        if self._is_file:
            path = unquote(urlsplit(self._url).path)
            return _text_of("sasl_oauthbearer_token_endpoint_url", path), None
        text, lasts_s = _grant_of(self._ask())
        if text is None:
            raise errors.SaslAuthenticationFailedError(f"{self._url} answered without an access_token")
        return text.reveal(), None if lasts_s is None else self._now_ms() / 1000 + lasts_s

    # The request

    def _ask(self) -> dict[str, Any]:
        """Returns the endpoint's answer. Retries what may succeed later, for ``MOST_S`` in total."""
        deadline, wait_s = monotonic_s() + MOST_S, FIRST_WAIT_S
        # Made once for all attempts: loading the system's certificate authorities takes long.
        opener = build_opener(_NoRedirect, HTTPSHandler(context=self._tls_context()))
        while True:
            try:
                return self._ask_once(opener, deadline)
            except errors.KafkaConnectionError:
                if monotonic_s() + wait_s >= deadline:
                    raise
            self._sleep(wait_s)
            wait_s *= 2

    def _ask_once(self, opener: OpenerDirector, deadline: float) -> dict[str, Any]:
        seconds = max(0.1, deadline - monotonic_s())
        try:
            # The request is not stored in a variable, because it contains the credentials.
            with opener.open(self._request(), timeout=seconds) as response:
                answer = json.loads(_body_of(response, deadline))
        except HTTPError as error:
            with error:
                raise self._refused(error, deadline) from None
        except ValueError:
            raise errors.SaslAuthenticationFailedError(f"{self._url} answered without JSON") from None
        except HTTPException as error:
            # The error itself is not chained: it may quote the server.
            raise self._unreachable(error) from None
        except OSError as error:
            raise self._unreachable(error) from error
        if isinstance(answer, dict):
            return answer
        # The answer may be a token.
        del answer
        raise errors.SaslAuthenticationFailedError(f"{self._url} answered with JSON that is no object")

    def _refused(self, error: HTTPError, deadline: float) -> errors.KafkaError:
        text = f"{self._url} answered {error.code} {printable(str(error.reason), MOST_TEXT)}"
        try:
            found = json.loads(_body_of(error, deadline))
            # RFC 6749, section 5.2.
            parts = [str(found[name]) for name in ("error", "error_description") if name in found]
            text += "".join(f": {printable(part, MOST_TEXT)}" for part in parts)
        except (ValueError, TypeError, AttributeError, OSError, HTTPException):
            pass
        code = error.code
        if code in _REPEATED or (code >= 500 and code not in _NOT_REPEATED):
            return errors.KafkaConnectionError(text)
        if 300 <= code < 400:
            text += f": it redirects to {error.headers.get('Location')!r}: give that as the endpoint"
        elif code in (400, 401, 403):
            text += ": look at sasl_oauthbearer_client_credentials_client_id and the other credentials"
        return errors.SaslAuthenticationFailedError(text)

    def _unreachable(self, error: BaseException) -> errors.KafkaError:
        cause = getattr(error, "reason", error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return errors.SaslAuthenticationFailedError(
                f"{self._url}: its certificate is not trusted ({cause.verify_message}): if it should be, "
                "give its authority as https_ca_location"
            )
        text = cause if isinstance(cause, str) else getattr(cause, "strerror", None) or str(cause)
        said = printable(text, MOST_TEXT) or type(cause).__name__
        return errors.KafkaConnectionError(f"{self._url}: {said}")

    def _tls_context(self) -> ssl.SSLContext:
        # Not create_default_context(): see tls_context.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        file = self._config.https_ca_location
        if file is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
            return context
        try:
            context.load_verify_locations(file)
        except (OSError, ssl.SSLError) as error:
            raise KafkaConfigurationError(
                f"https_ca_location={file!r}: {error.strerror or 'it contains no certificate in PEM'}"
            ) from error
        return context

    # The credentials

    def _request(self) -> Request:
        headers, form = self._credentials()
        return Request(
            self._url,
            urlencode(form).encode(),
            {"Accept": "application/json", **headers},
            method="POST",
        )

    def _credentials(self) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the headers and the form fields of a request."""
        config = self._config
        user = config.sasl_oauthbearer_client_credentials_client_id
        form = {} if config.sasl_oauthbearer_scope is None else {"scope": config.sasl_oauthbearer_scope}
        assertion = self._assertion()
        if config.sasl_oauthbearer_grant_type == "jwt-bearer":
            return {}, {"grant_type": _JWT_BEARER, "assertion": assertion or "", **form}
        form["grant_type"] = "client_credentials"
        if assertion is not None:
            form |= {"client_assertion_type": _CLIENT_ASSERTION, "client_assertion": assertion}
            return {}, form if user is None else {**form, "client_id": user}
        secret = hidden(config.sasl_oauthbearer_client_credentials_client_secret) or Secret("")
        quoted = quote_plus if config.sasl_oauthbearer_header_urlencode else str
        # The standard alphabet of Base64: the URL-safe one would be refused (KAFKA-14496).
        encoded = base64.b64encode(f"{quoted(user or '')}:{quoted(secret.reveal())}".encode()).decode()
        return {"Authorization": f"Basic {encoded}"}, form

    def _assertion(self) -> str | None:
        """Returns the JWT from the file, or a new one; None if neither is configured."""
        file = self._config.sasl_oauthbearer_assertion_file
        if file is not None:
            return _text_of("sasl_oauthbearer_assertion_file", file)
        if self._config.sasl_oauthbearer_assertion_private_key_file is None:
            return None
        return self._signed()

    def _signed(self) -> str:
        """Makes a JWT (RFC 7519) from the options, and signs it."""
        config = self._config
        try:
            import jwt
        except ImportError as error:
            raise KafkaConfigurationError(
                "sasl_oauthbearer_assertion_private_key_file: signing needs the PyJWT package: pip install "
                "'cyproducer[oauth]'"
            ) from error
        now = self._now_ms() // 1000
        template = _template_of(config.sasl_oauthbearer_assertion_template_file)
        claims: dict[str, Any] = {
            **template["payload"],
            "iat": now,
            "nbf": now - config.sasl_oauthbearer_assertion_claim_nbf_seconds,
            "exp": now + config.sasl_oauthbearer_assertion_claim_exp_seconds,
        }
        for name in ("iss", "sub", "aud"):
            value = getattr(config, f"sasl_oauthbearer_assertion_claim_{name}")
            if value is not None:
                claims[name] = value
        if config.sasl_oauthbearer_assertion_claim_jti_include:
            claims["jti"] = str(uuid.uuid4())
        algorithm = config.sasl_oauthbearer_assertion_algorithm
        return jwt.encode(claims, self._key(algorithm), algorithm, headers=template["header"] or None)

    def _key(self, algorithm: str) -> Any:
        """Returns the private key. The file is read each time, because it may have been replaced."""
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        option = "sasl_oauthbearer_assertion_private_key_file"
        path = self._config.sasl_oauthbearer_assertion_private_key_file
        passphrase = hidden(self._config.sasl_oauthbearer_assertion_private_key_passphrase)
        text = Secret(_text_of(option, path))
        try:
            key = load_pem_private_key(
                text.reveal().encode(), None if passphrase is None else passphrase.reveal().encode()
            )
        except (ValueError, TypeError):
            # The error itself is not chained: it may quote the file.
            raise KafkaConfigurationError(
                f"{option}={path!r}: it contains no private key in PEM, or "
                "sasl_oauthbearer_assertion_private_key_passphrase does not decrypt it"
            ) from None
        needed = {"RS256": RSAPrivateKey, "ES256": EllipticCurvePrivateKey}[algorithm]
        if not isinstance(key, needed):
            raise KafkaConfigurationError(
                f"{option}={path!r}: its key is not one for "
                f"sasl_oauthbearer_assertion_algorithm={algorithm!r}"
            )
        return key


def _text_of(option: str, path: str | None) -> str:
    try:
        return Path(path or "").read_text(encoding="utf-8").strip()
    except OSError as error:
        raise KafkaConfigurationError(f"{option}={path!r}: {error.strerror}") from error
    except UnicodeError:
        raise KafkaConfigurationError(f"{option}={path!r}: it is no text") from None


def _template_of(path: str | None) -> dict[str, dict[str, Any]]:
    empty: dict[str, dict[str, Any]] = {"header": {}, "payload": {}}
    if path is None:
        return empty
    option = "sasl_oauthbearer_assertion_template_file"
    try:
        found: dict[str, dict[str, Any]] = empty | json.loads(_text_of(option, path))
    except (ValueError, TypeError):
        raise KafkaConfigurationError(f"{option}={path!r}: it is no JSON object") from None
    if not all(isinstance(found[name], dict) for name in empty):
        raise KafkaConfigurationError(f"{option}={path!r}: header and payload must be JSON objects")
    return found


def _body_of(response: Any, deadline: float) -> bytes:
    """Returns the body. Raises OSError if it is too large, or takes too long."""
    # A BytesIO does not show its content in the stack frames of an error. The content may be a token.
    body = io.BytesIO()
    while body.write(response.read1(65536)):
        if body.tell() > MOST_BYTES:
            raise OSError(f"its answer has more than {MOST_BYTES} bytes")
        if monotonic_s() > deadline:
            raise TimeoutError("its answer takes too long")
    return body.getvalue()


def _grant_of(answer: dict[str, Any]) -> tuple[Secret | None, float | None]:
    """Returns the token, and for how many seconds it is valid. Raises nothing: its variables contain the
    token."""
    text = answer.get("access_token") or answer.get("id_token")
    try:
        lasts_s = float(answer["expires_in"])
    except (KeyError, TypeError, ValueError, OverflowError):
        lasts_s = None
    return Secret(text) if isinstance(text, str) else None, lasts_s
