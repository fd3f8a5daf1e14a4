"""Types for annotations in users' programs: the options by name, and the objects that a user can pass.

Owns ``ProducerOptions`` and the protocols of serializers, partitioners, interceptors, metric reporters and
token providers. This module does nothing at run time, and no other module of the package imports it at run
time. The classes that exist at run time (``RecordFuture``, ``RecordMetadata``, ...) are in ``cyproducer``.

``tools/option_types.py`` writes ``ProducerOptions``, from the table of options (``config.options``).
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from os import PathLike
from selectors import BaseSelector
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypedDict

from cyproducer.structs import ProducerRecord, RecordMetadata

if TYPE_CHECKING:
    # Checkers bring their own typing_extensions. Defaults (PEP 696) let programs write a bare KafkaProducer.
    from typing_extensions import Buffer, TypeVar

    K = TypeVar("K", contravariant=True, default=Any)
    V = TypeVar("V", contravariant=True, default=Any)
else:
    from typing import TypeVar

    K = TypeVar("K", contravariant=True)
    V = TypeVar("V", contravariant=True)
    if sys.version_info >= (3, 12):
        from collections.abc import Buffer
    else:
        Buffer = bytes | bytearray | memoryview

__all__ = [
    "AcknowledgementInterceptor",
    "Headers",
    "Interceptor",
    "KeyPartitioner",
    "MetricsReporter",
    "PartitionerFunction",
    "PartitionerOption",
    "ProducerOptions",
    "RecordPartitioner",
    "SendInterceptor",
    "Serializer",
    "SerializerOption",
    "TokenProvider",
    "TokenProviderOption",
]

T = TypeVar("T", contravariant=True)

Headers: TypeAlias = Iterable[tuple[str, Buffer | None]]
"""The headers of a record, as ``send()`` takes them."""


class Serializer(Protocol[T]):
    """An object for ``key_serializer`` or ``value_serializer``, with kafka-python 3's interface."""

    def serialize(self, topic: str, headers: Any, data: T, /) -> Buffer | None:
        """Returns the bytes of a key or value. Also called with None, if ``send()`` gets no key or value."""


SerializerOption: TypeAlias = Callable[[T], Buffer | None] | Serializer[T]


class RecordPartitioner(Protocol):
    """A partitioner that sees the whole record; ``cyproducer.Partitioner`` is a base class for it."""

    def partition(
        self,
        topic: str,
        key: Any,
        serialized_key: Any,
        value: Any,
        serialized_value: Any,
        cluster: Any,
        /,
    ) -> int:
        """Returns one of ``cluster.partitions_for_topic(topic)``; ``cluster`` is a ``ClusterView``."""


class KeyPartitioner(Protocol):
    """A partitioner with the interface that kafka-python 3 calls deprecated."""

    def partition(self, topic: str, serialized_key: Any, cluster: Any, /) -> int:
        """Returns one of ``cluster.partitions_for_topic(topic)``; ``cluster`` is a ``ClusterView``."""


PartitionerFunction: TypeAlias = Callable[[bytes | None, list[int], list[int]], int]
"""kafka-python 2's partitioner: ``(key_bytes, all_partitions, available_partitions)``."""

PartitionerOption: TypeAlias = (
    PartitionerFunction | RecordPartitioner | KeyPartitioner | type[RecordPartitioner] | type[KeyPartitioner]
)


class SendInterceptor(Protocol):
    """An interceptor that sees, and may replace, each record before it is serialized."""

    def on_send(self, record: ProducerRecord, /) -> ProducerRecord:
        """Returns the record, or another to send instead."""


class AcknowledgementInterceptor(Protocol):
    """An interceptor that is notified of each record's outcome."""

    def on_acknowledgement(self, metadata: RecordMetadata, error: Any, /) -> object:
        """``error`` is an exception, or None if the record was acknowledged."""


Interceptor: TypeAlias = (
    SendInterceptor | AcknowledgementInterceptor | type[SendInterceptor] | type[AcknowledgementInterceptor]
)


class _Initialised(Protocol):
    def init(self, metrics: Any, /) -> object: ...


class _Notified(Protocol):
    def metric_change(self, metric: Any, /) -> object: ...


MetricsReporter: TypeAlias = _Initialised | _Notified | type[_Initialised] | type[_Notified]
"""An object or class with kafka-python's ``init(metrics)`` or ``metric_change(metric)``, or both."""


class TokenProvider(Protocol):
    """kafka-python's token provider; ``token`` may be an ``async def``. Optional: ``extensions()``."""

    def token(self) -> str | tuple[Any, ...] | Awaitable[str | tuple[Any, ...]]:
        """Returns a token, or a tuple that begins with the token and its expiry."""


TokenProviderOption: TypeAlias = (
    TokenProvider | Callable[[str], str | tuple[Any, ...] | Awaitable[str | tuple[Any, ...]]]
)
"""A token provider, or a callable like confluent-kafka's ``oauth_cb``."""


class ProducerOptions(TypedDict, Generic[K, V], total=False):
    """The keyword arguments of ``KafkaProducer``, with kafka-python's names.

    ``K`` and ``V`` are the types of keys and values. Java's names, and numbers as strings, are for the
    positional mapping, which checkers do not check.
    """

    bootstrap_servers: str | Iterable[str]
    """The brokers to contact first; one that responds is enough. The default port is 9092. An IPv6 address
    with a port must be in brackets. Default: 'localhost'.
    """

    client_id: str | None
    """The client name that brokers use for logs and quotas. None: numbered within the process. Default:
    'cyproducer-N'.
    """

    key_serializer: SerializerOption[K] | None
    """Converts a key to bytes. None: keys must be bytes. Default: None."""

    value_serializer: SerializerOption[V] | None
    """Converts a value to bytes. None: values must be bytes. Default: None."""

    interceptors: Iterable[Interceptor] | Interceptor | None
    """Called with every record before its serialisation, and with every outcome. Default: []."""

    partitioner: str | PartitionerOption | None
    """Chooses the partition. None: by the key's murmur2 hash, as in Java; without a key, by load. Default:
    None.
    """

    partitioner_ignore_keys: bool
    """Choose the partition by load also for records with a key. Applies only without a partitioner.
    Default: False.
    """

    partitioner_adaptive_partitioning_enable: bool
    """Send fewer of the records without a key to slow brokers (KIP-794). Default: True."""

    partitioner_availability_timeout_ms: float
    """Choose no partition whose broker has accepted no batch for this long although batches were waiting.
    0: off. Default: 0.
    """

    partitioner_rack_aware: bool
    """Send records without a key to partitions whose leader is in client_rack, while any is available
    (KIP-1123). For partitioners that are sticky for such records, as the default one is. Default:
    False.
    """

    client_rack: str | None
    """The rack that the client is in, as in the brokers' broker.rack. Only partitioner_rack_aware uses it.
    Default: None.
    """

    partitioner_single_broker_ms: float
    """How long records without a key may stay on the partitions of one broker. 0: not at all. Default:
    30000.
    """

    acks: int | Literal["all"]
    """Which replicas must have the record: 0 none (offsets are unknown then), 1 the leader, -1 or 'all'
    every in-sync replica. Default: -1.
    """

    enable_idempotence: bool | None
    """Prevents retries from duplicating or reordering records. Needs acks=all, retries above 0 and at most
    5 requests in flight. Otherwise it is switched off, or is an error if it was set explicitly.
    Default: True.
    """

    topic_options: Mapping[str, Mapping[str, Any]] | str
    """Settings of single topics: a topic's name, or a pattern such as 'audit.*', with any of acks,
    compression_level, compression_type and linger_ms. A name wins over patterns; of these the first one
    that matches wins. Entries are not merged. acks needs enable_idempotence=False. Default: {}.
    """

    transactional_id: str | None
    """Enables transactions, and implies idempotence. A newer producer with the same id fences this one.
    Default: None.
    """

    transaction_timeout_ms: float
    """The coordinator aborts a transaction that is open longer than this. Default: 60000."""

    delivery_timeout_ms: float
    """Maximum time from send() to success or failure. Must be at least linger_ms + request_timeout_ms; if
    it is not given, it is raised to that sum. Default: 120000.
    """

    retries: float
    """Maximum number of times that a batch is sent again, within delivery_timeout_ms. Default:
    float('inf').
    """

    retry_backoff_ms: float
    """Backoff before the first retry. It doubles with each retry. Default: 100."""

    retry_backoff_max_ms: float
    """Maximum backoff between retries. If it is not given, it is at least retry_backoff_ms. Default: 1000."""

    request_timeout_ms: float
    """A request without a response for this long fails, and its connection is closed. inf means the
    maximum of 24 days. Default: 30000.
    """

    max_in_flight_requests_per_connection: int
    """Maximum number of requests without a response per connection. Without idempotence a partition has
    one batch in flight at a time all the same, unless acks=0. Default: 5.
    """

    batch_size: int
    """Maximum size of a batch. A single record may exceed it. Memory is allocated as a batch fills.
    Default: 131072.
    """

    linger_ms: float
    """How long a batch that is not full waits for more records. Up to a quarter less if another batch is
    sent. Default: 0.
    """

    buffer_memory: int
    """Maximum memory for records that are not acknowledged yet. send() blocks if it is exhausted. Memory
    is taken as it is needed. Above 8 MiB, what was not needed for some seconds goes back to the system.
    Default: 33554432.
    """

    max_block_ms: float
    """How long send() may wait for metadata and memory together, and other calls for their response.
    Default: 60000.
    """

    max_pending_callbacks: int
    """Maximum number of completed records whose callbacks, including those of interceptors, have not run.
    send() blocks if it is reached. Default: 100000.
    """

    max_request_size: int
    """Maximum size of a request, and therefore of a record. Unless it is given, requests to far brokers,
    whose answers take 50 ms or more, may have an eighth of buffer_memory. Default: 1048576.
    """

    compression_type: Literal["gzip", "snappy", "lz4", "zstd", "none"] | None
    """The compression codec for batches. Default: None."""

    compression_level: int | None
    """The compression level, in the range of the codec's own option below. None: the codec's default.
    Default: None.
    """

    compression_gzip_level: int | None
    """The level if the codec is gzip (KIP-390). -1: zlib's default. Default: None."""

    compression_lz4_level: int | None
    """The level if the codec is lz4 (KIP-390). None: lz4's fast compressor, which is 9 in Java. Others
    need the extra lz4. Default: None.
    """

    compression_zstd_level: int | None
    """The level if the codec is zstd (KIP-390). None: 3. Default: None."""

    close_timeout_ms: float
    """How long the end of the process waits for unsent records. close(timeout) has its own timeout.
    Default: 30000.
    """

    bootstrap_timeout_ms: float
    """How long to look for a bootstrap server that responds. Default: 30000."""

    allow_auto_create_topics: bool
    """Let brokers create topics that do not exist. Default: True."""

    metadata_max_age_ms: float
    """Metadata older than this is fetched again. Default: 300000."""

    metadata_max_idle_ms: float
    """A topic to which nothing was sent for this long is forgotten. Default: 300000."""

    metadata_recovery_strategy: Literal["rebootstrap", "none"]
    """If no known broker can be reached: start again from bootstrap_servers (KIP-899), or keep trying.
    Default: 'rebootstrap'.
    """

    metadata_recovery_rebootstrap_trigger_ms: float
    """Also start again if no metadata arrived for this long (KIP-1102). Default: 300000."""

    metadata_cluster_check_enable: bool
    """Let brokers refuse connections that were meant for another broker or cluster (KIP-1242, Kafka 4.4).
    Ignored if metadata_recovery_strategy is 'none'. Default: True.
    """

    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"]
    """Try every address of a host name, or first resolve bootstrap servers to their canonical names
    (Kerberos). 'default', a value of Java clients before 3.0, means the former. Default:
    'use_all_dns_ips'.
    """

    connections_max_idle_ms: float
    """A connection that is idle for this long, at least 100 ms, is closed. Default: 540000."""

    reconnect_backoff_ms: float
    """Backoff before the first reconnection to a broker. It doubles with each failure. Default: 50."""

    reconnect_backoff_max_ms: float
    """Maximum backoff between reconnections: after an outage, records wait this much longer at most. If it
    is not given, it is at least reconnect_backoff_ms. Default: 1000.
    """

    authentication_backoff_ms: float
    """Backoff before the next connection to a broker that has refused this client's credentials. Never
    shorter than the backoff between reconnections. Default: 30000.
    """

    socket_connection_setup_timeout_ms: float
    """Timeout for setting up a connection, including TLS and SASL. It doubles with each failure. Default:
    10000.
    """

    socket_connection_setup_timeout_max_ms: float
    """Maximum of this timeout. If it is not given, it is at least socket_connection_setup_timeout_ms.
    Default: 30000.
    """

    receive_message_max_bytes: int
    """A larger response is treated as invalid. Default: 100000000."""

    receive_buffer_bytes: int | None
    """SO_RCVBUF. None: the system default. Default: None."""

    send_buffer_bytes: int | None
    """SO_SNDBUF. None: the system default. Default: None."""

    socket_options: Iterable[tuple[int, int, int | bytes] | tuple[int, int, None, int]]
    """Options to set on every socket. Default: [(IPPROTO_TCP, TCP_NODELAY, 1)]."""

    proxy_url: str | None
    """A proxy to connect through: socks5://[user:password@]host:port or http://... (CONNECT). It looks up
    the brokers' names. Default: None.
    """

    socks5_proxy: str | None
    """kafka-python's older name for proxy_url. Default: None."""

    broker_address: Callable[[str, int], tuple[str, int]] | None
    """Called with the host and port that a broker advertises; returns the (host, port) to connect to, for
    forwarded ports and private names. Certificates are still checked for the advertised host. Default:
    None.
    """

    selector: Callable[[], BaseSelector] | None
    """The subclass of selectors.BaseSelector to wait with. Default: selectors.DefaultSelector."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    """Plain text or TLS (SSL), without or with SASL. Default: 'PLAINTEXT'."""

    ssl_context: SSLContext | None
    """An existing context. The other ssl_* options, apart from ssl_without_gil, are then ignored. Default:
    None.
    """

    ssl_check_hostname: bool
    """Whether the broker's certificate must match its host name. Default: True."""

    ssl_cafile: str | PathLike[str] | None
    """CA certificates: a PEM or PKCS#12 file. None: the system's. Default: None."""

    ssl_truststore_certificates: str | None
    """CA certificates as PEM text, instead of ssl_cafile. Default: None."""

    ssl_truststore_type: Literal["PEM", "PKCS12", "JKS"] | None
    """The format of ssl_cafile, for Java's sake: the content decides. JKS is not supported. Default: None."""

    ssl_truststore_password: str | Callable[[], str] | None
    """The password of a PKCS#12 file in ssl_cafile. Default: None."""

    ssl_certfile: str | PathLike[str] | None
    """The client's certificate chain: a PEM file, or a PKCS#12 file with its private key. Default: None."""

    ssl_keyfile: str | PathLike[str] | None
    """The client's private key, PEM. None: it is in ssl_certfile. Default: None."""

    ssl_keystore_certificate_chain: str | None
    """The client's certificate chain as PEM text, instead of ssl_certfile. Default: None."""

    ssl_keystore_key: str | Callable[[], str] | None
    """The private key of that chain as PEM text. Default: None."""

    ssl_keystore_type: Literal["PEM", "PKCS12", "JKS"] | None
    """The format of ssl_certfile, for Java's sake: the content decides. JKS is not supported. Default:
    None.
    """

    ssl_keystore_password: str | Callable[[], str] | None
    """The password of a PKCS#12 file in ssl_certfile. Default: None."""

    ssl_crlfile: str | PathLike[str] | None
    """A list of revoked certificates, PEM, for the brokers' own certificates. Default: None."""

    ssl_password: str | Callable[[], str] | None
    """The password of the private key. Default: None."""

    ssl_ciphers: str | None
    """Ciphers of TLS 1.2, by OpenSSL's or Java's names. Those of TLS 1.3 are always allowed. Default:
    None.
    """

    ssl_enabled_protocols: Sequence[Literal["TLSv1.2", "TLSv1.3"]] | str
    """The versions of TLS to offer. Default: ('TLSv1.2', 'TLSv1.3')."""

    ssl_protocol: Literal["TLSv1.2", "TLSv1.3", "tls"] | None
    """Java's name for the newest of these; it changes nothing. Default: None."""

    ssl_without_gil: bool
    """Encrypt in C, without the GIL, if this Python's OpenSSL can be called from C. False: always through
    Python's ssl module, which is slower. Default: True.
    """

    sasl_mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"] | None
    )
    """The authentication mechanism if security_protocol begins with SASL. Default: None."""

    sasl_plain_username: str | Callable[[], str] | None
    """The user, for PLAIN and SCRAM. Default: None."""

    sasl_plain_password: str | Callable[[], str] | None
    """The password, for PLAIN and SCRAM. Default: None."""

    sasl_jaas_config: str | Callable[[], str] | None
    """The credentials as Java's clients have them: a PlainLoginModule or ScramLoginModule with username
    and password, an OAuthBearerLoginModule, an IAMLoginModule, or a Krb5LoginModule. Default: None.
    """

    sasl_kerberos_name: Any
    """The broker's principal, instead of the service name and the host. Default: None."""

    sasl_kerberos_service_name: str
    """The service name in the broker's principal. Default: 'kafka'."""

    sasl_kerberos_domain_name: str | None
    """The host name in the broker's principal. None: the host of the connection. Default: None."""

    sasl_kerberos_principal: str | None
    """The client's principal. None: that of the credential cache, or the first of the keytab. Default:
    None.
    """

    sasl_kerberos_keytab: str | PathLike[str] | None
    """The keytab with the client's key. None: the default credential cache, which kinit fills. Default:
    None.
    """

    sasl_oauth_token_provider: TokenProviderOption | None
    """Supplies tokens for OAUTHBEARER: an object with token(), also async, or a callable such as
    confluent-kafka's oauth_cb. Called on a thread of its own, for each authentication or, if the token
    says when it ends, ahead of that. Default: None.
    """

    sasl_oauthbearer_token_endpoint_url: str | None
    """Where to get tokens from (OpenID Connect), or a file: URL of one. Default: None."""

    sasl_oauthbearer_grant_type: Literal["client_credentials", "jwt-bearer"]
    """What the endpoint is asked with: the client's own credentials, or a signed JWT. Default:
    'client_credentials'.
    """

    sasl_oauthbearer_client_credentials_client_id: str | None
    """The client's id at the endpoint. Default: None."""

    sasl_oauthbearer_client_credentials_client_secret: str | Callable[[], str] | None
    """Its secret. Default: None."""

    sasl_oauthbearer_scope: str | None
    """The scope to ask for. Default: None."""

    sasl_oauthbearer_extensions: Mapping[str, str] | str | None
    """SASL extensions for the broker, such as logicalCluster=lkc-1,identityPoolId=pool-1. Default: None."""

    sasl_oauthbearer_header_urlencode: bool
    """Whether id and secret are percent-encoded in the Authorization header (RFC 6749). Default: False."""

    sasl_oauthbearer_assertion_file: str | PathLike[str] | None
    """A signed JWT to ask with, instead of the secret, or for jwt-bearer. Read again each time. Default:
    None.
    """

    sasl_oauthbearer_assertion_private_key_file: str | PathLike[str] | None
    """The private key, PEM, to sign a JWT with, instead of such a file. Default: None."""

    sasl_oauthbearer_assertion_private_key_passphrase: str | Callable[[], str] | None
    """The passphrase of that key. Default: None."""

    sasl_oauthbearer_assertion_algorithm: Literal["RS256", "ES256"]
    """The algorithm of the signature. Default: 'RS256'."""

    sasl_oauthbearer_assertion_template_file: str | PathLike[str] | None
    """A JSON file with further claims: {"header": {...}, "payload": {...}}. Default: None."""

    sasl_oauthbearer_assertion_claim_iss: str | None
    """The claim iss. Default: None."""

    sasl_oauthbearer_assertion_claim_sub: str | None
    """The claim sub. Default: None."""

    sasl_oauthbearer_assertion_claim_aud: str | None
    """The claim aud. Default: None."""

    sasl_oauthbearer_assertion_claim_exp_seconds: int
    """How long the JWT is valid. Default: 300."""

    sasl_oauthbearer_assertion_claim_nbf_seconds: int
    """How long it has been valid: clocks differ. Default: 60."""

    sasl_oauthbearer_assertion_claim_jti_include: bool
    """Whether it gets a unique id, the claim jti. Default: False."""

    https_ca_location: str | PathLike[str] | None
    """CA certificates for the endpoint, a PEM file. None: the system's. Default: None."""

    metric_reporters: Iterable[MetricsReporter] | MetricsReporter | None
    """Notified of metrics. Default: []."""

    metrics_enabled: bool
    """Whether metrics() returns values and reporters are notified. Default: True."""

    enable_metrics_push: bool
    """Whether metrics are pushed to a broker that subscribes to them (KIP-714). A broker without a plugin
    for telemetry is sent nothing. Default: True.
    """

    metrics_recording_level: Literal["INFO", "DEBUG", "TRACE"]
    """The level of the metrics to record. Every level records all: each producer metric has level INFO.
    Default: 'INFO'.
    """

    metrics_num_samples: int
    """The number of samples (windows) of a rate. Default: 2."""

    metrics_sample_window_ms: float
    """The duration of a sample (window). Default: 30000."""

    pickle_secrets: bool
    """Whether pickles of a producer or its configuration may contain passwords and keys. False: pickling
    raises TypeError if there are any; those given as callables do not count. Default: False.
    """

    api_version: Sequence[int] | str | None
    """The Kafka release to assume for a broker that closes the connection after an ApiVersions request.
    All other brokers report their versions. Default: None.
    """

    api_version_auto_timeout_ms: float | None
    """Accepted for compatibility with kafka-python, without effect: see bootstrap_timeout_ms. Default:
    None.
    """

    default_api_timeout_ms: float | None
    """Accepted for compatibility with kafka-python, without effect: see max_block_ms. Default: None."""

    net: Any
    """Accepted for compatibility with kafka-python, without effect: the sender thread does all input and
    output. Default: None.
    """

    kafka_client: Any
    """Accepted for compatibility with kafka-python, without effect: there is no client class to replace.
    Default: None.
    """
