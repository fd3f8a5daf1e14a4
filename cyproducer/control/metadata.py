"""The cluster's metadata, and the decision when to request an update.

Owns the brokers, the topics in use, and the decision when to send which Metadata request. Does not own the
partitions and leaders of a topic (``topic_state``). Does not send the request, choose a broker for it, or
block. Everything runs on the calling thread, with the caller's lock held; only the returned ``ClusterView``
needs no lock. Times are milliseconds on the caller's clock.

Why an update becomes due, and when:
    nothing is known yet, ``request_update``    at once, but full updates are at least the first backoff apart
    a topic was tracked                         at once, for the new topics only
    a topic had a retriable error or no leader  after a growing backoff, for these topics only
    ``metadata_max_age_ms`` passed              then
    the last request failed                     any of the above, but not before a growing backoff
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from cyproducer.control.cluster_view import BrokerMetadata, ClusterView, TopicView, TopicViews
from cyproducer.control.node_states import cause_text
from cyproducer.control.retry import ExponentialBackoff
from cyproducer.control.topic_state import TopicState
from cyproducer.errors.error_code import ErrorCode
from cyproducer.wire.responses import NO_TOPIC_ID, MetadataResponse, TopicInfo

#: Topic errors that waiting does not resolve; any other may go away.
FINAL_TOPIC_ERRORS = frozenset({ErrorCode.INVALID_TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED})

#: What is known about a topic that is not tracked. Never written to.
_UNTRACKED = TopicState(0)


class MetadataRequest(NamedTuple):
    """What to request from a broker; without topics, only the brokers are requested."""

    topics: list[str]
    #: Whether only some of the tracked topics are requested.
    partial: bool
    #: Topics that were not used for ``metadata_max_idle_ms`` and have just been dropped.
    expired: list[str]


class MetadataChange(NamedTuple):
    """What a response changed."""

    #: Topics whose partitions became known, increased or were replaced, or whose id became known.
    topics_changed: list[str]
    #: The subset that now has another topic id: they were deleted and created again.
    topics_recreated: list[str]
    #: Previously known partitions that now have another leader, or none.
    leaders_moved: list[tuple[str, int]]
    #: Topic -> error code, for every topic that has one; see ``FINAL_TOPIC_ERRORS``.
    topic_errors: dict[str, int]
    brokers_added: set[int]
    brokers_removed: set[int]
    #: Brokers that now have another host or port.
    brokers_moved: set[int]
    #: Brokers that now are in another rack.
    racks_changed: set[int]


class LastError(NamedTuple):
    """Why the last update failed."""

    cause: str
    at_ms: float


class ClusterMetadata:
    """What is known about the cluster, and the updates that are needed."""

    def __init__(
        self,
        bootstrap: Iterable[tuple[str, int]],
        random: Callable[[], float],
        *,
        metadata_max_age_ms: float = 300_000,
        metadata_max_idle_ms: float = 300_000,
        retry_backoff_ms: float = 100,
        retry_backoff_max_ms: float = 1_000,
        rebootstrap: bool = True,
        rebootstrap_trigger_ms: float = 300_000,
    ) -> None:
        """
        Args:
            bootstrap: hosts and ports to start from, and to fall back to.
            random: returns a float in [0, 1), for jitter.
            metadata_max_age_ms: a full update is due this long after the last one.
            metadata_max_idle_ms: a topic is dropped after this time without use.
            retry_backoff_ms: first wait after a failure, and the least time between full updates.
            retry_backoff_max_ms: longest wait after a failure.
            rebootstrap: whether starting over from the bootstrap addresses is allowed.
            rebootstrap_trigger_ms: after updates have failed for this long, rebootstrap (KIP-1102).
        """
        self.bootstrap_addresses = tuple(bootstrap)
        self.cluster_id: str | None = None
        self.controller_id: int | None = None
        self.last_error: LastError | None = None
        #: Why a full update is wanted early; None if none is wanted.
        self.update_reason: str | None = "nothing is known yet"
        self._random = random
        self._max_age_ms = metadata_max_age_ms
        self._max_idle_ms = metadata_max_idle_ms
        self._may_rebootstrap = rebootstrap
        self._rebootstrap_trigger_ms = rebootstrap_trigger_ms
        self._backoff = ExponentialBackoff(retry_backoff_ms, retry_backoff_max_ms)
        self._brokers: dict[int, BrokerMetadata] = {}
        #: Brokers known from a Produce response that no metadata response has listed yet.
        self._unlisted: set[int] = set()
        self._topics: dict[str, TopicState] = {}
        self._view: ClusterView | None = None
        self._topic_views = TopicViews()
        #: Topics that have changed since their ``TopicView`` was made, and new ones for the next view.
        self._outdated: set[str] = set()
        self._renewed: dict[str, TopicView | None] = {}
        #: The views that these replace, for the caller to free, a part at a time: of 30,000 topics they take
        #: ten milliseconds.
        self.replaced: list[TopicView | None] = []
        self._in_flight: MetadataRequest | None = None
        self._last_full_ms = -math.inf
        #: Topics that were never requested, and topics to request again at ``_again_at_ms``.
        self._new: dict[str, None] = {}
        self._again: dict[str, None] = {}
        self._again_attempts = 0
        self._again_at_ms = -math.inf
        self._failures = 0
        self._failing_since_ms = math.inf
        self._not_before_ms = -math.inf

    # Queries

    def track(self, topic: str, now_ms: float) -> bool:
        """Adds a topic to the tracked ones; counts as a use of the topic.

        Returns:
            Whether an update became due for it: the topic is new, or its last response was a final error
            old enough to request the topic again.
        """
        state = self._topics.get(topic)
        if state is None:
            self._topics[topic] = TopicState(now_ms)
        else:
            state.last_used_ms = now_ms
            # A final error is trusted for one backoff: otherwise each record would cause a request.
            asked_again_at_ms = state.error_at_ms + self._backoff.initial_ms
            if state.error_code not in FINAL_TOPIC_ERRORS or now_ms < asked_again_at_ms:
                return False
            state.error_code = 0
        self._new[topic] = None
        return True

    def ask_anew(self, topic: str, now_ms: float) -> None:
        """Makes an update of a topic due now, regardless of what is known; counts as a use of the topic."""
        self._topics.setdefault(topic, TopicState(now_ms)).last_used_ms = now_ms
        self._new[topic] = None

    def touch(self, topics: Iterable[str], now_ms: float) -> None:
        """Counts as a use of these topics; skips those that are not tracked."""
        for topic in topics:
            state = self._topics.get(topic)
            if state is not None:
                state.last_used_ms = now_ms

    def unused_topics(self, now_ms: float) -> list[str]:
        """Returns the topics that a full update would drop now, because no use of them was counted."""
        since_ms = now_ms - self._max_idle_ms
        return [name for name, state in self._topics.items() if state.last_used_ms <= since_ms]

    def leader(self, topic: str, partition: int) -> int | None:
        """Returns the node that leads a partition; None if there is no leader or it is not a known broker."""
        node_id = self._topics.get(topic, _UNTRACKED).leaders.get(partition, -1)
        return node_id if node_id in self._brokers else None

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Returns the newest leader epoch seen for a partition, -1 if none is known."""
        return self._topics.get(topic, _UNTRACKED).epochs.get(partition, -1)

    def partition_count(self, topic: str) -> int | None:
        """Returns the number of a topic's partitions; None while unknown."""
        return len(self._topics.get(topic, _UNTRACKED).leaders) or None

    def is_gone(self, topic: str, partition: int) -> bool:
        """Returns whether a partition that once existed certainly no longer does.

        Topics don't shrink; they are deleted and created again. Only the topic id distinguishes that from a
        stale response of a broker that lags behind (KIP-516).
        """
        count = self.partition_count(topic)
        return count is not None and partition >= count and self.topic_id(topic) is not None

    def topic_id(self, topic: str) -> bytes | None:
        """Returns the topic's 16-byte id; None if unknown (KIP-516)."""
        topic_id = self._topics.get(topic, _UNTRACKED).topic_id
        return None if topic_id == NO_TOPIC_ID else topic_id

    def topic_error(self, topic: str) -> int:
        """Returns the error code of the last response about a topic; 0 for none."""
        return self._topics.get(topic, _UNTRACKED).error_code

    def missing_ms(self, topic: str, now_ms: float) -> float | None:
        """Returns for how long responses have reported a topic as unknown; None if the last one did not."""
        since_ms = self._topics.get(topic, _UNTRACKED).missing_since_ms
        return None if since_ms == math.inf else max(0.0, now_ms - since_ms)

    def broker(self, node_id: int) -> BrokerMetadata | None:
        """Returns a broker by its node id, None if unknown."""
        return self._brokers.get(node_id)

    def broker_ids(self) -> Sequence[int]:
        """Returns the node ids of all known brokers; empty until bootstrapped."""
        return list(self._brokers)

    def tracked_topics(self) -> Sequence[str]:
        """Returns the tracked topics, including those without a response yet."""
        return list(self._topics)

    def view(self) -> ClusterView:
        """Returns an immutable snapshot, the same object until something changes."""
        if self._view is None:
            self._renew_views()
            if self._renewed:
                self._topic_views = self._topic_views.updated(self._renewed)
                self._renewed = {}
            self._view = ClusterView(
                dict(self._brokers), self._topic_views, self.cluster_id, self.controller_id
            )
        return self._view

    def _renew_views(self) -> None:
        for name in self._outdated:
            self.replaced.append(self._topic_views.get(name))
            state = self._topics.get(name, _UNTRACKED)
            view = TopicView(state.share_leaders(), state.is_internal) if state.leaders else None
            self._renewed[name] = view
        self._outdated.clear()

    def age_ms(self, now_ms: float) -> float:
        """Returns the time since the last full update; NaN if there was none. Thread-safe."""
        return now_ms - self._last_full_ms if self._last_full_ms > -math.inf else math.nan

    def describe_last_error(self, now_ms: float) -> str | None:
        """Describes the last failure and its age; None if the last update succeeded."""
        if self.last_error is None:
            return None
        cause, at_ms = self.last_error
        return f"{cause}, {max(0.0, now_ms - at_ms) / 1000:.1f} s ago"

    # When and what to request

    def request_update(self, reason: str) -> None:
        """Makes a full update due, for example after a broker reported that it does not lead a partition."""
        self.update_reason = reason

    def next_update_ms(self, now_ms: float) -> float:
        """Returns the time until a request is due: 0 if it is due now, infinity while one is in flight."""
        if self._in_flight is not None:
            return math.inf
        due_ms = min(self._full_due_ms(), self._again_at_ms if self._again else math.inf)
        if self._new:
            due_ms = now_ms
        return max(0.0, due_ms - now_ms, self._not_before_ms - now_ms)

    def is_full_due(self, now_ms: float) -> bool:
        """Returns whether a request that begins now would be a full one, whatever else is wanted."""
        return now_ms >= self._full_due_ms()

    def begin_request(self, now_ms: float) -> MetadataRequest:
        """Returns what to request now; ``on_response`` or ``on_failure`` must follow.

        Raises:
            RuntimeError: a request is already in flight.
        """
        if self._in_flight is not None:
            raise RuntimeError("a metadata request is already in flight, only one at a time is allowed")
        again = list(self._again) if now_ms >= self._again_at_ms else []
        wanted = list(dict.fromkeys([*self._new, *again]))
        expired: list[str] = []
        partial = bool(wanted) and not self.is_full_due(now_ms)
        if not partial:
            expired = self._expire(now_ms)
            wanted = list(self._topics)
            self.update_reason = None
        self._new.clear()
        self._in_flight = MetadataRequest(wanted, partial, expired)
        return self._in_flight

    def on_failure(self, cause: str | BaseException, now_ms: float) -> None:
        """The request got no usable response; it will be retried after a backoff.

        Args:
            cause: what happened at which broker, for the errors of waiting threads.
            now_ms: the current time.
        """
        self.last_error = LastError(cause_text(cause), now_ms)
        self._failures += 1
        self._failing_since_ms = min(self._failing_since_ms, now_ms)
        self._not_before_ms = now_ms + self._backoff.delay_ms(self._failures, self._random)
        request, self._in_flight = self._in_flight, None
        if request is None:
            return
        if request.partial:
            self._new.update(dict.fromkeys(request.topics))
        else:
            self.update_reason = self.update_reason or "the last full update failed"

    def on_response(self, response: MetadataResponse, now_ms: float) -> MetadataChange:
        """Processes a whole response to the request in flight; see ``take``."""
        [change] = self.take(response, now_ms)
        return change

    def take(
        self, response: MetadataResponse, now_ms: float, at_once: float = math.inf
    ) -> Iterator[MetadataChange]:
        """Processes a broker's response to the request in flight, in parts; yields what each part changed.

        A response with a top-level error or without brokers (from a broker that is still starting) counts as
        a failure. Topics that were not requested are ignored. The request is in flight until the iterator has
        ended, so no other one begins and no topic expires. Anything else may happen between two parts:
        topics do not depend on each other, and a newer leader from a Produce response has a higher epoch.

        Args:
            response: the response.
            now_ms: the time when it arrived.
            at_once: the number of topics and partitions in a part.

        Raises:
            RuntimeError: no request is in flight.
        """
        request = self._in_flight
        if request is None:
            raise RuntimeError("no metadata request is in flight for this response")
        change = _nothing_changed()
        if response.error_code or not response.brokers:
            cause = "metadata response without brokers"
            if response.error_code:
                cause = f"metadata response with error code {response.error_code}"
            elif response.left_out:
                cause += f" that can be used: {response.left_out[0]}"
            self.on_failure(cause, now_ms)
            # Only if brokers are known, to avoid a loop: otherwise the response is from a bootstrap server.
            if (
                response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED
                and self._may_rebootstrap
                and self._brokers
            ):
                change.brokers_removed.update(self.rebootstrap())
            yield change
            return
        self.last_error = None
        self._failures = 0
        self._failing_since_ms = math.inf
        if not request.partial:
            self._last_full_ms = now_ms
        self._take_brokers(response, change)
        if len(request.topics) > at_once:
            # The next steps take milliseconds if there are so many topics.
            yield change
            change = _nothing_changed()
        answers = {info.name: info for info in response.topics if info.name is not None}
        # What each topic had is freed after its part: all of it at once takes as long as several parts.
        del response
        unresolved: list[str] = []
        room = at_once
        for name in request.topics:
            if room <= 0:
                self._renew_views()
                self._view = None
                yield change
                change, room = _nothing_changed(), at_once
            info = answers.pop(name, None)
            room -= 1 if info is None else 1 + len(info.partitions)
            self._take_topic(name, info, change, unresolved, now_ms)
        if self._unlisted:
            leading = {node_id for state in self._topics.values() for node_id in state.leaders.values()}
            for node_id in self._unlisted - leading:
                self._unlisted.remove(node_id)
                del self._brokers[node_id]
                change.brokers_removed.add(node_id)
        if self._again:
            for topic in request.topics:
                self._again.pop(topic, None)
        if unresolved:
            self._again.update(dict.fromkeys(unresolved))
            self._again_attempts += 1
            self._again_at_ms = now_ms + self._backoff.delay_ms(self._again_attempts, self._random)
        elif not self._again:
            self._again_attempts = 0
        self._view = None
        yield change
        # Not earlier: the response to the next request would be processed before the last part of this one.
        self._in_flight = None

    def update_leader(
        self,
        topic: str,
        partition: int,
        node_id: int,
        leader_epoch: int,
        endpoint: BrokerMetadata | None = None,
    ) -> bool:
        """Applies a new leader from a Produce response (KIP-951).

        Args:
            endpoint: the address of that leader, for brokers that are not known yet.

        Returns:
            Whether it was accepted: the partition is known, the epoch is newer than the known one, and the
            broker is known or its address is given.
        """
        state = self._topics.get(topic, _UNTRACKED)
        if (
            partition not in state.leaders
            or leader_epoch <= state.epochs.get(partition, -1)
            or (node_id not in self._brokers and (endpoint is None or endpoint.nodeId != node_id))
        ):
            return False
        if endpoint is not None and endpoint.nodeId == node_id:
            if node_id not in self._brokers:
                self._unlisted.add(node_id)
            self._brokers[node_id] = endpoint
        state.move_leader(partition, node_id, leader_epoch)
        self._outdated.add(topic)
        self._view = None
        return True

    # Starting over

    def rebootstrap_reason(self, now_ms: float, all_unreachable: bool) -> str | None:
        """Returns why to start over from the bootstrap addresses, or None (KIP-899, KIP-1102).

        Args:
            all_unreachable: whether a connection attempt to every known broker has failed since it was last
                reachable.
        """
        if not self._brokers or not self._may_rebootstrap:
            return None
        if all_unreachable:
            return f"all {len(self._brokers)} known brokers are unreachable"
        if now_ms - self._failing_since_ms >= self._rebootstrap_trigger_ms:
            return f"metadata updates have failed for {now_ms - self._failing_since_ms:.0f} ms"
        return None

    def rebootstrap(self) -> set[int]:
        """Forgets all brokers and makes a full update due at once. Keeps topics and epochs.

        Returns:
            The nodes that were dropped.
        """
        forgotten = set(self._brokers)
        self._brokers.clear()
        self._unlisted.clear()
        self._not_before_ms = -math.inf
        self._last_full_ms = -math.inf
        self.update_reason = "rebootstrap"
        self._view = None
        return forgotten

    # Inside

    def _full_due_ms(self) -> float:
        if self.update_reason is not None:
            return self._last_full_ms + self._backoff.initial_ms
        return self._last_full_ms + self._max_age_ms

    def _expire(self, now_ms: float) -> list[str]:
        expired = self.unused_topics(now_ms)
        for name in expired:
            del self._topics[name]
            self._outdated.add(name)
            self._again.pop(name, None)
        return expired

    def _take_brokers(self, response: MetadataResponse, change: MetadataChange) -> None:
        brokers = {info.node_id: BrokerMetadata(*info) for info in response.brokers}
        self._unlisted -= brokers.keys()
        # The responding broker may not yet know about a broker that already leads a partition.
        brokers.update((node_id, self._brokers[node_id]) for node_id in self._unlisted)
        for node_id, broker in brokers.items():
            known = self._brokers.get(node_id)
            if known is None:
                change.brokers_added.add(node_id)
            elif (known.host, known.port) != (broker.host, broker.port):
                change.brokers_moved.add(node_id)
            if known is not None and known.rack != broker.rack:
                change.racks_changed.add(node_id)
        change.brokers_removed.update(self._brokers.keys() - brokers.keys())
        self._brokers = brokers
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id if response.controller_id >= 0 else None

    def _take_topic(
        self,
        name: str,
        info: TopicInfo | None,
        change: MetadataChange,
        unresolved: list[str],
        now_ms: float,
    ) -> None:
        """Processes the response about one topic; adds it to ``unresolved`` to request it again."""
        state = self._topics[name]
        error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None else info.error_code
        state.error_code = error_code
        if error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            state.missing_since_ms = math.inf
        elif state.missing_since_ms == math.inf:
            state.missing_since_ms = now_ms
        if info is not None and error_code == 0:
            merged = state.merge(info)
            if merged.written:
                self._outdated.add(name)
            if merged.changed:
                change.topics_changed.append(name)
            if merged.recreated:
                change.topics_recreated.append(name)
            change.leaders_moved.extend((name, partition) for partition in merged.moved)
            if not info.partitions or not self._brokers.keys() >= set(state.leaders.values()):
                unresolved.append(name)
            return
        state.error_at_ms = now_ms
        change.topic_errors[name] = error_code
        if error_code in FINAL_TOPIC_ERRORS:
            if state.leaders:
                change.topics_changed.append(name)
            state.forget_partitions()
            self._outdated.add(name)
            return
        unresolved.append(name)
        if error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and state.topic_id == NO_TOPIC_ID:
            # 1. The topic is deleted at epoch 5.
            # 2. A broker reports the topic as unknown.
            # 3. The topic is created again at epoch 0.
            # Without an id to distinguish the two, epoch 5 would hide the new leader permanently.
            state.forget_epochs()


def _nothing_changed() -> MetadataChange:
    return MetadataChange([], [], [], {}, set(), set(), set(), set())
