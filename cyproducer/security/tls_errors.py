"""Explains what a failed TLS connection means, and which option to change.

Owns the texts. Does not own the handshake (``net/tls_handshake``) or the decision what to do next.
Pure functions, callable from any thread.
"""

import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from cyproducer.base.clock import unix_ms
from cyproducer.base.text import MOST_TEXT, printable
from cyproducer.config import ProducerConfig

#: OpenSSL's X509_V_ERR_... numbers.
_NOT_YET_VALID, _EXPIRED, _SELF_SIGNED, _SELF_SIGNED_CHAIN, _NO_ISSUER, _REVOKED = 9, 10, 18, 19, 20, 23
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL")
_NO_CRL, _WRONG_HOST, _WRONG_ADDRESS = 3, 62, 64


def explain(
    reason: str | BaseException,
    where: str,
    host: str,
    config: ProducerConfig,
    connection: Any = None,
    *,
    established: bool = False,
) -> str:
    """Returns the explanation of a failure.

    Args:
        reason: the exception of the handshake, or OpenSSL's text for an error after the handshake.
        where: the address as it is shown in messages.
        host: the server's name, with which its certificate was compared.
        config: the producer's options.
        connection: the ``ssl.SSLObject``, which has the certificate that was refused; None if unknown.
        established: whether the handshake had succeeded, so that the peer does use TLS.
    """
    if isinstance(reason, ssl.SSLCertVerificationError):
        return _about_certificate(reason, where, host, config, _certificate_of(connection))
    if isinstance(reason, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        name = "UNEXPECTED_EOF_WHILE_READING"
    elif isinstance(reason, BaseException):
        name = str(getattr(reason, "reason", None) or reason)
    else:
        name = reason
    name = name.upper().replace(" ", "_")
    words = name.lower().replace("_", " ")
    closed = "UNEXPECTED_EOF" in name
    if not established and (closed or name in _NO_TLS):
        did = f"does not answer in TLS ({words})"
        if closed:
            did = "closed the connection during the TLS handshake"
        without = "SASL_PLAINTEXT" if config.security_protocol == "SASL_SSL" else "PLAINTEXT"
        return f"{where} {did}: is this a port without TLS? Then set security_protocol={without!r}"
    sentence = _ALERTS.get(re.sub(r"^.*?ALERT_", "", name))
    if sentence is None:
        return f"TLS with {where} failed: {words}"
    return sentence.format(where=where, host=host, given=_given_certificate(config))


def _given_certificate(config: ProducerConfig) -> str:
    if config.ssl_context is not None:
        return "the certificate of ssl_context"
    if config.ssl_keystore_certificate_chain is not None:
        return "the certificate of ssl_keystore_certificate_chain"
    return (
        f"the certificate in ssl_certfile={config.ssl_certfile!r}"
        if config.ssl_certfile
        else "no certificate"
    )


_WANTS_CERTIFICATE = (
    "{where} asks for a client certificate that it trusts, and got {given}: give ssl_certfile and ssl_keyfile"
)
_NO_VERSION = (
    "{where} has no version of TLS in common with this client (unsupported protocol version): see "
    "ssl_enabled_protocols"
)
_NO_CIPHER = "{where} accepts none of the ciphers: see ssl_ciphers"
_UNKNOWN_NAME = "{where} does not know itself by the name {host!r} (SNI): connect by a name it knows"
_ALERTS: Mapping[str, str] = {
    "CERTIFICATE_REQUIRED": _WANTS_CERTIFICATE,
    "BAD_CERTIFICATE": _WANTS_CERTIFICATE,
    "CERTIFICATE_UNKNOWN": "{where} does not accept {given}: does it trust the authority that issued it?",
    "UNKNOWN_CA": "{where} does not trust the authority that issued {given} (unknown CA)",
    "CERTIFICATE_EXPIRED": "{where} refuses {given}: it has expired",
    "CERTIFICATE_REVOKED": "{where} refuses {given}: it is revoked",
    "UNSUPPORTED_CERTIFICATE": "{where} refuses {given}: it is not for clients (extended key usage)",
    "ACCESS_DENIED": "{where} refuses {given}: access denied",
    "HANDSHAKE_FAILURE": (
        "{where} broke off the TLS handshake (handshake failure): no common cipher (ssl_ciphers), or it asks "
        "for a client certificate (ssl_certfile) and got {given}"
    ),
    "PROTOCOL_VERSION": _NO_VERSION,
    "UNSUPPORTED_PROTOCOL": _NO_VERSION,
    "INSUFFICIENT_SECURITY": _NO_CIPHER,
    "NO_SHARED_CIPHER": _NO_CIPHER,
    "UNRECOGNIZED_NAME": _UNKNOWN_NAME,
    "TLSV1_UNRECOGNIZED_NAME": _UNKNOWN_NAME,
}


def _about_certificate(
    error: ssl.SSLCertVerificationError,
    where: str,
    host: str,
    config: ProducerConfig,
    certificate: Mapping[str, Any],
) -> str:
    code = error.verify_code
    issuer = _name(certificate.get("issuer", ()))
    by = f" (issued by {issuer})" if issuer else ""
    trusted = _trusted(config)
    if code == _NO_ISSUER:
        return (
            f"{where}: certificate verify failed: the issuer of its certificate{by} is not trusted. Give the "
            f"issuer's certificate as ssl_cafile, instead of {trusted}; or the server leaves out an "
            "intermediate one"
        )
    if code in (_SELF_SIGNED, _SELF_SIGNED_CHAIN):
        return (
            f"{where}: certificate verify failed: its certificate{by} is self-signed, or the last one of its "
            f"chain is, and is not trusted. If it is yours, give it as ssl_cafile, instead of {trusted}"
        )
    if code in (_EXPIRED, _NOT_YET_VALID):
        date = certificate.get("notAfter" if code == _EXPIRED else "notBefore", "an unknown date")
        verb = "expired on" if code == _EXPIRED else "is not yet valid: it begins on"
        now = datetime.fromtimestamp(unix_ms() / 1000, UTC).strftime("%b %d %H:%M:%S %Y GMT")
        return f"{where}: its certificate {verb} {date}, and it is {now}: renew it, or set the clock"
    if code in (_WRONG_HOST, _WRONG_ADDRESS):
        names = [
            printable(name, MOST_TEXT)
            for kind, name in certificate.get("subjectAltName", ())
            if kind in ("DNS", "IP Address")
        ]
        listed = ", ".join(names) if names else "no name"
        return (
            f"{where}: hostname mismatch: its certificate is for {listed}, not for {host}: connect by one of "
            "these names, or set ssl_check_hostname=False"
        )
    if code == _REVOKED:
        return f"{where}: its certificate{by} is revoked by ssl_crlfile={config.ssl_crlfile!r}"
    if code == _NO_CRL:
        return (
            f"{where}: ssl_crlfile={config.ssl_crlfile!r} has no certificate revocation list (CRL) of its "
            f"certificate's issuer{by}"
        )
    return f"{where}: certificate verify failed: {error.verify_message}{by}"


def _trusted(config: ProducerConfig) -> str:
    if config.ssl_context is not None:
        return "what ssl_context trusts"
    if config.ssl_truststore_certificates is not None:
        return "ssl_truststore_certificates"
    return f"{config.ssl_cafile!r}" if config.ssl_cafile is not None else "the system's certificates"


def _certificate_of(connection: Any) -> Mapping[str, Any]:
    """Returns the server's certificate; empty if it is unknown. ``getpeercert()`` returns none after a failed
    check."""
    with suppress(Exception):
        found: Mapping[str, Any] = connection._sslobj.get_unverified_chain()[0].get_info()
        return found
    return {}


def _name(parts: Any) -> str:
    """Returns a distinguished name as text: its common name if it has one."""
    values = {key: value for part in parts for key, value in part}
    return printable(str(values.get("commonName") or values.get("organizationName") or ""), MOST_TEXT)
