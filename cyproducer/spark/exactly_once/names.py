"""Names of an exactly-once sink: its key in the decision log, its transactional ids, its topics.

Pure functions. A *sink* writes batches under a prefix. It is a stream, identified by its checkpoint's
location, or the batch jobs of an application, identified by ``txnAppId``. Its transactional ids begin with
the prefix, so that one ACL allows them all, followed by a hash of the sink, so that two sinks never share
one. Later batches reuse the ids: a sink has a few per partition for its whole lifetime.
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
        """The prefix of all transactional ids of this sink, and of no other sink's."""
        return f"{self.prefix}.{self.hash}."

    @property
    def log_id(self) -> str:
        """The transactional id under which the sink's driver writes decisions."""
        return f"{self.id_prefix}log"

    def task_id(self, partition: int, attempt: int, task_attempt_id: int, planning: int) -> str:
        """Returns the transactional id of a task attempt.

        The last number of the id distinguishes attempts that may run at the same time. ``attempt``
        distinguishes speculative copies and retries of one stage attempt. ``task_attempt_id``, Spark's number
        of the attempt in the application, usually distinguishes attempts of two stage attempts. ``planning``,
        the epoch of the log's identity, distinguishes a task that outlives its driver's plan. Attempts that
        get the same id nevertheless fence each other. The check before the decision detects that, and the
        batch runs again.
        """
        slot = attempt % _ATTEMPTS + _ATTEMPTS * (task_attempt_id % _STAGES + _STAGES * (planning % 2))
        return f"{self.id_prefix}{partition}.{slot}"

    def owns(self, transactional_id: str) -> bool:
        """Returns whether an id is one that ``task_id`` makes."""
        return re.fullmatch(re.escape(self.id_prefix) + r"\d+\.\d+", transactional_id) is not None


def location(name: str) -> str:
    """Returns one spelling for all spellings of a location, because Spark itself uses several: ``file:/x``,
    ``file:///x/`` and ``file://localhost//x`` are the same location. A path without a scheme stays without
    one, because the file system is not known here. A relative path, and any other name, is returned
    unchanged."""
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
    """Returns whether a text can be a prefix: 1 to 100 letters, digits, '.', '_' and '-', not beginning with
    one of the last three."""
    return _PREFIX.fullmatch(text) is not None
