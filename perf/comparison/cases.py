"""What is compared, and what is to be reached. Only data: ``bench`` runs it, ``report`` writes it down.

A *case* is what a person asks for by name. It has *contests*, each a row or a point of a plot: this producer
at one task, and peers at the same, in pairs. All brokers are on this machine; values have 100 bytes, topics
three partitions, all acknowledgements are asked for and idempotence is on, unless it says otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from perf.comparison.figures import OWN, Goal

BrokerKind = Literal["real", "null", "none"]
REAL, NULL = "real broker", "null broker"
TOPIC = "perf"


@dataclass(frozen=True)
class Client:
    """One client at one task."""

    name: str
    run: str
    """``MODULE.FUNCTION`` in ``perf/runs``."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """See ``runs/measuring.Args``."""
    needs: str = ""
    """A module that is not of this project."""


@dataclass(frozen=True)
class Contest:
    at: str
    """How tables call it; unique in its case."""
    own: Client
    peers: tuple[Client, ...] = ()
    broker: BrokerKind = "null"
    topics: Mapping[str, int] = field(default_factory=lambda: {TOPIC: 3})
    x: float = 0
    """Where it is on a plot's axis."""


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
    """What the contests differ in, where it is a number."""
    most_pairs: int = 1000
    """Of a case whose runs are long."""


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


# send()


def send_contest(at: str, broker: BrokerKind, defaults: bool) -> Contest:
    """The slow ones get fewer records: costs are per record."""
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
    cpu, rate = "cpu_s_per_million", "records_per_s"
    return (
        Goal(f"CPU s per million, {at}", cpu, at, at_most=0.25, digits=3),
        Goal(f"CPU, confluent-kafka by ours, {at}", cpu, at, at_least=4, peer=CONFLUENT, peer_by_own=True),
        Goal(
            f"CPU, confluent-kafka with callbacks by ours, {at}",
            *(cpu, at),
            at_least=6,
            peer=CALLBACK,
            peer_by_own=True,
        ),
        Goal(f"CPU, kafka-python by ours, {at}", cpu, at, at_least=60, peer=KAFKA_PYTHON, peer_by_own=True),
        Goal(f"records/s, ours by confluent-kafka's, {at}", rate, at, at_least=2, peer=CONFLUENT),
    )


SEND = Case(
    "send",
    "send() with a future for every record",
    "Every client with acks=all and idempotence; confluent-kafka with room for ten million records, so "
    "that it never has to wait for its own queue. Without callbacks nobody learns what became of its "
    "records.",
    (send_contest(REAL, "real", False), send_contest(NULL, "null", False)),
    (RATE, CPU, PEAK),
    send_goals(REAL) + send_goals(NULL),
    plot=True,
)
DEFAULTS = Case(
    "defaults",
    "The same at the peers' default settings",
    "confluent-kafka and aiokafka without idempotence, aiokafka with acks=1; confluent-kafka waits where "
    "its queue of 100,000 records is full. This producer is at its defaults in both tables.",
    (send_contest(REAL, "real", True), send_contest(NULL, "null", True)),
    (RATE, CPU, PEAK),
)
SEND_ALONE = Case(
    "send-alone",
    "send() alone",
    "Nanoseconds of the calling thread's CPU per call, warm, loop included; the least of many rounds of "
    "50,000. An empty Python function of three parameters takes what stands in the first column.",
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
    rate = "records_per_s"
    return (
        Goal(f"round trips/s, ours by the raw socket's, {at}", rate, at, at_least=0.9, peer=RAW),
        Goal(f"round trips/s, ours by confluent-kafka's, {at}", rate, at, at_least=1.3, peer=CONFLUENT),
        Goal(f"p99, ours by confluent-kafka's, {at}", "p99_us", at, at_most=1, peer=CONFLUENT),
    )


GET = Case(
    "get",
    "send().get(), one after the other",
    "The raw socket sends the same Produce request, made beforehand with one record, and waits for the "
    "answer: the floor. confluent-kafka: produce() and flush(), linger.ms=0.",
    (get_contest(REAL, "real"), get_contest(NULL, "null")),
    (Column("records_per_s", "round trips/s", 0), P50, P99, CPU),
    get_goals(REAL) + get_goals(NULL),
)


def threads_name(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


THREADS = Case(
    "threads",
    "send().get() from many threads on one producer",
    "On the real broker: the records of many threads share requests.",
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
            "round trips/s, 64 threads by one",
            *("records_per_s", threads_name(64)),
            at_least=8,
            beside=threads_name(1),
        ),
    ),
    plot=True,
    axis="threads",
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
    cpu, rate = "cpu_s_per_million", "records_per_s"
    return (
        Goal(f"CPU s per million, {at}", cpu, at, at_most=0.08, digits=3),
        Goal(f"CPU, produce_batch by ours, {at}", cpu, at, at_least=10, peer=CONFLUENT, peer_by_own=True),
        Goal(f"records/s, ours by the raw socket's, {at}", rate, at, at_least=0.9, peer=RAW_C),
    )


COLUMNAR = Case(
    "columnar",
    "send_arrow(): ten thousand rows a call",
    "confluent-kafka: produce_batch() of 10,000 dicts made beforehand. The raw socket sends batches that "
    "were made beforehand, one for each partition a request, five requests in flight: the floor.",
    (columnar_contest(REAL, "real"), columnar_contest(NULL, "null")),
    (RATE, CPU, PEAK),
    columnar_goals(REAL) + columnar_goals(NULL),
)

# Codecs

CODECS = Case(
    "codecs",
    "Compression at default levels, JSON records of 1,000 bytes",
    "Total CPU beside what the codec's library takes for batches of as many of the same records.",
    tuple(
        Contest(codec, own("own_sweeps.codec", records=n, size=1000, options={"compression_type": codec}))
        for codec, n in (("lz4", 500_000), ("zstd", 300_000), ("snappy", 500_000), ("gzip", 60_000))
    ),
    (
        CPU,
        Column("codec_s_per_million", "the codec alone", 3),
        Column("beside_codec", "total by the codec's"),
        Column("records_per_batch", "records a batch", 0),
    ),
    tuple(
        Goal(f"CPU by the codec's own, {codec}", "beside_codec", codec, at_most=1.25)
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
    "Cost by the number of partitions",
    "Up to 100 topics of 100 partitions, the topics in turn: without a key, so that the partitioner fills "
    "one batch of a topic after the other, and to each partition in turn, where memory (32 MiB) is divided"
    " among them all and batches are small.",
    tuple(partitions_contest(topics, each, even) for even in (False, True) for topics, each in _PARTITIONS),
    (CPU, RATE, Column("records_per_batch", "records a batch", 0), PEAK),
    (
        Goal(
            "CPU a record, 10,000 partitions by 3, no key",
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
    "Memory while records stream",
    "Resident memory, the peak above that of a bare interpreter; every client at its defaults. kafka-"
    "python gets a twentieth of the records.",
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
    "What it occupies more than before, after one record to each partition of 100 topics, a hundred at once: "
    "resident, and what malloc has given out.",
    (
        Contest(
            "10,000 partitions",
            own("own_sweeps.idle_partitions", **_IDLE),
            (),
            "null",
            {f"idle-{number}": 100 for number in range(100)},
        ),
    ),
    (Column("idle_resident_mb", "resident MB", 1), Column("idle_heap_mb", "MB by malloc", 1)),
    (Goal("MB of 10,000 idle partitions", "idle_resident_mb", "10,000 partitions", at_most=10, digits=1),),
)
IMPORT = Case(
    "import",
    "Importing the package",
    "In fresh interpreters whose files are cached; each value is the median of five.",
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
    "The package is imported already, the topic is there.",
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
    # About as many bytes in all, within what a short run needs.
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
    "CPU per record by the size of its value",
    "Set alike, with a future for every record (confluent-kafka without callbacks); on the null broker.",
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
    "A record is due every 1/rate s, five seconds long, on the null broker; the time counts from when it was "
    "due until its callback runs. confluent-kafka is polled by the loop that sends, while that waits for the "
    "next record to be due.",
    tuple(load_contest(*load) for load in LOADS),
    tuple(
        Column(f"p{name}_ms", f"p{title} ms") for name, title in (("50", "50"), ("99", "99"), ("999", "99.9"))
    ),
    tuple(
        Goal(f"p{title}, ours by confluent-kafka's, {at}", f"p{name}_ms", at, at_most=1, peer=POLLING)
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
    "A minute of full memory",
    "Values of 1 kB (JSON) to one partition over round trips of 20 ms, both at their defaults but for "
    "confluent-kafka's idempotence: the broker takes less than the program sends, so that memory is always "
    "lacking. The rate of the last quarter of the minute is compared with that of the second one.",
    tuple(pressure_contest(*each) for each in PRESSURES),
    (
        Column("second_quarter", "records/s, second quarter", 0),
        Column("last_quarter", "last quarter", 0),
        Column("steady", "last by second"),
        Column("batch_bytes", "batch kB", 1, 1e-3),
        CPU,
    ),
    tuple(
        Goal(
            f"last quarter by the second, {pressure_name(*each)}",
            "steady",
            pressure_name(*each),
            at_least=0.95,
        )
        for each in PRESSURES
    ),
    plot=True,
    most_pairs=1,
)

LATENCY = Case(
    "latency",
    "Latency by the rate of records",
    "From when a record was due to be sent until its callback runs, three seconds each, on the real broker; "
    "linger_ms=0 on both sides.",
    tuple(latency_contest(rate) for rate in (100, 1_000, 10_000, 30_000, 100_000)),
    tuple(
        Column(f"p{name}_ms", f"p{title} ms")
        for name, title in (("50", "50"), ("90", "90"), ("99", "99"), ("999", "99.9"))
    ),
    plot=True,
    axis="records/s",
)

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        *(SEND, DEFAULTS, SEND_ALONE, GET, THREADS, COLUMNAR, CODECS, PARTITIONS),
        *(MEMORY, IDLE, IMPORT, FIRST_ACK, SIZES, LATENCY, LOAD, PRESSURE),
    )
}
