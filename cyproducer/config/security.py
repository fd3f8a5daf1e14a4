"""The rules between the options of TLS, SASL and proxies.

Owns which of them belong together or exclude each other, and what ``sasl.jaas.config`` sets. Does not own the
options (``config.options``) or the objects that are made from them (``security``). Pure functions; any thread
may call them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from cyproducer.config.jaas import LoginModule, parse
from cyproducer.config.option_kinds import Refused, Secret
from cyproducer.config.options import OPTIONS_BY_NAME
from cyproducer.config.proxy import parse_proxy
from cyproducer.errors import KafkaConfigurationError

MECHANISMS_WITH_PASSWORDS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def check(values: dict[str, Any], warn: Callable[..., None]) -> dict[str, str]:
    """Checks the rules, and copies the credentials of ``sasl_jaas_config`` to the other options.

    Returns the options of its login module that are not credentials. Raises KafkaConfigurationError.
    """
    _check_proxy(values)
    _check_tls(values)
    module = _login_module(values)
    if module is not None:
        _LOGIN_MODULES[module.name].read(values, module)
    _check_sasl(values, warn)
    _check_use(values, warn)
    return {} if module is None else {n: v.reveal() for n, v in module.options.items() if n in _KEPT}


def _check_proxy(values: Mapping[str, Any]) -> None:
    if None not in (values["proxy_url"], values["socks5_proxy"]):
        raise KafkaConfigurationError("proxy_url and socks5_proxy are the same option: give only one of them")
    for name in ("proxy_url", "socks5_proxy"):
        given = values[name]
        if given is None:
            continue
        try:
            parse_proxy(given)
        except ValueError as error:
            shown = given if isinstance(given, Secret) else repr(given)
            raise KafkaConfigurationError(f"{name}={shown}: {error}") from None


def _check_tls(values: Mapping[str, Any]) -> None:
    """The rules between ssl_* options, which are those of Java's client."""
    if values["ssl_context"] is not None:
        return
    for text, file in (
        ("ssl_truststore_certificates", "ssl_cafile"),
        ("ssl_keystore_certificate_chain", "ssl_certfile"),
        ("ssl_keystore_key", "ssl_keyfile"),
        ("ssl_keystore_key", "ssl_certfile"),
    ):
        if values[text] is not None and values[file] is not None:
            raise KafkaConfigurationError(f"{text} and {file} are two places for the same: give one of them")
    for one, other in (
        ("ssl_keystore_key", "ssl_keystore_certificate_chain"),
        ("ssl_keystore_certificate_chain", "ssl_keystore_key"),
        ("ssl_keyfile", "ssl_certfile"),
        ("ssl_keystore_password", "ssl_certfile"),
        ("ssl_truststore_password", "ssl_cafile"),
    ):
        if values[one] is not None and values[other] is None:
            raise KafkaConfigurationError(f"{one} is given without {other}, which belongs to it")
    for store, text, file in (
        ("ssl_truststore_type", "ssl_truststore_certificates", "ssl_cafile"),
        ("ssl_keystore_type", "ssl_keystore_key", "ssl_certfile"),
    ):
        if values[store] == "JKS":
            raise KafkaConfigurationError(
                f"{store}='JKS': only Java reads this format. Convert the file with `keytool -importkeystore "
                f"-deststoretype PKCS12 ...`, and give that as {file}"
            )
        if values[store] == "PKCS12" and values[text] is not None:
            raise KafkaConfigurationError(f"{store}='PKCS12' contradicts {text}, which is PEM")
    protocol = values["ssl_protocol"]
    if protocol is not None and protocol not in values["ssl_enabled_protocols"]:
        raise KafkaConfigurationError(
            f"ssl_protocol={protocol!r} is not one of ssl_enabled_protocols={values['ssl_enabled_protocols']}"
        )


# SASL


def _read_password(values: dict[str, Any], module: LoginModule) -> None:
    for option, name in (("sasl_plain_username", "username"), ("sasl_plain_password", "password")):
        if name not in module.options:
            raise KafkaConfigurationError(f"sasl_jaas_config='***': {module.name} has no {name}")
        value = module.options[name]
        _take(values, option, value if name == "password" else value.reveal())


def _read_oauth(values: dict[str, Any], module: LoginModule) -> None:
    # The producer's options take precedence over the login module's, as in Java (KIP-1258).
    for option, name in (
        ("sasl_oauthbearer_client_credentials_client_id", "clientId"),
        ("sasl_oauthbearer_client_credentials_client_secret", "clientSecret"),
        ("sasl_oauthbearer_scope", "scope"),
    ):
        if values[option] is None and name in module.options:
            value = module.options[name]
            values[option] = value if name == "clientSecret" else value.reveal()
    extensions = {
        name.removeprefix("extension_"): value.reveal()
        for name, value in module.options.items()
        if name.startswith("extension_")
    }
    values["sasl_oauthbearer_extensions"] = extensions | dict(values["sasl_oauthbearer_extensions"] or {})


def _read_kerberos(values: dict[str, Any], module: LoginModule) -> None:
    """Reads the keytab and its principal. Without a keytab the credential cache is used, requested or not."""
    options = module.options
    asked = "useKeyTab" in options and options["useKeyTab"].reveal().lower() == "true"
    if asked is not ("keyTab" in options):
        raise KafkaConfigurationError(
            "sasl_jaas_config='***': Krb5LoginModule needs useKeyTab=true and keyTab=\"...\", or neither of "
            "them"
        )
    if "ticketCache" in options:
        raise KafkaConfigurationError(
            "sasl_jaas_config='***': Krb5LoginModule's ticketCache is not supported: leave it out, and name "
            "the cache in the environment variable KRB5CCNAME"
        )
    for option, name in (
        ("sasl_kerberos_principal", "principal"),
        ("sasl_kerberos_keytab", "keyTab"),
        ("sasl_kerberos_service_name", "serviceName"),
    ):
        if name in options:
            _take(values, option, options[name].reveal())


def _take(values: dict[str, Any], option: str, value: Any) -> None:
    """Sets an option. Raises if it already has another value."""
    if values[option] not in (OPTIONS_BY_NAME[option].default, value):
        raise KafkaConfigurationError(f"{option} contradicts sasl_jaas_config: give one of them")
    values[option] = value


def _read_aws(values: dict[str, Any], module: LoginModule) -> None:
    """Refuses unsupported role options: ignoring them would make it another user. Others are read later."""
    for name in sorted(module.options):
        if name.startswith("awsRole") and name not in _KEPT:
            raise KafkaConfigurationError(
                f"sasl_jaas_config='***': IAMLoginModule's {name} is not supported: give "
                "awsProfileName, a profile that has it"
            )


class _Login(NamedTuple):
    """A login module of Java's: its mechanisms, and the function that reads its options."""

    mechanisms: tuple[str, ...]
    read: Callable[[dict[str, Any], LoginModule], None]


_LOGIN_MODULES: Final = {
    "PlainLoginModule": _Login(("PLAIN",), _read_password),
    "ScramLoginModule": _Login(("SCRAM-SHA-256", "SCRAM-SHA-512"), _read_password),
    "OAuthBearerLoginModule": _Login(("OAUTHBEARER",), _read_oauth),
    "IAMLoginModule": _Login(("AWS_MSK_IAM",), _read_aws),
    "Krb5LoginModule": _Login(("GSSAPI",), _read_kerberos),
}
#: Options of login modules that are read later and are not secrets.
_KEPT: Final = ("tokenauth", "awsProfileName", "awsRoleArn", "awsRoleSessionName")


def _login_module(values: Mapping[str, Any]) -> LoginModule | None:
    given, mechanism = values["sasl_jaas_config"], values["sasl_mechanism"]
    if given is None:
        return None
    if not isinstance(given, Secret):
        raise KafkaConfigurationError("sasl_jaas_config='***': must be a string, not a callable")
    try:
        module = parse(given)
    except Refused as refused:
        raise KafkaConfigurationError(f"sasl_jaas_config='***': {refused}") from None
    if module.name not in _LOGIN_MODULES:
        known = ", ".join(_LOGIN_MODULES)
        raise KafkaConfigurationError(
            f"sasl_jaas_config='***': the login module {module.name} is not supported, only {known}"
        )
    if mechanism is not None and mechanism not in _LOGIN_MODULES[module.name].mechanisms:
        raise KafkaConfigurationError(
            f"sasl_jaas_config='***': {module.name} has no credentials for sasl_mechanism={mechanism!r}"
        )
    return module


def _check_sasl(values: Mapping[str, Any], warn: Callable[..., None]) -> None:
    protocol, mechanism = values["security_protocol"], values["sasl_mechanism"]
    if not protocol.startswith("SASL"):
        return
    if mechanism is None:
        raise KafkaConfigurationError(f"security_protocol={protocol!r} needs sasl_mechanism")
    if mechanism in MECHANISMS_WITH_PASSWORDS:
        for name in ("sasl_plain_username", "sasl_plain_password"):
            if values[name] is None:
                raise KafkaConfigurationError(f"sasl_mechanism={mechanism!r} needs {name}")
    if mechanism == "OAUTHBEARER":
        _check_oauth(values, warn)
    if protocol == "SASL_PLAINTEXT" and mechanism in ("PLAIN", "OAUTHBEARER", "AWS_MSK_IAM"):
        secret = "password" if mechanism == "PLAIN" else "token"
        warn(
            "sasl_mechanism=%r with security_protocol='SASL_PLAINTEXT': the %s crosses the network in clear "
            "text. Use SASL_SSL, or a SCRAM mechanism",
            mechanism,
            secret,
        )


def _check_use(values: Mapping[str, Any], warn: Callable[..., None]) -> None:
    """Warns about options that the protocol does not use: records would be sent in clear text."""
    protocol = values["security_protocol"]
    for prefix, used in (("ssl_", protocol.endswith("SSL")), ("sasl_", protocol.startswith("SASL"))):
        if not used:
            given = [n for n, v in values.items() if n.startswith(prefix) and v != OPTIONS_BY_NAME[n].default]
            if given:
                warn("security_protocol=%r does not use %s", protocol, ", ".join(given))


_ENDPOINT: Final = "sasl_oauthbearer_token_endpoint_url"
_ASSERTION: Final = "sasl_oauthbearer_assertion_"
_CLIENT: Final = "sasl_oauthbearer_client_credentials_client_"


def _check_oauth(values: Mapping[str, Any], warn: Callable[..., None]) -> None:
    """The rules of OAUTHBEARER: a provider from the user, or an endpoint and the options that it needs."""
    url, provider = values[_ENDPOINT], values["sasl_oauth_token_provider"]
    if provider is None and url is None:
        raise KafkaConfigurationError(
            f"sasl_mechanism='OAUTHBEARER' needs sasl_oauth_token_provider or {_ENDPOINT}"
        )
    if provider is not None:
        if url is not None:
            raise KafkaConfigurationError(
                f"sasl_oauth_token_provider and {_ENDPOINT} are two places for tokens: give one of them"
            )
        if values["sasl_oauthbearer_extensions"]:
            raise KafkaConfigurationError(
                f"sasl_oauthbearer_extensions belongs to {_ENDPOINT}: a sasl_oauth_token_provider returns "
                "its own, from extensions()"
            )
        return
    split = urlsplit(url)
    if split.scheme == "file":
        return
    has_key = values[_ASSERTION + "private_key_file"] is not None
    has_assertion = has_key or values[_ASSERTION + "file"] is not None
    if values["sasl_oauthbearer_grant_type"] == "jwt-bearer":
        if not has_assertion:
            raise KafkaConfigurationError(
                f"sasl_oauthbearer_grant_type='jwt-bearer' needs {_ASSERTION}file or "
                f"{_ASSERTION}private_key_file"
            )
    elif not has_assertion and None in (values[_CLIENT + "id"], values[_CLIENT + "secret"]):
        raise KafkaConfigurationError(
            f"{_ENDPOINT} needs {_CLIENT}id and {_CLIENT}secret, or {_ASSERTION}file, or "
            f"{_ASSERTION}private_key_file"
        )
    if split.scheme == "http" and split.hostname not in ("localhost", "127.0.0.1", "::1"):
        warn("%s=%r: credentials and tokens cross the network in clear text. Use https", _ENDPOINT, url)
