"""Generates a history from a seed: a configuration, a cluster, and scheduled events.

Owns every choice that is made in advance. Does not carry it out (``simulate``). A history depends only on the
seed, as long as neither the product nor the model changes.

Times are milliseconds from the start. A history is short and full of trouble: timeouts are a fraction of
realistic values, so that each of them expires now and then.
"""

import random
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.scripted.scripted_sasl import SaslServer
from tests.scripted.scripted_wire import (
    API_VERSIONS,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tests.simulation.model_broker import Manners
from tests.simulation.model_produce import REJECTED
from tests.simulation.model_sasl import FAULTS, SaslManners, bearer


class Event(NamedTuple):
    """A scheduled event: the name of a method of ``simulate.Simulation``, and its arguments."""

    at_ms: float
    name: str
    args: tuple[Any, ...] = ()


@dataclass(kw_only=True)
class Circumstances:
    """What is known about a history of any kind before it starts."""

    seed: int
    options: dict[str, Any]
    manners: Manners
    nodes: int
    events: list[Event] = field(default_factory=list)
    delay_ms: tuple[float, float] = (0.0, 0.0)
    splits: float = 0.0
    narrow: bool = False
    step_ms: float = 0.0
    lag_ms: tuple[float, float] = (0.0, 0.0)
    """How long brokers take to learn about a new leader."""
    heals_at_ms: float = 0.0
    """When all trouble ends; infinity if it never does."""
    frozen: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of the times in which the client's process does not run."""


@dataclass(kw_only=True)
class History(Circumstances):
    """A history of single records."""

    topics: dict[str, tuple[int, float]]
    """The number of partitions of each topic, and when it is created."""
    closes_at_ms: float | None = None
    """When the client is closed, even with records in flight; None: when every record is done."""
    sequences_left: int = 0
    """The sequences left before they wrap, after a partition's first batch is acknowledged; 0: 2**31."""
    sasl: SaslManners | None = None
    """How brokers authenticate the client; None: they do not."""
    is_far: bool = False
    """Whether answers take long enough for batches to grow beyond ``batch_size``."""
    asks_vault: bool = False
    """Whether the client gets its credentials from a function, which may be slow or fail."""


ALL, LEADER, NOBODY = -1, 1, 0
PROBE = b"probe"
AUTHENTICATED = 0.3
"""The share of histories in which brokers require authentication."""
PASSWORD = "secret"
NEW_TOPIC = "n"
LARGEST_FAR_RECORD = 250
"""Bytes that the value of a record to far brokers may have."""
FORGETS_AFTER_MS = 70_000.0
"""How long a producer must be idle before brokers forget it: in Kafka a day, for the client a minute."""

# (error code, whether the records are in the log anyway, relative frequency)
FAULTS_OF_ALL = [
    (19, False, 3),  # NOT_ENOUGH_REPLICAS
    (20, True, 3),  # NOT_ENOUGH_REPLICAS_AFTER_APPEND
    (7, True, 3),  # REQUEST_TIMED_OUT
    (7, False, 1),
    (-1, True, 1),  # UNKNOWN_SERVER_ERROR
    (-1, False, 1),
    (6, False, 2),  # NOT_LEADER_OR_FOLLOWER
    (6, True, 2),
    (56, False, 1),  # KAFKA_STORAGE_ERROR
    (56, True, 1),
    (3, False, 1),  # UNKNOWN_TOPIC_OR_PARTITION
    (2, False, 1),  # CORRUPT_MESSAGE
]
REFUSALS = [(29, False, 1), (87, False, 1)]  # TOPIC_AUTHORIZATION_FAILED, INVALID_RECORD


def history_of(seed: int, idempotence: bool | None = None, authentication: bool | None = None) -> History:
    """Returns the history of a seed.

    Args:
        seed: decides all that the other arguments leave open.
        idempotence: whether the client uses it; None: random.
        authentication: whether brokers require it; None: random.
    """
    rng = random.Random(seed)
    idempotent = rng.random() < 0.6
    if idempotence is not None:
        idempotent = idempotence
    options = options_of(rng, idempotent)
    nodes = rng.choice((1, 2, 3, 3))
    options["bootstrap_servers"] = [f"b{node}:9092" for node in range(1, nodes + 1)]
    history = History(
        seed=seed,
        options=options,
        manners=_manners(rng, options, idempotent),
        nodes=nodes,
        topics={"t": (rng.choice((1, 1, 2, 3)), 0.0)},
        delay_ms=rng.choice(((0.01, 0.01), (0.1, 0.5), (0.1, 5.0), (1.0, 20.0))),
        splits=rng.choice((0.0, 0.0, 0.2)),
        narrow=rng.random() < 0.1,
        step_ms=rng.choice((0.0, 0.0, 0.05, 2.0)),
        lag_ms=rng.choice(((0.0, 0.0), (0.0, 10.0), (0.0, 100.0))),
    )
    if rng.random() < 0.2:
        born_ms = rng.choice((0.0, rng.uniform(0, 100), rng.uniform(0, options["max_block_ms"] * 1.2)))
        history.topics["u"] = (rng.choice((1, 2)), born_ms)
    length_ms = rng.choice((50.0, 200.0, 600.0, 1500.0))
    # Authentication has its own random generator, so that adding it did not change all other histories.
    sasl_rng = random.Random(seed ^ 0x5A51)
    authenticates = sasl_rng.random() < AUTHENTICATED
    if authentication is not None:
        authenticates = authentication
    if authenticates:
        # Sessions cannot be renewed within a second.
        length_ms = sasl_rng.choice((1500.0, 2000.0, 3000.0))
        _add_authentication(sasl_rng, history, length_ms)
    _add_sends(rng, history, length_ms)
    if history.sasl:
        history.topics[NEW_TOPIC] = (1, 0.0)
    history.heals_at_ms = length_ms + rng.choice((0.0, 0.0, 200.0))
    if rng.random() < 0.1:
        history.heals_at_ms = float("inf")
    # In the middle of other trouble, connections hardly live long enough for a renewal.
    if rng.random() < 0.9 and not (history.sasl and sasl_rng.random() < 0.5):
        _add_trouble(rng, history, length_ms)
    if rng.random() < 0.1:
        history.closes_at_ms = rng.uniform(0, length_ms * 1.5)
    if rng.random() < 0.1 and not (history.sasl and history.sasl.server.lifetime_ms):
        # Otherwise with hundreds of renewals.
        _add_idleness(rng, history)
    else:
        _add_probe(history)
    _add_limits(random.Random(~seed), history)
    _add_rejected(random.Random(seed ^ 0x467), history)
    _add_topics_made_anew(random.Random(seed ^ 0xDE1), history, length_ms)
    _add_forgetting(random.Random(seed ^ 0xF06), history)
    _add_distance(random.Random(seed ^ 0xFA2), history, length_ms)
    _add_flushes(random.Random(seed ^ 0xF1), history, length_ms)
    _add_topic_options(random.Random(seed ^ 0x707), history)
    history.events.sort(key=lambda event: event.at_ms)
    return history


def options_of(rng: random.Random, idempotent: bool) -> dict[str, Any]:
    linger_ms = rng.choice((0, 0, 1, 5, 20))
    request_timeout_ms = rng.choice((30, 60, 150, 400))
    options: dict[str, Any] = {
        "client_id": "sim",
        "linger_ms": linger_ms,
        "batch_size": rng.choice((0, 200, 300, 600, 2000, 16384)),
        "compression_type": rng.choice((None, None, None, "lz4", "gzip", "snappy", "zstd")),
        "max_in_flight_requests_per_connection": rng.choice((1, 2, 3, 5, 5, 5)),
        "request_timeout_ms": request_timeout_ms,
        "delivery_timeout_ms": linger_ms + request_timeout_ms + rng.choice((0, 20, 200, 500, 2000)),
        "retry_backoff_ms": rng.choice((0, 1, 10, 40)),
        "retry_backoff_max_ms": rng.choice((40, 100)),
        "reconnect_backoff_ms": rng.choice((1, 1, 10, 40)),
        "reconnect_backoff_max_ms": rng.choice((40, 150)),
        "socket_connection_setup_timeout_ms": rng.choice((50, 150)),
        "socket_connection_setup_timeout_max_ms": rng.choice((150, 300)),
        "metadata_max_age_ms": rng.choice((100, 500, 300_000)),
        "max_block_ms": rng.choice((100, 500, 2000)),
        "connections_max_idle_ms": rng.choice((50, 300, 540_000)),
        "enable_idempotence": idempotent,
    }
    if not idempotent:
        options["acks"] = rng.choice((ALL, ALL, LEADER, LEADER, NOBODY))
        options["retries"] = rng.choice((0, 1, 3, 2**31 - 1, 2**31 - 1))
    elif rng.random() < 0.2:
        options["retries"] = rng.choice((1, 3, 10))
    return options


def _manners(rng: random.Random, options: dict[str, Any], idempotent: bool) -> Manners:
    produce = rng.choice((9, 10, 12, 13, 13))
    manners = Manners(
        versions={
            PRODUCE: (3, produce),
            METADATA: (1, 13 if produce == 13 else rng.choice((9, 12, 13))),
            API_VERSIONS: (0, 4),
            INIT_PRODUCER_ID: (0, rng.choice((0, 1, 3, 4, 5))),
        },
        handling_ms=rng.choice(((0.0, 0.0), (0.0, 1.0), (0.0, 10.0), (5.0, 40.0))),
        zombie_ms=rng.choice(((0.0, 5.0), (0.0, 100.0), (0.0, 1000.0))),
        zombies=rng.choice((0.0, 0.5, 1.0)),
        replication_ms=rng.choice(((0.0, 0.0), (0.0, 5.0), (0.0, options["request_timeout_ms"] * 1.3))),
        message_max_bytes=rng.choice((1 << 20, 1 << 20, 1 << 20, 700, 400)),
        old_rules=rng.random() < 0.2,
        tells_duplicates=rng.random() < 0.2,
        tells_leader=rng.random() < 0.5,
        throttles=rng.choice((0.0, 0.0, 0.0, 0.3)),
        throttle_ms=rng.choice((5, 50)),
        faults=[f for f in FAULTS_OF_ALL if options.get("acks", ALL) == ALL or f[0] not in (7, 19, 20)],
        fault_rate=rng.choice((0.0, 0.0, 0.05, 0.3)),
    )
    if rng.random() < 0.1:
        manners.faults = manners.faults + REFUSALS
    if idempotent:
        # COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, CLUSTER_AUTHORIZATION_FAILED
        manners.id_faults = rng.choice(([15], [14, 15], [15]))
        manners.id_fault_rate = rng.choice((0.0, 0.0, 0.3))
        if rng.random() < 0.02:
            manners.id_faults, manners.id_fault_rate = [31], 0.7
        if rng.random() < 0.1:
            manners.first_epoch = rng.choice((32765, 32766, 32767))
    return manners


def _add_sends(rng: random.Random, history: History, length_ms: float) -> None:
    count = rng.choice((1, 5, 15, 30, 50))
    largest = rng.choice((10, 60, 60, 250, 800))
    keyed, placed = rng.choice((0.0, 0.5, 1.0)), rng.choice((0.0, 0.0, 0.5, 1.0))
    at_ms, bursts = 0.0, rng.choice((0.0, 0.5, 0.9))
    names = list(history.topics)
    for _ in range(count):
        if rng.random() >= bursts:
            at_ms = rng.uniform(0, length_ms)
        topic = rng.choice(names)
        partition = rng.randrange(history.topics[topic][0]) if rng.random() < placed else None
        key = b"k%d" % rng.randrange(6) if rng.random() < keyed else None
        value = b"x" * rng.randrange(largest)
        if rng.random() < 0.3:
            value = rng.randbytes(len(value))
        history.events.append(Event(at_ms, "send", (topic, value, key, partition)))


def _add_trouble(rng: random.Random, history: History, length_ms: float) -> None:
    add = history.events.append
    kinds = rng.sample(
        ("cut", "move", "crash", "pause", "stall", "swallow", "refuse", "freeze", "wall", "grow"),
        rng.choice((1, 2, 3, 5)),
    )
    for _ in range(rng.choice((1, 2, 4, 8))):
        at_ms, kind = rng.uniform(0, length_ms), rng.choice(kinds)
        node = rng.randint(1, history.nodes)
        span_ms = rng.choice((5.0, 50.0, 200.0, 500.0)) * rng.random()
        if kind == "wall":
            add(Event(at_ms, "wall", (rng.choice((-3_600_000, -50, 50, 3_600_000)),)))
        elif kind == "grow":
            add(Event(at_ms, "grow", ()))
        else:
            add_broken(rng, history, at_ms, kind, node, span_ms)
            if kind == "move" and rng.random() < 0.3:
                add(Event(at_ms + span_ms, "move", (rng.random(), rng.randint(1, history.nodes), True)))


def add_broken(
    rng: random.Random, history: Circumstances, at_ms: float, kind: str, node: int, span_ms: float
) -> None:
    """Adds trouble that histories of any kind have: ``kind`` is a method of ``trouble.Trouble``."""
    add = history.events.append
    if kind in ("cut", "swallow"):
        for again in range(rng.choice((1, 1, 3))):
            add(Event(at_ms + again * span_ms, kind, (node,)))
    elif kind == "move":
        add(Event(at_ms, "move", (rng.random(), node, rng.random() < 0.6)))
    elif kind == "crash":
        add(Event(at_ms, "crash", (node,)))
        if rng.random() < 0.8:
            add(Event(at_ms + span_ms * rng.random(), "fail_over", (node, rng.random() < 0.5)))
        add(Event(at_ms + span_ms, "start", (node,)))
    elif kind == "freeze":
        history.frozen.append((at_ms, at_ms + span_ms))
        add(Event(at_ms, "freeze", (span_ms,)))
    else:
        add(Event(at_ms, kind, (node, span_ms)))


def _add_authentication(rng: random.Random, history: History, length_ms: float) -> None:
    """Makes brokers require authentication, with trouble of its own."""
    options, versions = history.options, history.manners.versions
    mechanism = rng.choice(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "OAUTHBEARER"))
    lifetime_ms = rng.choice((0, 300, 900, 1100, 1100, 1200, 1200, 1200, 1500, 1500))
    versions[SASL_HANDSHAKE] = (0, 1)
    versions[SASL_AUTHENTICATE] = (0, rng.choice((1, 2, 2) if lifetime_ms else (0, 1, 2)))
    own = mechanism == "OAUTHBEARER"
    history.sasl = SaslManners(
        server=SaslServer(
            users={"alice": PASSWORD},
            mechanisms=("PLAIN", mechanism),
            # The client hashes more than 16384 iterations in a background task.
            iterations=rng.choice((4096,) * 9 + (16_385,)),
            lifetime_ms=lifetime_ms,
            own=bearer(True) if own else None,
        ),
        refusing=SaslServer(
            users=rng.choice(({}, {"alice": "another"})),
            mechanisms=("PLAIN", mechanism),
            own=bearer(False) if own else None,
        ),
        refusal_ms=rng.choice(((0.0, 0.0), (0.0, 100.0))),
    )
    history.asks_vault = own or rng.random() < 0.3
    options.update(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        # More round trips than without.
        socket_connection_setup_timeout_ms=rng.choice((300, 600)),
        socket_connection_setup_timeout_max_ms=1200,
        connections_max_idle_ms=rng.choice((300, *(540_000,) * 5)),
        authentication_backoff_ms=2 * options["reconnect_backoff_max_ms"],
        # Longer than a short session keeps a connection waiting.
        max_block_ms=max(options["max_block_ms"], 1500),
    )
    if not own:
        options.update(sasl_plain_username="alice", sasl_plain_password=PASSWORD)
    add = history.events.append
    # The first sessions are renewed in this time.
    begin_ms, end_ms = max(1050.0, 0.85 * lifetime_ms), max(1150.0, lifetime_ms + 100.0)
    if lifetime_ms and rng.random() < 0.7:
        # Requests are in flight meanwhile.
        for _ in range(rng.choice((10, 30))):
            add(Event(rng.uniform(begin_ms, end_ms), "send", ("t", b"renew", None, None)))
        # Metadata is missing meanwhile.
        add(Event(rng.uniform(begin_ms, end_ms), "send", (NEW_TOPIC, b"new", None, None)))
    # Otherwise the history may be over before.
    add(Event(end_ms + 200, "send", ("t", b"after", None, None)))
    if history.asks_vault and rng.random() < 0.3:
        # Perhaps until after the end of the session.
        add(Event(begin_ms - 50, "close_vault", (600 * rng.random(),)))
    nodes = range(1, history.nodes + 1)
    if lifetime_ms and rng.random() < 0.4:
        fault, span_ms = rng.choice(FAULTS), rng.choice((100.0, 400.0))
        for node in nodes:
            add(Event(begin_ms, "break_authentication", (node, fault, span_ms)))
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at_ms = rng.choice((0.0, rng.uniform(0, length_ms)))
        span_ms = rng.choice((50.0, 500.0, 500.0, 2000.0)) * rng.random()
        if history.asks_vault and rng.random() < 0.5:
            add(Event(at_ms, rng.choice(("close_vault", "slow_vault")), (span_ms,)))
            continue
        fault = rng.choice(FAULTS)
        for node in nodes if rng.random() < 0.5 else (rng.choice(nodes),):
            add(Event(at_ms, "break_authentication", (node, fault, span_ms)))


def _add_idleness(rng: random.Random, history: History) -> None:
    """Long after all other events, brokers have forgotten the producer, and it sends again."""
    later_ms = FORGETS_AFTER_MS + 20_000.0
    history.options["metadata_max_age_ms"] = 300_000
    history.events.append(Event(later_ms - 1, "expire", ()))
    for _ in range(rng.choice((1, 5))):
        history.events.append(Event(later_ms + rng.random(), "send", ("t", b"late", None, None)))


def _add_limits(rng: random.Random, history: History) -> None:
    """Adds limits that few producers ever reach: the last sequence, and the end of the memory.

    Uses its own random generator, so that adding it did not change all other histories.
    """
    if history.options["enable_idempotence"] and rng.random() < 0.15:
        history.sequences_left = rng.choice((1, 2, 4, 9))
    if rng.random() < 0.08:
        history.options["buffer_memory"] = rng.choice((6000, 10_000, 20_000))
        history.options["batch_size"] = min(history.options["batch_size"], 2000)


def _add_topic_options(rng: random.Random, history: History) -> None:
    """Gives topics settings of their own; with its own generator, like limits."""
    options = history.options
    if rng.random() >= 0.15:
        return
    longest = options["delivery_timeout_ms"] - options["request_timeout_ms"]
    options["topic_options"] = {}
    for pattern in rng.sample(("t", "u*", "*"), rng.choice((1, 2))):
        options["topic_options"][pattern] = entry = {"linger_ms": min(rng.choice((0, 0, 1, 5, 50)), longest)}
        if rng.random() < 0.5:
            entry["compression_type"] = rng.choice((None, "lz4", "gzip", "zstd"))
        if not options["enable_idempotence"] and rng.random() < 0.5:
            entry["acks"] = rng.choice((ALL, LEADER, NOBODY))
    if any(entry.get("acks", ALL) != ALL for entry in options["topic_options"].values()):
        history.manners.faults = [fault for fault in history.manners.faults if fault[0] not in (7, 19, 20)]


def _add_rejected(rng: random.Random, history: History) -> None:
    """Adds records that brokers reject, in batches with others; with its own generator, like limits."""
    if rng.random() >= 0.08:
        return
    history.manners.rejects = True
    history.manners.names_rejected = rng.random() < 0.8
    for number, event in enumerate(history.events):
        if event.name == "send" and event.args[1] != PROBE and rng.random() < 0.15:
            topic, value, *rest = event.args
            history.events[number] = event._replace(args=(topic, REJECTED + value, *rest))


def _add_topics_made_anew(rng: random.Random, history: History, length_ms: float) -> None:
    """Deletes and recreates the topic, with other partitions; with its own generator, like limits.

    Not with brokers before 2.5: they respond with UNKNOWN_PRODUCER_ID, and records that may have been written
    fail then.
    """
    if rng.random() >= 0.08 or history.sequences_left or history.manners.old_rules:
        return
    for _ in range(rng.choice((1, 1, 2))):
        args = (rng.choice((1, 2, 3)), rng.choice((0.0, 0.0, 5.0, 50.0)))
        history.events.append(Event(rng.uniform(0, length_ms), "make_anew", args))


def _add_forgetting(rng: random.Random, history: History) -> None:
    """Makes the client forget topics between two records; with its own generator, like limits."""
    if rng.random() < 0.15:
        history.options["metadata_max_age_ms"] = rng.choice((10, 50))
        history.options["metadata_max_idle_ms"] = rng.choice((1, 10, 50))
        # Time to get its metadata again.
        history.options["max_block_ms"] = max(history.options["max_block_ms"], 500)


def _add_distance(rng: random.Random, history: History, length_ms: float) -> None:
    """Moves the brokers far away, and sends more than their connections carry with batches of ``batch_size``.

    With its own generator, like limits. Not with authentication, which takes many round trips.
    """
    if rng.random() >= 0.08 or history.sasl is not None or history.closes_at_ms is not None:
        return
    history.is_far = True
    history.delay_ms = rng.choice(((30.0, 35.0), (30.0, 60.0), (60.0, 90.0)))
    # Timeouts leave time for a few round trips.
    options = history.options
    options["request_timeout_ms"] = rng.choice((400, 800))
    options["delivery_timeout_ms"] = options["linger_ms"] + rng.choice((1000, 3000))
    options["socket_connection_setup_timeout_ms"] = 300
    options["socket_connection_setup_timeout_max_ms"] = 600
    options["connections_max_idle_ms"] = 540_000
    options["max_block_ms"] = 2000
    options["batch_size"] = rng.choice((200, 400, 600))
    partition = rng.choice((None, 0))
    for _ in range(rng.choice((3, 10))):
        at_ms = rng.uniform(0, length_ms)
        for _ in range(rng.choice((10, 50))):
            value = rng.randbytes(rng.randrange(LARGEST_FAR_RECORD))
            history.events.append(Event(at_ms, "send", ("t", value, None, partition)))


def _add_flushes(rng: random.Random, history: History, length_ms: float) -> None:
    """Makes the client flush; with its own generator, like limits."""
    if rng.random() < 0.15:
        for _ in range(rng.choice((1, 3))):
            history.events.append(Event(rng.uniform(0, length_ms), "flush", ()))


def _add_probe(history: History) -> None:
    """Adds a record that must arrive: all trouble has ended, and there is time to detect its effects."""
    options, manners = history.options, history.manners
    # Time for a request on a connection that swallows it, for a new connection and for another request.
    needed_ms = 2 * options["request_timeout_ms"] + 300
    if history.sasl is not None:
        # Two connections, with four round trips each, and a session that cannot be renewed for a second.
        needed_ms += 8 * (2 * history.delay_ms[1] + manners.handling_ms[1])
        needed_ms += max(0, 1100 - (history.sasl.server.lifetime_ms or 1100))
    has_time = options["delivery_timeout_ms"] >= needed_ms
    if (
        history.closes_at_ms is None
        and history.heals_at_ms < float("inf")
        and has_time
        and options.get("retries", 100) > 5
        and options["request_timeout_ms"] >= 150
        and manners.replication_ms[1] <= options["request_timeout_ms"] / 4
    ):
        options["metadata_max_age_ms"] = max(options["metadata_max_age_ms"], 1000)
        history.events.append(Event(history.heals_at_ms + 5000, "send", ("t", PROBE, None, 0)))
