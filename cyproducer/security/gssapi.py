"""GSSAPI (RFC 4752) with Kerberos: the system's library, through the package ``gssapi``.

Owns the messages, where the tickets come from, and what the library's errors mean. Does not own the requests
that carry the messages (``net/authentication``). Imported only if the mechanism is configured: the import
raises ``KafkaConfigurationError`` if the package is missing.

Every library call may read files, look up names or wait for a KDC, for a minute if the KDC does not answer.
So each call is made in a ``Compute``. The library is called without the GIL.

Tickets obtained with a keytab are cached in memory. Whenever credentials are acquired, which is once per
authentication, the library fills the cache, or renews it after half of the tickets' lifetime. The library
also does that for the default client keytab, if there is no other cache.
"""

import hashlib
from functools import partial
from typing import Any, Final

from cyproducer.base import unpatched
from cyproducer.config import ProducerConfig
from cyproducer.errors import (
    KafkaConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
)
from cyproducer.security.sasl import Compute, Conversation, Send

try:
    import gssapi as library
except (ImportError, OSError) as error:
    # The package also raises ImportError if it is installed but the system's library is not.
    raise KafkaConfigurationError(
        "sasl_mechanism='GSSAPI' needs the package gssapi: pip install 'cyproducer[gssapi]'. pip compiles "
        "it, which needs a C compiler and the system's Kerberos library with its headers (Debian: apt-get "
        f"install libkrb5-dev; Fedora: krb5-devel). {type(error).__name__}: {error}"
    ) from error

#: The first of the Kerberos library's error codes, which are unsigned in GSSAPI.
_BASE: Final = -1765328384 & 0xFFFFFFFF
_CLIENT_UNKNOWN, _SERVER_UNKNOWN, _CLIENT_NOT_YET, _PREAUTH_FAILED = 6, 7, 21, 24
_BAD_INTEGRITY, _EXPIRED, _TICKET_NOT_YET, _REPEAT, _SKEW = 31, 32, 33, 34, 37
_NOT_FOUND, _KDC_UNREACHABLE, _NO_FILE, _KDC_UNKNOWN = 141, 156, 195, 220

#: Errors that may disappear after a moment: clocks that differ a little, a request mistaken for a replay, and
#: a cache that another thread, or kinit, has emptied but not filled yet.
_PASSING: Final = (_CLIENT_NOT_YET, _TICKET_NOT_YET, _REPEAT, _NOT_FOUND, _NO_FILE)
_PAUSES_S: Final = (0.1, 0.4)

_SERVICE_HINT: Final = (
    "the broker's principal is sasl_kerberos_service_name and its host in bootstrap_servers or "
    "advertised.listeners; sasl_kerberos_domain_name replaces the host, and sasl_kerberos_name the whole"
)
_HINTS: Final = {
    _CLIENT_UNKNOWN: "change sasl_kerberos_principal",
    _SERVER_UNKNOWN: _SERVICE_HINT,
    _PREAUTH_FAILED: "its key is not the current one: export the keytab again",
    _BAD_INTEGRITY: "its key is not the current one: export the keytab again",
    _SKEW: "set the clock",
}

NO_LAYER: Final = 1
"""The bit with which a server reports that it does not require a security layer."""


def converse(config: ProducerConfig, host: str) -> Conversation:
    """Returns the conversation with the broker on ``host``."""
    exchange = Exchange(config, host)
    waits_for = f"a Kerberos ticket for {exchange.asked!r} from the KDC of krb5.conf"
    token = yield Compute(exchange.begin, waits_for)
    while not exchange.complete:
        # The usual reason for a refusal. The broker does not report it.
        reply = yield Send(token, f"has its keytab the current key of {exchange.asked!r}?")
        token = yield Compute(partial(exchange.step, reply), waits_for)
    # The token is empty, unless the last step returned one.
    offered = yield Send(token)
    yield Send((yield Compute(partial(exchange.answer, offered), waits_for)))


class Exchange:
    """One authentication. ``begin``, ``step`` and ``answer`` may block: each returns the next message.

    They raise ``SaslAuthenticationFailedError``, or ``KafkaTimeoutError`` if no KDC answers.
    """

    def __init__(self, config: ProducerConfig, host: str) -> None:
        self._config = config
        name: Any = config.sasl_kerberos_name
        if name is None:
            name = f"{config.sasl_kerberos_service_name}@{config.sasl_kerberos_domain_name or host}"
        self._name = name
        #: The broker's name, for messages: ``service@host``, or a principal.
        self.asked = str(name)
        #: Whether both sides have proved their identity.
        self.complete = False
        self._context: Any = None

    def begin(self) -> bytes:
        """Gets the tickets. Waits for the KDC, unless they are in the cache."""
        for pause_s in (*_PAUSES_S, None):
            try:
                self._context = self._initiate()
                return self._next(None)
            except library.exceptions.GSSError as error:
                if pause_s is None or error.min_code - _BASE not in _PASSING:
                    raise self._explained(error) from None
            unpatched.sleep(pause_s)
        raise AssertionError("unreachable")

    def step(self, reply: bytes) -> bytes:
        """Checks the broker's proof of its identity."""
        try:
            return self._next(reply)
        except library.exceptions.GSSError as error:
            raise SaslAuthenticationFailedError(
                f"the broker did not prove that it is {self.asked!r}: {_said(error)}"
            ) from None

    def answer(self, offered: bytes) -> bytes:
        """Answers the broker's offer of security layers: selects none, and the ticket's own user."""
        try:
            layers = self._context.unwrap(offered).message
            if len(layers) != 4 or not layers[0] & NO_LAYER:
                raise SaslAuthenticationFailedError(
                    f"{self.asked!r} asks for a security layer of GSSAPI, which Kafka does not have"
                )
            message: bytes = self._context.wrap(bytes([NO_LAYER, 0, 0, 0]), False).message
        except library.exceptions.GSSError as error:
            raise SaslAuthenticationFailedError(
                f"the message of {self.asked!r} about security layers is not valid: {_said(error)}"
            ) from None
        return message

    def _next(self, reply: bytes | None) -> bytes:
        token: bytes | None = self._context.step(reply)
        self.complete = bool(self._context.complete)
        return token or b""

    def _initiate(self) -> Any:
        """Returns a context with its own credentials, which are acquired each time because tickets expire."""
        kerberos = library.MechType.kerberos
        principal, keytab = self._config.sasl_kerberos_principal, self._config.sasl_kerberos_keytab
        store = None
        if keytab is not None:
            # One cache for all exchanges with the same credentials: nothing frees it before the process ends.
            whose = hashlib.sha256(repr((keytab, principal)).encode()).hexdigest()[:32]
            store = {"client_keytab": keytab, "ccache": f"MEMORY:cyproducer-{whose}"}
        credentials = library.Credentials(
            name=principal and library.Name(principal, library.NameType.kerberos_principal),
            usage="initiate",
            mechs=[kerberos],
            store=store,
        )
        required = library.RequirementFlag
        return library.SecurityContext(
            name=self._target(),
            creds=credentials,
            mech=kerberos,
            flags=[required.mutual_authentication, required.integrity],
            usage="initiate",
        )

    def _target(self) -> Any:
        if not isinstance(self._name, str):
            return self._name
        kinds = library.NameType
        # Only principals contain a slash. kafka-python interprets sasl_kerberos_name as service@host.
        kind = kinds.kerberos_principal if "/" in self._name else kinds.hostbased_service
        return library.Name(self._name, kind)

    def _explained(self, error: Any) -> KafkaError:
        """Returns the error for a failure before anything was sent, with what to do about it."""
        principal, keytab = self._config.sasl_kerberos_principal, self._config.sasl_kerberos_keytab
        user = f" as {principal!r}" if principal else ""
        text = f"no ticket for {self.asked!r}{user}: {_said(error)}"
        code = error.min_code - _BASE
        if code in (_KDC_UNREACHABLE, _KDC_UNKNOWN):
            return KafkaTimeoutError(f"{text}; is the KDC of krb5.conf reachable?")
        hint = _HINTS.get(code)
        if hint is None and keytab is not None:
            hint = _about_keytab(keytab, principal)
        elif hint is None and (
            code == _EXPIRED
            or isinstance(
                error,
                (library.exceptions.MissingCredentialsError, library.exceptions.ExpiredCredentialsError),
            )
        ):
            hint = "run kinit, or give sasl_kerberos_keytab and sasl_kerberos_principal"
        return SaslAuthenticationFailedError(f"{text}; {hint}" if hint else text)


def _about_keytab(keytab: str, principal: str | None) -> str:
    """Returns what may be wrong with a keytab: the library only reports that there are no credentials."""
    path = keytab.removeprefix("FILE:")
    try:
        with open(path, "rb") as file:
            begins = file.read(2)
    except OSError as error:
        return f"sasl_kerberos_keytab={keytab!r} cannot be read: {error.strerror}"
    if begins not in (b"\5\1", b"\5\2"):
        return f"sasl_kerberos_keytab={keytab!r} is not a keytab"
    whom = f"the key of sasl_kerberos_principal={principal!r}" if principal else "a key"
    return f"has sasl_kerberos_keytab={keytab!r} {whom}? `klist -k` shows what it has"


def _said(error: Any) -> str:
    """Returns the library's error text: that of Kerberos, if there is one."""
    kind, code = (False, error.min_code) if error.min_code else (True, error.maj_code)
    return "; ".join(error.get_all_statuses(code, kind)) or type(error).__name__
