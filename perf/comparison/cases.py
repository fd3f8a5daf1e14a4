"""Defines the comparisons and their goals. Only data: ``bench`` runs it, ``report`` prints it.

A *case* is selected by name. It has *contests*, each a row of a table or a point of a plot: this producer and
its peers do the same task, in pairs. Unless stated otherwise, brokers run on this machine, values have 100
bytes, topics have three partitions, acks=all, and idempotence is on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from perf.comparison.figures import OWN, Goal

BrokerKind = Literal["real", "tls", "null", "none"]
"""``tls``: the real broker's encrypted listener. An option ``{ca}`` stands for the file of its authority."""
REAL, NULL = "real broker", "null broker"
_BROKERS: tuple[tuple[str, BrokerKind], ...] = ((REAL, "real"), (NULL, "null"))
TOPIC = "perf"


@dataclass(frozen=True)
class Client:
    """One client with its task."""

    name: str
    run: str
    """``MODULE.FUNCTION`` in ``perf/runs``."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """See ``runs/measuring.Args``."""
    needs: str = ""
    """A third-party module that the run needs."""


@dataclass(frozen=True)
class Contest:
    at: str
    """Its name in tables; unique in its case."""
    own: Client
    peers: tuple[Client, ...] = ()
    broker: BrokerKind = "null"
    topics: Mapping[str, int] = field(default_factory=lambda: {TOPIC: 3})
    x: float = 0
    """Its position on a plot's x axis."""


@dataclass(frozen=True)
class Column:
    metric: str
    title: str
    digits: int = 2
    scale: float = 1.0


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    note: str
    contests: tuple[Contest, ...]
    columns: tuple[Column, ...]
    goals: tuple[Goal, ...] = ()
    plot: bool = False
    axis: str = ""
    """Label of the x axis, if the contests differ in a number."""
    most_pairs: int = 1000
    """Limit of pairs, for a case whose runs are long."""


RATE = Column("records_per_s", "records/s, M", 2, 1e-6)
CPU = Column("cpu_s_per_million", "CPU s per million", 3)
PEAK = Column("peak_mb", "peak MB", 0)
P50, P99 = Column("p50_us", "p50 us", 0), Column("p99_us", "p99 us", 0)

CONFLUENT, CALLBACK, KAFKA_PYTHON, AIOKAFKA = (
    "confluent-kafka",
    "confluent-kafka, a callback each",
    "kafka-python",
    "aiokafka",
)
RAW, RAW_C = "raw socket in Python", "raw socket in C"


def client(name: str, run: str, needs: str = "", **args: Any) -> Client:
    return Client(name, run, args, needs)


def own(run: str, **args: Any) -> Client:
    return client(OWN, run, **args)


def cpu_goal(text: str, at: str, least: float, peer: str = CONFLUENT) -> Goal:
    """The peer's CPU over this producer's."""
    return Goal(text, "cpu_s_per_million", at, at_least=least, peer=peer, peer_by_own=True)


def rate_goal(text: str, at: str, least: float, peer: str = CONFLUENT) -> Goal:
    """This producer's rate over the peer's."""
    return Goal(text, "records_per_s", at, at_least=least, peer=peer)


# send()


def send_contest(at: str, broker: BrokerKind, defaults: bool) -> Contest:
    """Slow clients get fewer records: the figures are per record."""
    settings = {"defaults": True} if defaults else {}
    return Contest(
        at,
        own("own.futures", records=1_000_000),
        (
            client(CONFLUENT, "peers.confluent", "confluent_kafka", records=1_000_000, **settings),
            client(CALLBACK, "peers.confluent_callback", "confluent_kafka", records=1_000_000, **settings),
            client(KAFKA_PYTHON, "peers.kafka_python", "kafka", records=20_000, **settings),
            client(AIOKAFKA, "peers.aiokafka", "aiokafka", records=50_000, **settings),
        ),
        broker,
    )


def send_goals(at: str) -> tuple[Goal, ...]:
    return (
        Goal(f"CPU s per million, {at}", "cpu_s_per_million", at, at_most=0.25, digits=3),
        cpu_goal(f"CPU, confluent-kafka / ours, {at}", at, 4),
        cpu_goal(f"CPU, confluent-kafka with callbacks / ours, {at}", at, 6, CALLBACK),
        cpu_goal(f"CPU, kafka-python / ours, {at}", at, 60, KAFKA_PYTHON),
        rate_goal(f"records/s, ours / confluent-kafka, {at}", at, 2),
    )


SEND = Case(
    "send",
    "send() with a future for every record",
    "All clients use acks=all and idempotence. confluent-kafka has a queue for ten million records, so that "
    "it never waits for space in it. Without callbacks it does not report the outcome of records.",
    (send_contest(REAL, "real", False), send_contest(NULL, "null", False)),
    (RATE, CPU, PEAK),
    send_goals(REAL) + send_goals(NULL),
    plot=True,
)
DEFAULTS = Case(
    "defaults",
    "The same with the peers' default settings",
    "confluent-kafka and aiokafka run without idempotence, aiokafka with acks=1. confluent-kafka waits when "
    "its queue of 100,000 records is full. This producer uses its defaults in both tables.",
    (send_contest(REAL, "real", True), send_contest(NULL, "null", True)),
    (RATE, CPU, PEAK),
)
SEND_ALONE = Case(
    "send-alone",
    "send() alone",
    "Nanoseconds of the calling thread's CPU per call, warm, loop included: the minimum over many rounds of "
    "50,000 calls. The first column is an empty Python function with three parameters.",
    (Contest(NULL, own("own_sweeps.send_alone", records=2_000_000)),),
    (
        Column("empty_ns", "empty function", 0),
        Column("positional_ns", "send(topic, value)", 0),
        Column("keyword_ns", "send(topic, value=value)", 0),
        Column("keyed_ns", "with a key of 16 B", 0),
        Column("headers_ns", "with a header", 0),
    ),
    (
        Goal("ns of send(topic, value)", "positional_ns", NULL, at_most=150, digits=0),
        Goal("ns of send(topic, value=value)", "keyword_ns", NULL, at_most=150, digits=0),
    ),
)

# The usual program

OWN_CONFLUENT, OWN_AIO = "cyproducer.confluent", "cyproducer.aio"


def usual_contest(way: str, at: str, broker: BrokerKind) -> Contest:
    """Slow clients get fewer records."""
    return Contest(
        f"{way}, {at}",
        own("usual.own", records=500_000, way=way),
        (
            client(CONFLUENT, "usual.confluent", "confluent_kafka", records=500_000, way=way),
            client(OWN_CONFLUENT, "usual.confluent", records=500_000, way=way, module=OWN_CONFLUENT),
            client(KAFKA_PYTHON, "usual.kafka_python", "kafka", records=20_000, way=way),
            client(AIOKAFKA, "usual.aiokafka", "aiokafka", records=50_000, way=way),
            client(OWN_AIO, "usual.aiokafka", records=200_000, way=way, module=OWN_AIO),
        ),
        broker,
    )


def usual_goals(way: str, at: str, least: float) -> tuple[Goal, ...]:
    contest = f"{way}, {at}"
    return (
        cpu_goal(f"CPU, confluent-kafka / ours, {contest}", contest, least),
        rate_goal(f"records/s, ours / confluent-kafka, {contest}", contest, 1),
    )


USUAL = Case(
    "usual",
    "The usual program: dicts, a key, a callback for each record",
    "Each client's program as its documentation writes it, with acks=all and idempotence: dicts of 130 bytes "
    "as JSON through a serializer, a string as the key, a callback that counts. Everything counts from the "
    "constructor on. The last column has the program's lines of code (perf/runs/usual.py).",
    tuple(usual_contest(way, at, broker) for way in ("orjson", "json") for at, broker in _BROKERS),
    (RATE, CPU, PEAK, Column("lines", "lines of code", 0)),
    tuple(
        goal
        for at, _ in _BROKERS
        for way, least in (("orjson", 2.2), ("json", 1.4))
        for goal in usual_goals(way, at, least)
    ),
    plot=True,
)

# What a program adds to send()

_ADDED_US = {
    "a serializer, a C function": 0.15,
    "a serializer, a Python function": 0.2,
    "two serializers": 0.3,
    "a callback": 0.4,
    "an interceptor": 1.0,
    "a partitioner": 0.5,
    "send_all()": 0.3,
    "send_many(), headers for each row": 0.1,
    "cyproducer.confluent, on_delivery and poll(0)": 0.4,
    "cyproducer.aio, send() and gather()": 1.0,
    "cyproducer.aio, send_and_wait() in 100 tasks": 1.5,
}
WAYS = Case(
    "ways",
    "What a program adds to send()",
    "CPU per record over a plain `send()` with a key, and over the program's own functions (for asyncio, "
    "over futures of its own that are resolved in bulk), measured in turn in one process "
    "(perf/runs/ways.py). The headers are over `send_many()` without.",
    tuple(Contest(way, own("ways.cost", records=450_000, way=way)) for way in _ADDED_US),
    (Column("added_us", "us more per record"), Column("cpu_s_per_million", "whole, us", 2)),
    tuple(Goal(f"us that it adds: {way}", "added_us", way, at_most=most) for way, most in _ADDED_US.items()),
)

# The other clients' shapes


def confluent_contest(at: str, run: str, broker: BrokerKind) -> Contest:
    return Contest(
        at,
        own(run, records=1_000_000, module="cyproducer.confluent"),
        (client(CONFLUENT, run, "confluent_kafka", records=1_000_000),),
        broker,
    )


def aio_contest(at: str, broker: BrokerKind) -> Contest:
    run = "peers.aiokafka_gather"
    return Contest(
        at,
        own(run, records=500_000, module="cyproducer.aio"),
        (client(AIOKAFKA, run, "aiokafka", records=50_000),),
        broker,
    )


CONFLUENT_SHAPE = Case(
    "confluent",
    "produce() of cyproducer.confluent.Producer",
    "The same program for both, with another import. acks=all and idempotence, a queue for ten million "
    "records. With on_delivery, poll(0) follows every 64 records.",
    tuple(
        confluent_contest(f"{call}, {at}", run, broker)
        for at, broker in _BROKERS
        for call, run in (
            ("produce()", "peers.confluent"),
            ("produce(on_delivery=...)", "peers.confluent_callback"),
        )
    ),
    (RATE, CPU, PEAK),
)
AIO_SHAPE = Case(
    "aio",
    "await send() of cyproducer.aio.AIOKafkaProducer",
    "The same program for both, with another import: a thousand times await send(), then gather() of their "
    "futures, and so on. acks=all and idempotence. aiokafka gets a tenth of the records.",
    tuple(aio_contest(at, broker) for at, broker in _BROKERS),
    (RATE, CPU, PEAK),
)

# Round trips


def get_contest(at: str, broker: BrokerKind) -> Contest:
    return Contest(
        at,
        own("own.blocking", records=20_000),
        (
            client(RAW, "raw.blocking", records=20_000),
            client(RAW_C, "raw.blocking_in_c", records=20_000),
            client(CONFLUENT, "peers.confluent_blocking", "confluent_kafka", records=20_000),
        ),
        broker,
    )


def get_goals(at: str) -> tuple[Goal, ...]:
    return (
        rate_goal(f"round trips/s, ours / raw socket, {at}", at, 0.9, RAW),
        rate_goal(f"round trips/s, ours / confluent-kafka, {at}", at, 1.3),
        Goal(f"p99, ours / confluent-kafka, {at}", "p99_us", at, at_most=1, peer=CONFLUENT),
    )


GET = Case(
    "get",
    "send().get(), one after the other",
    "The raw socket sends one prepared Produce request with one record and waits for the response: the lower "
    "bound. confluent-kafka: produce() and flush(), linger.ms=0.",
    (get_contest(REAL, "real"), get_contest(NULL, "null")),
    (Column("records_per_s", "round trips/s", 0), P50, P99, CPU),
    get_goals(REAL) + get_goals(NULL),
)


def threads_name(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


THREADS = Case(
    "threads",
    "send().get() from many threads on one producer",
    "On the real broker. Records of several threads share requests.",
    tuple(
        Contest(
            threads_name(n),
            own("own_sweeps.threads", records=max(20_000, 1500 * n), threads=n),
            (),
            "real",
            x=n,
        )
        for n in (1, 2, 4, 8, 16, 32, 64)
    ),
    (Column("records_per_s", "round trips/s", 0), P50, P99),
    (
        Goal(
            "round trips/s, 64 threads / 1 thread",
            *("records_per_s", threads_name(64)),
            at_least=8,
            beside=threads_name(1),
        ),
    ),
    plot=True,
    axis="threads",
)

# TLS

PLAIN, TLS, TLS_SLOWLY = "not encrypted", "TLS 1.3", "TLS 1.3 through Python's ssl module"
_OUR_TLS = {"security_protocol": "SSL", "ssl_cafile": "{ca}"}
_THEIR_TLS = {"security.protocol": "SSL", "ssl.ca.location": "{ca}"}


def tls_contests(run: str, peer_run: str, records: int) -> tuple[Contest, ...]:
    def peer(options: Mapping[str, str]) -> Client:
        return client(CONFLUENT, peer_run, "confluent_kafka", records=records, options=options)

    slowly = {**_OUR_TLS, "ssl_without_gil": "false"}
    return (
        Contest(PLAIN, own(run, records=records), (peer({}),), "real"),
        Contest(TLS, own(run, records=records, options=_OUR_TLS), (peer(_THEIR_TLS),), "tls"),
        Contest(TLS_SLOWLY, own(run, records=records, options=slowly), (), "tls"),
    )


TLS_SEND = Case(
    "tls",
    "send() over TLS",
    "On the real broker's TLS listener, and on its plain one in the same run. All with acks=all and "
    "idempotence; confluent-kafka without callbacks.",
    tls_contests("own.futures", "peers.confluent", 1_000_000),
    (RATE, CPU, PEAK),
    (
        cpu_goal("CPU, confluent-kafka / ours, over TLS", TLS, 3),
        rate_goal("records/s, ours / confluent-kafka, over TLS", TLS, 1.3),
        Goal(
            "CPU s per million that TLS adds",
            *("cpu_s_per_million", TLS),
            at_most=0.15,
            above=PLAIN,
            digits=3,
        ),
    ),
)
TLS_GET = Case(
    "tls-get",
    "send().get() over TLS",
    "As above. confluent-kafka: produce() and flush(), linger.ms=0.",
    tls_contests("own.blocking", "peers.confluent_blocking", 10_000),
    (Column("records_per_s", "round trips/s", 0), P50, P99, CPU),
    (rate_goal("round trips/s, ours / confluent-kafka, over TLS", TLS, 1.1),),
)

# Columns


def columnar_contest(at: str, broker: BrokerKind) -> Contest:
    return Contest(
        at,
        own("own.columnar", records=5_000_000),
        (
            client(CONFLUENT, "peers.confluent_batch", "confluent_kafka", records=1_000_000),
            client(RAW_C, "raw.batches", records=5_000_000),
        ),
        broker,
    )


def columnar_goals(at: str) -> tuple[Goal, ...]:
    return (
        Goal(f"CPU s per million, {at}", "cpu_s_per_million", at, at_most=0.08, digits=3),
        cpu_goal(f"CPU, produce_batch / ours, {at}", at, 10),
        rate_goal(f"records/s, ours / raw socket, {at}", at, 0.9, RAW_C),
    )


COLUMNAR = Case(
    "columnar",
    "send_arrow(): ten thousand rows per call",
    "confluent-kafka: produce_batch() of 10,000 prepared dicts. The raw socket sends prepared batches, one "
    "per partition and request, with five requests in flight: the lower bound.",
    (columnar_contest(REAL, "real"), columnar_contest(NULL, "null")),
    (RATE, CPU, PEAK),
    columnar_goals(REAL) + columnar_goals(NULL),
)

# Codecs

CODECS = Case(
    "codecs",
    "Compression at default levels, JSON records of 1,000 bytes",
    "Total CPU, and the CPU that the codec's library alone needs for batches of as many of the same records.",
    tuple(
        Contest(codec, own("own_sweeps.codec", records=n, size=1000, options={"compression_type": codec}))
        for codec, n in (("lz4", 500_000), ("zstd", 300_000), ("snappy", 500_000), ("gzip", 60_000))
    ),
    (
        CPU,
        Column("codec_s_per_million", "the codec alone", 3),
        Column("beside_codec", "total / codec"),
        Column("records_per_batch", "records per batch", 0),
    ),
    tuple(
        Goal(f"CPU, total / codec, {codec}", "beside_codec", codec, at_most=1.25)
        for codec in ("lz4", "zstd", "snappy", "gzip")
    ),
)

# Partitions


def partitions_contest(topics: int, each: int, even: bool) -> Contest:
    total, prefix = topics * each, f"t{topics}x{each}"
    at = f"{total:,} partitions, {'to each in turn' if even else 'no key'}"
    args = {"topic": prefix, "topics": topics, "partitions": each, "even": even, "records": 1_000_000}
    made = {f"{prefix}-{number}": each for number in range(topics)}
    return Contest(at, own("own_sweeps.partitions", **args), (), "null", made, x=total)


_PARTITIONS = ((1, 3), (1, 10), (10, 10), (100, 10), (100, 100))
PARTITIONS = Case(
    "partitions",
    "Cost by number of partitions",
    "Up to 100 topics of 100 partitions, the topics in turn. Without a key, the partitioner fills one batch "
    "of a topic after the other. With records to each partition in turn, all partitions share the memory (32 "
    "MiB), so batches are small.",
    tuple(partitions_contest(topics, each, even) for even in (False, True) for topics, each in _PARTITIONS),
    (CPU, RATE, Column("records_per_batch", "records per batch", 0), PEAK),
    (
        Goal(
            "CPU per record, 10,000 / 3 partitions, no key",
            *("cpu_s_per_million", "10,000 partitions, no key"),
            at_most=1.5,
            beside="3 partitions, no key",
        ),
    ),
    plot=True,
    axis="partitions",
)

# Memory, start

_IDLE = {"topic": "idle", "topics": 100, "partitions": 100}
MEMORY = Case(
    "memory",
    "Memory during a stream of records",
    "Resident memory: the peak above that of a bare interpreter. All clients use their defaults. "
    "kafka-python gets a twentieth of the records.",
    (
        Contest(
            NULL,
            own("memory.own", records=8_000_000),
            (
                client(CONFLUENT, "memory.confluent", "confluent_kafka", records=3_000_000, defaults=True),
                client(KAFKA_PYTHON, "memory.kafka_python", "kafka", records=150_000, defaults=True),
            ),
        ),
    ),
    (Column("above_interpreter_mb", "peak MB above a bare interpreter", 1), RATE),
    (Goal("MB above interpreter and buffer_memory", "above_buffer_mb", NULL, at_most=25, digits=1),),
    plot=True,
)
IDLE = Case(
    "idle-partitions",
    "A producer with 10,000 idle partitions",
    "Growth of resident memory and of malloc's allocations after one record to each partition of 100 topics, "
    "a hundred at a time.",
    (
        Contest(
            "10,000 partitions",
            own("own_sweeps.idle_partitions", **_IDLE),
            (),
            "null",
            {f"idle-{number}": 100 for number in range(100)},
        ),
    ),
    (Column("idle_resident_mb", "resident MB", 1), Column("idle_heap_mb", "malloc MB", 1)),
    (Goal("MB of 10,000 idle partitions", "idle_resident_mb", "10,000 partitions", at_most=10, digits=1),),
)
IMPORT = Case(
    "import",
    "Importing the package",
    "In new interpreters, with files cached. Each value is the median of five.",
    (
        Contest(
            "no broker",
            own("imports.own"),
            (
                client(CONFLUENT, "imports.confluent", "confluent_kafka"),
                client(KAFKA_PYTHON, "imports.kafka_python", "kafka"),
            ),
            "none",
        ),
    ),
    (Column("import_ms", "ms", 0), Column("import_cpu_ms", "CPU ms", 0)),
    (Goal("ms of importing", "import_ms", "no broker", at_most=60, digits=0),),
)
FIRST_ACK = Case(
    "first-ack",
    "From the constructor to the first acknowledged record",
    "The package is already imported, and the topic exists.",
    (
        Contest(
            NULL,
            own("own.first_ack"),
            (
                client(CONFLUENT, "peers.confluent_first_ack", "confluent_kafka"),
                client(KAFKA_PYTHON, "peers.kafka_python_first_ack", "kafka"),
            ),
        ),
    ),
    (Column("first_ack_ms", "ms", 1), Column("first_ack_cpu_ms", "CPU ms", 1)),
    (Goal("ms to the first acknowledgement", "first_ack_ms", NULL, at_most=60, digits=1),),
)

# Plots


def sizes_contest(size: int) -> Contest:
    # About the same number of bytes for all sizes, within the limits of a short run.
    records = max(5_000, min(1_000_000, 300_000_000 // size))
    slow = max(2_000, records // 50)
    return Contest(
        f"{size:,} B",
        own("own.futures", records=records, size=size),
        (
            client(CONFLUENT, "peers.confluent", "confluent_kafka", records=records, size=size),
            client(KAFKA_PYTHON, "peers.kafka_python", "kafka", records=slow, size=size),
        ),
        x=size,
    )


SIZES = Case(
    "sizes",
    "CPU per record by value size",
    "All with the same settings and a future for every record (confluent-kafka without callbacks), on the "
    "null broker.",
    tuple(sizes_contest(size) for size in (10, 100, 1_000, 10_000, 100_000)),
    (CPU, RATE),
    plot=True,
    axis="bytes of a value",
)


def latency_contest(rate: int) -> Contest:
    args = {"rate": rate, "records": 3 * rate}
    return Contest(
        f"{rate:,} records/s",
        own("own.latency", **args),
        (client(CONFLUENT, "peers.confluent_latency", "confluent_kafka", **args),),
        "real",
        x=rate,
    )


LOADS = tuple(
    (rate, linger_ms, f"{rate:,} records/s, linger_ms={linger_ms}")
    for linger_ms in (0, 5)
    for rate in (2_000, 20_000, 100_000)
)
POLLING = "confluent-kafka, polling as it sends"


def load_contest(rate: int, linger_ms: int, at: str) -> Contest:
    args = {"rate": rate, "records": 5 * rate}
    own_args = {**args, "options": {"linger_ms": linger_ms}}
    peer_args = {**args, "options": {"linger.ms": linger_ms}}
    return Contest(
        at,
        own("own.latency", **own_args),
        (client(POLLING, "peers.confluent_latency_polling", "confluent_kafka", **peer_args),),
        x=rate,
    )


LOAD = Case(
    "load",
    "Latency under load, to the callback",
    "A record is due every 1/rate s, for five seconds, on the null broker. Latency counts from the time at "
    "which a record is due until its callback runs. The sending loop polls confluent-kafka while it waits "
    "for the next record to be due.",
    tuple(load_contest(*load) for load in LOADS),
    tuple(
        Column(f"p{name}_ms", f"p{title} ms") for name, title in (("50", "50"), ("99", "99"), ("999", "99.9"))
    ),
    tuple(
        Goal(f"p{title}, ours / confluent-kafka, {at}", f"p{name}_ms", at, at_most=1, peer=POLLING)
        for _, _, at in LOADS
        for name, title in (("50", "50"), ("99", "99"), ("999", "99.9"))
    ),
    plot=True,
)


def pressure_contest(way: str, codec: str | None) -> Contest:
    args: dict[str, Any] = {"size": 1000, "seconds": 60, "way": way, "options": {}}
    peers: tuple[Client, ...] = ()
    if codec:
        args["options"] = {"compression_type": codec}
    if way == "send":
        there = {**args, "options": {"compression.type": codec or "none"}}
        peers = (client(CONFLUENT, "peers.confluent_pressure", "confluent_kafka", **there),)
    return Contest(pressure_name(way, codec), own("own.pressure", **args), peers, "none")


def pressure_name(way: str, codec: str | None) -> str:
    return f"{way}, {codec or 'no codec'}"


PRESSURES = tuple(
    (way, codec)
    for way in ("send", "send_many", "send_arrow")
    for codec in (None, "lz4", "snappy", "zstd", "gzip")
)
PRESSURE = Case(
    "pressure",
    "A minute of exhausted buffer memory",
    "Values of 1 kB (JSON) to one partition with round trips of 20 ms. Both clients use their defaults, "
    "except that confluent-kafka uses idempotence. The broker accepts less than the program sends, so buffer "
    "memory is always exhausted. The rate of the minute's last quarter is compared with that of its second "
    "quarter.",
    tuple(pressure_contest(*each) for each in PRESSURES),
    (
        Column("second_quarter", "records/s, second quarter", 0),
        Column("last_quarter", "last quarter", 0),
        Column("steady", "last / second"),
        Column("batch_bytes", "batch kB", 1, 1e-3),
        CPU,
    ),
    tuple(
        Goal(f"last / second quarter, {name}", "steady", name, at_least=0.95)
        for name in (pressure_name(*each) for each in PRESSURES)
    ),
    plot=True,
    most_pairs=1,
)

FAR_MS = 300


def far_contest(partitions: int) -> Contest:
    args: dict[str, Any] = {"size": 1000, "seconds": 15, "partitions": partitions, "answer_ms": FAR_MS}
    peers = (client(CONFLUENT, "peers.confluent_far", "confluent_kafka", **args),)
    return Contest(far_name(partitions), own("own.far", **args), peers, "none", x=partitions)


def far_name(partitions: int) -> str:
    return f"{partitions} partition{'s' if partitions > 1 else ''}"


FAR = Case(
    "far",
    "A far broker",
    f"As many values of 1 kB as a broker takes that answers each request after {FAR_MS} ms, as one on object "
    "storage does. Both clients use their defaults, except that confluent-kafka is idempotent. The bound is "
    "five batches in flight of the default max.message.bytes for each partition. The first quarter shows how "
    "soon batches have grown.",
    tuple(far_contest(partitions) for partitions in (1, 3, 10, 30)),
    (
        Column("first_quarter", "records/s, first quarter", 0),
        Column("last_quarter", "last quarter", 0),
        Column("of_bound", "last quarter / bound"),
        Column("batch_bytes", "batch kB", 0, 1e-3),
        CPU,
    ),
    (
        Goal("records/s to a far broker / the bound", "of_bound", far_name(3), at_least=0.8),
        Goal(
            "records/s to a far broker, ours / confluent-kafka",
            *("last_quarter", far_name(3)),
            at_least=4,
            peer=CONFLUENT,
        ),
    ),
    axis="partitions",
    most_pairs=3,
)

LATENCY = Case(
    "latency",
    "Latency by record rate",
    "From the time at which a record is due until its callback runs, for three seconds each, on the real "
    "broker. Both clients use linger_ms=0.",
    tuple(latency_contest(rate) for rate in (100, 1_000, 10_000, 30_000, 100_000)),
    tuple(
        Column(f"p{name}_ms", f"p{title} ms")
        for name, title in (("50", "50"), ("90", "90"), ("99", "99"), ("999", "99.9"))
    ),
    plot=True,
    axis="records/s",
)

# Transactions

WITHOUT = "ours, flush() without transactions"
EQUAL_LINGER = "confluent-kafka, linger.ms=0"
LARGE, MEDIUM, SMALL = "100,000 records", "1,000 records", "1 record and an offset"


def transactions_contest(at: str, records: int, per_transaction: int, offsets: bool = False) -> Contest:
    size: dict[str, Any] = {"records": records, "per_transaction": per_transaction, "offsets": offsets}
    peers = [
        client(CONFLUENT, "transactions.confluent", "confluent_kafka", **size),
        client(EQUAL_LINGER, "transactions.confluent", "confluent_kafka", **size, options={"linger.ms": "0"}),
    ]
    if not offsets:
        peers.append(client(WITHOUT, "transactions.own_flushes", **size))
    return Contest(at, own("transactions.own", **size), tuple(peers), "real")


def transactions_goals(at: str, rate: float, cpu: float) -> tuple[Goal, ...]:
    return (
        rate_goal(f"records/s, ours / confluent-kafka, {at}", at, rate),
        cpu_goal(f"CPU, confluent-kafka / ours, {at}", at, cpu),
    )


TRANSACTIONS = Case(
    "transactions",
    "Transactions, back to back",
    "On the real broker, to one partition, with the finalized transaction.version that it has (2). "
    "confluent-kafka speaks the first protocol, and runs with its default linger and with none. What a small "
    "transaction costs is the broker's time: EndTxn, the markers, and the next transaction's first batch.",
    (
        transactions_contest(LARGE, 1_000_000, 100_000),
        transactions_contest(MEDIUM, 300_000, 1_000),
        transactions_contest(SMALL, 500, 1, offsets=True),
    ),
    (
        RATE,
        Column("transactions_per_s", "transactions/s", 0),
        Column("p50_ms", "p50 ms", 1),
        Column("p99_ms", "p99 ms", 1),
        CPU,
        Column("requests_per_transaction", "requests each", 1),
    ),
    (
        *transactions_goals(LARGE, 2, 3),
        *transactions_goals(MEDIUM, 1.5, 3),
        *transactions_goals(SMALL, 1.3, 3),
        rate_goal(f"records/s, ours / without transactions, {LARGE}", LARGE, 0.85, WITHOUT),
    ),
)

# Scale


def topics_contest(topics: int, way: str) -> Contest:
    return Contest(
        f"{topics:,} topics {way}", own(f"scale.topics_{way.replace(' ', '_')}", topics=topics), (), "none"
    )


def moves_contests(topics: int, partitions: int) -> tuple[Contest, ...]:
    size: dict[str, Any] = {"topics": topics, "partitions": partitions, "seconds": 20}
    return tuple(
        Contest(
            f"{topics:,} x {partitions}, {what}", own(f"scale.{what}_while_leaders_move", **size), (), "none"
        )
        for what in ("get", "threads")
    )


TOPIC_COUNTS = (1_000, 10_000, 30_000)
MOVES = ((1_000, 100), (33_334, 3))
SCALE = Case(
    "scale",
    "Many topics, partitions, producers and brokers",
    "A simulated cluster in another process: 3 brokers, and 1,000 while leaders move and in the rolling "
    "restart. Topics have 3 partitions. *In turn*: send().get() to one new topic after the other; *at once*: "
    "send() to all. While leaders move, the metadata of all partitions is refreshed each second, and all "
    "leaders have moved. The CPU of a wait is what this process used meanwhile: the wait on a machine "
    "without other work. Two threads send to a partition each.",
    (
        *(topics_contest(topics, way) for way in ("in turn", "at once") for topics in TOPIC_COUNTS),
        Contest("memory, 100,000 topics", own("scale.topic_memory", topics=100_000), (), "none"),
        Contest("objects, 100,000 topics", own("scale.topic_objects", topics=100_000), (), "none"),
        *(contest for each in MOVES for contest in moves_contests(*each)),
        Contest(
            "two threads that send", own("scale.send_in_threads", threads=2, records=300_000), (), "none"
        ),
        Contest(
            "keys over 10,000 partitions",
            own("scale.many_partitions", partitions=10_000, records=500_000),
            (),
            "none",
        ),
        Contest("1,000 producers", own("scale.producers", threads=1_000, records=20_000), (), "none"),
        Contest(
            "restart of 1,000 brokers",
            own("scale.rolling_restart", topics=10, partitions=300, threads=1_000),
            (),
            "none",
        ),
    ),
    (
        Column("topic_us", "CPU us per topic", 0),
        Column("resident_kb", "resident kB each", 2),
        Column("heap_kb", "malloc kB each", 2),
        Column("python_kb", "Python's kB each", 2),
        Column("get_ms", "longest get() ms", 0),
        Column("get_p99_ms", "p99 ms", 1),
        Column("get_cpu_ms", "CPU ms of a get()", 0),
        Column("pause_ms", "longest pause ms", 0),
        Column("pause_cpu_ms", "CPU ms of a pause", 0),
        Column("refresh_cpu_ms", "CPU ms per refresh", 0),
        Column("threads", "threads each", 0),
        Column("descriptors", "descriptors each", 0),
        Column("record_us", "CPU us per record", 2),
        Column("few_us", "with 3 partitions", 2),
        Column("rate_ratio", "rate over one thread", 2),
        Column("python_ratio", "in pure Python", 2),
        Column("cpu_ratio", "CPU over one thread", 2),
        Column("lost", "lost", 0),
        Column("disorder", "out of order", 0),
    ),
    (
        *(
            Goal(
                f"CPU per topic, 30,000 / 1,000 topics {way}",
                *("topic_us", f"30,000 topics {way}"),
                at_most=2,
                beside=f"1,000 topics {way}",
            )
            for way in ("in turn", "at once")
        ),
        *(
            Goal(
                f"{what}, {topics:,} topics of {partitions}",
                metric,
                f"{topics:,} x {partitions}, {run}",
                at_most=most,
            )
            for topics, partitions in MOVES
            for what, metric, run, most in (
                ("longest get() ms", "get_ms", "get", 30),
                ("longest pause ms", "pause_ms", "threads", 20),
            )
        ),
        Goal("records lost in a rolling restart", "lost", "restart of 1,000 brokers", at_most=0, digits=0),
    ),
    most_pairs=1,
)

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        *(USUAL, WAYS),
        *(SEND, DEFAULTS, SEND_ALONE, CONFLUENT_SHAPE, AIO_SHAPE, GET, THREADS, COLUMNAR, CODECS, PARTITIONS),
        *(TLS_SEND, TLS_GET, MEMORY, IDLE, IMPORT, FIRST_ACK, SIZES, LATENCY, LOAD, PRESSURE, FAR),
        *(TRANSACTIONS, SCALE),
    )
}
