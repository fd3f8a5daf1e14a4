"""AWS_MSK_IAM: which region and credentials its tokens are made with, and what goes to the broker."""

import base64
import hashlib
import hmac
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote, urlencode, urlsplit

import pytest

from cyproducer import KafkaProducer
from cyproducer.config import ProducerConfig
from cyproducer.errors import KafkaConfigurationError
from cyproducer.security.aws import AwsTokens
from tests.scripted.scripted_broker import ScriptedCluster
from tests.scripted.scripted_sasl import Exchange, SaslServer
from tools.harness.tls import Authority

KEY, SECRET, SESSION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "the-session-token"
BROKER = "b-1.demo.abc123.c2.kafka.eu-west-1.amazonaws.com:9098"


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def config(server: str = BROKER, **more: Any) -> ProducerConfig:
    return ProducerConfig(
        bootstrap_servers=server, security_protocol="SASL_SSL", sasl_mechanism="AWS_MSK_IAM", **more
    )


def url_of(token: str) -> str:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()


def signature(url: str, secret: str) -> str:
    """Signature Version 4 of a URL, as AWS's documentation has it."""
    split = urlsplit(url)
    given = dict(parse_qsl(split.query))
    del given["X-Amz-Signature"]
    # Added after signing.
    del given["User-Agent"]
    query = urlencode(sorted(given.items()), quote_via=quote, safe="-_.~")
    request = "\n".join(
        ["GET", "/", query, f"host:{split.hostname}\n", "host", hashlib.sha256(b"").hexdigest()]
    )
    scope = given["X-Amz-Credential"].split("/", 1)[1]
    text = "\n".join(
        ["AWS4-HMAC-SHA256", given["X-Amz-Date"], scope, hashlib.sha256(request.encode()).hexdigest()]
    )
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()


def test_a_token_is_a_signed_url() -> None:
    token, expires_ms = AwsTokens(config()).token()
    url = url_of(token)
    found = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    assert urlsplit(url).hostname == "kafka.eu-west-1.amazonaws.com"
    assert found["Action"] == "kafka-cluster:Connect"
    assert found["X-Amz-Credential"].startswith(f"{KEY}/")
    assert found["X-Amz-Credential"].endswith("/eu-west-1/kafka-cluster/aws4_request")
    assert found["X-Amz-Security-Token"] == SESSION
    assert found["X-Amz-Expires"] == "900"
    assert found["X-Amz-Signature"] == signature(url, SECRET)
    assert found["X-Amz-Signature"] != signature(url, "another")
    assert expires_ms > 1e12


@pytest.mark.parametrize(
    ("server", "region"),
    [
        (BROKER, "eu-west-1"),
        ("boot-xyz.c1.kafka-serverless.us-east-1.amazonaws.com:9098", "us-east-1"),
        ("b-2.demo.abc.c3.kafka.cn-north-1.amazonaws.com.cn:9098", "cn-north-1"),
        ("b-1.demo.abc.c2.kafka.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("b-1-public.demo.abc.c2.kafka.ap-southeast-2.amazonaws.com:9198", "ap-southeast-2"),
    ],
)
def test_the_region_is_in_the_brokers_names(
    server: str, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "sa-east-1")
    assert (
        f"/{region}/kafka-cluster"
        in parse_qs(url_of(AwsTokens(config(server)).token()[0]))["X-Amz-Credential"][0]
    )


def test_the_region_from_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    private = config("kafka.internal:9098")
    with pytest.raises(KafkaConfigurationError, match=r"\['kafka.internal:9098'\] do not name an AWS region"):
        AwsTokens(private)
    (tmp_path / "config").write_text("[default]\nregion = eu-north-1\n[profile other]\nregion = eu-south-1\n")
    assert "kafka.eu-north-1." in url_of(AwsTokens(private).token()[0])
    monkeypatch.setenv("AWS_REGION", "sa-east-1")
    assert "kafka.sa-east-1." in url_of(AwsTokens(private).token()[0])


def test_the_profile_of_jaas(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile other]\nregion = eu-south-1\n")
    (tmp_path / "credentials").write_text("[other]\naws_access_key_id = OTHER\naws_secret_access_key = o\n")
    jaas = 'software.amazon.msk.auth.iam.IAMLoginModule required awsProfileName="other";'
    url = url_of(AwsTokens(config("kafka.internal:9098", sasl_jaas_config=jaas)).token()[0])
    assert "X-Amz-Credential=OTHER%2F" in url
    assert "/eu-south-1/" in parse_qs(url)["X-Amz-Credential"][0]


@pytest.mark.parametrize(
    ("given", "session"), [("", {}), (' awsRoleSessionName="mine"', {"sts_session_name": "mine"})]
)
def test_the_role_of_jaas(given: str, session: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as signer

    asked: list[Any] = []

    def assume(*args: str, **more: str) -> tuple[str, int]:
        asked.append((args, more))
        return "token", 1

    monkeypatch.setattr(signer, "generate_auth_token_from_role_arn", assume)
    jaas = f'software.amazon.msk.auth.iam.IAMLoginModule required awsRoleArn="arn:aws:iam::1:role/r"{given};'
    assert AwsTokens(config(sasl_jaas_config=jaas)).token() == ("token", 1)
    assert asked == [(("eu-west-1", "arn:aws:iam::1:role/r"), session)]


def test_a_role_and_a_profile_are_one_too_many() -> None:
    jaas = 'a.IAMLoginModule required awsRoleArn="arn:aws:iam::1:role/r" awsProfileName="p";'
    with pytest.raises(KafkaConfigurationError, match="awsProfileName and awsRoleArn are two places"):
        AwsTokens(config(sasl_jaas_config=jaas))


@pytest.mark.parametrize("name", ["awsRoleExternalId", "awsRoleAccessKeyId", "awsRoleSecretAccessKey"])
def test_options_that_would_make_it_another_user_are_refused(name: str) -> None:
    jaas = f'a.IAMLoginModule required awsRoleArn="arn:aws:iam::1:role/r" {name}="hidden";'
    with pytest.raises(KafkaConfigurationError, match=f"IAMLoginModule's {name} is not supported") as caught:
        config(sasl_jaas_config=jaas)
    assert "hidden" not in str(caught.value)


def test_without_the_signer_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(KafkaConfigurationError, match=r"pip install 'cyproducer\[aws\]'"):
        KafkaProducer(bootstrap_servers=BROKER, security_protocol="SASL_SSL", sasl_mechanism="AWS_MSK_IAM")


def test_the_options_of_amazons_documentation_send_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    seen: list[bytes] = []

    def exchange(mechanism: str) -> Exchange:
        assert mechanism == "OAUTHBEARER"
        seen.append((yield b""))

    authority = Authority()
    server = SaslServer(mechanisms=("OAUTHBEARER",), own=exchange)
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "AWS_MSK_IAM",
        "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
        "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
        "ssl.truststore.certificates": authority.pem,
    }
    with ScriptedCluster(tls=authority.server(), sasl=server, t=1) as cluster:
        with KafkaProducer(options, bootstrap_servers=cluster.bootstrap_servers) as ours:
            ours.send("t", b"v").get(20)
        (record,) = cluster.topics["t"].partitions[0].records
    assert record.value == b"v"
    tokens = {each.removeprefix(b"n,,\1auth=Bearer ").removesuffix(b"\1\1") for each in seen}
    assert len(tokens) == 1
    assert url_of(tokens.pop().decode()).startswith("https://kafka.eu-west-1.amazonaws.com/?Action=")
