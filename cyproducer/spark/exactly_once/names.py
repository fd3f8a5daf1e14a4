"""Names of an exactly-once sink: its key in the decision log, its transactional ids, its topics.

Pure functions. A *sink* is what writes batches under a prefix: a stream, by its checkpoint's location, or the
batch jobs of an application, by ``txnAppId``. Its transactional ids begin with the prefix, so that one ACL
allows them all, and with a hash of the sink, so that two sinks never share one. Ids are used again by later
batches: a sink has a few for each partition, for as long as it lives.
"""

import hashlib
import posixpath
import re
from typing import Final, NamedTuple

STREAM: Final = "stream"
JOB: Final = "job"

_PREFIX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A prefix is also the beginning of a topic's name."""
_LOCATION: Final = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?)?(/.*)?", re.DOTALL)
"""Scheme, authority and absolute path, as Hadoop splits a location: it has no query and no fragment."""
_ATTEMPTS: Final = 4
_STAGES: Final = 4


class Sink(NamedTuple):
    """What writes batches under a prefix. ``kind``: ``STREAM`` or ``JOB``. ``name``: the location of the
    stream's checkpoint, as ``location`` spells it, or ``txnAppId``."""

    prefix: str
    kind: str
    name: str

    @property
    def key(self) -> str:
        """Names the sink in the decision log."""
        return f"{self.kind}:{self.name}"

    @property
    def hash(self) -> str:
        """Eight hexadecimal digits that stand for the key in transactional ids."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:8]

    @property
    def id_prefix(self) -> str:
        """What all transactional ids of this sink begin with, and no other sink's."""
        return f"{self.prefix}.{self.hash}."

    @property
    def log_id(self) -> str:
        """The transactional id under which the sink's driver writes decisions."""
        return f"{self.id_prefix}log"

    def task_id(self, partition: int, attempt: int, task_attempt_id: int, planning: int) -> str:
        """Returns the transactional id of a task attempt.

        Attempts that may run at the same time differ in the last number: ``attempt`` does for speculative
        copies and retries of one stage attempt; ``task_attempt_id``, Spark's number of the attempt in the
        application, does mostly for those of two stage attempts; and ``planning``, the epoch of the log's
        identity, for a task that outlives its driver's plan. Those that coincide all the same fence each
        other: the check before the decision finds that, and the batch runs again.
        """
        slot = attempt % _ATTEMPTS + _ATTEMPTS * (task_attempt_id % _STAGES + _STAGES * (planning % 2))
        return f"{self.id_prefix}{partition}.{slot}"

    def owns(self, transactional_id: str) -> bool:
        """Whether an id is one that ``task_id`` makes."""
        return re.fullmatch(re.escape(self.id_prefix) + r"\d+\.\d+", transactional_id) is not None


def location(name: str) -> str:
    """Returns the same spelling for all spellings of a location, between which Spark itself changes:
    ``file:/x``, ``file:///x/`` and ``file://localhost//x`` are one. A path without a scheme stays one, as the
    file system is not known here. A relative path, and any other name, is returned unchanged."""
    found = _LOCATION.fullmatch(name)
    if found is None:
        return name
    scheme, authority, path = found.groups()
    if path is None and not authority:
        return name
    scheme = f"{scheme.lower()}:" if scheme else ""
    if scheme == "file:" and authority == "localhost":
        authority = None
    return f"{scheme}{f'//{authority}' if authority else ''}/{posixpath.normpath(path or '/').lstrip('/')}"


def decision_topic(prefix: str) -> str:
    """Returns the default name of the topic with the decisions of all sinks of a prefix."""
    return f"{prefix}.decisions"


def is_prefix(text: str) -> bool:
    """Whether a text can be a prefix: 1 to 100 letters, digits, '.', '_' and '-', not beginning with one of
    the last three."""
    return _PREFIX.fullmatch(text) is not None
