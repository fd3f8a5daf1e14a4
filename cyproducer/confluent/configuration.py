"""Translates librdkafka's options into those of ``KafkaProducer``.

Owns ``translated``, the values with another meaning here, and the options that ``cyproducer.confluent``
implements itself (``Settings``). Does not own the table of names (``config.other_clients``). Immutable; any
thread may call.

The options passed on to ``KafkaProducer`` are validated there. For an option that is not given, librdkafka's
default applies if an application would notice the difference: 5 minutes for delivery (with transactions
``transaction.timeout.ms``), 5 ms of linger, batches of 1 MB, a queue of 100,000 records and 1 GiB, partitions
by CRC32. The other defaults are this package's: idempotence is on, unless another option conflicts with it,
and connections are retried as always.
"""

import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from cyproducer.config import ProducerConfig, concealed, hide_value, option_name
from cyproducer.config.option_kinds import FOREVER_MS, Secret
from cyproducer.config.options import OPTIONS_BY_NAME
from cyproducer.config.other_clients import FOR_CONSUMERS, OTHER_NAMES, Taken
from cyproducer.config.spelling import as_given, java_spelling
from cyproducer.confluent.errors import KafkaError, KafkaException
from cyproducer.errors import KafkaConfigurationError
from cyproducer.records.codecs import BY_NAME

_MESSAGE_TIMEOUT_MS: Final = 300000

#: librdkafka's defaults for options that ``KafkaProducer`` also has.
_DEFAULTS: Final[dict[str, Any]] = {
    "linger_ms": 5,
    "batch_size": 1000000,
    "max_request_size": 1000000,
    "partitioner": "consistent_random",
}

_PARTITIONERS: Final = (
    "random",
    "consistent",
    "consistent_random",
    "murmur2",
    "murmur2_random",
    "fnv1a",
    "fnv1a_random",
)

#: Options of ``KafkaProducer`` that ``cyproducer.confluent`` implements itself, or does not support.
_NOT_HERE: Final = frozenset(
    {
        "buffer_memory",
        "interceptors",
        "key_serializer",
        "max_block_ms",
        "max_pending_callbacks",
        "value_serializer",
    }
)

_CALLBACKS: Final = ("on_delivery", "error_cb", "stats_cb", "throttle_cb", "oauth_cb")


class Settings(NamedTuple):
    """The options implemented by ``cyproducer.confluent``. Callbacks default to None; durations in
    seconds."""

    on_delivery: Callable[..., Any] | None
    error_cb: Callable[..., Any] | None
    stats_cb: Callable[..., Any] | None
    throttle_cb: Callable[..., Any] | None
    logger: logging.Logger | None
    only_errors: bool
    most_messages: int
    most_bytes: int
    stats_every_s: float
    credentials: "Credentials"
    for_consumers: tuple[str, ...]
    """The given options that a producer ignores."""


class Credentials:
    """The SASL username and password, which ``set_sasl_credentials`` changes. Its repr shows neither."""

    def __init__(self, username: str | None, password: Secret | None) -> None:
        #: Replaced as a whole, so that no authentication mixes an old and a new value.
        self.pair = (username, password)

    def username(self) -> str | None:
        """Returns the username."""
        return self.pair[0]

    def password(self) -> str | None:
        """Returns the password."""
        password = self.pair[1]
        return None if password is None else password.reveal()


#: Options that only librdkafka has, and that may contain credentials.
_SECRETS: Final = ("sasl.oauthbearer.config", "sasl.oauthbearer.assertion.private.key.pem")


def hide(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options with passwords and keys wrapped in ``Secret``: see ``config.hide``."""
    return {name: _hidden(name, value) for name, value in conf.items()}


def _hidden(name: str, value: Any) -> Any:
    other = OTHER_NAMES.get(name)
    if name in _SECRETS:
        return Secret(value) if isinstance(value, str) else value
    if other is None:
        return value if name == "default.topic.config" else hide_value(name, value)
    return value if other.option is None else concealed(other.option, value)


def refused(name: str, why: str) -> KafkaException:
    """Returns the exception for an option that can't be used."""
    return KafkaException(KafkaError(KafkaError._INVALID_ARG, f"{name}: {why}"))


def translated(conf: Mapping[str, Any]) -> tuple[dict[str, Any], Settings]:
    """Returns the options of ``KafkaProducer``, and the settings of this module.

    Raises:
        KafkaException: an option is unknown, can't be translated, or has a value that is not allowed.
        TypeError: a callback is not callable.
    """
    conf = hide(conf)
    given = {name: value for name, value in conf.items() if value is not None}
    topic_options = given.pop("default.topic.config", {})
    given |= {name: value for name, value in topic_options.items() if value is not None}
    options: dict[str, Any] = {}
    own: dict[str, Any] = {}
    own["for_consumers"] = tuple(name for name in given if name in FOR_CONSUMERS)
    for name, value in given.items():
        if name not in FOR_CONSUMERS:
            _sort(name, value, options, own)
    for name, default in _DEFAULTS.items():
        options.setdefault(name, default)
    for name, (read, default) in _OWN.items():
        value = own.get(name, default)
        own[name] = None if value is None else read(name, value)
    settings = _settings(own)
    options["buffer_memory"] = settings.most_bytes
    # The bound is most_messages, which includes the records waiting for poll().
    options["max_pending_callbacks"] = 2**31 - 1
    _set_timeouts(options, own)
    _set_network(options, own)
    _set_security(options, own, settings.credentials)
    _set_compression(options)
    return options, settings


def _sort(name: str, value: Any, options: dict[str, Any], own: dict[str, Any]) -> None:
    """Adds an option to ``options`` or ``own``, under the name that it has there."""
    other = OTHER_NAMES.get(name)
    if other is None or other.client != "librdkafka":
        known = option_name(name)
        if known is None or known in _NOT_HERE:
            raise refused(name, f'No such configuration property: "{name}"{_near(name)}')
        _put(options, known, name, value)
    elif other.taken is Taken.OWN:
        own[name] = value
    elif other.taken is Taken.SAME:
        assert other.option is not None
        _put(options, other.option, name, value)
    elif other.taken is Taken.REFUSED and str(value).strip().lower() not in other.but:
        instead = f"{other.option}, " if other.option else ""
        allowed = f"; allowed: {', '.join(filter(None, other.but))}" if any(other.but) else ""
        raise refused(name, f"{value!r} can't be translated: {instead}{other.note}{allowed}")


def spelling(conf: Iterable[str]) -> Callable[[str], str]:
    """Returns the function that names an option of ``KafkaProducer`` in errors: as the program does in
    ``conf``, otherwise as librdkafka does."""
    # Outside of security, librdkafka also has Java's names.
    names = {
        other.option: name
        for name, other in reversed(OTHER_NAMES.items())
        if name.startswith(("ssl.", "sasl.")) and other.taken in (Taken.SAME, Taken.OWN)
    }
    return as_given(conf, _known, lambda option: names.get(option) or java_spelling(option))


def _known(name: str) -> str | None:
    """Returns the option of ``KafkaProducer`` that a name of librdkafka's or this package's stands for."""
    other = OTHER_NAMES.get(name)
    return option_name(name) if other is None else other.option


def _put(options: dict[str, Any], known: str, name: str, value: Any) -> None:
    if known in options and options[known] != value:
        raise refused(name, f"{OPTIONS_BY_NAME[known].java_name or known} is the same option: give only one")
    options[known] = value


def _near(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, OTHER_NAMES, 1, 0.8)
    return f"; did you mean {near[0]!r}?" if near else ""


def _settings(own: dict[str, Any]) -> Settings:
    calls = {name: own.get(name) for name in ("dr_cb", *_CALLBACKS)}
    for name, function in calls.items():
        if function is not None and not callable(function):
            raise TypeError(f"{name}: must be callable, not {type(function).__name__}")
    logger = own.get("logger")
    if logger is not None and not hasattr(logger, "log"):
        raise TypeError(f"logger: must be a logging.Logger, not {type(logger).__name__}")
    return Settings(
        calls["on_delivery"] or calls["dr_cb"],
        calls["error_cb"],
        calls["stats_cb"],
        calls["throttle_cb"],
        logger,
        own["delivery.report.only.error"],
        own["queue.buffering.max.messages"],
        own["queue.buffering.max.kbytes"] * 1024,
        own["statistics.interval.ms"] / 1000,
        Credentials(own.get("sasl.username"), own.get("sasl.password")),
        own["for_consumers"],
    )


def _set_timeouts(options: dict[str, Any], own: dict[str, Any]) -> None:
    """Sets the timeouts: ``message.timeout.ms`` bounds a record's whole delivery, whatever one request
    takes."""
    name = "delivery.timeout.ms" if "delivery_timeout_ms" in options else "message.timeout.ms"
    given = options.pop("delivery_timeout_ms", own["message.timeout.ms"])
    if "transactional_id" in options:
        given = _within_transaction(name, given, options)
    given = _MESSAGE_TIMEOUT_MS if given is None else given
    timeout = _number(name, given, 0, 2**31 - 1) or FOREVER_MS
    linger = options["linger_ms"]
    linger = options["linger_ms"] = _number("linger.ms", linger, 0, 900_000, fraction=True)
    if linger >= timeout:
        if linger != _DEFAULTS["linger_ms"]:
            raise refused(name, f"{timeout}: must be greater than linger.ms={linger}")
        linger = options["linger_ms"] = timeout / 2
    request = options.get("request_timeout_ms", own["socket.timeout.ms"])
    request = _number("request.timeout.ms", request, 1, 900_000)
    options["delivery_timeout_ms"] = timeout
    options["request_timeout_ms"] = max(1, int(min(request, timeout - linger)))
    # Records whose topic is not known yet wait as long as any other.
    options["max_block_ms"] = timeout


def _within_transaction(name: str, given: Any, options: dict[str, Any]) -> Any:
    """Returns a record's timeout, which must not exceed its transaction's; 0: the record has none."""
    default = OPTIONS_BY_NAME["transaction_timeout_ms"].default
    whole = _number("transaction.timeout.ms", options.get("transaction_timeout_ms", default), 1, 2**31 - 1)
    if given is None:
        return whole
    if _number(name, given, 0, 2**31 - 1) > whole:
        raise refused(name, f"{given}: must be at most transaction.timeout.ms={whole}")
    return given


def _set_network(options: dict[str, Any], own: dict[str, Any]) -> None:
    if own["socket.keepalive.enable"]:
        default = OPTIONS_BY_NAME["socket_options"].default
        options["socket_options"] = [*default, (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    age = own["topic.metadata.refresh.interval.ms"]
    if age is not None:
        options["metadata_max_age_ms"] = FOREVER_MS if age < 0 else age
    for name in ("socket.send.buffer.bytes", "socket.receive.buffer.bytes"):
        option = OTHER_NAMES[name].option
        if option in options and str(options[option]) == "0":
            options[option] = -1
    if str(options.get("connections_max_idle_ms", "")) == "0":
        options["connections_max_idle_ms"] = -1
    partitioner = options["partitioner"]
    if partitioner not in _PARTITIONERS:
        raise refused(
            "partitioner",
            f'Invalid value for configuration property "partitioner": {partitioner}; allowed: '
            + ", ".join(_PARTITIONERS),
        )


def _set_security(options: dict[str, Any], own: dict[str, Any], credentials: Credentials) -> None:
    if credentials.username() is not None:
        options["sasl_plain_username"] = credentials.username
    if credentials.password() is not None:
        options["sasl_plain_password"] = credentials.password
    if str(options.get("ssl_check_hostname", "")).lower() == "none":
        options["ssl_check_hostname"] = False
    provider, text = own.get("oauth_cb"), own.get("sasl.oauthbearer.config", "")
    if options.get("ssl_cafile") == "probe":
        # The system's certificates, which are the default.
        del options["ssl_cafile"]
    if provider is not None:
        options["sasl_oauth_token_provider"] = lambda _: provider(
            text.reveal() if isinstance(text, Secret) else text
        )
    if not own["enable.ssl.certificate.verification"]:
        options["ssl_context"] = _unverified(options)


def _unverified(options: dict[str, Any]) -> Any:
    """Returns a context from the ``ssl_*`` options that accepts every certificate."""
    # Imported here, because most producers need no such context.
    import ssl

    from cyproducer.security.tls_context import make_context

    chosen = {name: value for name, value in options.items() if name.startswith("ssl_")}
    try:
        context = make_context(ProducerConfig(security_protocol="SSL", **chosen))
    except KafkaConfigurationError as error:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, str(error))) from error
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _set_compression(options: dict[str, Any]) -> None:
    """Removes a level from codecs without levels: librdkafka accepts one for any codec, and -1 as the
    default."""
    codec = str(options.get("compression_type", "none")).lower()
    if codec == "inherit":
        del options["compression_type"]
    known = BY_NAME.get(codec)
    if "compression_level" in options and (
        known is None or not known.levels or str(options["compression_level"]) == "-1"
    ):
        del options["compression_level"]


def _number(name: str, value: Any, least: int, most: int, *, fraction: bool = False) -> Any:
    try:
        found = float(value) if fraction else int(value)
    except (TypeError, ValueError, OverflowError):
        found = None
    if found is None or isinstance(value, bool) or not least <= found <= most:
        raise refused(name, f"{value!r}: must be from {least} to {most}")
    return found


def _flag(name: str, value: Any) -> bool:
    text = str(value).strip().lower()
    if text in ("true", "1", "t"):
        return True
    if text in ("false", "0", "f"):
        return False
    raise refused(name, f"{value!r}: must be true or false")


def _within(least: int, most: int) -> Callable[[str, Any], Any]:
    return lambda name, value: _number(name, value, least, most)


def _method(name: str, value: Any) -> str:
    method = str(value).lower()
    if method not in ("default", "oidc"):
        raise refused(name, f"{method!r}: must be 'default' or 'oidc'")
    return method


#: Options missing in ``KafkaProducer``: their parser and librdkafka's default (None: set elsewhere).
_OWN: Final[dict[str, tuple[Callable[[str, Any], Any], Any]]] = {
    "delivery.report.only.error": (_flag, False),
    "enable.ssl.certificate.verification": (_flag, True),
    "message.timeout.ms": (_within(0, 2**31 - 1), None),
    "queue.buffering.max.kbytes": (_within(1, 2**31 - 1), 1048576),
    "queue.buffering.max.messages": (_within(0, 2**31 - 1), 100000),
    "sasl.oauthbearer.method": (_method, "default"),
    "socket.keepalive.enable": (_flag, False),
    "socket.timeout.ms": (_within(10, 300_000), 30000),
    "statistics.interval.ms": (_within(0, 86_400_000), 0),
    "topic.metadata.refresh.interval.ms": (_within(-1, 3_600_000), None),
}
