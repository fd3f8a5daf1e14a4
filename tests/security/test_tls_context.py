"""The ``ssl.SSLContext`` that the options describe."""

import contextlib
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509 import load_pem_x509_certificate
from trustme import LeafCert

from cyproducer.config import ProducerConfig
from cyproducer.errors import KafkaConfigurationError
from cyproducer.security.tls_context import TlsContext, format_of, make_context
from tools.harness.tls import Authority, chain_pem, key_pem

AUTHORITY = Authority()
CLIENT = AUTHORITY.issue("client")
PASSWORD = "a secret"


def context(**options: Any) -> ssl.SSLContext:
    return make_context(ProducerConfig(**options))


def problem(**options: Any) -> str:
    with pytest.raises(KafkaConfigurationError) as caught:
        context(**options)
    text = str(caught.value).removeprefix("KafkaConfigurationError: ")
    assert PASSWORD not in text
    return text


def write(directory: Path, name: str, content: str | bytes) -> Path:
    path = directory / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def store(certificate: LeafCert | None, password: str | None, authority: Authority | None = None) -> bytes:
    """A PKCS#12 file."""
    key = chain = None
    if certificate is not None:
        key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None)
        chain = load_pem_x509_certificate(certificate.cert_chain_pems[0].bytes())
    others = [] if authority is None else [load_pem_x509_certificate(authority.pem.encode())]
    encryption: Any = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password.encode())
    return pkcs12.serialize_key_and_certificates(b"name", key, chain, others, encryption)  # type: ignore[arg-type]


def shakes_hands(client: ssl.SSLContext, name: str = "localhost", authority: Authority = AUTHORITY) -> Any:
    """Connects the context to a server that demands a client certificate; returns the one it got."""
    server = authority.server("localhost")
    AUTHORITY.ca.configure_trust(server)
    server.verify_mode = ssl.CERT_OPTIONAL
    bios = [ssl.MemoryBIO() for _ in range(4)]
    ours = client.wrap_bio(bios[0], bios[1], server_hostname=name)
    theirs = server.wrap_bio(bios[2], bios[3], server_side=True)
    for _ in range(5):
        for end, out, into in ((ours, bios[1], bios[2]), (theirs, bios[3], bios[0])):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
            into.write(out.read())
    return theirs.getpeercert()


# Trust


def test_a_given_context_is_used_as_it_is() -> None:
    mine = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    assert context(ssl_context=mine, ssl_cafile="/nowhere") is mine


def test_the_defaults_check_the_certificate_and_its_name_with_tls_1_2_or_newer() -> None:
    made = context()
    assert (made.verify_mode, made.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert made.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("kind", ["PEM file", "PEM text", "PKCS#12", "PKCS#12 without a password"])
def test_authorities(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any]
    if kind == "PEM file":
        options = {"ssl.truststore.location": AUTHORITY.file(tmp_path), "ssl.truststore.type": "PEM"}
    elif kind == "PEM text":
        options = {"ssl.truststore.certificates": AUTHORITY.pem}
    else:
        password = PASSWORD if kind == "PKCS#12" else None
        path = write(tmp_path, "trust.jks", store(None, password, AUTHORITY))
        options = {"ssl.truststore.location": path}
        if password:
            options["ssl.truststore.password"] = password
    shakes_hands(make_context(ProducerConfig(**options)))


def test_another_authority_is_not_trusted(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shakes_hands(context(ssl_cafile=AUTHORITY.file(tmp_path)), authority=Authority("Another"))


def test_a_name_is_not_compared_if_that_is_switched_off(tmp_path: Path) -> None:
    file = AUTHORITY.file(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        shakes_hands(context(ssl_cafile=file), "other.example")
    shakes_hands(context(ssl_cafile=file, ssl_check_hostname=False), "other.example")
    java = {"ssl.truststore.location": file, "ssl.endpoint.identification.algorithm": ""}
    shakes_hands(context(**java), "other.example")


# Identity


@pytest.mark.parametrize("password", [None, PASSWORD, lambda: PASSWORD])
@pytest.mark.parametrize("kind", ["one file", "two files", "text", "PKCS#12"])
def test_a_client_certificate(kind: str, password: Any, tmp_path: Path) -> None:
    encrypted_with = PASSWORD if password is not None else None
    key, chain = key_pem(CLIENT, encrypted_with), chain_pem(CLIENT)
    options: dict[str, Any] = {"ssl_cafile": AUTHORITY.file(tmp_path)}
    if kind == "one file":
        options["ssl_certfile"] = write(tmp_path, "both.pem", key + chain)
    elif kind == "two files":
        options["ssl_certfile"] = write(tmp_path, "chain.pem", chain)
        options["ssl_keyfile"] = write(tmp_path, "key.pem", key)
    elif kind == "text":
        options |= {"ssl_keystore_key": key, "ssl_keystore_certificate_chain": chain}
    else:
        options["ssl_certfile"] = write(tmp_path, "store.p12", store(CLIENT, encrypted_with))
    if password is not None:
        options["ssl_password"] = password
    seen = shakes_hands(context(**options))
    assert ("DNS", "client") in seen["subjectAltName"]


def test_pem_text_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    context(ssl_keystore_key=key_pem(CLIENT), ssl_keystore_certificate_chain=chain_pem(CLIENT))
    assert list(tmp_path.iterdir()) == []
    if before:
        assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_a_missing_password_is_an_error_and_no_question_on_the_terminal(tmp_path: Path) -> None:
    path = write(tmp_path, "both.pem", key_pem(CLIENT, PASSWORD) + chain_pem(CLIENT))
    program = (
        "import sys; from cyproducer.config import ProducerConfig\n"
        "from cyproducer.security.tls_context import make_context\n"
        "make_context(ProducerConfig(ssl_certfile=sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stderr.rstrip().endswith("the private key is encrypted: give ssl_password")


# Mistakes


@pytest.mark.slow
def test_what_is_wrong_with_a_file_is_said_with_its_option(tmp_path: Path) -> None:
    chain, key = write(tmp_path, "chain", chain_pem(CLIENT)), write(tmp_path, "key", key_pem(CLIENT))
    locked = write(tmp_path, "locked", key_pem(CLIENT, PASSWORD))
    other = write(tmp_path, "other", key_pem(AUTHORITY.issue("other")))
    empty = write(tmp_path, "empty", "")
    java = write(tmp_path, "store.jks", b"\xfe\xed\xfe\xed" + bytes(100))
    p12 = write(tmp_path, "store.p12", store(CLIENT, PASSWORD))
    trust = write(tmp_path, "trust.p12", store(None, PASSWORD, AUTHORITY))
    gone = tmp_path / "gone"
    assert problem(ssl_cafile=gone) == f"ssl_cafile={str(gone)!r}: No such file or directory"
    assert problem(ssl_certfile=gone) == f"ssl_certfile={str(gone)!r}: No such file or directory"
    assert problem(ssl_certfile=chain, ssl_keyfile=gone).startswith("ssl_keyfile=")
    assert problem(ssl_cafile=empty) == f"ssl_cafile={str(empty)!r}: it contains no certificate in PEM"
    assert problem(ssl_cafile=key) == f"ssl_cafile={str(key)!r}: it contains no certificate in PEM"
    assert "keytool -importkeystore" in problem(ssl_cafile=java)
    assert "keytool -importkeystore" in problem(ssl_certfile=java)
    assert problem(ssl_certfile=chain).endswith("it contains no private key: add it, or give ssl_keyfile")
    assert problem(ssl_certfile=chain, ssl_keyfile=chain).startswith(
        f"ssl_certfile={str(chain)!r}: ssl_keyfile contains no private key in PEM"
    )
    assert problem(ssl_certfile=chain, ssl_keyfile=other).endswith("is not the key of this certificate")
    assert problem(ssl_certfile=chain, ssl_keyfile=locked).endswith("is encrypted: give ssl_password")
    assert problem(ssl_certfile=chain, ssl_keyfile=locked, ssl_password="wrong").endswith(
        "ssl_password does not decrypt the private key"
    )
    assert "ssl_password does not open this PKCS#12 file" in problem(ssl_certfile=p12)
    assert "ssl_keystore_password does not open" in problem(ssl_certfile=p12, ssl_keystore_password="x")
    assert "ssl_truststore_password does not open" in problem(ssl_cafile=trust)
    assert problem(ssl_certfile=trust, ssl_password=PASSWORD).endswith(
        "it contains no private key with its certificate"
    )
    assert "ssl_ciphers='nonsense'" in problem(ssl_ciphers="nonsense")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ssl_truststore_certificates": AUTHORITY.pem, "ssl_cafile": "x"}, "two places for the same"),
        ({"ssl_keystore_key": "k", "ssl_certfile": "x"}, "two places for the same"),
        ({"ssl_keystore_key": "k"}, "without ssl_keystore_certificate_chain"),
        ({"ssl_keystore_certificate_chain": AUTHORITY.pem}, "without ssl_keystore_key"),
        ({"ssl_keyfile": "x"}, "ssl_keyfile is given without ssl_certfile"),
        ({"ssl_keystore_password": "x"}, "without ssl_certfile"),
        ({"ssl_truststore_password": "x"}, "without ssl_cafile"),
        ({"ssl_truststore_type": "JKS"}, "only Java reads this format"),
        ({"ssl_keystore_type": "jks"}, "only Java reads this format"),
        ({"ssl_truststore_type": "PKCS12", "ssl_truststore_certificates": AUTHORITY.pem}, "which is PEM"),
        ({"ssl_protocol": "TLSv1.3", "ssl_enabled_protocols": "TLSv1.2"}, "is not one of"),
        ({"ssl_enabled_protocols": "TLSv1.1"}, "must be some of 'TLSv1.2', 'TLSv1.3'"),
        ({"ssl_truststore_certificates": "x"}, "must be certificates as PEM text"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], text: str) -> None:
    assert text in problem(**options)


# Protocols and ciphers


def test_versions_of_tls() -> None:
    made = context(ssl_enabled_protocols="TLSv1.3")
    assert made.minimum_version == made.maximum_version == ssl.TLSVersion.TLSv1_3
    made = context(**{"ssl.enabled.protocols": "TLSv1.2,TLSv1.3", "ssl.protocol": "TLS"})
    assert (made.minimum_version, made.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
    ],
)
def test_ciphers_by_both_names(java: str, openssl: str) -> None:
    def chosen(names: str) -> set[str]:
        found = context(ssl_ciphers=names).get_ciphers()
        return {each["name"] for each in found if each["protocol"] != "TLSv1.3"}

    assert chosen(java) == chosen(openssl) == {openssl}
    assert chosen(f"{java},TLS_AES_128_GCM_SHA256") == {openssl}


# Revocation


def test_a_revoked_certificate_is_refused(tmp_path: Path) -> None:
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    authority_key: Any = serialization.load_pem_private_key(AUTHORITY.ca.private_key_pem.bytes(), None)
    issuer = load_pem_x509_certificate(AUTHORITY.pem.encode()).subject
    now = datetime.now(UTC)

    def revoking(*serials: int) -> Path:
        builder = x509.CertificateRevocationListBuilder().issuer_name(issuer)
        builder = builder.last_update(now - timedelta(days=1)).next_update(now + timedelta(days=1))
        for serial in serials:
            one = x509.RevokedCertificateBuilder().serial_number(serial)
            builder = builder.add_revoked_certificate(one.revocation_date(now - timedelta(days=1)).build())
        signed = builder.sign(authority_key, hashes.SHA256())
        return write(tmp_path, "crl.pem", signed.public_bytes(serialization.Encoding.PEM))

    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = AUTHORITY.issue("localhost")
    certificate.configure_cert(server)
    serial = load_pem_x509_certificate(certificate.cert_chain_pems[0].bytes()).serial_number
    fixed = type("Fixed", (), {"server": staticmethod(lambda *names: server)})()
    file = AUTHORITY.file(tmp_path)
    shakes_hands(context(ssl_cafile=file, ssl_crlfile=revoking()), authority=fixed)
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        shakes_hands(context(ssl_cafile=file, ssl_crlfile=revoking(serial)), authority=fixed)


# Changes


def test_a_context_is_made_again_when_a_file_has_changed(tmp_path: Path) -> None:
    file = AUTHORITY.file(tmp_path)
    source = TlsContext(ProducerConfig(ssl_cafile=file))
    first = source.context
    source.reload()
    assert source.context is first
    file.write_text(AUTHORITY.pem + Authority("Another").pem)
    source.reload()
    second = source.context
    assert second is not first
    source.reload()
    assert source.context is second


def test_files_that_do_not_load_leave_the_old_context_and_are_read_once(tmp_path: Path) -> None:
    file = AUTHORITY.file(tmp_path)
    source = TlsContext(ProducerConfig(ssl_cafile=file))
    first = source.context
    file.unlink()
    with pytest.raises(KafkaConfigurationError, match="No such file"):
        source.reload()
    assert source.context is first
    source.reload()
    AUTHORITY.file(tmp_path)
    source.reload()
    assert source.context is not first


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, False), ({"ssl_cafile": "ca.pem"}, True), ({"ssl_keystore_certificate_chain": "text"}, False)],
)
def test_only_files_can_change(
    given: dict[str, Any], expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    AUTHORITY.file(tmp_path)
    if "ssl_keystore_certificate_chain" in given:
        mine = AUTHORITY.issue("client")
        given = {"ssl_keystore_certificate_chain": chain_pem(mine), "ssl_keystore_key": key_pem(mine)}
    assert TlsContext(ProducerConfig(**given)).has_files is expected
    assert not TlsContext(ProducerConfig(**given, ssl_context=AUTHORITY.client())).has_files


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"text\n-----BEGIN CERTIFICATE-----", "PEM"),
        (b"\x30\x82\x01\x00", "PKCS12"),
        (b"\xfe\xed\xfe\xed\x00", "JKS"),
        (b"\xce\xce\xce\xce\x00", "JKS"),
        (b"", "unknown"),
        (b"\x30\x10", "unknown"),
    ],
)
def test_the_format_is_that_of_the_content(data: bytes, kind: str) -> None:
    assert format_of(data) == kind


@pytest.mark.slow
def test_a_password_that_could_not_be_had_is_asked_for_again(tmp_path: Path) -> None:
    is_closed = False

    def password() -> str:
        if is_closed:
            raise OSError("the vault is closed")
        return PASSWORD

    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
    certificate.write_text(chain_pem(CLIENT))
    key.write_text(key_pem(CLIENT, PASSWORD))
    source = TlsContext(ProducerConfig(ssl_certfile=certificate, ssl_keyfile=key, ssl_password=password))
    before = source.context
    is_closed = True
    certificate.write_text(chain_pem(CLIENT) + "\n")
    for _ in range(2):
        with pytest.raises(KafkaConfigurationError, match="the vault is closed"):
            source.reload()
    assert source.context is before
    is_closed = False
    source.reload()
    assert source.context is not before
