"""What is known of the cluster, and when to ask again.

Owns brokers, the topics in use, and the decision when to send which Metadata request; one topic's
partitions and leaders are ``topic_state.py``'s. Does not send the request, choose the broker to ask, or
wait. Everything happens in the caller's thread and under the caller's lock; only the ``ClusterView`` it
hands out is free of that. Times are milliseconds on the caller's clock.

Why an update becomes due, and how soon:
    nothing is known yet, ``request_update``    at once, but full updates keep the first backoff apart
    a topic was tracked                         at once, for the new topics alone
    a topic had a retriable error or no leader  after a growing backoff, for these topics alone
    ``metadata_max_age_ms`` passed              then
    the last request failed                     any of the above, not before a growing backoff
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from cyproducer.control.apis import NO_TOPIC_ID, MetadataResponse
from cyproducer.control.cluster_view import BrokerMetadata, ClusterView, TopicView
from cyproducer.control.connections import cause_text
from cyproducer.control.retry import ExponentialBackoff
from cyproducer.control.topic_state import TopicState

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
TOPIC_AUTHORIZATION_FAILED = 29
REBOOTSTRAP_REQUIRED = 129

#: Topic errors that waiting does not cure; every other one may pass.
FINAL_TOPIC_ERRORS = frozenset({INVALID_TOPIC, TOPIC_AUTHORIZATION_FAILED})


class MetadataRequest(NamedTuple):
    """What to ask a broker for; no topics means the brokers alone."""

    topics: list[str]
    #: Whether only some of the tracked topics are asked for.
    partial: bool
    #: Topics nobody used for ``metadata_max_idle_ms``: they have just been forgotten.
    expired: list[str]


class MetadataChange(NamedTuple):
    """What a response changed."""

    #: Topics whose partitions became known, grew or were replaced, or whose id became known.
    topics_changed: list[str]
    #: Those of them that exist under another topic id than before: deleted and created again.
    topics_recreated: list[str]
    #: Partitions known before that have another leader now, or none any more.
    leaders_moved: list[tuple[str, int]]
    #: Topic -> error code, for every topic that has one; see ``FINAL_TOPIC_ERRORS``.
    topic_errors: dict[str, int]
    brokers_added: set[int]
    brokers_removed: set[int]
    #: Brokers that are at another host or port now.
    brokers_moved: set[int]


class LastError(NamedTuple):
    """Why the last update failed."""

    cause: str
    at_ms: float


class ClusterMetadata:
    """The cluster as far as it is known, and the updates it needs."""

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
            bootstrap: hosts and ports to begin with, and to come back to.
            random: returns a float in [0, 1), for jitter.
            metadata_max_age_ms: a full update is due after this long without one.
            metadata_max_idle_ms: a topic is forgotten after this long without use.
            retry_backoff_ms: first wait after a failure, and least time between full updates.
            retry_backoff_max_ms: longest wait after a failure.
            rebootstrap: whether ever to start over from the bootstrap addresses.
            rebootstrap_trigger_ms: updates that fail for this long call for a rebootstrap (KIP-1102).
        """
        self.bootstrap_addresses = tuple(bootstrap)
        self.cluster_id: str | None = None
        self.controller_id: int | None = None
        self.last_error: LastError | None = None
        #: Why a full update is wanted before its time; None where it is not.
        self.update_reason: str | None = "nothing is known yet"
        self._random = random
        self._max_age_ms = metadata_max_age_ms
        self._max_idle_ms = metadata_max_idle_ms
        self._may_rebootstrap = rebootstrap
        self._rebootstrap_trigger_ms = rebootstrap_trigger_ms
        self._backoff = ExponentialBackoff(retry_backoff_ms, retry_backoff_max_ms)
        self._brokers: dict[int, BrokerMetadata] = {}
        #: Brokers that a Produce response named and no metadata has listed yet.
        self._unlisted: set[int] = set()
        self._topics: dict[str, TopicState] = {}
        self._view: ClusterView | None = None
        self._in_flight: MetadataRequest | None = None
        self._last_full_ms = -math.inf
        #: Topics never asked for, and topics to ask for again at ``_again_at_ms``.
        self._new: dict[str, None] = {}
        self._again: dict[str, None] = {}
        self._again_attempts = 0
        self._again_at_ms = -math.inf
        self._failures = 0
        self._failing_since_ms = math.inf
        self._not_before_ms = -math.inf

    # What the caller uses

    def track(self, topic: str, now_ms: float) -> bool:
        """Makes a topic one of those to know about, and counts as use of it.

        Returns:
            Whether an update became due for it: it is new, or its last answer was a final error that is
            old enough to ask again.
        """
        state = self._topics.get(topic)
        if state is None:
            self._topics[topic] = TopicState(now_ms)
        else:
            state.last_used_ms = now_ms
            # A final error is believed for one backoff, lest each record sent makes a request.
            asked_again_at_ms = state.error_at_ms + self._backoff.initial_ms
            if state.error_code not in FINAL_TOPIC_ERRORS or now_ms < asked_again_at_ms:
                return False
            state.error_code = 0
        self._new[topic] = None
        return True

    def ask_anew(self, topic: str, now_ms: float) -> None:
        """Has a topic asked for now, whatever is known of it; counts as use of it."""
        self._topics.setdefault(topic, TopicState(now_ms)).last_used_ms = now_ms
        self._new[topic] = None

    def touch(self, topics: Iterable[str], now_ms: float) -> None:
        """Counts as use of these topics; those not tracked are passed over."""
        for topic in topics:
            state = self._topics.get(topic)
            if state is not None:
                state.last_used_ms = now_ms

    def leader(self, topic: str, partition: int) -> int | None:
        """The node that leads a partition; None where there is none, or it is not a known broker."""
        state = self._topics.get(topic)
        if state is None:
            return None
        node_id = state.leaders.get(partition, -1)
        return node_id if node_id in self._brokers else None

    def leader_epoch(self, topic: str, partition: int) -> int:
        """The newest leader epoch seen of a partition, -1 where none is known."""
        state = self._topics.get(topic)
        return -1 if state is None else state.epochs.get(partition, -1)

    def partition_count(self, topic: str) -> int | None:
        """How many partitions a topic has; None while that is unknown."""
        state = self._topics.get(topic)
        return None if state is None or not state.leaders else len(state.leaders)

    def is_gone(self, topic: str, partition: int) -> bool:
        """Whether a partition that was there once is no more for certain.

        Topics don't shrink, they are deleted and created anew, and only the id tells that from an answer
        of a broker that lags behind (KIP-516).
        """
        count = self.partition_count(topic)
        return count is not None and partition >= count and self.topic_id(topic) is not None

    def topic_id(self, topic: str) -> bytes | None:
        """The topic's 16-byte id; None where it is unknown (KIP-516)."""
        state = self._topics.get(topic)
        return None if state is None or state.topic_id == NO_TOPIC_ID else state.topic_id

    def topic_error(self, topic: str) -> int:
        """The error code of the last answer about a topic; 0 for none."""
        state = self._topics.get(topic)
        return 0 if state is None else state.error_code

    def broker(self, node_id: int) -> BrokerMetadata | None:
        """A broker by its node id, None where it is unknown."""
        return self._brokers.get(node_id)

    def broker_ids(self) -> Sequence[int]:
        """The node ids of all known brokers; empty until bootstrapped."""
        return list(self._brokers)

    def tracked_topics(self) -> Sequence[str]:
        """The topics to know about, answered or not."""
        return list(self._topics)

    def view(self) -> ClusterView:
        """A frozen picture, the same object until something changes."""
        if self._view is None:
            topics = {}
            for name, state in self._topics.items():
                if state.leaders:
                    topics[name] = TopicView(state.share_leaders(), state.is_internal)
            self._view = ClusterView(dict(self._brokers), topics, self.cluster_id, self.controller_id)
        return self._view

    def age_ms(self, now_ms: float) -> float:
        """How long ago the last full update was; NaN where there was none. Any thread."""
        return now_ms - self._last_full_ms if self._last_full_ms > -math.inf else math.nan

    def describe_last_error(self, now_ms: float) -> str | None:
        """The last failure and its age in words; None while the last update succeeded."""
        if self.last_error is None:
            return None
        cause, at_ms = self.last_error
        return f"{cause}, {max(0.0, now_ms - at_ms) / 1000:.1f} s ago"

    # When and what to ask

    def request_update(self, reason: str) -> None:
        """Asks for a full update, such as after a broker said that it does not lead a partition."""
        self.update_reason = reason

    def next_update_ms(self, now_ms: float) -> float:
        """How long until a request is due: 0 for now, infinity while one is in flight."""
        if self._in_flight is not None:
            return math.inf
        due_ms = min(self._full_due_ms(), self._again_at_ms if self._again else math.inf)
        if self._new:
            due_ms = now_ms
        return max(0.0, due_ms - now_ms, self._not_before_ms - now_ms)

    def is_full_due(self, now_ms: float) -> bool:
        """Whether a request that begins now asks for everything whatever else is wanted."""
        return now_ms >= self._full_due_ms()

    def begin_request(self, now_ms: float) -> MetadataRequest:
        """What to ask for now; ``on_response`` or ``on_failure`` has to follow.

        Raises:
            RuntimeError: a request is in flight already.
        """
        if self._in_flight is not None:
            raise RuntimeError("a metadata request is in flight already, only one at a time is allowed")
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
        """The request got no usable answer; it will be repeated after a backoff.

        Args:
            cause: what happened and at which broker, for the errors of whoever waits.
            now_ms: the time.
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
        """Takes a broker's answer to the request in flight.

        An answer that is an error as a whole, or without brokers (one that is still starting), counts as
        a failure. Topics nobody asked for are passed over.

        Raises:
            RuntimeError: no request is in flight.
        """
        request = self._in_flight
        if request is None:
            raise RuntimeError("no metadata request is in flight that this could be the response to")
        change = MetadataChange([], [], [], {}, set(), set(), set())
        if response.error_code or not response.brokers:
            self.on_failure(
                f"metadata response with error code {response.error_code}"
                if response.error_code
                else "metadata response without brokers",
                now_ms,
            )
            # Not over and over: where nothing is known, what says so is a bootstrap server.
            if response.error_code == REBOOTSTRAP_REQUIRED and self._may_rebootstrap and self._brokers:
                change.brokers_removed.update(self.rebootstrap())
            return change
        self._in_flight = None
        self.last_error = None
        self._failures = 0
        self._failing_since_ms = math.inf
        if not request.partial:
            self._last_full_ms = now_ms
        self._take_brokers(response, change)
        unresolved = self._take_topics(request, response, change, now_ms)
        if self._unlisted:
            leading = {node_id for state in self._topics.values() for node_id in state.leaders.values()}
            for node_id in self._unlisted - leading:
                self._unlisted.remove(node_id)
                del self._brokers[node_id]
                change.brokers_removed.add(node_id)
        for topic in request.topics:
            self._again.pop(topic, None)
        if unresolved:
            self._again.update(dict.fromkeys(unresolved))
            self._again_attempts += 1
            self._again_at_ms = now_ms + self._backoff.delay_ms(self._again_attempts, self._random)
        elif not self._again:
            self._again_attempts = 0
        self._view = None
        return change

    def update_leader(
        self,
        topic: str,
        partition: int,
        node_id: int,
        leader_epoch: int,
        endpoint: BrokerMetadata | None = None,
    ) -> bool:
        """Takes a new leader that a Produce response named (KIP-951).

        Args:
            endpoint: where that leader is, for brokers not known yet.

        Returns:
            Whether it was taken: the partition is known, the epoch newer than the known one, and the
            broker known or given.
        """
        state = self._topics.get(topic)
        if (
            state is None
            or partition not in state.leaders
            or leader_epoch <= state.epochs.get(partition, -1)
            or (node_id not in self._brokers and (endpoint is None or endpoint.nodeId != node_id))
        ):
            return False
        if endpoint is not None and endpoint.nodeId == node_id:
            if node_id not in self._brokers:
                self._unlisted.add(node_id)
            self._brokers[node_id] = endpoint
        state.move_leader(partition, node_id, leader_epoch)
        self._view = None
        return True

    # Starting over

    def rebootstrap_reason(self, now_ms: float, all_unreachable: bool) -> str | None:
        """Why to start over from the bootstrap addresses; None where there is no reason (KIP-899, KIP-1102).

        Args:
            all_unreachable: whether a connection attempt to every known broker failed since it was last
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
        """Forgets all brokers, and wants a full update at once. Topics and epochs are kept.

        Returns:
            The nodes that were forgotten.
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
        expired = [
            name for name, state in self._topics.items() if now_ms - state.last_used_ms >= self._max_idle_ms
        ]
        for name in expired:
            del self._topics[name]
            self._again.pop(name, None)
        return expired

    def _take_brokers(self, response: MetadataResponse, change: MetadataChange) -> None:
        brokers = {info.node_id: BrokerMetadata(*info) for info in response.brokers}
        self._unlisted -= brokers.keys()
        # Whoever answers may not have heard yet of a broker that leads a partition already.
        brokers.update((node_id, self._brokers[node_id]) for node_id in self._unlisted)
        for node_id, broker in brokers.items():
            known = self._brokers.get(node_id)
            if known is None:
                change.brokers_added.add(node_id)
            elif (known.host, known.port) != (broker.host, broker.port):
                change.brokers_moved.add(node_id)
        change.brokers_removed.update(self._brokers.keys() - brokers.keys())
        self._brokers = brokers
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id if response.controller_id >= 0 else None

    def _take_topics(
        self, request: MetadataRequest, response: MetadataResponse, change: MetadataChange, now_ms: float
    ) -> list[str]:
        """Returns the topics to ask for again."""
        answers = {info.name: info for info in response.topics if info.name is not None}
        unresolved = []
        for name in request.topics:
            state = self._topics[name]
            info = answers.get(name)
            error_code = UNKNOWN_TOPIC_OR_PARTITION if info is None else info.error_code
            state.error_code = error_code
            if info is not None and error_code == 0:
                merged = state.merge(info)
                if merged.changed:
                    change.topics_changed.append(name)
                if merged.recreated:
                    change.topics_recreated.append(name)
                change.leaders_moved.extend((name, partition) for partition in merged.moved)
                if not info.partitions or not self._brokers.keys() >= set(state.leaders.values()):
                    unresolved.append(name)
                continue
            state.error_at_ms = now_ms
            change.topic_errors[name] = error_code
            if error_code in FINAL_TOPIC_ERRORS:
                if state.leaders:
                    change.topics_changed.append(name)
                state.forget_partitions()
                continue
            unresolved.append(name)
            if error_code == UNKNOWN_TOPIC_OR_PARTITION and state.topic_id == NO_TOPIC_ID:
                # 1. The topic is deleted at epoch 5.  2. A broker says that it is unknown.  3. It is
                # created again at epoch 0. Without an id to tell the two apart, epoch 5 would hide
                # the new leader for good.
                state.forget_epochs()
        return unresolved
