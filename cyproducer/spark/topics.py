"""Creates missing topics on request: ``createTopic.partitions``.

Owns the request. Does not decide when to send it (``source``). Uses kafka-python's administration client; the
producer itself does not create topics. Runs on the driver, before tasks start.
"""

from typing import Any, Final

from cyproducer.config import ProducerConfig
from cyproducer.config.option_kinds import Secret, hidden
from cyproducer.errors import KafkaConfigurationError, KafkaError

_SHARED_OPTIONS: Final = (
    "bootstrap_servers",
    "client_id",
    "request_timeout_ms",
    "security_protocol",
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_plain_password",
    "sasl_kerberos_service_name",
    "sasl_kerberos_domain_name",
    "sasl_oauth_token_provider",
)


#: Options that identify the user, but that kafka-python does not have. kafka-python would connect as another
#: user, or as none.
_NOT_SHARED: Final = {
    "OAUTHBEARER": ("sasl_oauthbearer_token_endpoint_url",),
    "AWS_MSK_IAM": ("sasl_jaas_config",),
    "GSSAPI": ("sasl_kerberos_keytab", "sasl_kerberos_principal", "sasl_kerberos_name"),
}
#: Options that may be callables here, but are text in kafka-python.
_SUPPLIED: Final = ("sasl_plain_username", "sasl_plain_password")


class _Hidden(str):
    """Text with a password. kafka-python logs its configuration, which shows this as ``***``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class TopicCreationError(KafkaError):
    """A topic is missing and could not be created. The message contains the broker's error."""


def create_missing(config: ProducerConfig, topic: str, partitions: int, replication: int | None) -> bool:
    """Creates ``topic`` if it doesn't exist. Returns whether it was created. ``replication`` None: the
    brokers' default.

    Raises:
        TopicCreationError: no broker answered, or the brokers refused the request.
        KafkaConfigurationError: kafka-python is not installed, or does not have the options that it needs to
            connect as the same user.
    """
    for name in _NOT_SHARED.get(str(config.sasl_mechanism), ()):
        # An AWS login module without options does not name a principal.
        if getattr(config, name) is not None and (name != "sasl_jaas_config" or config.login_module):
            raise KafkaConfigurationError(
                f"option 'createTopic.partitions' can't be given with {name}, which kafka-python, the client "
                "that creates topics, does not have: create the topic before"
            )
    try:
        from kafka.admin import KafkaAdminClient, NewTopic  # type: ignore[import-untyped]
        from kafka.errors import KafkaError as ClientError  # type: ignore[import-untyped]
        from kafka.errors import TopicAlreadyExistsError
    except ModuleNotFoundError as error:
        raise KafkaConfigurationError(
            "option 'createTopic.partitions' needs kafka-python on the driver: pip install "
            "'cyproducer[spark]'"
        ) from error
    try:
        admin = KafkaAdminClient(**_settings(config, KafkaAdminClient.DEFAULT_CONFIG))
        try:
            new = NewTopic(name=topic, num_partitions=partitions, replication_factor=replication or -1)
            admin.create_topics([new], timeout_ms=config.request_timeout_ms)
        finally:
            admin.close()
    except TopicAlreadyExistsError:
        return False
    except ClientError as error:
        raise TopicCreationError(
            f"topic {topic!r} with {partitions} partitions, replication factor {replication or 'default'}: "
            f"{type(error).__name__}: {error}"
        ) from error
    return True


def _settings(config: ProducerConfig, known: dict[str, Any]) -> dict[str, Any]:
    """Returns the producer's values of the options that both clients have."""
    found: dict[str, Any] = {}
    for name in _SHARED_OPTIONS:
        value = getattr(config, name, None)
        if value is None or name not in known:
            continue
        if isinstance(value, Secret) or (callable(value) and name in _SUPPLIED):
            secret = hidden(value)
            value = _Hidden("" if secret is None else secret.reveal())
        found[name] = value
    if config.security_protocol.endswith("SSL"):
        from cyproducer.security.tls_context import make_context  # here: it imports ssl

        # The context and not the files: kafka-python reads neither PEM text nor PKCS#12.
        found["ssl_context"] = make_context(config)
    if config.proxy is not None and "proxy_url" in known:
        found["proxy_url"] = _Hidden(config.proxy)
    # As strings, because each client has its own type for addresses.
    found["bootstrap_servers"] = [str(server) for server in config.bootstrap_servers]
    return found
