"""Makes the ``ssl.SSLContext`` of a producer from its ``ssl_*`` options, and again when their files change.

Owns the formats of certificates and keys: PEM in a file or as text, PKCS#12. Does not own the handshake
(``net/tls_handshake``) or what its failures mean (``tls_errors``).

A context is never changed once a connection uses it: OpenSSL does not allow that during a handshake. When a
file has changed, ``TlsContext.reload`` makes a new one; if the new files can't be loaded, the old context
stays.
"""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cyproducer.base.unpatched import allocate_lock
from cyproducer.config import ProducerConfig
from cyproducer.config.option_kinds import Secret, hidden
from cyproducer.errors import KafkaConfigurationError

PEM, PKCS12, JKS, UNKNOWN = "PEM", "PKCS12", "JKS", "unknown"
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_PROTOCOLS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_PASSWORDS = ("ssl_password", "ssl_keystore_password", "ssl_truststore_password")
#: Parts of names such as ``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`` that differ between Java and OpenSSL.
_CIPHER_WORDS = (
    ("_WITH_", "_"),
    ("_CBC_SHA", "_SHA"),
    ("AES_", "AES"),
    ("CAMELLIA_", "CAMELLIA"),
    ("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305"),
)


class TlsContext:
    """The context for new connections. Thread-safe.

    Raises KafkaConfigurationError if the options or their files cannot be used.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self._seen = _state_of(_files(config))
        self._lock = allocate_lock()  # one reload at a time
        #: The context for new connections.
        self.context = make_context(config)

    @property
    def has_files(self) -> bool:
        """Whether there are files that may change."""
        return self._config.ssl_context is None and any(_files(self._config))

    def reload(self) -> None:
        """Makes a new context if a file has changed. In that case, calls ``ssl_password`` if it is callable.

        Raises KafkaConfigurationError if the files cannot be used. The old context then stays, and the same
        files are not tried again, unless a user's function supplies a password: the function may have failed.
        """
        with self._lock:
            state = _state_of(_files(self._config))
            if state == self._seen:
                return
            before = self._seen
            # Set first, so that files that can't be loaded are not read again for each connection.
            self._seen = state
            try:
                self.context = make_context(self._config)
            except Exception:
                if any(callable(getattr(self._config, name)) for name in _PASSWORDS):
                    self._seen = before
                raise


def _files(config: ProducerConfig) -> tuple[str | None, ...]:
    return config.ssl_cafile, config.ssl_certfile, config.ssl_keyfile, config.ssl_crlfile


def _state_of(files: tuple[str | None, ...]) -> list[tuple[int, int, int] | None]:
    """Returns what changes if a file is replaced: its inode, size and modification time."""
    found: list[tuple[int, int, int] | None] = []
    for name in files:
        try:
            status = os.stat(name) if name is not None else None
        except OSError:
            status = None
        found.append(None if status is None else (status.st_ino, status.st_size, status.st_mtime_ns))
    return found


def make_context(config: ProducerConfig) -> ssl.SSLContext:
    """Returns ``ssl_context``, or a new context made from the other options.

    Raises KafkaConfigurationError if they cannot be used.
    """
    if config.ssl_context is not None:
        context: ssl.SSLContext = config.ssl_context
        return context
    # Not create_default_context(): from Python 3.13 on it rejects certificate authorities made by keytool.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = config.ssl_check_hostname
    _limit_protocols(context, config)
    _set_ciphers(context, config)
    _trust(context, config)
    _identify(context, config)
    if config.ssl_crlfile is not None:
        with _naming("ssl_crlfile", config.ssl_crlfile):
            context.load_verify_locations(config.ssl_crlfile)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    if log_file := os.environ.get("SSLKEYLOGFILE"):
        # As Python's own contexts do: Wireshark can then decrypt the connection.
        context.keylog_filename = log_file
    return context


def _limit_protocols(context: ssl.SSLContext, config: ProducerConfig) -> None:
    allowed = [_PROTOCOLS[name] for name in config.ssl_enabled_protocols]
    context.minimum_version = min(allowed)
    context.maximum_version = max(allowed)


def _set_ciphers(context: ssl.SSLContext, config: ProducerConfig) -> None:
    if config.ssl_ciphers is None:
        return
    names = [_openssl_cipher(name.strip()) for name in config.ssl_ciphers.replace(",", ":").split(":")]
    # Python cannot choose among the ciphers of TLS 1.3: all three are allowed.
    chosen = [name for name in names if name and not name.startswith("TLS_")]
    if not chosen:
        return
    try:
        context.set_ciphers(":".join(chosen))
    except ssl.SSLError as error:
        raise KafkaConfigurationError(
            f"ssl_ciphers={config.ssl_ciphers!r}: {ssl.OPENSSL_VERSION} knows none of these; `openssl "
            "ciphers` lists their names"
        ) from error


def _openssl_cipher(name: str) -> str:
    """Converts Java's name of a cipher to OpenSSL's. Returns other names unchanged."""
    if not name.startswith("TLS_") or "_WITH_" not in name:
        return name
    name = name.removeprefix("TLS_").removeprefix("RSA_WITH_")
    for java, openssl in _CIPHER_WORDS:
        name = name.replace(java, openssl)
    return name.replace("_", "-")


def _trust(context: ssl.SSLContext, config: ProducerConfig) -> None:
    """Loads the certificate authorities."""
    if config.ssl_truststore_certificates is not None:
        with _naming("ssl_truststore_certificates"):
            context.load_verify_locations(cadata=config.ssl_truststore_certificates)
    elif config.ssl_cafile is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        given: dict[str, Any] = {"cafile": config.ssl_cafile}
        if _is_pkcs12("ssl_cafile", config.ssl_cafile):
            _, certificate, others = _open_pkcs12(config, "ssl_cafile", "ssl_truststore_password")
            certificates = [each for each in (certificate, *others) if each is not None]
            if not certificates:
                raise KafkaConfigurationError(f"ssl_cafile={config.ssl_cafile!r}: it contains no certificate")
            given = {"cadata": b"".join(map(_der, certificates))}
        with _naming("ssl_cafile", config.ssl_cafile):
            context.load_verify_locations(**given)


def _identify(context: ssl.SSLContext, config: ProducerConfig) -> None:
    """Loads this client's certificate and key."""
    password = config.ssl_password
    if config.ssl_keystore_key is not None:
        chain = config.ssl_keystore_certificate_chain
        secret = hidden(config.ssl_keystore_key) or Secret("")
        with _as_file(str(chain)) as certificates, _as_file(secret) as key:
            _load_chain(context, certificates, key, password, "ssl_keystore_certificate_chain", None)
        return
    if config.ssl_certfile is None:
        return
    if _is_pkcs12("ssl_certfile", config.ssl_certfile):
        # With Java's options the store has a password, and the key in it may have another.
        option = "ssl_password" if config.ssl_keystore_password is None else "ssl_keystore_password"
        key_object, certificate, others = _open_pkcs12(config, "ssl_certfile", option)
        if key_object is None or certificate is None:
            raise KafkaConfigurationError(
                f"ssl_certfile={config.ssl_certfile!r}: it contains no private key with its certificate"
            )
        text = b"".join(map(_pem, (certificate, *others))).decode()
        with _as_file(text) as certificates, _as_file(Secret(_key_pem(key_object))) as key:
            _load_chain(context, certificates, key, None, "ssl_certfile", config.ssl_certfile)
        return
    if config.ssl_keyfile is not None:
        _read("ssl_keyfile", config.ssl_keyfile)
    _load_chain(
        context, config.ssl_certfile, config.ssl_keyfile, password, "ssl_certfile", config.ssl_certfile
    )


def _encoded(text: str | Secret) -> bytes:
    return (text.reveal() if isinstance(text, Secret) else text).encode()


def _load_chain(
    context: ssl.SSLContext, certificates: str, key: str | None, password: Any, option: str, shown: str | None
) -> None:
    asked = False

    def supply() -> str:
        # Always a function: otherwise OpenSSL prompts on the terminal.
        nonlocal asked
        asked = True
        found = hidden(password)
        return "" if found is None else found.reveal()

    named = option if shown is None else f"{option}={shown!r}"
    try:
        context.load_cert_chain(certificates, key, supply)
        return
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        cause: Exception = error
    except ValueError as error:
        # The password is too long for OpenSSL.
        reason, cause = str(error), error
    except Exception as error:
        # The user's function failed. The error itself is not chained: a UnicodeError contains the text.
        raise KafkaConfigurationError(f"ssl_password: {type(error).__name__}: {error}") from None
    key_option = "ssl_keystore_key" if shown is None else "ssl_keyfile"
    if reason == "KEY_VALUES_MISMATCH":
        text = f"{named}: {key_option} is not the key of this certificate"
    elif asked and password is None:
        text = f"{named}: the private key is encrypted: give ssl_password"
    elif asked:
        text = f"{named}: ssl_password does not decrypt the private key"
    elif key is None:
        text = f"{named}: it contains no private key: add it, or give ssl_keyfile"
    else:
        text = f"{named}: {key_option} contains no private key in PEM ({reason})"
    raise KafkaConfigurationError(text) from cause


# Formats


def format_of(data: bytes) -> str:
    """Returns the format of a file's content. The file name and the stated type are not reliable: Java's JKS
    store also opens PKCS#12."""
    if b"-----BEGIN " in data:
        return PEM
    if data[:4] in (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"):
        return JKS
    # A DER sequence with a length of two or more bytes.
    if data[:1] == b"\x30" and data[1:2] in (b"\x80", b"\x81", b"\x82", b"\x83"):
        return PKCS12
    return UNKNOWN


def _is_pkcs12(option: str, path: str) -> bool:
    """Returns whether a file is PKCS#12. Raises unless it is, or contains a certificate in PEM."""
    kind, has_certificate = _content(option, path)
    if kind == JKS:
        raise KafkaConfigurationError(
            f"{option}={path!r}: it is a Java key store (JKS), which only Java reads. Convert it: keytool "
            f"-importkeystore -srckeystore {path} -destkeystore store.p12 -deststoretype PKCS12"
        )
    if kind != PKCS12 and (kind != PEM or not has_certificate):
        raise KafkaConfigurationError(f"{option}={path!r}: it contains no certificate in PEM")
    return kind == PKCS12


def _open_pkcs12(config: ProducerConfig, option: str, password_option: str) -> tuple[Any, Any, Any]:
    path = getattr(config, option)
    try:
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError as error:
        raise KafkaConfigurationError(
            f"{option}={path!r}: reading PKCS#12 needs the cryptography package: pip install "
            "'cyproducer[pkcs12]', or convert the file to PEM: openssl pkcs12 -nodes"
        ) from error
    secret = hidden(getattr(config, password_option))
    try:
        return pkcs12.load_key_and_certificates(
            _read(option, path), None if secret is None else secret.reveal().encode()
        )
    except ValueError as error:
        raise KafkaConfigurationError(
            f"{option}={path!r}: {password_option} does not open this PKCS#12 file, or it is damaged"
        ) from error


def _der(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    encoded: bytes = certificate.public_bytes(Encoding.DER)
    return encoded


def _pem(certificate: Any) -> bytes:
    return ssl.DER_cert_to_PEM_cert(_der(certificate)).encode()


def _key_pem(key: Any) -> str:
    from cryptography.hazmat.primitives import serialization

    encoded: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return encoded.decode()


# Files


def _read(option: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise KafkaConfigurationError(f"{option}={path!r}: {error.strerror}") from error


def _content(option: str, path: str) -> tuple[str, bool]:
    """Returns the format of a file, and whether it contains a certificate in PEM. Functions that may raise do
    not keep the content in a variable: it may be a key."""
    data = _read(option, path)
    return format_of(data), _CERTIFICATE in data


@contextmanager
def _naming(option: str, path: str | None = None) -> Iterator[None]:
    try:
        yield
    except (ssl.SSLError, OSError, ValueError) as error:
        named = option if path is None else f"{option}={path!r}"
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise KafkaConfigurationError(f"{named}: it contains no certificate in PEM ({reason})") from error


@contextmanager
def _as_file(text: str | Secret) -> Iterator[str]:
    """Yields the path of a file with this text: ``ssl`` loads keys from files only. On Linux the file exists
    in memory only; elsewhere it is deleted at the end."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("cyproducer", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, _encoded(text))
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    import tempfile

    with tempfile.NamedTemporaryFile() as file:  # readable by this user only
        file.write(_encoded(text))
        file.flush()
        yield file.name
