"""The table of all options: name, default, kind of value, meaning. Documentation is made from it.

Owns: one row for each option, as an attribute of ``ProducerOptions``, so that type checkers know
every option and its type. Does not own: how values are read (``config.values``), the rules between
options and the object users meet (``config``). Immutable after import; any thread may read it.

Names and defaults are kafka-python's, and for what it lacks those of Kafka's Java client in Python's
spelling. Where the Java name is not the Python name with dots, the row says ``java=``; ``java=None``
marks an option that Java does not have.
"""

import socket
from typing import Any, Generic, Never, NoReturn, Self, TypeVar, overload

from cyproducer.config import values as kind
from cyproducer.config.values import Kind
from cyproducer.records.codecs import BY_NAME, CODECS

T = TypeVar("T")

SAME = "same"

_IGNORED = "Accepted for kafka-python's sake, without effect: "


def _level_of(codec: str) -> Kind[int]:
    levels, default = BY_NAME[codec].levels, BY_NAME[codec].default_level
    return kind.whole(levels[0], levels[-1], also=None if default in levels else default)


def _any_level() -> Kind[int]:
    levels = [codec.levels for codec in CODECS if codec.levels]
    return kind.whole(min(each[0] for each in levels), max(each[-1] for each in levels))


class Option(Generic[T]):
    """One row of the table, and the read-only attribute through which its value is read."""

    __slots__ = (
        "default",
        "java_name",
        "kind",
        "meaning",
        "name",
        "none_is_unset",
        "secret",
        "shown_default",
    )

    name: str

    def __init__(
        self,
        default: T,
        kind: Kind[T],
        meaning: str,
        *,
        java: str | None = SAME,
        shown_default: str | None = None,
        none_is_unset: bool = False,
        secret: bool = False,
    ) -> None:
        self.default = default
        self.kind = kind
        self.meaning = meaning
        self.java_name = java
        self.shown_default = shown_default or repr(default)
        self.none_is_unset = none_is_unset
        self.secret = secret

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        if self.java_name == SAME:
            self.java_name = self.dotted_name

    @property
    def dotted_name(self) -> str:
        """The name with dots: accepted as a key even where Java has no such option."""
        return self.name.replace("_", ".")

    @overload
    def __get__(self, config: None, owner: type) -> Self: ...
    @overload
    def __get__(self, config: "ProducerOptions", owner: type) -> T: ...
    def __get__(self, config: "ProducerOptions | None", owner: type) -> Self | T:
        if config is None:
            return self
        value: T = config._values[self.name]
        return value

    def __set__(self, config: "ProducerOptions", value: Never) -> NoReturn:
        raise AttributeError(
            f"options can't be changed: use replace({self.name}=...), which makes another one"
        )

    def shown(self, value: Any) -> str:
        """The value as messages and ``repr()`` show it: without passwords, and of bounded length."""
        if self.secret:
            return "'***'"
        text = repr(value)
        if isinstance(value, str) and "://" in value and "@" in value:
            scheme, rest = value.split("://", 1)
            text = repr(f"{scheme}://***@{rest.rpartition('@')[2]}")
        return text if len(text) <= 200 else f"{text[:200]}..."


class ProducerOptions:
    """All options, each with its value for one producer."""

    __slots__ = ("_values",)
    _values: dict[str, Any]

    # Where to connect to, and what to send.
    bootstrap_servers = Option(
        ("localhost",),
        kind.servers(),
        "The brokers to ask first, of which one that answers is enough. The port is 9092 by default; IPv6 "
        "addresses stand in brackets where a port follows",
        shown_default="'localhost'",
    )
    client_id = Option(
        "",
        kind.text(),
        "The name brokers log and apply quotas by. None: numbered within the process",
        shown_default="'cyproducer-N'",
        none_is_unset=True,
    )
    key_serializer = Option(
        None,
        kind.optional(kind.callable_or_with("serialize")),
        "Turns a key into bytes. None: keys are bytes",
    )
    value_serializer = Option(
        None,
        kind.optional(kind.callable_or_with("serialize")),
        "Turns a value into bytes. None: values are bytes",
    )
    interceptors = Option(
        (),
        kind.plugins("interceptor objects or classes"),
        "They see every record before its serialisation and every outcome",
        java="interceptor.classes",
        shown_default="[]",
    )

    # Which partition.
    partitioner = Option(
        None,
        kind.optional(kind.callable_or_with("partition", names=True), ""),
        "Chooses the partition. None: by the key's murmur2 hash as Java does; without a key by load",
        java="partitioner.class",
    )
    partitioner_ignore_keys = Option(
        False, kind.boolean(), "Choose by load for records with a key too. Only without a partitioner"
    )
    partitioner_adaptive_partitioning_enable = Option(
        True, kind.boolean(), "Give slow brokers fewer of the records without a key (KIP-794)"
    )
    partitioner_availability_timeout_ms = Option(
        0,
        kind.milliseconds(),
        "Choose no partition whose broker has taken nothing for so long although there was something. 0: off",
    )
    partitioner_single_broker_ms = Option(
        30000,
        kind.milliseconds(),
        "How long records without a key may keep to the partitions of one broker. 0: not at all",
        java=None,
    )

    # What counts as delivered.
    acks = Option(
        -1,
        kind.acks(),
        "Who must have the record: 0 nobody (offsets are unknown then), 1 the leader, "
        "-1 or 'all' every replica in sync",
    )
    enable_idempotence = Option(
        False,
        kind.boolean(),
        "No duplicates and no reordering by retries. Needs acks=all, retries above 0 and at most "
        "5 requests in flight: otherwise it is off where it was not asked for, and an error where it was",
        none_is_unset=True,
    )
    transactional_id = Option(
        None,
        kind.optional(kind.text()),
        "Makes transactions possible, and implies idempotence. A newer producer with the same id fences "
        "this one",
    )
    transaction_timeout_ms = Option(
        60000,
        kind.whole_milliseconds(),
        "The coordinator aborts a transaction that is open for longer",
    )
    delivery_timeout_ms = Option(
        120000,
        kind.milliseconds(),
        "From send() to success or failure, at most. At least linger_ms + request_timeout_ms: where it "
        "is not given, it is raised to that",
    )
    retries = Option(
        float("inf"),
        kind.count_or_endless(),
        "How often a batch is sent again, within delivery_timeout_ms",
        shown_default="float('inf')",
    )
    retry_backoff_ms = Option(
        100, kind.milliseconds(), "The wait before the first retry; it doubles with each"
    )
    retry_backoff_max_ms = Option(
        1000,
        kind.milliseconds(),
        "The longest wait between retries. Where it is not given, at least retry_backoff_ms",
    )
    request_timeout_ms = Option(
        30000,
        kind.whole_milliseconds(),
        "A request not answered for so long counts as failed, and its connection is closed. At most 24 days, "
        "which is what inf means",
    )
    max_in_flight_requests_per_connection = Option(
        5,
        kind.whole(1, kind.INT32_MAX),
        "Requests a connection may have unanswered. Above 1 without idempotence, retries may reorder records",
    )

    # Batches and memory.
    batch_size = Option(
        131072,
        kind.whole(0, kind.INT32_MAX, "bytes"),
        "The most bytes of a batch; a single record may exceed it. Memory is taken as a batch fills",
    )
    linger_ms = Option(
        0,
        kind.milliseconds(),
        "How long a batch that is not full waits for more records; up to a quarter less where another goes",
    )
    buffer_memory = Option(
        33554432,
        kind.whole(1, kind.INT64_MAX, "bytes"),
        "The most bytes of records not acknowledged yet; send() blocks beyond it",
    )
    max_block_ms = Option(
        60000,
        kind.milliseconds(),
        "How long send() may wait for metadata and memory together, and other calls for their answer",
    )
    max_pending_callbacks = Option(
        100000,
        kind.whole(1, kind.INT32_MAX),
        "The most records whose outcome is known and whose callbacks, interceptors' included, have not run; "
        "send() blocks beyond it",
        java=None,
    )
    max_request_size = Option(
        1048576, kind.whole(1, kind.INT32_MAX, "bytes"), "The most bytes of a request, and so of a record"
    )
    compression_type = Option(
        None,
        kind.optional(kind.choice(*(codec.name for codec in CODECS if codec.codec_id)), "none", ""),
        "The codec for batches",
    )
    compression_level = Option(
        None,
        kind.optional(_any_level(), ""),
        "The codec's level, in the range of the codec's own option below. None: the codec's default",
        java=None,
    )
    compression_gzip_level = Option(
        None,
        kind.optional(_level_of("gzip")),
        "The level where gzip is the codec (KIP-390); -1: zlib's",
    )
    compression_lz4_level = Option(
        None,
        kind.optional(_level_of("lz4")),
        "The level where lz4 is the codec (KIP-390). None: lz4's fast compressor, which Java means by 9",
    )
    compression_zstd_level = Option(
        None, kind.optional(_level_of("zstd")), "The level where zstd is the codec (KIP-390). None: 3"
    )
    close_timeout_ms = Option(
        30000,
        kind.milliseconds(),
        "How long the end of the process waits for records not sent yet. close(timeout) says so itself",
        java=None,
    )

    # Metadata.
    bootstrap_timeout_ms = Option(
        30000, kind.milliseconds(), "How long to look for a bootstrap server that answers", java=None
    )
    allow_auto_create_topics = Option(
        True, kind.boolean(), "Let brokers create topics that do not exist", java=None
    )
    metadata_max_age_ms = Option(300000, kind.milliseconds(), "Metadata older than this is fetched again")
    metadata_max_idle_ms = Option(
        300000, kind.milliseconds(1), "A topic nothing was sent to for so long is forgotten"
    )
    metadata_recovery_strategy = Option(
        "rebootstrap",
        kind.choice("rebootstrap", "none"),
        "Where no known broker can be reached: start again from bootstrap_servers (KIP-899), or keep trying",
    )
    metadata_recovery_rebootstrap_trigger_ms = Option(
        300000, kind.milliseconds(), "Start again also where metadata could not be had for so long (KIP-1102)"
    )
    client_dns_lookup = Option(
        "use_all_dns_ips",
        kind.choice(
            "use_all_dns_ips",
            "resolve_canonical_bootstrap_servers_only",
            also={"default": "use_all_dns_ips"},
        ),
        "Try every address of a name, or resolve bootstrap servers to their canonical names first "
        "(Kerberos). 'default', which Java knew before 3.0, means the former",
    )

    # Connections.
    connections_max_idle_ms = Option(
        540000, kind.milliseconds(never=-1), "A connection not used for so long, 100 ms at least, is closed"
    )
    reconnect_backoff_ms = Option(
        50,
        kind.milliseconds(),
        "The wait before the first reconnection to a broker; it doubles with each failure",
    )
    reconnect_backoff_max_ms = Option(
        30000,
        kind.milliseconds(),
        "The longest wait between reconnections. Where it is not given, at least reconnect_backoff_ms",
    )
    socket_connection_setup_timeout_ms = Option(
        10000,
        kind.milliseconds(1),
        "How long a connection may take to be made, TLS and SASL included; it doubles with each failure",
    )
    socket_connection_setup_timeout_max_ms = Option(
        30000,
        kind.milliseconds(1),
        "The most it grows to. Where it is not given, at least socket_connection_setup_timeout_ms",
    )
    receive_message_max_bytes = Option(
        100000000,
        kind.whole(1, kind.INT32_MAX, "bytes"),
        "A larger response is taken for a broken one",
        java=None,
    )
    receive_buffer_bytes = Option(
        None, kind.optional(kind.whole(1, kind.INT32_MAX, "bytes"), -1, "-1"), "SO_RCVBUF. None: the system's"
    )
    send_buffer_bytes = Option(
        None, kind.optional(kind.whole(1, kind.INT32_MAX, "bytes"), -1, "-1"), "SO_SNDBUF. None: the system's"
    )
    socket_options = Option(
        ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),),
        kind.socket_options(),
        "What to set on every socket",
        java=None,
        shown_default="[(IPPROTO_TCP, TCP_NODELAY, 1)]",
    )
    proxy_url = Option(
        None,
        kind.optional(kind.text()),
        "A proxy to connect through: socks5://[user:password@]host:port",
        java=None,
    )
    socks5_proxy = Option(
        None, kind.optional(kind.text()), "kafka-python's older name for proxy_url", java=None
    )
    selector = Option(
        None,
        kind.optional(kind.callable_or_with("select")),
        "The class of selectors.BaseSelector to wait with",
        java=None,
        shown_default="selectors.DefaultSelector",
    )

    # TLS.
    security_protocol = Option(
        "PLAINTEXT", kind.choice(*kind.SECURITY_PROTOCOLS), "Plain text or TLS (SSL), without or with SASL"
    )
    ssl_context = Option(
        None,
        kind.optional(kind.ssl_context()),
        "A context made beforehand; the other ssl_* options are not looked at then",
        java=None,
    )
    ssl_check_hostname = Option(
        True,
        kind.boolean({"https": True, "": False}),
        "Whether the broker's certificate must be for the host's name",
        java="ssl.endpoint.identification.algorithm",
    )
    ssl_cafile = Option(
        None,
        kind.optional(kind.path(), ""),
        "CA certificates, PEM. None: the system's",
        java="ssl.truststore.location",
    )
    ssl_certfile = Option(
        None,
        kind.optional(kind.path(), ""),
        "The client's certificate chain, PEM",
        java="ssl.keystore.location",
    )
    ssl_keyfile = Option(
        None,
        kind.optional(kind.path(), ""),
        "The client's private key, PEM. None: it is in ssl_certfile",
        java=None,
    )
    ssl_crlfile = Option(
        None, kind.optional(kind.path(), ""), "A list of revoked certificates, PEM", java=None
    )
    ssl_password = Option(
        None,
        kind.optional(kind.text(), ""),
        "The password of the private key",
        java="ssl.key.password",
        secret=True,
    )
    ssl_ciphers = Option(
        None, kind.optional(kind.text()), "Ciphers by OpenSSL's names", java="ssl.cipher.suites"
    )

    # SASL.
    sasl_mechanism = Option(
        None,
        kind.optional(
            kind.choice("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM")
        ),
        "How to authenticate where security_protocol begins with SASL",
    )
    sasl_plain_username = Option(None, kind.optional(kind.text()), "The user, for PLAIN and SCRAM", java=None)
    sasl_plain_password = Option(
        None, kind.optional(kind.text()), "The password, for PLAIN and SCRAM", java=None, secret=True
    )
    sasl_kerberos_name = Option(
        None, kind.optional(kind.anything("a string or a gssapi.Name")), "The broker's principal", java=None
    )
    sasl_kerberos_service_name = Option("kafka", kind.text(), "The service's name in the broker's principal")
    sasl_kerberos_domain_name = Option(
        None,
        kind.optional(kind.text()),
        "The host's name in the broker's principal. None: as connected to",
        java=None,
    )
    sasl_oauth_token_provider = Option(
        None,
        kind.optional(kind.callable_or_with("token")),
        "Supplies tokens for OAUTHBEARER",
        java=None,
    )

    # Metrics.
    metric_reporters = Option(
        (), kind.plugins("reporter classes or objects"), "They are told of metrics", shown_default="[]"
    )
    metrics_enabled = Option(
        True, kind.boolean(), "Whether metrics() tells anything, and reporters are told", java=None
    )
    metrics_recording_level = Option(
        "INFO",
        kind.choice("INFO", "DEBUG", "TRACE"),
        "What of the metrics is recorded: all, at each level, as none of a producer's are above INFO",
    )
    metrics_num_samples = Option(2, kind.whole(1, kind.INT32_MAX), "The samples a rate is made of")
    metrics_sample_window_ms = Option(30000, kind.milliseconds(1), "The time a sample spans")

    api_version = Option(
        None,
        kind.optional(kind.api_version(), "auto"),
        "The Kafka release to assume for a broker that closes the connection on a version request. All other "
        "brokers are asked for their versions",
        java=None,
    )

    # Accepted, without effect.
    api_version_auto_timeout_ms = Option(
        None, kind.optional(kind.milliseconds()), _IGNORED + "see bootstrap_timeout_ms", java=None
    )
    kafka_client = Option(
        None, kind.anything("anything"), _IGNORED + "there is no client class to replace", java=None
    )


OPTIONS: tuple[Option[Any], ...] = tuple(
    row for row in vars(ProducerOptions).values() if isinstance(row, Option)
)
