"""What the scripted broker knows and does: topics with their logs, and what a test wants done to a request.

No I/O and no lock of its own: ``ScriptedCluster.changed`` guards what is shared.
"""

import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.reference_records import Batch, PartitionResponse, Record, Topic

NO_LEADER = -1

Answers = list[tuple[Topic, list[PartitionResponse]]]


@dataclass(frozen=True)
class Act:
    """What happens to one request instead of a plain answer. Without arguments: just that."""

    hold: threading.Event | None = None
    """The answer does not go out before this is set. Later answers on the connection wait behind it."""
    silent: bool = False
    drop: bool = False
    """Close the connection instead of answering."""
    cut: int | None = None
    """Close it after so many bytes of the answer."""
    raw: bytes | None = None
    """These bytes instead of the answer."""
    correlation_shift: int = 0
    error: int | Mapping[tuple[str, int], int] = 0
    """Error code for all partitions or for some; for other requests the code of the whole answer."""
    message: str | None = None
    append: bool = True
    throttle_ms: int = 0
    edit: Callable[[Answers], Answers] | None = None
    """Changes the answers of a Produce response before they are encoded."""
    rewrite: Callable[[bytes], bytes] | None = None
    """Changes the bytes of the whole response."""


@dataclass
class Partition:
    leader: int
    epoch: int = 0
    error: int = 0
    """What Produce requests get instead of success, until it is 0 again."""
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
    """What Metadata says of it, until it is 0 again."""
    first_errors: deque[int] = field(default_factory=deque)
    """What the next Metadata answers say of it, one after the other."""

    @property
    def values(self) -> list[bytes | None]:
        return [value for partition in self.partitions for value in partition.values]
