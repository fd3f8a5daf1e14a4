"""The state of the scripted broker: topics with their logs, and scripted reactions to requests.

Does no I/O and has no lock of its own: ``ScriptedCluster.changed`` guards the shared state.
"""

import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tools.harness.reference_records import Batch, PartitionResponse, Record, Topic

NO_LEADER = -1

Answers = list[tuple[Topic, list[PartitionResponse]]]


@dataclass(frozen=True)
class Act:
    """How the broker reacts to one request. Without arguments: a normal response."""

    hold: threading.Event | None = None
    """The response is not sent before this is set. Later responses on the connection wait behind it."""
    silent: bool = False
    drop: bool = False
    """Close the connection instead of responding."""
    cut: int | None = None
    """Close the connection after this many bytes of the response."""
    raw: bytes | None = None
    """Send these bytes instead of the response."""
    correlation_shift: int = 0
    error: int | Mapping[tuple[str, int], int] = 0
    """Error code for all partitions or for some; for other requests, the error code of the response."""
    message: str | None = None
    """The error message of Produce and FindCoordinator responses."""
    identity: tuple[int, int] | None = None
    """The producer id and epoch of InitProducerId and EndTxn responses; None: the next ones."""
    append: bool = True
    throttle_ms: int = 0
    edit: Callable[[Answers], Answers] | None = None
    """Changes the partition responses of a Produce response before they are encoded."""
    rewrite: Callable[[bytes], bytes] | None = None
    """Changes the bytes of the whole response."""


@dataclass
class Partition:
    leader: int
    epoch: int = 0
    error: int = 0
    """The error code that Produce requests get; 0: success."""
    batches: list[Batch] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in batch.records]

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


@dataclass
class TopicModel:
    name: str
    partitions: list[Partition]
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    error: int = 0
    """The topic's error code in Metadata responses; 0: none."""
    first_errors: deque[int] = field(default_factory=deque)
    """The topic's error codes in the next Metadata responses, one per response."""
    operations: int = 0xDF8
    """A bit for each operation that is allowed, if it is asked for."""

    @property
    def values(self) -> list[bytes | None]:
        return [value for partition in self.partitions for value in partition.values]
