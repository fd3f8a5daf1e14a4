"""Tokens from an OpenID Connect endpoint: what it is asked, and what its answers mean."""

import base64
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from cyproducer.config import ProducerConfig
from cyproducer.errors import (
    KafkaConfigurationError,
    KafkaConnectionError,
    SaslAuthenticationFailedError,
)
from cyproducer.security import oidc
from cyproducer.security.oidc import OidcTokens
from tools.harness.tls import Authority
from tools.harness.token_server import Answer, TokenServer

ID, SECRET = "my client", "a+secret/with:signs?"
PREFIX = "sasl_oauthbearer_"


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer() as running:
        yield running


def options(url: str | None = None, **more: Any) -> dict[str, Any]:
    """Options of the mechanism; those of ``more`` without their common prefix."""
    given = {"token_endpoint_url": url, **more}
    return {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        **{name if name.startswith(("sasl", "https")) else PREFIX + name: v for name, v in given.items()},
    }


def with_secret(url: str, **more: Any) -> dict[str, Any]:
    return options(url, client_credentials_client_id=ID, client_credentials_client_secret=SECRET, **more)


def provider(**given: Any) -> OidcTokens:
    return OidcTokens(ProducerConfig(**given))


@pytest.mark.slow
def test_client_credentials(server: TokenServer) -> None:
    text, expires_s = provider(**with_secret(server.url, scope="write read")).token()
    assert jwt.decode(text, options={"verify_signature": False})["sub"] == "alice"
    assert expires_s is not None
    assert abs(expires_s - time.time() - server.lifetime_s) < 60
    (asked,) = server.asked
    assert asked.basic == f"{ID}:{SECRET}"
    assert asked.form == {"grant_type": "client_credentials", "scope": "write read"}
    assert asked.headers["Content-Type"] == "application/x-www-form-urlencoded"


def test_id_and_secret_are_encoded_if_asked_for(server: TokenServer) -> None:
    provider(**with_secret(server.url, header_urlencode=True)).token()
    assert server.asked[0].basic == "my+client:a%2Bsecret%2Fwith%3Asigns%3F"


def test_the_usual_alphabet_of_base64(server: TokenServer) -> None:
    # "?>" and "?~" would be "-" and "_" in the URL's.
    provider(
        **options(server.url, client_credentials_client_id="a?>?>", client_credentials_client_secret="?~")
    ).token()
    encoded = server.asked[0].headers["Authorization"].removeprefix("Basic ")
    assert encoded == base64.b64encode(b"a?>?>:?~").decode()


def test_the_secret_may_be_a_callable(server: TokenServer) -> None:
    given = {**with_secret(server.url), f"{PREFIX}client_credentials_client_secret": lambda: "from a vault"}
    provider(**given).token()
    assert server.asked[0].basic == f"{ID}:from a vault"


def test_extensions_and_credentials_from_jaas(server: TokenServer) -> None:
    jaas = (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'clientId="jaas" clientSecret="hidden" scope="s" extension_logicalCluster="lkc-1";'
    )
    found = provider(**options(server.url, sasl_jaas_config=jaas, extensions="identityPoolId=p-1"))
    found.token()
    assert server.asked[0].basic == "jaas:hidden"
    assert server.asked[0].form["scope"] == "s"
    assert found.extensions() == {"logicalCluster": "lkc-1", "identityPoolId": "p-1"}


def test_options_come_before_jaas(server: TokenServer) -> None:
    jaas = 'a.OAuthBearerLoginModule required clientId="jaas" clientSecret="hidden";'
    provider(**with_secret(server.url, sasl_jaas_config=jaas)).token()
    assert server.asked[0].basic == f"{ID}:{SECRET}"


# Signed JWTs


def write_key(directory: Path, algorithm: str, passphrase: str | None = None) -> tuple[Path, Any]:
    key: Any
    if algorithm == "RS256":
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
    encryption: Any = serialization.NoEncryption()
    if passphrase is not None:
        encryption = serialization.BestAvailableEncryption(passphrase.encode())
    path = directory / "assertion.key"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    )
    return path, key.public_key()


@pytest.mark.slow
@pytest.mark.parametrize("passphrase", [None, "open"])
@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_jwt_bearer(server: TokenServer, algorithm: str, passphrase: str | None, tmp_path: Path) -> None:
    path, public = write_key(tmp_path, algorithm, passphrase)
    template = tmp_path / "template.json"
    template.write_text(json.dumps({"header": {"kid": "k1"}, "payload": {"tenant": "t", "sub": "template"}}))
    given = options(
        server.url,
        grant_type="jwt-bearer",
        scope="s",
        assertion_algorithm=algorithm,
        assertion_private_key_file=path,
        assertion_private_key_passphrase=passphrase,
        assertion_template_file=template,
        assertion_claim_iss="me",
        assertion_claim_sub="alice",
        assertion_claim_aud="the issuer",
        assertion_claim_exp_seconds=100,
        assertion_claim_nbf_seconds=10,
        assertion_claim_jti_include=True,
    )
    provider(**given).token()
    provider(**given).token()
    first, second = server.asked
    assert first.form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    assert first.form["scope"] == "s"
    assert "Authorization" not in first.headers
    claims = [
        jwt.decode(asked.form["assertion"], public, [algorithm], audience="the issuer")
        for asked in (first, second)
    ]
    assert jwt.get_unverified_header(first.form["assertion"])["kid"] == "k1"
    now = claims[0]["iat"]
    assert abs(now - time.time()) < 60
    assert {name: each for name, each in claims[0].items() if name not in ("jti", "iat")} == {
        "iss": "me",
        "sub": "alice",
        "aud": "the issuer",
        "tenant": "t",
        "exp": now + 100,
        "nbf": now - 10,
    }
    assert claims[0]["jti"] != claims[1]["jti"]


def test_a_jwt_in_place_of_the_secret(server: TokenServer, tmp_path: Path) -> None:
    path = tmp_path / "assertion.jwt"
    given = options(server.url, assertion_file=path, client_credentials_client_id=ID)
    found = provider(**given)
    for text in ("first.jwt.text", "second.jwt.text"):
        path.write_text(f"{text}\n")
        found.token()
    assert [asked.form for asked in server.asked] == [
        {
            "grant_type": "client_credentials",
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
            "client_assertion": text,
            "client_id": ID,
        }
        for text in ("first.jwt.text", "second.jwt.text")
    ]
    assert "Authorization" not in server.asked[0].headers


def test_a_token_in_a_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    path.write_text("one\n")
    found = provider(**options(path.as_uri()))
    assert found.token() == ("one", None)
    path.write_text("two")
    assert found.token() == ("two", None)
    path.unlink()
    with pytest.raises(KafkaConfigurationError, match=r"token_endpoint_url='.*a token': No such file"):
        found.token()


# Answers


def wait_less(found: OidcTokens) -> list[float]:
    """Makes the provider note its waits instead of waiting."""
    waits: list[float] = []
    found._sleep = waits.append
    return waits


@pytest.mark.slow
@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_what_may_succeed_later_is_asked_again(server: TokenServer, status: int) -> None:
    def answer(asked: Any) -> Answer:
        return Answer(status) if len(server.asked) < 4 else server.grant(asked)

    server.answer = answer
    found = provider(**with_secret(server.url))
    waits = wait_less(found)
    assert found.token()[0]
    assert waits == [0.1, 0.2, 0.4]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 501, 505])
def test_what_would_fail_again_is_not(server: TokenServer, status: int) -> None:
    body = {"error": "invalid_client", "error_description": "no such\nclient"}
    server.answer = lambda _: Answer(status, json.dumps(body).encode())
    with pytest.raises(SaslAuthenticationFailedError) as caught:
        provider(**with_secret(server.url)).token()
    assert f"{server.url} answered {status} " in str(caught.value)
    assert r"invalid_client: no such\nclient" in str(caught.value)
    assert ("client_credentials_client_id" in str(caught.value)) == (status in (400, 401, 403))
    assert SECRET not in str(caught.value)
    assert len(server.asked) == 1


def test_repetitions_end(server: TokenServer) -> None:
    server.answer = lambda _: Answer(503)
    found = provider(**with_secret(server.url))
    waits = wait_less(found)
    # Without waiting, the answers come within milliseconds: the wait that would be too long ends it.
    with pytest.raises(KafkaConnectionError, match="answered 503"):
        found.token()
    assert waits[:3] == [0.1, 0.2, 0.4]
    assert all(wait < oidc.MOST_S for wait in waits)


def test_nobody_there_is_asked_again() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = provider(**with_secret(f"http://127.0.0.1:{port}/token"))
    waits = wait_less(found)
    with pytest.raises(KafkaConnectionError, match=rf"127.0.0.1:{port}/token: Connection refused"):
        found.token()
    assert waits[0] == 0.1


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"<html>", "answered without JSON"),
        (b"[1]", "JSON that is no object"),
        (b"{}", "without an access_token"),
        (b'{"access_token": 7}', "without an access_token"),
        (b"\xff\xfe\x00", "answered without JSON"),
    ],
)
def test_answers_that_are_no_token(server: TokenServer, body: bytes, problem: str) -> None:
    server.answer = lambda _: Answer(body=body)
    with pytest.raises(SaslAuthenticationFailedError, match=problem):
        provider(**with_secret(server.url)).token()


@pytest.mark.parametrize("lasts", [b'"soon"', b"1" + b"0" * 400])
def test_an_id_token_will_do(server: TokenServer, lasts: bytes) -> None:
    server.answer = lambda _: Answer(body=b'{"id_token": "i", "expires_in": %s}' % lasts)
    assert provider(**with_secret(server.url)).token() == ("i", None)


def test_an_answer_without_end_is_not_read_to_its_end(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "MOST_S", 0.01)
    server.answer = lambda _: Answer(piece=65536)
    with pytest.raises(KafkaConnectionError, match=r"more than 1048576 bytes|takes too long|timed out"):
        provider(**with_secret(server.url)).token()


def test_an_answer_that_takes_too_long(server: TokenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc, "MOST_S", 0.2)
    server.answer = lambda _: Answer(piece=1)
    with pytest.raises(KafkaConnectionError, match=r"takes too long|timed out"):
        provider(**with_secret(server.url)).token()


def test_a_redirect_does_not_get_the_secret(server: TokenServer) -> None:
    with TokenServer() as other:
        server.answer = lambda _: Answer(302, headers={"Location": other.url})
        with pytest.raises(SaslAuthenticationFailedError, match=f"redirects to '{other.url}'"):
            provider(**with_secret(server.url)).token()
        assert other.asked == []


def test_https_needs_a_trusted_certificate(tmp_path: Path) -> None:
    authority = Authority()
    with TokenServer(tls=authority.server()) as server:
        given = with_secret(server.url)
        with pytest.raises(SaslAuthenticationFailedError, match=r"is not trusted .*https_ca_location"):
            provider(**given).token()
        assert provider(**given, https_ca_location=authority.file(tmp_path)).token()[0]
    with pytest.raises(KafkaConfigurationError, match=r"https_ca_location=.*No such file"):
        provider(**given, https_ca_location=tmp_path / "missing")


# Options


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, r"needs sasl_oauth_token_provider or sasl_oauthbearer_token_endpoint_url"),
        (
            {"url": "https://h/", "sasl_oauth_token_provider": lambda _: ""},
            "two places for tokens",
        ),
        ({"url": "https://h/"}, "needs .*_client_id and .*_client_secret, or .*_file, or"),
        ({"url": "https://h/", "client_credentials_client_id": "c"}, "_client_secret, or"),
        ({"url": "https://h/", "grant_type": "jwt-bearer"}, "needs .*assertion_file or"),
        ({"url": "ftp://h/"}, "must be a URL that begins with https://, http:// or file:"),
        ({"url": "https://u:hidden@h/"}, "a user and password cannot be in it"),
        ({"url": "https:h"}, "it has no host"),
        ({"url": "https:///t"}, "it has no host"),
        ({"url": "https://:1/t"}, "it has no host"),
        ({"url": "https://h/tök"}, "letters that must be percent-encoded"),
        ({"url": "https://h/a b"}, "letters that must be percent-encoded"),
        (
            {"extensions": {"a": "b"}, "sasl_oauth_token_provider": lambda _: ""},
            "extensions belongs to sasl_oauthbearer_token_endpoint_url",
        ),
        ({"url": "file:/t", "extensions": "=v"}, "'' has no value"),
    ],
)
def test_options_that_do_not_fit(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=problem):
        ProducerConfig(**options(**given))


def test_java_s_names() -> None:
    config = ProducerConfig(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.login.callback.handler.class": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
            ),
            "sasl.oauthbearer.jwt.retriever.class": (
                "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"
            ),
            "sasl.oauthbearer.token.endpoint.url": "https://issuer/token",
            "sasl.oauthbearer.assertion.file": "/run/assertion.jwt",
        }
    )
    assert config.sasl_oauthbearer_grant_type == "jwt-bearer"
    assert config.sasl_oauthbearer_token_endpoint_url == "https://issuer/token"
    with pytest.raises(
        KafkaConfigurationError, match=r"class='com.mine.Handler': a Java class cannot be used"
    ):
        ProducerConfig({"sasl.login.callback.handler.class": "com.mine.Handler"})


def test_a_plain_endpoint_elsewhere_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    ProducerConfig(**with_secret("http://127.0.0.1:1/token"))
    ProducerConfig(**with_secret("https://issuer/token"))
    assert caplog.records == []
    ProducerConfig(**with_secret("http://issuer/token"))
    assert "cross the network in clear text" in caplog.text


def test_files_that_cannot_be_used_are_seen_at_once(tmp_path: Path) -> None:
    path, _ = write_key(tmp_path, "RS256", "open")
    given = options("https://h/", assertion_private_key_file=path, assertion_claim_iss="me")
    with pytest.raises(KafkaConfigurationError, match="passphrase does not decrypt it"):
        provider(**given)
    with pytest.raises(KafkaConfigurationError, match=r"its key is not one for .*='ES256'"):
        provider(
            **given,
            **{f"{PREFIX}assertion_private_key_passphrase": "open", f"{PREFIX}assertion_algorithm": "ES256"},
        )
    template = tmp_path / "template.json"
    for text, problem in (("[]", "is no JSON object"), ('{"header": 1}', "must be JSON objects")):
        template.write_text(text)
        with pytest.raises(KafkaConfigurationError, match=problem):
            provider(
                **given,
                **{
                    f"{PREFIX}assertion_private_key_passphrase": "open",
                    f"{PREFIX}assertion_template_file": template,
                },
            )


def test_secrets_are_not_shown() -> None:
    given = with_secret("https://h/", assertion_private_key_passphrase="hidden phrase")
    config = ProducerConfig(**given)
    shown = repr(config) + str(config.as_dict())
    assert not re.search("secret/with|hidden phrase", shown)
