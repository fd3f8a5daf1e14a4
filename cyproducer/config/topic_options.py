"""Settings of single topics: the option ``topic_options``.

Owns reading and checking its entries, the rules between them and the producer's options, and which entry a
topic has. Does not own the options' kinds (``config.options``) or what the settings do (``accumulator``).
Pure functions; any thread may call them.

An entry is a topic's name or a pattern, with the options that differ from the producer's: librdkafka calls
this the topic configuration. The rules:

- A name wins over patterns. Of the patterns that match, the first one wins. Entries are not merged.
- What an entry leaves out is as for all topics. But the producer's ``compression_level`` is only for the
  producer's codec.
- acks other than 'all' need a producer without idempotence, as a request to a broker has one acks, and only
  acks=all has sequences.
- linger_ms is within delivery_timeout_ms as the producer's own is (``config``).
"""

import fnmatch
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from cyproducer.config import (
    CODECS_WITH_LEVELS,
    ProducerConfig,
    check_level,
    option_name,
    read_value,
    unknown_option,
)
from cyproducer.config.options import OPTIONS_BY_NAME
from cyproducer.errors import InvalidTopicError, KafkaConfigurationError
from cyproducer.records.topic_names import legal_topic

ALLOWED: Final = ("acks", "compression_level", "compression_type", "linger_ms")
"""The options that a topic may have."""

_WILD: Final = re.compile(r"[*?\[]")


class TopicSettings(NamedTuple):
    """The settings of a topic. ``compression_level``: None for the codec's default."""

    linger_ms: float
    acks: int
    compression_type: str | None
    compression_level: int | None


def read(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the entries with kafka-python's names and normalized values.

    Raises:
        KafkaConfigurationError: a name or pattern is none, an option is unknown or not a topic's, is given
            twice, or has a value that is not allowed.
    """
    return {_pattern(pattern): _entry(pattern, options) for pattern, options in entries.items()}


def _pattern(pattern: str) -> str:
    if not _WILD.search(pattern):
        try:
            legal_topic(pattern)
        except InvalidTopicError as error:
            raise KafkaConfigurationError(
                f"topic_options[{pattern!r}]: {error.args[0]}; in a pattern, * is any characters, ? is one, "
                "and [ab] is a or b"
            ) from None
    return pattern


def _entry(pattern: str, options: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for key, value in options.items():
        name = option_name(key)
        if name not in ALLOWED:
            why = (name is None and unknown_option(key)) or f"{key!r} is an option of all topics together"
            raise KafkaConfigurationError(
                f"topic_options[{pattern!r}]: {why}; must be one of {', '.join(ALLOWED)}"
            )
        if name in keys:
            raise KafkaConfigurationError(
                f"topic_options[{pattern!r}]: {keys[name]!r} and {key!r} are the same option: give only one"
            )
        keys[name] = key
        found[name] = read_value(OPTIONS_BY_NAME[name], value, place(pattern, key))
    return found


def place(pattern: str, key: str) -> str:
    """Returns how messages name an option of an entry; ``config.spelling`` renames nothing in quotes."""
    return f"topic_options[{pattern!r}][{key!r}]"


def check(config: ProducerConfig) -> None:
    """Checks the entries against the producer's options.

    Raises:
        KafkaConfigurationError: an entry contradicts them.
    """
    for pattern, entry in config.topic_options.items():
        acks = entry.get("acks", config.acks)
        if acks != config.acks and config.enable_idempotence:
            raise KafkaConfigurationError(
                f"{place(pattern, 'acks')}={acks}: must be 'all' with idempotence; for other acks of single "
                "topics, set enable_idempotence=False"
            )
        if (level := entry.get("compression_level")) is not None:
            codec = entry.get("compression_type", config.compression_type)
            check_level(level, codec, place(pattern, "compression_level"))


def settings_of(config: ProducerConfig, entry: Mapping[str, Any]) -> TopicSettings:
    """Returns the settings of the topics of one entry."""
    codec = entry.get("compression_type", config.compression_type)
    level = entry.get("compression_level")
    if level is None and codec == config.compression_type:
        level = config.effective_compression_level
    elif level is None and codec in CODECS_WITH_LEVELS:
        level = config[f"compression_{codec}_level"]
    return TopicSettings(
        entry.get("linger_ms", config.linger_ms), entry.get("acks", config.acks), codec, level
    )


def finder(entries: Mapping[str, Any]) -> Callable[[str], int]:
    """Returns a function from a topic's name to the number of its entry, from 1; 0 if it has none."""
    exact = {pattern: number for number, pattern in enumerate(entries, 1) if not _WILD.search(pattern)}
    wild = [
        (re.compile(fnmatch.translate(pattern)), number)
        for number, pattern in enumerate(entries, 1)
        if pattern not in exact
    ]

    def find(topic: str) -> int:
        if topic in exact:
            return exact[topic]
        return next((number for pattern, number in wild if pattern.match(topic)), 0)

    return find
