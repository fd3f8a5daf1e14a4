"""Options of librdkafka (confluent-kafka) and of aiokafka that are renamed or unsupported here.

Owns what an "unknown option" error says about them, what ``cyproducer.confluent`` does with librdkafka's, and
the table of them in ``docs/migration.md``, which ``as_markdown`` prints. ``KafkaProducer`` does not accept
them: a value may have a different unit or a different meaning here. Imported only for an error message, or by
``cyproducer.confluent``. Immutable; any thread may call the functions.
"""

import enum
from typing import Final, NamedTuple

from cyproducer.config.options import OPTIONS_BY_NAME


class Taken(enum.Enum):
    """What ``cyproducer.confluent.Producer`` does with an option; the values are the wording of the table."""

    SAME = "the same"
    """The value is that of ``option``."""
    OWN = "yes"
    """``cyproducer.confluent`` translates the option, or implements it itself."""
    NO_EFFECT = "no effect"
    REFUSED = "an error"


class Foreign(NamedTuple):
    """What to give instead of an option of another client."""

    option: str | None
    """kafka-python's name of the option here."""
    note: str = ""
    client: str = "librdkafka"
    taken: Taken = Taken.SAME
    but: tuple[str, ...] = ()
    """If ``taken`` is ``REFUSED``: values without effect, which are accepted, in lower case."""


_REPORTS: Final = "each send() returns a future: use its add_callback() and add_errback()"
_LOG: Final = "configure the logger 'cyproducer' of Python's logging"
_METRICS: Final = "call metrics() or give metric_reporters"

#: Consumer options, which programs keep in one configuration for both consumers and producers.
FOR_CONSUMERS: Final = (
    "auto.commit.enable",
    "auto.commit.interval.ms",
    "auto.offset.reset",
    "check.crcs",
    "consume.callback.max.messages",
    "coordinator.query.interval.ms",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "fetch.error.backoff.ms",
    "fetch.max.bytes",
    "fetch.message.max.bytes",
    "fetch.min.bytes",
    "fetch.queue.backoff.ms",
    "fetch.wait.max.ms",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "group.protocol.type",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "isolation.level",
    "key.deserializer",
    "max.partition.fetch.bytes",
    "max.poll.interval.ms",
    "max.poll.records",
    "partition.assignment.strategy",
    "queued.max.messages.kbytes",
    "queued.min.messages",
    "session.timeout.ms",
    "value.deserializer",
)
_FOUND_OUT: Final = "brokers report their versions"
_LINES: Final = "log lines are those of this package"
_RETRIED: Final = "metadata is fetched again with a growing backoff"
_OPENSSL: Final = "give an ssl_context"
_OFF: Final = ("false", "0", "")


def _own(option: str | None, note: str = "") -> Foreign:
    return Foreign(option, note, taken=Taken.OWN)


def _nothing(note: str) -> Foreign:
    return Foreign(None, note, taken=Taken.NO_EFFECT)


def _refused(note: str, *but: str, option: str | None = None) -> Foreign:
    return Foreign(option, note, taken=Taken.REFUSED, but=but)


OTHER_NAMES: Final = {
    "metadata.broker.list": Foreign("bootstrap_servers"),
    "message.timeout.ms": _own("delivery_timeout_ms"),
    "message.send.max.retries": Foreign("retries"),
    "message.max.bytes": Foreign("max_request_size"),
    "request.required.acks": Foreign("acks"),
    "max.in.flight": Foreign("max_in_flight_requests_per_connection"),
    "queue.buffering.max.ms": Foreign("linger_ms"),
    "queue.buffering.max.kbytes": _own("buffer_memory", "in bytes"),
    "queue.buffering.max.messages": _own("buffer_memory", "which bounds bytes instead of records"),
    "batch.num.messages": Foreign(
        "batch_size", "which bounds bytes instead of records", taken=Taken.NO_EFFECT
    ),
    "compression.codec": Foreign("compression_type"),
    "socket.timeout.ms": _own("request_timeout_ms"),
    "socket.send.buffer.bytes": Foreign("send_buffer_bytes"),
    "socket.receive.buffer.bytes": Foreign("receive_buffer_bytes"),
    "socket.keepalive.enable": _own("socket_options", "with (SOL_SOCKET, SO_KEEPALIVE, 1)"),
    "socket.nagle.disable": _refused(
        "which has TCP_NODELAY by default", "true", "1", option="socket_options"
    ),
    "topic.metadata.refresh.interval.ms": _own("metadata_max_age_ms"),
    "ssl.ca.location": Foreign("ssl_cafile"),
    "ssl.ca.pem": Foreign("ssl_truststore_certificates"),
    "ssl.certificate.location": Foreign("ssl_certfile"),
    "ssl.certificate.pem": Foreign("ssl_keystore_certificate_chain"),
    "ssl.key.location": Foreign("ssl_keyfile"),
    "ssl.key.pem": Foreign("ssl_keystore_key"),
    "ssl.crl.location": Foreign("ssl_crlfile"),
    "enable.ssl.certificate.verification": _own("ssl_context", "with the verify_mode you need"),
    "sasl.mechanisms": Foreign("sasl_mechanism"),
    "sasl.username": _own("sasl_plain_username"),
    "sasl.password": _own("sasl_plain_password"),
    "sasl.oauthbearer.client.id": Foreign("sasl_oauthbearer_client_credentials_client_id"),
    "sasl.oauthbearer.client.secret": Foreign("sasl_oauthbearer_client_credentials_client_secret"),
    "oauth_cb": _own("sasl_oauth_token_provider"),
    "on_delivery": _own(None, _REPORTS),
    "dr_cb": _own(None, _REPORTS),
    "error_cb": _own(None, "errors are in the futures, and wait_ready() reports those of connections"),
    "stats_cb": _own(None, _METRICS),
    "statistics.interval.ms": _own(None, _METRICS),
    "debug": _nothing(_LOG),
    "log_level": _nothing(_LOG),
    "logger": _own(None, _LOG),
    "throttle_cb": _own(None, _METRICS),
    "delivery.report.only.error": _own(None, _REPORTS),
    "default.topic.config": _own(None, "give its options themselves; for single topics: topic_options"),
    "sasl.oauthbearer.config": _own("sasl_oauth_token_provider", "which needs no such string"),
    "sasl.oauthbearer.method": _own(
        "sasl_oauthbearer_token_endpoint_url", "which is enough for OpenID Connect"
    ),
    "sasl.oauthbearer.assertion.jwt.template.file": Foreign("sasl_oauthbearer_assertion_template_file"),
    "sasl.oauthbearer.sub.claim.name": _refused("the subject is not read", "sub"),
    "sasl.oauthbearer.metadata.authentication.type": _refused("not supported", "none"),
    "sasl.oauthbearer.assertion.private.key.pem": _refused(
        "which is the name of a file", option="sasl_oauthbearer_assertion_private_key_file"
    ),
    "enable.sasl.oauthbearer.unsecure.jwt": _refused("tokens come from a provider", *_OFF),
    "https.ca.pem": _refused("which is the name of a file", option="https_ca_location"),
    "ssl.curves.list": _refused(_OPENSSL, option="ssl_context"),
    "ssl.sigalgs.list": _refused(_OPENSSL, option="ssl_context"),
    "ssl.providers": _refused(_OPENSSL, option="ssl_context"),
    "ssl.engine.location": _refused(_OPENSSL, option="ssl_context"),
    "ssl.engine.id": _refused(_OPENSSL, option="ssl_context"),
    "queuing.strategy": _refused("records stay in order", "fifo"),
    "enable.gapless.guarantee": _refused("a record that fails does not stop the others", *_OFF),
    "plugin.library.paths": _refused("there are no plugins: give interceptors"),
    "topic.blacklist": _refused("topics are never ignored"),
    "api.version.request": _nothing(_FOUND_OUT),
    "api.version.request.timeout.ms": _nothing(_FOUND_OUT),
    "api.version.fallback.ms": _nothing(_FOUND_OUT),
    "broker.version.fallback": _nothing(_FOUND_OUT),
    "broker.address.family": _nothing("every address of a host is tried"),
    "broker.address.ttl": _nothing("a host is looked up for each round of attempts"),
    "enable.random.seed": _nothing("random numbers are always seeded"),
    "internal.termination.signal": _nothing("no thread needs a signal to end"),
    "log.connection.close": _nothing(_LINES),
    "log.thread.name": _nothing(_LINES),
    "log.queue": _nothing(_LINES),
    "message.copy.max.bytes": _nothing("records are always copied"),
    "produce.offset.report": _nothing("offsets are always reported"),
    "queue.buffering.backpressure.threshold": _nothing("what is queued is sent as connections allow"),
    "sasl.kerberos.kinit.cmd": _nothing("the keytab is read without kinit"),
    "sasl.kerberos.min.time.before.relogin": _nothing("the keytab is read without kinit"),
    "socket.blocking.max.ms": _nothing("no thread blocks on a socket"),
    "socket.max.fails": _nothing("a connection that fails is closed"),
    "ssl.ca.certificate.stores": _nothing("it is for Windows"),
    "sticky.partitioning.linger.ms": _nothing("records without a key change partitions with each batch"),
    "topic.metadata.propagation.max.ms": _nothing("a missing topic is waited for as long as its records"),
    "topic.metadata.refresh.fast.cnt": _nothing(_RETRIED),
    "topic.metadata.refresh.fast.interval.ms": _nothing(_RETRIED),
    "topic.metadata.refresh.sparse": _nothing("only the topics in use are fetched"),
    "max_batch_size": Foreign("batch_size", client="aiokafka"),
    "loop": Foreign(None, "send_async() uses the running loop", client="aiokafka"),
    **dict.fromkeys(
        FOR_CONSUMERS, Foreign(None, "a producer has no use for it, leave it out", client="a consumer")
    ),
}

_BY_DOTS: Final = {name.replace("_", "."): other for name, other in OTHER_NAMES.items()}


def about(key: str, prefix: str = "") -> str | None:
    """Returns the error text for an option of another client; None if no other client has it.

    ``prefix``: what the user writes before names of options.
    """
    other = _BY_DOTS.get(key.lower().replace("_", "."))
    if other is None:
        return None
    if other.option is None:
        return f"option {prefix + key!r} is {other.client}'s: {other.note}"
    option = OPTIONS_BY_NAME[other.option]
    shown = prefix + (option.java_spelling if "." in key else option.name)
    return f"unknown option {prefix + key!r}: {other.client}'s name for {shown!r}" + (
        other.note and f", {other.note}"
    )


def as_markdown(client: str) -> str:
    """Returns the table of a client's options: its name and what to give here."""
    ours = client == "librdkafka"
    head = [client, "here", *(["`cyproducer.confluent`"] if ours else [])]
    rows = [head, ["---"] * len(head)]
    for name, (option, note, of, taken, but) in OTHER_NAMES.items():
        if of == client:
            row = [f"`{name}`", ", ".join(filter(None, [option and f"`{option}`", note]))]
            accepted = [each for each in but if each]
            if ours:
                row.append(taken.value + (f", but for {' and '.join(accepted)}" if accepted else ""))
            rows.append(row)
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
