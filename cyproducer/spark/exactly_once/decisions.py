"""The records of the decision log: which batch of a sink was decided last, and whether it is complete.

Owns their format. Does not read or write them (``cluster``). Pure and immutable.

A record's key is the sink's. Its value is JSON: the state ``decided`` with the transactions that make up the
batch, or ``done`` without them, when each of them is committed. The last record of a key contains everything,
so that the topic can be compacted.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

from cyproducer.errors import KafkaError

VERSION: Final = 1
_COMPRESSED: Final = b"z"
"""Values that begin with this byte are compressed. JSON begins with a brace."""
_PLAIN_BYTES: Final = 4096
_REMEMBERED_QUERIES: Final = 50


class DecisionLogError(KafkaError):
    """The decision log can't be used, or has lost records; or records that were decided are lost. The message
    says what to do."""


class Identity(NamedTuple):
    """A producer id and epoch, which can write under a transactional id until there is a newer identity."""

    producer_id: int
    epoch: int


class Place(NamedTuple):
    """The records of a transaction in one partition. ``offset`` is that of the first."""

    topic: str
    partition: int
    offset: int
    records: int


@dataclass(frozen=True)
class TaskTransaction:
    """A task's prepared transaction: what is needed to end it, and where its records are."""

    transactional_id: str
    producer_id: int
    epoch: int
    places: tuple[Place, ...] = ()

    @property
    def identity(self) -> Identity:
        """The identity that has written it."""
        return Identity(self.producer_id, self.epoch)

    @property
    def records(self) -> int:
        """The number of its records."""
        return sum(place.records for place in self.places)


@dataclass(frozen=True)
class Decision:
    """What a sink's driver has decided: the content of one record."""

    sink: str
    """The sink's key."""
    batch: int
    """The id of the micro-batch, or ``txnVersion``."""
    rows: int
    """The number of rows that the tasks have read, including dead letters. Another run must read as many."""
    query: str | None = None
    """The id of the streaming query; None: a batch job, or not known."""
    topic: str | None = None
    """The topic of all rows; None: each row names its own."""
    done: bool = False
    """Whether all transactions are committed."""
    tasks: tuple[TaskTransaction, ...] = ()
    """Empty if ``done``."""
    earlier_queries: tuple[str, ...] = field(default=())
    """Ids of queries that this sink had before, the newest first."""

    @property
    def queries(self) -> tuple[str, ...]:
        """The ids of all queries of the sink that are known, the newest first."""
        return (self.query, *self.earlier_queries) if self.query is not None else self.earlier_queries

    def as_done(self) -> "Decision":
        """Returns the record that follows when all transactions are committed."""
        return replace(self, done=True, tasks=())

    def encode(self) -> bytes:
        """Returns the record's value."""
        value = {"version": VERSION, **asdict(self)}
        text = json.dumps(value, separators=(",", ":")).encode()
        return text if len(text) <= _PLAIN_BYTES else _COMPRESSED + zlib.compress(text)


def following_queries(last: Decision | None, query: str | None) -> tuple[str, ...]:
    """Returns the earlier queries for the next decision of a sink."""
    if last is None:
        return ()
    return tuple(each for each in last.queries if each != query)[:_REMEMBERED_QUERIES]


def decode(value: bytes) -> Decision:
    """Reads a record's value.

    Raises:
        DecisionLogError: it is not a decision, or was written by a later version of this package.
    """
    try:
        found: dict[str, Any] = json.loads(zlib.decompress(value[1:]) if value[:1] == _COMPRESSED else value)
        version = found.pop("version")
        if version != VERSION:
            raise DecisionLogError(
                f"the decision log has a record of version {version}, and this cyproducer knows {VERSION}: "
                "use the newest one that has written to this log, on the driver and everywhere"
            )
        tasks = tuple(
            TaskTransaction(**{**task, "places": tuple(Place(*place) for place in task["places"])})
            for task in found.pop("tasks")
        )
        queries = tuple(found.pop("earlier_queries"))
        return Decision(**found, tasks=tasks, earlier_queries=queries)
    except (ValueError, TypeError, KeyError, AttributeError, zlib.error) as error:
        raise DecisionLogError(
            f"the decision log has a record that is no decision ({error}): {value[:60]!r}"
        ) from error


History = Mapping[str, Decision]
"""The last decision of each sink of a prefix, by the sinks' keys."""
