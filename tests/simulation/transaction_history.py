"""Generates a history of transactions from a seed: options, a cluster, programs and their plans, and trouble.

Owns every choice that is made in advance. Does not carry it out (``transaction_simulate``). As in
``history``, times are milliseconds from the start, and timeouts a fraction of realistic values.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.transactions import TransactionManners
from tests.scripted.scripted_wire import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from tests.simulation.history import FAULTS_OF_ALL, Circumstances, Event, add_broken, options_of
from tests.simulation.model_broker import Manners
from tests.simulation.model_produce import REJECTED
from tests.simulation.transaction_program import Plan, Send, SendOffsets

TRANSACTIONAL_ID = "x"
GROUPS = ("g", "h")
NEVER_MS = float("inf")

APIS = (
    API_VERSIONS,
    PRODUCE,
    METADATA,
    INIT_PRODUCER_ID,
    FIND_COORDINATOR,
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    TXN_OFFSET_COMMIT,
    DESCRIBE_TRANSACTIONS,
)
#: Kafka release -> the highest version of each of these; -1: it does not have the API.
RELEASES = {
    "2.5": (3, 8, 9, 3, 3, 1, 1, 1, 3, -1),
    "2.8": (3, 9, 11, 4, 3, 3, 3, 3, 3, -1),
    "3.8": (3, 11, 12, 5, 5, 5, 4, 4, 4, 0),
    "4.0": (4, 12, 13, 5, 6, 5, 4, 5, 5, 0),
    "4.1": (4, 13, 13, 5, 6, 5, 4, 5, 5, 0),
}
KNOW_LEVELS = ("4.0", "4.1")


@dataclass(kw_only=True)
class TransactionHistory(Circumstances):
    """A history of transactions."""

    transactions: TransactionManners
    topics: dict[str, int]
    """The number of partitions of each topic."""
    plans: list[Plan]
    last_plan: Plan
    """Carried out when all trouble has ended: it must be committed."""
    zombie_plans: list[Plan]
    """Of another program with the same transactional id."""
    zombie_at_ms: float = NEVER_MS
    members: dict[str, str | None] = field(default_factory=dict)
    """Groups with members, and the static instance that the program is."""
    drops_refused: bool = False
    """Whether transactions go on without records that a broker refuses for their content."""
    races: bool = False
    """Whether the other program makes a new producer, too, when its producer was fenced."""

    @property
    def must_commit(self) -> bool:
        """Whether timeouts leave the time for a transaction when all trouble has ended. A connection may
        still swallow everything until its request times out."""
        options, manners = self.options, self.manners
        trips_ms = 2 * self.delay_ms[1] + manners.handling_ms[1] + self.step_ms + manners.throttle_ms
        return bool(
            options["request_timeout_ms"] >= 150
            and options["delivery_timeout_ms"] >= 2 * options["request_timeout_ms"] + 8 * trips_ms + 300
            and options["transaction_timeout_ms"] >= 2000
            and options.get("retries", 100) > 5
            and "buffer_memory" not in options
            and manners.replication_ms[1] <= options["request_timeout_ms"] / 4
        )

    @property
    def level_changes(self) -> bool:
        return any(event.name == "level" for event in self.events)


def transaction_history_of(seed: int) -> TransactionHistory:
    """Returns the history of a seed."""
    rng = random.Random(seed ^ 0x7842_0000)
    options = _options(rng)
    nodes = rng.choice((1, 2, 3, 3))
    options["bootstrap_servers"] = [f"b{node}:9092" for node in range(1, nodes + 1)]
    release = rng.choice(("4.1", "4.1", "4.1", "4.0", "3.8", "2.8", "2.5"))
    level = rng.choice((2, 2, 2, 2, 1, 0)) if release in KNOW_LEVELS else 0
    calm = rng.random() < 0.1
    topics = {"t": rng.choice((1, 2, 3)), "u": 1}
    history = TransactionHistory(
        seed=seed,
        options=options,
        manners=_manners(rng, options, release, calm),
        transactions=_transaction_manners(rng, level, release, calm),
        nodes=nodes,
        topics=topics,
        plans=[_plan(rng, topics) for _ in range(rng.choice((1, 2, 3, 5, 8)))],
        last_plan=_plan(rng, topics),
        zombie_plans=[],
        delay_ms=rng.choice(((0.01, 0.01), (0.1, 0.5), (0.1, 5.0), (1.0, 20.0))),
        splits=rng.choice((0.0, 0.0, 0.2)),
        narrow=rng.random() < 0.05,
        step_ms=rng.choice((0.0, 0.0, 0.05, 2.0)),
        lag_ms=rng.choice(((0.0, 0.0), (0.0, 10.0), (0.0, 100.0))),
    )
    _settle(history.last_plan)
    if rng.random() < 0.4:
        history.members["g"] = rng.choice((None, None, "i"))
    length_ms = rng.choice((50.0, 200.0, 600.0, 1500.0))
    history.heals_at_ms = length_ms + rng.choice((0.0, 200.0))
    if not calm:
        _add_trouble(rng, history, length_ms, release)
    if release in KNOW_LEVELS and rng.random() < 0.2:
        _add_levels(rng, history, length_ms)
    if rng.random() < 0.15:
        history.zombie_at_ms = rng.uniform(0, length_ms)
        history.zombie_plans = [_plan(rng, topics) for _ in range(rng.choice((1, 2)))]
    history.events.sort(key=lambda event: event.at_ms)
    _add_race(random.Random(f"race of {seed}"), history)
    refusals = random.Random(f"refusals of {seed}")
    if not calm and refusals.random() < 0.15:
        _add_refusals(refusals, history)
    return history


def _add_race(rng: random.Random, history: TransactionHistory) -> None:
    """Two programs take the id from each other, again and again; with its own generator, so that adding it
    did not change all other histories."""
    if rng.random() >= 0.08:
        return
    history.races = True
    history.zombie_at_ms = rng.uniform(0, 20)
    history.zombie_plans = [_plan(rng, history.topics) for _ in range(8)]
    history.plans = [_plan(rng, history.topics) for _ in range(8)]
    for plan in (*history.plans, *history.zombie_plans):
        plan.before_ms = 0.0


def _add_refusals(rng: random.Random, history: TransactionHistory) -> None:
    """Brokers refuse records for their content, and transactions go on without these."""
    history.drops_refused = True
    history.manners.rejects = True
    history.manners.names_rejected = rng.random() < 0.7
    rate = rng.choice((0.05, 0.2, 0.5))
    for plan in (*history.plans, *history.zombie_plans):
        for number, act in enumerate(plan.acts):
            if isinstance(act, Send) and rng.random() < rate:
                plan.acts[number] = act._replace(value=REJECTED + act.value)


def _options(rng: random.Random) -> dict[str, Any]:
    options = options_of(rng, True)
    del options["client_id"], options["enable_idempotence"]
    options["transactional_id"] = TRANSACTIONAL_ID
    # Otherwise some histories are thousands of requests to a coordinator that is loading its log.
    options["retry_backoff_ms"] = max(options["retry_backoff_ms"], 1)
    options["transaction_timeout_ms"] = rng.choice((150, 500, 2000, 30_000, 60_000))
    options["linger_ms"] = rng.choice((0, 0, 1, 5, 50))
    options["delivery_timeout_ms"] = (
        options["linger_ms"] + options["request_timeout_ms"] + rng.choice((0, 20, 200, 2000, 20_000))
    )
    if rng.random() < 0.4:
        # Time for everything, so that the last transaction must be committed.
        options["request_timeout_ms"], options["transaction_timeout_ms"] = 400, rng.choice((2000, 60_000))
        options["delivery_timeout_ms"] = options["linger_ms"] + 20_000
        options.pop("retries", None)
    if rng.random() < 0.05:
        options["buffer_memory"] = rng.choice((6000, 10_000, 20_000))
        options["batch_size"] = min(options["batch_size"], 2000)
    return options


def _manners(rng: random.Random, options: dict[str, Any], release: str, calm: bool) -> Manners:
    highest = dict(zip(APIS, RELEASES[release], strict=True))
    manners = Manners(
        versions={api: (0, version) for api, version in highest.items() if version >= 0},
        handling_ms=rng.choice(((0.0, 0.0), (0.0, 1.0), (0.0, 10.0), (5.0, 40.0))),
        zombie_ms=rng.choice(((0.0, 5.0), (0.0, 100.0), (0.0, 1000.0))),
        zombies=rng.choice((0.0, 0.5, 1.0)),
        replication_ms=rng.choice(((0.0, 0.0), (0.0, 5.0))),
        message_max_bytes=rng.choice((1 << 20, 1 << 20, 1 << 20, 1 << 20, 700, 400)),
        tells_leader=rng.random() < 0.5,
        throttles=rng.choice((0.0, 0.0, 0.0, 0.3)),
        throttle_ms=rng.choice((5, 50)),
    )
    if calm:
        manners.message_max_bytes = 1 << 20
        return manners
    if rng.random() < 0.2:
        manners.replication_ms = (0.0, options["request_timeout_ms"] * 1.3)
    manners.faults = list(FAULTS_OF_ALL)
    manners.fault_rate = rng.choice((0.0, 0.0, 0.05, 0.2))
    if rng.random() < 0.1:
        manners.faults.append(
            (
                ErrorCode.TRANSACTION_ABORTABLE
                if release in ("3.8", *KNOW_LEVELS)
                else ErrorCode.INVALID_TXN_STATE,
                False,
                3,
            )
        )
    if rng.random() < 0.1:
        manners.rejects = True
        manners.names_rejected = rng.random() < 0.8
    return manners


def _transaction_manners(rng: random.Random, level: int, release: str, calm: bool) -> TransactionManners:
    manners = TransactionManners(
        level=level,
        log_ms=rng.choice(((0.0, 0.0), (0.0, 2.0), (0.0, 20.0))),
        marker_ms=rng.choice(((0.0, 0.0), (0.5, 5.0), (0.5, 5.0), (0.0, 50.0), (0.0, 300.0))),
        between_ms=rng.choice(((0.0, 0.0), (0.0, 2.0), (0.0, 20.0))),
        load_ms=rng.choice(((0.0, 0.0), (0.0, 50.0), (0.0, 300.0))),
        lag_ms=rng.choice(((0.0, 0.0), (0.0, 10.0), (0.0, 100.0))),
        check_ms=rng.choice((5.0, 50.0, 200.0)),
        fences_late_commits=rng.random() < 0.3,
        makes_topics=rng.random() < 0.2,
    )
    if rng.random() < 0.1:
        manners.first_epoch = rng.choice((32763, 32764, 32765, 32766))
    if not calm:
        # REQUEST_TIMED_OUT, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR,
        # CONCURRENT_TRANSACTIONS
        manners.faults = [7, 14, 15, 16, 51]
        manners.fault_rate = rng.choice((0.0, 0.0, 0.05, 0.3))
        if rng.random() < 0.1:
            manners.faults.append(ErrorCode.TRANSACTION_ABORTABLE)
        if rng.random() < 0.05:
            # UNKNOWN_SERVER_ERROR
            manners.faults.append(-1)
    return manners


def _plan(rng: random.Random, topics: dict[str, int]) -> Plan:
    acts: list[Send | SendOffsets] = []
    pause_ms = rng.choice((0.0, 0.0, 1.0, 20.0, 100.0))
    largest = rng.choice((10, 60, 250, 800))
    for _ in range(rng.choice((0, 1, 1, 3, 8, 20))):
        topic = rng.choice(("t", "t", "t", "u"))
        placed = rng.random() < 0.6
        value = b"x" * rng.randrange(largest)
        if rng.random() < 0.03:
            value = REJECTED + value
        acts.append(
            Send(
                rng.uniform(0, pause_ms),
                topic,
                value,
                b"k%d" % rng.randrange(6) if rng.random() < 0.5 else None,
                rng.randrange(topics[topic]) if placed else None,
            )
        )
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        act = SendOffsets(
            rng.uniform(0, pause_ms),
            rng.choice(GROUPS),
            rng.choice(("t", "u")),
            0,
            rng.random() < 0.7,
            rng.random() < 0.1,
        )
        acts.insert(rng.randint(0, len(acts)), act)
    return Plan(
        acts,
        ends_with=rng.choice(("commit",) * 12 + ("abort",) * 4 + ("prepare", "kill")),
        before_ms=rng.choice((0.0, 0.0, 0.0, rng.uniform(0, 200))),
        idle_ms=rng.choice((0.0,) * 6 + (rng.uniform(0, 50), rng.uniform(0, 1000))),
        timeout_ms=rng.choice((2.0, 20.0, 20.0, 200.0, 200.0, 1000.0, 10_000.0)),
        repeats=rng.choice((1, 3, 20, 200)),
        tries_abort=rng.random() < 0.3,
        heedless=rng.random() < 0.3,
        flushes=rng.random() < 0.5,
    )


def _settle(plan: Plan) -> None:
    """Makes a plan one that must be committed without trouble."""
    plan.ends_with, plan.idle_ms, plan.before_ms = "commit", 0.0, 0.0
    plan.timeout_ms, plan.repeats, plan.tries_abort = 10_000.0, 20, False
    acts: list[Send | SendOffsets] = []
    for act in plan.acts:
        if isinstance(act, SendOffsets):
            acts.append(act._replace(stale=False, after_ms=0.0))
        else:
            value = act.value.removeprefix(REJECTED)[:100]
            acts.append(act._replace(value=value, after_ms=0.0))
    acts.append(Send(0.0, "t", b"probe", None, 0))
    plan.acts = acts


def _add_trouble(rng: random.Random, history: TransactionHistory, length_ms: float, release: str) -> None:
    add = history.events.append
    kinds = rng.sample(
        (
            "cut",
            "move",
            "move_home",
            "crash",
            "pause",
            "stall",
            "swallow",
            "refuse",
            "freeze",
            "kill",
            "deny",
            "level",
            "expire_ids",
            "rebalance",
        ),
        rng.choice((1, 2, 3, 5)),
    )
    for _ in range(rng.choice((1, 2, 4, 8))):
        at_ms, kind = rng.uniform(0, length_ms), rng.choice(kinds)
        node = rng.randint(1, history.nodes)
        span_ms = rng.choice((5.0, 50.0, 200.0, 500.0)) * rng.random()
        if kind == "move_home":
            for again in range(rng.choice((1, 1, 3))):
                add(
                    Event(at_ms + again * span_ms, "move_home", (rng.random(), rng.randint(1, history.nodes)))
                )
        elif kind == "kill":
            add(Event(at_ms, "kill", ()))
        elif kind == "deny":
            own_id = ("id", TRANSACTIONAL_ID)
            denied = rng.choice(
                (("topic", "t"), ("topic", "u"), ("group", "g"), ("group", "h"), own_id, own_id)
            )
            add(Event(at_ms, "deny", (*denied, span_ms)))
        elif kind == "level":
            if release in KNOW_LEVELS:
                add(Event(at_ms, "level", (rng.choice((0, 0, 1, 2)),)))
        elif kind == "expire_ids":
            add(Event(at_ms, "expire_ids", (rng.choice((0.0, 20.0, 200.0)),)))
        elif kind == "rebalance":
            add(Event(at_ms, "rebalance", (rng.choice(("generation", "member")),)))
        else:
            add_broken(rng, history, at_ms, kind, node, span_ms)


def _add_levels(rng: random.Random, history: TransactionHistory, length_ms: float) -> None:
    """Changes the level between and within transactions, which follow each other without pauses."""
    history.plans = [_plan(rng, history.topics) for _ in range(8)]
    for plan in history.plans:
        plan.before_ms = 0.0
        plan.ends_with = rng.choice(("commit", "commit", "commit", "abort"))
        plan.timeout_ms = max(plan.timeout_ms, 200.0)
    for _ in range(rng.choice((1, 2, 4))):
        history.events.append(Event(rng.uniform(0, length_ms), "level", (rng.choice((0, 1, 2, 2)),)))
    history.transactions.marker_ms = rng.choice(((0.5, 5.0), (0.0, 50.0), (0.0, 300.0)))
