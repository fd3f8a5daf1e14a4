"""Fetch sessions (KIP-227): a client names its partitions once, and then both sides send only changes.

Owns the sessions of a node, and the set of partitions of a request. Does not own reading (``fetch``).
"""

from typing import Any, Final

from cyproducer.errors.error_code import ErrorCode

NONE: Final = 0
"""The session id of a request and a response without a session."""
FIRST_EPOCH, FINAL_EPOCH = 0, -1
MOST_SESSIONS: Final = 1000
"""``max.incremental.fetch.session.cache.slots``"""
_EPOCHS: Final = 2**31

Key = tuple[str | bytes, int]
"""A topic, by name or by id as in the request, and a partition."""


class Session:
    """The partitions that one client reads from a node."""

    __slots__ = ("epoch", "has_ids", "id", "known", "partitions")

    def __init__(self, id: int, has_ids: bool) -> None:
        self.id = id
        #: Topics are named by their ids (KIP-516).
        self.has_ids = has_ids
        #: The epoch of the next request.
        self.epoch = 1
        #: The newest ``FetchPartition`` of each partition. Partitions with records move to the end, so that
        #: every partition gets a turn.
        self.partitions: dict[Key, Any] = {}
        #: The offsets that the client knows: high watermark, last stable offset, log start offset.
        self.known: dict[Key, tuple[int, int, int]] = {}

    def takes(self, key: Key, part: Any) -> bool:
        """Whether a partition belongs to an incremental response; stores the offsets that the client then
        knows."""
        ends = part.high_watermark, part.last_stable_offset, part.log_start_offset
        if part.records:
            self.partitions[key] = self.partitions.pop(key)
        changed = bool(part.records or part.error_code or self.known.get(key) != ends)
        # After an error, the next response contains the partition again.
        self.known[key] = (-1, -1, -1) if part.error_code else ends
        return changed


class Sessions:
    """The sessions of a node, oldest first."""

    def __init__(self) -> None:
        self._sessions: dict[int, Session] = {}
        self._next_id = 1

    def clear(self) -> None:
        self._sessions.clear()

    def take(self, request: Any, version: int) -> tuple[Session | None, int]:
        """Returns the session of a request (None if it has none) and an error code.

        The session is updated with the partitions of the request. It is new if the request's epoch is 0.
        """
        session_id, epoch = request.session_id, request.session_epoch
        if epoch in (FIRST_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            if epoch == FINAL_EPOCH:
                return None, ErrorCode.NO_ERROR
            session = Session(self._next_id, _has_ids(version))
            self._next_id += 1
            self._sessions[session.id] = session
            if len(self._sessions) > MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
        else:
            found = self._sessions.get(session_id)
            if found is None:
                return None, ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            if epoch != found.epoch:
                return None, ErrorCode.INVALID_FETCH_SESSION_EPOCH
            if found.has_ids != _has_ids(version):
                return None, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
            session = found
            session.epoch = session.epoch % (_EPOCHS - 1) + 1
        for topic in request.topics:
            for each in topic.partitions:
                session.partitions[_name(topic, version), each.partition] = each
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                key = _name(topic, version), index
                session.partitions.pop(key, None)
                session.known.pop(key, None)
        return session, ErrorCode.NO_ERROR


def _has_ids(version: int) -> bool:
    return version >= 13


def _name(topic: Any, version: int) -> str | bytes:
    return topic.topic_id if _has_ids(version) else topic.topic  # type: ignore[no-any-return]
