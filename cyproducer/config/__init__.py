"""A producer's configuration: read and checked once, then immutable.

Owns ``ProducerConfig``, the rules between options, and the errors about them. Does not own the table of
options (``config.options``) or the kinds of values (``config.option_kinds``). Any thread may read a
configuration. ``python -m cyproducer.config`` prints the table as Markdown.

An option's kind checks its value. The rules between options:

- Idempotence needs acks=all, retries above 0 and at most 5 requests in flight per connection. If an option
  conflicts with that and idempotence is only the default, idempotence is switched off with a warning. If
  idempotence was requested, or a transactional_id implies it, the conflict is an error (KIP-679).
- delivery_timeout_ms is at least linger_ms + request_timeout_ms. If it is not given, it is raised to that
  sum with a warning, as Kafka's Java client does. If it is given, a smaller value is an error (KIP-91).
- The maximum of a backoff or setup timeout is at least its first value. If the maximum is not given, it is
  raised to that value. If it is given, a smaller value is an error.
- A compression level is within the range of the codec in use.
- The protocol prefix of a bootstrap server, if any, equals security_protocol.
- partitioner_rack_aware needs client_rack (KIP-1123).
- topic_options: see ``config.topic_options``.
- default_api_timeout_ms, which has no effect, is at least request_timeout_ms, as in kafka-python.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

from cyproducer.base.forks import ensure_own_process, in_child
from cyproducer.base.text import line_prefix
from cyproducer.config.option_kinds import FOREVER_MS, Address, Refused, Secret, SecretUrl, split_server
from cyproducer.config.options import OPTIONS, OPTIONS_BY_NAME, Option, OptionTable
from cyproducer.errors import KafkaConfigurationError
from cyproducer.records.codecs import CODECS

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from cyproducer.types import ProducerOptions

MAX_IN_FLIGHT_FOR_IDEMPOTENCE: Final = 5

_BY_KEY: Final = {option.java_name: option for option in OPTIONS if option.java_name} | {
    key: option for option in OPTIONS for key in (option.name, option.dotted_name)
}

#: kafka-python's ``DEFAULT_CONFIG``: the values of options that are not given.
DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
    {option.name: option.default for option in OPTIONS} | {"client_id": None, "enable_idempotence": True}
)

# Options that only the Java client has, and what to do instead.
_JAVA_ONLY: Final = {
    "bootstrap.resolve.timeout.ms": "hosts are always looked up in the background (KIP-909, Kafka 4.4)",
    "buffer.memory.allocation.strategy": "a batch's memory grows with its records (KIP-1332, Kafka 4.4)",
}

# Java's options that name a class, and the classes whose work this client does without configuration.
_JAVA_CLASSES: Final = {
    "sasl.login.callback.handler.class": ("OAuthBearerLoginCallbackHandler", "IAMClientCallbackHandler"),
    "sasl.client.callback.handler.class": (
        "OAuthBearerSaslClientCallbackHandler",
        "IAMClientCallbackHandler",
    ),
}

# First and longest wait: the longest must not be below the first.
_GROWING: Final = (
    ("retry_backoff_ms", "retry_backoff_max_ms"),
    ("reconnect_backoff_ms", "reconnect_backoff_max_ms"),
    ("socket_connection_setup_timeout_ms", "socket_connection_setup_timeout_max_ms"),
)

#: Giving one of these logs a warning: a program that replaces a part, for example with a mock in a test,
#: would otherwise not notice that it uses the real one.
_REPLACEABLE_PARTS: Final = ("kafka_client", "net")

_client_numbers = itertools.count(1)
_client_numbers_lock = threading.Lock()  # guards _client_numbers: a count is not atomic without the GIL


def _renew_lock() -> None:
    # At a fork another thread may hold the lock, which nothing would release in the child.
    global _client_numbers_lock
    _client_numbers_lock = threading.Lock()


in_child(_renew_lock)


def option_name(key: str) -> str | None:
    """Returns kafka-python's name of an option, given any of its names; None if there is no such option."""
    option = _BY_KEY.get(key)
    return option.name if option is not None else None


def shown_option(key: str, value: Any) -> str:
    """Returns an option's value as messages show it: without credentials. ``key`` is any of its names."""
    option = _BY_KEY.get(key)
    return repr(value) if option is None else option.shown(value)


def concealed(key: str, value: Any) -> Any:
    """Returns an option's value, as a ``Secret`` if it is a password or key, or a URL with a password.
    ``key`` is any of the option's names. Does not check the value."""
    option = _BY_KEY.get(key)
    # Bytes are refused later, and must not be shown either. A blank password counts as none.
    if option is None or not isinstance(value, str | bytes) or not value.strip():
        return value
    if option.secret:
        return Secret(value)  # type: ignore[arg-type]
    is_url = option.name in ("proxy_url", "socks5_proxy") and isinstance(value, str) and "@" in value
    return SecretUrl(value) if is_url else value  # type: ignore[arg-type]


def hide(options: Any) -> Any:
    """Returns a mapping of options with passwords and keys as ``Secret``; anything else as it is.

    A function calls this before it does anything else with a user's options: error trackers record the local
    variables in the frames of an exception. Values of unknown names are also hidden, because the name may be
    a misspelt name of a password option. Does not check anything.
    """
    if not isinstance(options, Mapping) or isinstance(options, ProducerConfig):
        return options
    return {key: hide_value(key, value) for key, value in options.items()}


def hide_value(key: str, value: Any) -> Any:
    """Returns the value of one option for ``hide``."""
    if key in _BY_KEY or key in _JAVA_CLASSES or not isinstance(value, str | bytes):
        return concealed(key, value)
    return Secret(value)  # type: ignore[arg-type]


class ProducerConfig(OptionTable, Mapping[str, Any]):
    """All options of one producer, with normalized values.

    Takes the options as keyword arguments, as a mapping, or as both, with kafka-python's names or Java's.
    Every option is a read-only attribute; ``python -m cyproducer.config`` lists them. A configuration is
    also a read-only mapping from kafka-python's names to the same values. Durations are in milliseconds,
    sizes in bytes. Raises ``KafkaConfigurationError`` if an option is unknown, is given twice, has a value
    that is not allowed, or contradicts another option. Two configurations are equal if all their options
    are, apart from numbered client ids.
    """

    __slots__ = ("_given", "_keys", "_login_module")
    _given: dict[str, Any]
    _keys: tuple[str, ...]
    """The given options, as the user names them."""
    _login_module: dict[str, str]

    def __init__(
        self, options: Mapping[str, Any] | None = None, /, **configs: Unpack[ProducerOptions]
    ) -> None:
        ensure_own_process()
        options, configs = hide(options), hide(configs)
        given = configs if options is None else _joined(options, configs)
        self._keys = tuple(given)
        try:
            self._check(given)
        except KafkaConfigurationError as error:
            self._rename_options(error)
            raise

    def _rename_options(self, error: Exception) -> None:
        """Names options in the error's text as the user does."""
        from cyproducer.config import spelling  # here, because only an error needs it

        spelling.rename(error, spelling.as_given(self._keys))

    def _check(self, given: Mapping[str, Any]) -> None:
        self._given = _read(given)
        values = {option.name: option.default for option in OPTIONS} | self._given
        # First, because warnings name the producer.
        if "client_id" not in self._given:
            with _client_numbers_lock:
                values["client_id"] = f"cyproducer-{next(_client_numbers)}"
        _check_server_protocols(values)
        self._login_module = _check_security(values, self._given)
        _check_compression_level(values)
        if values["topic_options"]:
            from cyproducer.config import topic_options  # here, because few producers have them

            values["topic_options"] = topic_options.read(values["topic_options"])
        _resolve_growing(values, self._given)
        _resolve_delivery_timeout(values, self._given)
        _check_api_timeout(values)
        _check_rack(values)
        for name in _REPLACEABLE_PARTS:
            if values[name] is not None:
                _warn(
                    values, "%s=%r has no effect: cyproducer has no such part to replace", name, values[name]
                )
        values["enable_idempotence"] = _resolve_idempotence(values, self._given)
        self._values = values
        if self.topic_options:
            topic_options.check(self)

    @classmethod
    def from_kwargs(cls, configs: Mapping[str, Any]) -> Self:
        """Makes a configuration from a mapping, with kafka-python's names or Java's (``linger.ms``)."""
        configs = hide(configs)
        return cls(configs)

    def __getitem__(self, name: str) -> Any:
        """Returns an option's value by kafka-python's name. A password is a ``Secret``, as everywhere."""
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def bootstrap_addresses(self) -> tuple[Address, ...]:
        """Returns ``bootstrap_servers`` as (host, port), each once."""
        return tuple(dict.fromkeys(split_server(entry)[1] for entry in self.bootstrap_servers))

    @property
    def proxy(self) -> str | None:
        """The URL of the proxy, with its password; None without a proxy."""
        given = self.socks5_proxy if self.proxy_url is None else self.proxy_url
        return given.reveal() if isinstance(given, Secret) else given

    @property
    def sasl_delegation_token(self) -> bool:
        """Whether SCRAM's user and password are those of a delegation token: ``tokenauth`` of JAAS."""
        return self._login_module.get("tokenauth", "").lower() == "true"

    @property
    def login_module(self) -> Mapping[str, str]:
        """Options of the login module in ``sasl_jaas_config``: those that are not credentials."""
        return self._login_module

    @property
    def effective_compression_level(self) -> int | None:
        """Returns the level for the codec in use; None means the codec's own default."""
        codec = self.compression_type
        specific: int | None = (
            self._values[f"compression_{codec}_level"] if codec in CODECS_WITH_LEVELS else None
        )
        return self.compression_level if specific is None else specific

    @property
    def far_request_size(self) -> int:
        """Maximum size of a request to a far broker, in bytes: ``max_request_size`` if that is given.

        Its default would allow one batch of ``max.message.bytes`` per request, whatever the number of
        partitions. Otherwise an eighth of ``buffer_memory``: five requests in flight, and three that wait.
        """
        size: int = self.max_request_size
        return size if "max_request_size" in self._given else max(size, self.buffer_memory // 8)

    def as_dict(self) -> dict[str, Any]:
        """Returns all options by kafka-python's names, passwords included; ``from_kwargs`` accepts them.

        A numbered client id is None, so that a producer made from this gets its own.
        """
        numbered = {} if "client_id" in self._given else {"client_id": None}
        return self._values | numbered

    def given(self) -> dict[str, Any]:
        """Returns the options that were given, by kafka-python's names, passwords included.

        Enough to make an equal configuration with the same version of cyproducer.
        """
        return dict(self._given)

    def replace(self, /, **changes: Any) -> Self:
        """Makes another configuration from the given options and the changes, and checks it again."""
        changes = hide(changes)
        read = _read(changes)
        unset = {_BY_KEY[key].name for key in changes} - read.keys()
        kept = {name: value for name, value in self._given.items() if name not in unset}
        return type(self)(**kept | read)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProducerConfig):
            return NotImplemented
        return self.as_dict() == other.as_dict()

    __hash__ = None  # type: ignore[assignment]  # values may be unhashable objects of the user's

    def __repr__(self) -> str:
        shown = {"client_id": self.client_id} | self._given
        listed = ", ".join(f"{name}={OPTIONS_BY_NAME[name].shown(value)}" for name, value in shown.items())
        return f"{type(self).__name__}({listed})"

    def to_pickle(self) -> dict[str, Any]:
        """Returns the options that were given, as a pickle is allowed to contain them.

        Raises TypeError if there are passwords or keys among them, unless ``pickle_secrets`` allows that.
        """
        secrets = {name: each for name, each in self._given.items() if isinstance(each, Secret)}
        if secrets and not self.pickle_secrets:
            raise TypeError(
                f"{', '.join(secrets)} would be in the pickle: give a callable that returns it where it is "
                "needed, if the option takes one, or set pickle_secrets=True"
            )
        return self._given | {name: each.reveal() for name, each in secrets.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_kwargs, (self.to_pickle(),)


def _joined(options: Mapping[str, Any], configs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a mapping and of keyword arguments."""
    if not isinstance(options, Mapping):
        # Not the value: a program that mixes up its arguments may pass a password.
        raise TypeError(
            f"options: must be a mapping or keyword arguments such as bootstrap_servers='localhost:9092', "
            f"not {type(options).__name__}"
        )
    if isinstance(options, ProducerConfig):
        # The other options are derived from these again. If all were given, they could contradict each other.
        options = options.given()
    if strange := [key for key in options if not isinstance(key, str)]:
        raise KafkaConfigurationError(f"option {strange[0]!r}: must be a string")
    if twice := [key for key in configs if key in options]:
        raise KafkaConfigurationError(
            f"{twice[0]} is both in the mapping and a keyword argument: give only one"
        )
    return {**options, **configs}


def _read(configs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the given options by kafka-python's names, with normalized values."""
    configs = {key: value for key, value in configs.items() if not _is_built_in(key, value)}
    if unknown := list(filter(None, map(unknown_option, configs))):
        raise KafkaConfigurationError("; ".join(unknown))
    keys: dict[str, str] = {}
    given: dict[str, Any] = {}
    for key, value in configs.items():
        option = _BY_KEY[key]
        other = keys.setdefault(option.name, key)
        if other != key:
            raise KafkaConfigurationError(f"{other} and {key} are the same option: give only one of them")
        if value is None and option.none_is_unset:
            continue
        given[option.name] = read_value(option, value, key)
    return given


def read_value(option: Option[Any], value: Any, named: str) -> Any:
    """Returns the normal form of an option's value; ``named``: the option's name in an error."""
    try:
        return option.kind(value)
    except Refused as refused:
        reason = f"{refused}; " if str(refused) and not option.secret else ""
        raise KafkaConfigurationError(
            f"{named}={option.shown(value)}: {reason}must be {option.kind.allowed}"
        ) from None


def _is_built_in(key: str, value: Any) -> bool:
    """Whether this is one of Java's classes that need not be given. Raises if it is another class."""
    built_in = _JAVA_CLASSES.get(key)
    if built_in is not None and str(value).rpartition(".")[2] not in built_in:
        raise KafkaConfigurationError(
            f"{key}={value!r}: a Java class cannot be used: give sasl_oauth_token_provider"
        )
    return built_in is not None


def unknown_option(key: str, prefix: str = "") -> str | None:
    """Returns what an error says about an unknown option, with what may be meant; None if it is known.

    ``prefix``: what the user writes before names of the producer's options, and ``key`` is without.
    """
    if key in _BY_KEY or key in _JAVA_CLASSES:
        return None
    if key in _JAVA_ONLY:
        return f"option {prefix + key!r} is for Java only: {_JAVA_ONLY[key]}"
    # Imported here, because only an error message needs them.
    import difflib

    from cyproducer.config import other_clients

    if other := other_clients.about(key, prefix):
        return other

    candidates: Iterable[str] = OPTIONS_BY_NAME
    if "." in key:
        candidates = [option.java_spelling for option in OPTIONS]
    near = difflib.get_close_matches(key.lower().replace("-", "_"), candidates, 1)
    return f"unknown option {prefix + key!r}" + (f": did you mean {prefix + near[0]!r}?" if near else "")


#: Without an option with one of these prefixes, there is nothing to check, and that module is not needed.
_SECURITY_PREFIXES: Final = ("ssl_", "sasl_", "security_", "proxy_", "socks5_")


def _check_security(values: dict[str, Any], given: Mapping[str, Any]) -> dict[str, str]:
    if not any(name.startswith(_SECURITY_PREFIXES) for name in given):
        return {}
    from cyproducer.config import security

    return security.check(values, partial(_warn, values))


def _check_server_protocols(values: Mapping[str, Any]) -> None:
    wanted = values["security_protocol"]
    for entry in values["bootstrap_servers"]:
        protocol, _ = split_server(entry)
        if protocol not in (None, wanted):
            raise KafkaConfigurationError(
                f"bootstrap_servers: {entry!r} contradicts security_protocol={wanted!r}: they must agree"
            )


CODECS_WITH_LEVELS = [codec.name for codec in CODECS if codec.levels]


def check_level(level: int, codec: str | None, named: str) -> None:
    """Raises if a codec does not have this level; ``named``: the level's option in the error."""
    if codec not in CODECS_WITH_LEVELS:
        raise KafkaConfigurationError(
            f"{named}={level}: compression_type={codec!r} has no levels; "
            f"these codecs have: {', '.join(CODECS_WITH_LEVELS)}"
        )
    kind = OPTIONS_BY_NAME[f"compression_{codec}_level"].kind
    try:
        kind(level)
    except Refused:
        raise KafkaConfigurationError(
            f"{named}={level}: must be {kind.allowed} for compression_type={codec!r}"
        ) from None


def _check_compression_level(values: Mapping[str, Any]) -> None:
    level, codec = values["compression_level"], values["compression_type"]
    if level is None:
        return
    check_level(level, codec, "compression_level")
    specific = f"compression_{codec}_level"
    if values[specific] not in (None, level):
        raise KafkaConfigurationError(
            f"compression_level={level} contradicts {specific}={values[specific]}: give one of them"
        )


def _resolve_growing(values: dict[str, Any], given: Mapping[str, Any]) -> None:
    for first, longest in _GROWING:
        if values[longest] >= values[first]:
            continue
        if longest in given:
            raise KafkaConfigurationError(
                f"{longest}={values[longest]}: must be at least {first}={values[first]}"
            )
        values[longest] = values[first]


def _resolve_delivery_timeout(values: dict[str, Any], given: Mapping[str, Any]) -> None:
    lingers = {
        f"topic_options[{pattern!r}]['linger_ms']": entry.get("linger_ms", 0)
        for pattern, entry in values["topic_options"].items()
    }
    lingers["linger_ms"] = values["linger_ms"]
    longest = max(lingers, key=lambda name: lingers[name])
    linger, request = lingers[longest], values["request_timeout_ms"]
    delivery, needed = values["delivery_timeout_ms"], min(linger + request, FOREVER_MS)
    if delivery >= needed:
        return
    if "delivery_timeout_ms" in given:
        raise KafkaConfigurationError(
            f"delivery_timeout_ms={delivery}: must be at least {longest} + request_timeout_ms = "
            f"{linger} + {request} ms, the time for one attempt; raise it or lower one of these"
        )
    _warn(
        values,
        "delivery_timeout_ms is raised from its default %s to %s, because %s=%s and "
        "request_timeout_ms=%s would leave no time for one attempt",
        delivery,
        needed,
        longest,
        linger,
        request,
    )
    values["delivery_timeout_ms"] = needed


def _check_api_timeout(values: Mapping[str, Any]) -> None:
    api, request = values["default_api_timeout_ms"], values["request_timeout_ms"]
    if api is not None and api < request:
        raise KafkaConfigurationError(
            f"default_api_timeout_ms={api}: must be at least request_timeout_ms={request}"
        )


def _check_rack(values: Mapping[str, Any]) -> None:
    # Racks that only brokers have would be compared with None: no leader would ever be preferred.
    if values["partitioner_rack_aware"] and values["client_rack"] is None:
        raise KafkaConfigurationError(
            "partitioner_rack_aware=True: needs client_rack, the rack of this client as in the brokers' "
            "broker.rack"
        )


def _resolve_idempotence(values: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    transactional_id = values["transactional_id"]
    asked: bool | None = given.get("enable_idempotence")
    if transactional_id is not None:
        if asked is False:
            raise KafkaConfigurationError(
                f"enable_idempotence=False contradicts transactional_id={transactional_id!r}, which needs it"
            )
        reason = f"transactional_id={transactional_id!r}"
    elif asked is not None:
        if not asked:
            return False
        reason = "enable_idempotence=True"
    else:
        reason = ""
    obstacles = []
    if values["acks"] != -1:
        obstacles.append(f"acks={values['acks']} (must be 'all')")
    if values["retries"] == 0:
        obstacles.append("retries=0 (must be above 0)")
    in_flight = values["max_in_flight_requests_per_connection"]
    if in_flight > MAX_IN_FLIGHT_FOR_IDEMPOTENCE:
        obstacles.append(
            f"max_in_flight_requests_per_connection={in_flight} "
            f"(must be at most {MAX_IN_FLIGHT_FOR_IDEMPOTENCE})"
        )
    if not obstacles:
        return True
    if reason:
        raise KafkaConfigurationError(f"{reason} contradicts {', '.join(obstacles)}")
    _warn(values, "Idempotence is off because of %s: retries may duplicate records", ", ".join(obstacles))
    return False


def _warn(values: Mapping[str, Any], text: str, *args: object) -> None:
    """Logs a warning about the options of one producer."""
    import logging  # here, because it takes half of the import time that this module may take

    logging.getLogger(__name__).warning("%s" + text, line_prefix(values["client_id"]), *args)


def option_rows() -> list[tuple[str, str, str, str, str]]:
    """Returns a row for each option: name, Java's name or "", default, allowed values, meaning."""
    return [
        (
            option.name,
            option.java_name or "",
            option.shown_default,
            option.kind.allowed,
            f"{option.meaning}.",
        )
        for option in OPTIONS
    ]


def options_as_markdown() -> str:
    """Returns the table of all options: name, Java's name, default, allowed values, meaning."""
    rows = [
        (f"`{name}`", f"`{java}`" if java else "", f"`{default}`", allowed, meaning)
        for name, java, default, allowed, meaning in option_rows()
    ]
    head = ("Option", "Java's name", "Default", "Allowed", "Meaning")
    lines = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in (head, ("---",) * 5, *rows))
    return "".join(f"| {line} |\n" for line in lines)
