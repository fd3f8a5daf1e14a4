"""Defines all options: name, default, kind of value, meaning. The documentation is generated from this table.

Owns one row per option, as an attribute of ``OptionTable``, so that type checkers know every option and its
type. Does not read values (``config.option_kinds``). Does not own the rules between options or the public
configuration class (``config``). Immutable after import; any thread may read it.

Names and defaults are kafka-python's. For options that kafka-python does not have, they are those of Kafka's
Java client in Python's spelling. ``java=`` gives the Java name if it is not the Python name with dots;
``java=None`` marks an option that Java does not have.
"""

from __future__ import annotations

import functools
import socket
from typing import Any, Generic, Never, NoReturn, Self, TypeVar, overload

from cyproducer.config import option_kinds as kind
from cyproducer.config.option_kinds import Kind
from cyproducer.records.codecs import BY_NAME, CODECS

T = TypeVar("T")

SAME = "same"

_IGNORED = "Accepted for compatibility with kafka-python, without effect: "

_RETRIEVERS = "org.apache.kafka.common.security.oauthbearer."
_GRANTS = {
    "urn:ietf:params:oauth:grant-type:jwt-bearer": "jwt-bearer",
    f"{_RETRIEVERS}JwtBearerJwtRetriever".lower(): "jwt-bearer",
    # The URL of an endpoint determines which of these it needs.
    f"{_RETRIEVERS}ClientCredentialsJwtRetriever".lower(): "client_credentials",
    f"{_RETRIEVERS}FileJwtRetriever".lower(): "client_credentials",
    f"{_RETRIEVERS}DefaultJwtRetriever".lower(): "client_credentials",
}


def _level_of(codec: str) -> Kind[int]:
    levels, default = BY_NAME[codec].levels, BY_NAME[codec].default_level
    return kind.whole(levels[0], levels[-1], also=None if default in levels else default)


def _any_level() -> Kind[int]:
    levels = [codec.levels for codec in CODECS if codec.levels]
    return kind.whole(min(each[0] for each in levels), max(each[-1] for each in levels))


class Option(Generic[T]):
    """One row of the table, and the read-only attribute that returns its value."""

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
    def java_spelling(self) -> str:
        """Java's name; for an option that Java's client does not have, its name with dots."""
        return self.java_name or self.dotted_name

    @property
    def dotted_name(self) -> str:
        """The name with dots. It is accepted as a key even if Java has no such option."""
        return self.name.replace("_", ".")

    @overload
    def __get__(self, config: None, owner: type) -> Self: ...
    @overload
    def __get__(self, config: OptionTable, owner: type) -> T: ...
    def __get__(self, config: OptionTable | None, owner: type) -> Self | T:
        if config is None:
            return self
        value: T = config._values[self.name]
        return value

    def __set__(self, config: OptionTable, value: Never) -> NoReturn:
        raise AttributeError(
            f"options can't be changed: use replace({self.name}=...), which returns a new configuration"
        )

    def shown(self, value: Any) -> str:
        """The value as shown in messages and ``repr()``: without passwords, cut to 200 characters."""
        if self.secret:
            return "'***'"
        if isinstance(value, functools.partial):
            # Its arguments may be credentials.
            return f"functools.partial({value.func!r}, ...)"
        text = repr(value)
        is_url = isinstance(value, str) and ("://" in value or self.name in ("proxy_url", "socks5_proxy"))
        if is_url and "@" in value:
            # The value was refused, so it is not a SecretUrl yet.
            text = repr(kind.SecretUrl(value))
        return text if len(text) <= 200 else f"{text[:200]}..."


class OptionTable:
    """All options with their values for one producer."""

    __slots__ = ("_values",)
    _values: dict[str, Any]

    # The comments above groups of options are the headings of the documentation's page.

    # Connection and record types.
    bootstrap_servers = Option(
        ("localhost",),
        kind.servers(),
        "The brokers to contact first; one that responds is enough. The default port is 9092. An IPv6 "
        "address with a port must be in brackets",
        shown_default="'localhost'",
    )
    client_id = Option(
        "",
        kind.text(),
        "The client name that brokers use for logs and quotas. None: numbered within the process",
        shown_default="'cyproducer-N'",
        none_is_unset=True,
    )
    key_serializer = Option(
        None,
        kind.optional(kind.callable_or_with("serialize", "SerializerOption[K]")),
        "Converts a key to bytes. None: keys must be bytes",
    )
    value_serializer = Option(
        None,
        kind.optional(kind.callable_or_with("serialize", "SerializerOption[V]")),
        "Converts a value to bytes. None: values must be bytes",
    )
    interceptors = Option(
        (),
        kind.plugins("interceptor objects or classes", "Interceptor", "on_send", "on_acknowledgement"),
        "Called with every record before its serialisation, and with every outcome",
        java="interceptor.classes",
        shown_default="[]",
    )

    # Partitioning.
    partitioner = Option(
        None,
        kind.optional(kind.callable_or_with("partition", "PartitionerOption", names=True), ""),
        "Chooses the partition. None: by the key's murmur2 hash, as in Java; without a key, by load",
        java="partitioner.class",
    )
    partitioner_ignore_keys = Option(
        False,
        kind.boolean(),
        "Choose the partition by load also for records with a key. Applies only without a partitioner",
    )
    partitioner_adaptive_partitioning_enable = Option(
        True, kind.boolean(), "Send fewer of the records without a key to slow brokers (KIP-794)"
    )
    partitioner_availability_timeout_ms = Option(
        0,
        kind.milliseconds(),
        "Choose no partition whose broker has accepted no batch for this long although batches were waiting. "
        "0: off",
    )
    partitioner_rack_aware = Option(
        False,
        kind.boolean(),
        "Send records without a key to partitions whose leader is in client_rack, while any is available "
        "(KIP-1123). For partitioners that are sticky for such records, as the default one is",
    )
    client_rack = Option(
        None,
        kind.optional(kind.text(), ""),
        "The rack that the client is in, as in the brokers' broker.rack. Only partitioner_rack_aware uses it",
    )
    partitioner_single_broker_ms = Option(
        30000,
        kind.milliseconds(),
        "How long records without a key may stay on the partitions of one broker. 0: not at all",
        java=None,
    )

    # Delivery.
    acks = Option(
        -1,
        kind.acks(),
        "Which replicas must have the record: 0 none (offsets are unknown then), 1 the leader, "
        "-1 or 'all' every in-sync replica",
    )
    enable_idempotence = Option(
        False,
        kind.boolean(),
        "Prevents retries from duplicating or reordering records. Needs acks=all, retries above 0 and at "
        "most 5 requests in flight. Otherwise it is switched off, or is an error if it was set explicitly",
        # On, unless another option conflicts with it.
        shown_default="True",
        none_is_unset=True,
    )
    topic_options = Option(
        {},
        kind.mappings(),
        "Settings of single topics: a topic's name, or a pattern such as 'audit.*', with any of acks, "
        "compression_level, compression_type and linger_ms. A name wins over patterns; of these the first "
        "one that matches wins. Entries are not merged. acks needs enable_idempotence=False",
        java=None,
    )
    transactional_id = Option(
        None,
        kind.optional(kind.text()),
        "Enables transactions, and implies idempotence. A newer producer with the same id fences this one",
    )
    transaction_timeout_ms = Option(
        60000,
        kind.whole_milliseconds(),
        "The coordinator aborts a transaction that is open longer than this",
    )
    delivery_timeout_ms = Option(
        120000,
        kind.milliseconds(),
        "Maximum time from send() to success or failure. Must be at least linger_ms + request_timeout_ms; "
        "if it is not given, it is raised to that sum",
    )
    retries = Option(
        float("inf"),
        kind.count_or_endless(),
        "Maximum number of times that a batch is sent again, within delivery_timeout_ms",
        shown_default="float('inf')",
    )
    retry_backoff_ms = Option(
        100, kind.milliseconds(), "Backoff before the first retry. It doubles with each retry"
    )
    retry_backoff_max_ms = Option(
        1000,
        kind.milliseconds(),
        "Maximum backoff between retries. If it is not given, it is at least retry_backoff_ms",
    )
    request_timeout_ms = Option(
        30000,
        kind.whole_milliseconds(),
        "A request without a response for this long fails, and its connection is closed. inf means the "
        "maximum of 24 days",
    )
    max_in_flight_requests_per_connection = Option(
        5,
        kind.whole(1, kind.INT32_MAX),
        "Maximum number of requests without a response per connection. Without idempotence a partition has "
        "one batch in flight at a time all the same, unless acks=0",
    )

    # Batches and memory.
    batch_size = Option(
        131072,
        kind.whole(0, kind.INT32_MAX, "bytes"),
        "Maximum size of a batch. A single record may exceed it. Memory is allocated as a batch fills",
    )
    linger_ms = Option(
        0,
        kind.milliseconds(),
        "How long a batch that is not full waits for more records. Up to a quarter less if another batch is "
        "sent",
    )
    buffer_memory = Option(
        33554432,
        kind.whole(1, kind.INT64_MAX, "bytes"),
        "Maximum memory for records that are not acknowledged yet. send() blocks if it is exhausted. Memory "
        "is taken as it is needed. Above 8 MiB, what was not needed for some seconds goes back to the system",
    )
    max_block_ms = Option(
        60000,
        kind.milliseconds(),
        "How long send() may wait for metadata and memory together, and other calls for their response",
    )
    max_pending_callbacks = Option(
        100000,
        kind.whole(1, kind.INT32_MAX),
        "Maximum number of completed records whose callbacks, including those of interceptors, have not run. "
        "send() blocks if it is reached",
        java=None,
    )
    max_request_size = Option(
        1048576,
        kind.whole(1, kind.INT32_MAX, "bytes"),
        "Maximum size of a request, and therefore of a record. Unless it is given, requests to far brokers, "
        "whose answers take 50 ms or more, may have an eighth of buffer_memory",
    )
    compression_type = Option(
        None,
        kind.optional(kind.choice(*(codec.name for codec in CODECS if codec.codec_id)), "none", ""),
        "The compression codec for batches",
    )
    compression_level = Option(
        None,
        kind.optional(_any_level(), ""),
        "The compression level, in the range of the codec's own option below. None: the codec's default",
        java=None,
    )
    compression_gzip_level = Option(
        None,
        kind.optional(_level_of("gzip")),
        "The level if the codec is gzip (KIP-390). -1: zlib's default",
    )
    compression_lz4_level = Option(
        None,
        kind.optional(_level_of("lz4")),
        "The level if the codec is lz4 (KIP-390). None: lz4's fast compressor, which is 9 in Java. "
        "Others need the extra lz4",
    )
    compression_zstd_level = Option(
        None, kind.optional(_level_of("zstd")), "The level if the codec is zstd (KIP-390). None: 3"
    )
    close_timeout_ms = Option(
        30000,
        kind.milliseconds(),
        "How long the end of the process waits for unsent records. close(timeout) has its own timeout",
        java=None,
    )

    # Metadata.
    bootstrap_timeout_ms = Option(
        30000, kind.milliseconds(), "How long to look for a bootstrap server that responds", java=None
    )
    allow_auto_create_topics = Option(
        True, kind.boolean(), "Let brokers create topics that do not exist", java=None
    )
    metadata_max_age_ms = Option(300000, kind.milliseconds(), "Metadata older than this is fetched again")
    metadata_max_idle_ms = Option(
        300000, kind.milliseconds(1), "A topic to which nothing was sent for this long is forgotten"
    )
    metadata_recovery_strategy = Option(
        "rebootstrap",
        kind.choice("rebootstrap", "none"),
        "If no known broker can be reached: start again from bootstrap_servers (KIP-899), or keep trying",
    )
    metadata_recovery_rebootstrap_trigger_ms = Option(
        300000, kind.milliseconds(), "Also start again if no metadata arrived for this long (KIP-1102)"
    )
    metadata_cluster_check_enable = Option(
        True,
        kind.boolean(),
        "Let brokers refuse connections that were meant for another broker or cluster (KIP-1242, Kafka 4.4). "
        "Ignored if metadata_recovery_strategy is 'none'",
    )
    client_dns_lookup = Option(
        "use_all_dns_ips",
        kind.choice(
            "use_all_dns_ips",
            "resolve_canonical_bootstrap_servers_only",
            also={"default": "use_all_dns_ips"},
        ),
        "Try every address of a host name, or first resolve bootstrap servers to their canonical names "
        "(Kerberos). 'default', a value of Java clients before 3.0, means the former",
    )

    # Connections.
    connections_max_idle_ms = Option(
        540000,
        kind.milliseconds(never=-1),
        "A connection that is idle for this long, at least 100 ms, is closed",
    )
    reconnect_backoff_ms = Option(
        50,
        kind.milliseconds(),
        "Backoff before the first reconnection to a broker. It doubles with each failure",
    )
    reconnect_backoff_max_ms = Option(
        1000,
        kind.milliseconds(),
        "Maximum backoff between reconnections: after an outage, records wait this much longer at most. If "
        "it is not given, it is at least reconnect_backoff_ms",
    )
    authentication_backoff_ms = Option(
        30000,
        kind.milliseconds(),
        "Backoff before the next connection to a broker that has refused this client's credentials. Never "
        "shorter than the backoff between reconnections",
        java=None,
    )
    socket_connection_setup_timeout_ms = Option(
        10000,
        kind.milliseconds(1),
        "Timeout for setting up a connection, including TLS and SASL. It doubles with each failure",
    )
    socket_connection_setup_timeout_max_ms = Option(
        30000,
        kind.milliseconds(1),
        "Maximum of this timeout. If it is not given, it is at least socket_connection_setup_timeout_ms",
    )
    receive_message_max_bytes = Option(
        100000000,
        kind.whole(1, kind.INT32_MAX, "bytes"),
        "A larger response is treated as invalid",
        java=None,
    )
    receive_buffer_bytes = Option(
        None,
        kind.optional(kind.whole(1, kind.INT32_MAX, "bytes"), -1, "-1"),
        "SO_RCVBUF. None: the system default",
    )
    send_buffer_bytes = Option(
        None,
        kind.optional(kind.whole(1, kind.INT32_MAX, "bytes"), -1, "-1"),
        "SO_SNDBUF. None: the system default",
    )
    socket_options = Option(
        ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),),
        kind.socket_options(),
        "Options to set on every socket",
        java=None,
        shown_default="[(IPPROTO_TCP, TCP_NODELAY, 1)]",
    )
    proxy_url = Option(
        None,
        kind.optional(kind.url(), ""),
        "A proxy to connect through: socks5://[user:password@]host:port or http://... (CONNECT). It looks up "
        "the brokers' names",
        java=None,
    )
    socks5_proxy = Option(
        None, kind.optional(kind.url(), ""), "kafka-python's older name for proxy_url", java=None
    )
    broker_address = Option(
        None,
        kind.optional(kind.callable_or_with("__call__", "Callable[[str, int], tuple[str, int]]")),
        "Called with the host and port that a broker advertises; returns the (host, port) to connect to, for "
        "forwarded ports and private names. Certificates are still checked for the advertised host",
        java=None,
    )
    selector = Option(
        None,
        kind.optional(kind.callable_or_with("select", "Callable[[], BaseSelector]")),
        "The subclass of selectors.BaseSelector to wait with",
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
        "An existing context. The other ssl_* options, apart from ssl_without_gil, are then ignored",
        java=None,
    )
    ssl_check_hostname = Option(
        True,
        kind.boolean({"https": True, "": False}),
        "Whether the broker's certificate must match its host name",
        java="ssl.endpoint.identification.algorithm",
    )
    ssl_cafile = Option(
        None,
        kind.optional(kind.path(), ""),
        "CA certificates: a PEM or PKCS#12 file. None: the system's",
        java="ssl.truststore.location",
    )
    ssl_truststore_certificates = Option(
        None, kind.optional(kind.pem(), ""), "CA certificates as PEM text, instead of ssl_cafile"
    )
    ssl_truststore_type = Option(
        None,
        kind.optional(kind.choice("PEM", "PKCS12", "JKS"), ""),
        "The format of ssl_cafile, for Java's sake: the content decides. JKS is not supported",
        shown_default="None",
    )
    ssl_truststore_password = Option(
        None, kind.optional(kind.secret(), ""), "The password of a PKCS#12 file in ssl_cafile", secret=True
    )
    ssl_certfile = Option(
        None,
        kind.optional(kind.path(), ""),
        "The client's certificate chain: a PEM file, or a PKCS#12 file with its private key",
        java="ssl.keystore.location",
    )
    ssl_keyfile = Option(
        None,
        kind.optional(kind.path(), ""),
        "The client's private key, PEM. None: it is in ssl_certfile",
        java=None,
    )
    ssl_keystore_certificate_chain = Option(
        None,
        kind.optional(kind.pem(), ""),
        "The client's certificate chain as PEM text, instead of ssl_certfile",
    )
    ssl_keystore_key = Option(
        None, kind.optional(kind.secret(), ""), "The private key of that chain as PEM text", secret=True
    )
    ssl_keystore_type = Option(
        None,
        kind.optional(kind.choice("PEM", "PKCS12", "JKS"), ""),
        "The format of ssl_certfile, for Java's sake: the content decides. JKS is not supported",
    )
    ssl_keystore_password = Option(
        None, kind.optional(kind.secret(), ""), "The password of a PKCS#12 file in ssl_certfile", secret=True
    )
    ssl_crlfile = Option(
        None,
        kind.optional(kind.path(), ""),
        "A list of revoked certificates, PEM, for the brokers' own certificates",
        java=None,
    )
    ssl_password = Option(
        None,
        kind.optional(kind.secret(), ""),
        "The password of the private key",
        java="ssl.key.password",
        secret=True,
    )
    ssl_ciphers = Option(
        None,
        kind.optional(kind.text(), ""),
        "Ciphers of TLS 1.2, by OpenSSL's or Java's names. Those of TLS 1.3 are always allowed",
        java="ssl.cipher.suites",
    )
    ssl_enabled_protocols = Option(
        ("TLSv1.2", "TLSv1.3"), kind.some_of("TLSv1.2", "TLSv1.3"), "The versions of TLS to offer"
    )
    ssl_protocol = Option(
        None,
        kind.optional(kind.choice("TLSv1.2", "TLSv1.3"), "", "tls"),
        "Java's name for the newest of these; it changes nothing",
    )
    ssl_without_gil = Option(
        True,
        kind.boolean(),
        "Encrypt in C, without the GIL, if this Python's OpenSSL can be called from C. False: always through "
        "Python's ssl module, which is slower",
        java=None,
    )

    # SASL.
    sasl_mechanism = Option(
        None,
        kind.optional(
            kind.choice("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM")
        ),
        "The authentication mechanism if security_protocol begins with SASL",
    )
    sasl_plain_username = Option(
        None, kind.optional(kind.text_or_callable()), "The user, for PLAIN and SCRAM", java=None
    )
    sasl_plain_password = Option(
        None, kind.optional(kind.secret()), "The password, for PLAIN and SCRAM", java=None, secret=True
    )
    sasl_jaas_config = Option(
        None,
        kind.optional(kind.secret(), ""),
        "The credentials as Java's clients have them: a PlainLoginModule or ScramLoginModule with username "
        "and password, an OAuthBearerLoginModule, an IAMLoginModule, or a Krb5LoginModule",
        secret=True,
    )
    sasl_kerberos_name = Option(
        None,
        kind.optional(kind.anything("a string or a gssapi.Name")),
        "The broker's principal, instead of the service name and the host",
        java=None,
    )
    sasl_kerberos_service_name = Option("kafka", kind.text(), "The service name in the broker's principal")
    sasl_kerberos_domain_name = Option(
        None,
        kind.optional(kind.text()),
        "The host name in the broker's principal. None: the host of the connection",
        java=None,
    )
    sasl_kerberos_principal = Option(
        None,
        kind.optional(kind.text(), ""),
        "The client's principal. None: that of the credential cache, or the first of the keytab",
        java=None,
    )
    sasl_kerberos_keytab = Option(
        None,
        kind.optional(kind.path(), ""),
        "The keytab with the client's key. None: the default credential cache, which kinit fills",
        java=None,
    )
    sasl_oauth_token_provider = Option(
        None,
        kind.optional(kind.callable_or_with("token", "TokenProviderOption")),
        "Supplies tokens for OAUTHBEARER: an object with token(), also async, or a callable such as "
        "confluent-kafka's oauth_cb. Called on a thread of its own, for each authentication or, if the token "
        "says when it ends, ahead of that",
        java=None,
        secret=True,
    )
    sasl_oauthbearer_token_endpoint_url = Option(
        None,
        kind.optional(kind.endpoint(), ""),
        "Where to get tokens from (OpenID Connect), or a file: URL of one",
    )
    sasl_oauthbearer_grant_type = Option(
        "client_credentials",
        kind.choice("client_credentials", "jwt-bearer", also=_GRANTS),
        "What the endpoint is asked with: the client's own credentials, or a signed JWT",
        java="sasl.oauthbearer.jwt.retriever.class",
    )
    sasl_oauthbearer_client_credentials_client_id = Option(
        None, kind.optional(kind.text(), ""), "The client's id at the endpoint"
    )
    sasl_oauthbearer_client_credentials_client_secret = Option(
        None, kind.optional(kind.secret(), ""), "Its secret", secret=True
    )
    sasl_oauthbearer_scope = Option(None, kind.optional(kind.text(), ""), "The scope to ask for")
    sasl_oauthbearer_extensions = Option(
        None,
        kind.optional(kind.pairs(), ""),
        "SASL extensions for the broker, such as logicalCluster=lkc-1,identityPoolId=pool-1",
        java=None,
    )
    sasl_oauthbearer_header_urlencode = Option(
        False,
        kind.boolean(),
        "Whether id and secret are percent-encoded in the Authorization header (RFC 6749)",
    )
    sasl_oauthbearer_assertion_file = Option(
        None,
        kind.optional(kind.path(), ""),
        "A signed JWT to ask with, instead of the secret, or for jwt-bearer. Read again each time",
    )
    sasl_oauthbearer_assertion_private_key_file = Option(
        None,
        kind.optional(kind.path(), ""),
        "The private key, PEM, to sign a JWT with, instead of such a file",
    )
    sasl_oauthbearer_assertion_private_key_passphrase = Option(
        None, kind.optional(kind.secret(), ""), "The passphrase of that key", secret=True
    )
    sasl_oauthbearer_assertion_algorithm = Option(
        "RS256", kind.choice("RS256", "ES256"), "The algorithm of the signature"
    )
    sasl_oauthbearer_assertion_template_file = Option(
        None,
        kind.optional(kind.path(), ""),
        'A JSON file with further claims: {"header": {...}, "payload": {...}}',
    )
    sasl_oauthbearer_assertion_claim_iss = Option(None, kind.optional(kind.text(), ""), "The claim iss")
    sasl_oauthbearer_assertion_claim_sub = Option(None, kind.optional(kind.text(), ""), "The claim sub")
    sasl_oauthbearer_assertion_claim_aud = Option(None, kind.optional(kind.text(), ""), "The claim aud")
    sasl_oauthbearer_assertion_claim_exp_seconds = Option(
        300, kind.whole(1, kind.INT32_MAX, "seconds"), "How long the JWT is valid"
    )
    sasl_oauthbearer_assertion_claim_nbf_seconds = Option(
        60, kind.whole(0, kind.INT32_MAX, "seconds"), "How long it has been valid: clocks differ"
    )
    sasl_oauthbearer_assertion_claim_jti_include = Option(
        False, kind.boolean(), "Whether it gets a unique id, the claim jti"
    )
    https_ca_location = Option(
        None,
        kind.optional(kind.path(), ""),
        "CA certificates for the endpoint, a PEM file. None: the system's",
    )

    # Metrics.
    metric_reporters = Option(
        (),
        kind.plugins(
            "reporter classes or objects", "MetricsReporter", "init", "metric_change", "metric_removal"
        ),
        "Notified of metrics",
        shown_default="[]",
    )
    metrics_enabled = Option(
        True, kind.boolean(), "Whether metrics() returns values and reporters are notified", java=None
    )
    enable_metrics_push = Option(
        True,
        kind.boolean(),
        "Whether metrics are pushed to a broker that subscribes to them (KIP-714). A broker without a plugin "
        "for telemetry is sent nothing",
    )
    metrics_recording_level = Option(
        "INFO",
        kind.choice("INFO", "DEBUG", "TRACE"),
        "The level of the metrics to record. Every level records all: each producer metric has level INFO",
    )
    metrics_num_samples = Option(
        2, kind.whole(1, kind.INT32_MAX), "The number of samples (windows) of a rate"
    )
    metrics_sample_window_ms = Option(30000, kind.milliseconds(1), "The duration of a sample (window)")

    # Pickling and old brokers.
    pickle_secrets = Option(
        False,
        kind.boolean(),
        "Whether pickles of a producer or its configuration may contain passwords and keys. False: pickling "
        "raises TypeError if there are any; those given as callables do not count",
        java=None,
    )
    api_version = Option(
        None,
        kind.optional(kind.api_version(), "auto"),
        "The Kafka release to assume for a broker that closes the connection after an ApiVersions request. "
        "All other brokers report their versions",
        java=None,
    )

    # Accepted without effect.
    api_version_auto_timeout_ms = Option(
        None, kind.optional(kind.milliseconds()), _IGNORED + "see bootstrap_timeout_ms", java=None
    )
    default_api_timeout_ms = Option(
        None, kind.optional(kind.milliseconds()), _IGNORED + "see max_block_ms", java=None
    )
    net = Option(
        None, kind.anything("anything"), _IGNORED + "the sender thread does all input and output", java=None
    )
    kafka_client = Option(
        None, kind.anything("anything"), _IGNORED + "there is no client class to replace", java=None
    )


OPTIONS: tuple[Option[Any], ...] = tuple(row for row in vars(OptionTable).values() if isinstance(row, Option))
OPTIONS_BY_NAME = {option.name: option for option in OPTIONS}
