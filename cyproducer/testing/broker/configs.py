"""Configurations of topics and brokers in an embedded cluster.

Owns names, types, defaults and values. These configurations change the behavior of a broker:
``cleanup.policy`` (a compacted topic takes no record without a key, and only ``delete`` deletes old records),
``compression.type`` and the levels of codecs, ``max.message.bytes``, ``message.timestamp.type`` and its
limits, ``min.insync.replicas``, ``retention.bytes``, ``retention.ms``. The others can only be set and
described.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

# Types of DescribeConfigs (KIP-569).
BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST = 1, 2, 3, 4, 5, 6, 7
# Sources of a value.
DYNAMIC_TOPIC, STATIC_BROKER, DEFAULT = 1, 4, 5


class Config(NamedTuple):
    """A configuration: its type, its default as text, and what it allows."""

    kind: int
    default: str
    allows: Callable[[Any], bool] = lambda value: True
    limits: str = ""


def _one_of(*names: str) -> tuple[Callable[[Any], bool], str]:
    return (lambda value: value in names), f"must be one of {', '.join(names)}"


def _at_least(least: int) -> tuple[Callable[[Any], bool], str]:
    return (lambda value: value >= least), f"must be at least {least}"


TOPIC: Final[Mapping[str, Config]] = {
    "cleanup.policy": Config(LIST, "delete", lambda value: set(value) <= {"compact", "delete"},
        "must be compact, delete or both"),
    "compression.gzip.level": Config(INT, "-1", lambda value: value in (-1, *range(1, 10)),
        "must be -1 or 1 to 9"),
    "compression.lz4.level": Config(INT, "9", lambda value: 1 <= value <= 17, "must be 1 to 17"),
    "compression.type": Config(STRING, "producer", *_one_of(
        "uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
    "compression.zstd.level": Config(INT, "3", lambda value: -131072 <= value <= 22, "must be -131072 to 22"),
    "delete.retention.ms": Config(LONG, "86400000", *_at_least(0)),
    "file.delete.delay.ms": Config(LONG, "60000", *_at_least(0)),
    "flush.messages": Config(LONG, "9223372036854775807", *_at_least(1)),
    "flush.ms": Config(LONG, "9223372036854775807", *_at_least(0)),
    "follower.replication.throttled.replicas": Config(LIST, ""),
    "index.interval.bytes": Config(INT, "4096", *_at_least(0)),
    "leader.replication.throttled.replicas": Config(LIST, ""),
    "local.retention.bytes": Config(LONG, "-2", *_at_least(-2)),
    "local.retention.ms": Config(LONG, "-2", *_at_least(-2)),
    "max.compaction.lag.ms": Config(LONG, "9223372036854775807", *_at_least(1)),
    "max.message.bytes": Config(INT, "1048588", *_at_least(0)),
    "message.timestamp.after.max.ms": Config(LONG, "3600000", *_at_least(0)),
    "message.timestamp.before.max.ms": Config(LONG, "9223372036854775807", *_at_least(0)),
    "message.timestamp.type": Config(STRING, "CreateTime", *_one_of("CreateTime", "LogAppendTime")),
    "min.cleanable.dirty.ratio": Config(DOUBLE, "0.5", lambda value: 0 <= value <= 1, "must be 0 to 1"),
    "min.compaction.lag.ms": Config(LONG, "0", *_at_least(0)),
    "min.insync.replicas": Config(INT, "1", *_at_least(1)),
    "preallocate": Config(BOOLEAN, "false"),
    "remote.log.copy.disable": Config(BOOLEAN, "false"),
    "remote.log.delete.on.disable": Config(BOOLEAN, "false"),
    "remote.storage.enable": Config(BOOLEAN, "false"),
    "retention.bytes": Config(LONG, "-1"),
    "retention.ms": Config(LONG, "604800000", *_at_least(-1)),
    "segment.bytes": Config(INT, "1073741824", *_at_least(14)),
    "segment.index.bytes": Config(INT, "10485760", *_at_least(4)),
    "segment.jitter.ms": Config(LONG, "0", *_at_least(0)),
    "segment.ms": Config(LONG, "604800000", *_at_least(1)),
    "unclean.leader.election.enable": Config(BOOLEAN, "false"),
}  # fmt: skip
BROKER: Final[Mapping[str, Config]] = {
    "auto.create.topics.enable": Config(BOOLEAN, "true"),
    "default.replication.factor": Config(INT, "1"),
    "log.retention.check.interval.ms": Config(LONG, "300000"),
    "message.max.bytes": Config(INT, "1048588"),
    "num.partitions": Config(INT, "3"),
    "offsets.retention.check.interval.ms": Config(LONG, "600000"),
    "offsets.retention.minutes": Config(INT, "10080"),
    "transaction.max.timeout.ms": Config(INT, "900000"),
    "transactional.id.expiration.ms": Config(INT, "604800000"),
}


class Wrong(ValueError):
    """A name or a value that is not allowed; the message gives the reason."""


def parsed(table: Mapping[str, Config], name: str, text: str | None) -> Any:
    """Parses the text of a value. Raises ``Wrong``."""
    config = table.get(name)
    if config is None:
        raise Wrong(f"Unknown configuration {name!r}")
    if text is None:
        raise Wrong(f"Invalid value null for configuration {name}: must not be null")
    try:
        value = _READ[config.kind](text.strip())
    except ValueError:
        raise Wrong(f"Invalid value {text!r} for configuration {name}: not a {_NAMES[config.kind]}") from None
    if not config.allows(value):
        raise Wrong(f"Invalid value {text!r} for configuration {name}: {config.limits}")
    return value


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_READ: Final[Mapping[int, Callable[[str], Any]]] = {
    BOOLEAN: _boolean, STRING: str, INT: int, SHORT: int, LONG: int, DOUBLE: float,
    LIST: lambda text: [each.strip() for each in text.split(",") if each.strip()],
}  # fmt: skip
_NAMES: Final = {
    BOOLEAN: "boolean", STRING: "string", INT: "int", SHORT: "short", LONG: "long", DOUBLE: "double",
    LIST: "list",
}  # fmt: skip


FIRST_WITH_TIME_LIMIT: Final = (4, 0)
"""Before this release, a timestamp may be any time ahead (KIP-1030)."""


def _table(release: tuple[int, int]) -> Mapping[str, Config]:
    """Returns the configurations of topics with the defaults of a release."""
    if release >= FIRST_WITH_TIME_LIMIT:
        return TOPIC
    name = "message.timestamp.after.max.ms"
    return {**TOPIC, name: TOPIC[name]._replace(default="9223372036854775807")}


class Configs:
    """The values that were set for topics, as text. A configuration that was not set has its default in
    ``table``."""

    def __init__(self, release: tuple[int, int] = FIRST_WITH_TIME_LIMIT) -> None:
        self.topics: dict[str, dict[str, str]] = {}
        self.table = _table(release)
        self._defaults = {name: parsed(self.table, name, each.default) for name, each in self.table.items()}

    def value(self, topic: str, name: str) -> Any:
        """Returns a topic's value."""
        given = self.topics.get(topic)
        if not given or name not in given:
            return self._defaults[name]
        return parsed(self.table, name, given[name])
