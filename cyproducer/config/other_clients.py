"""Options of librdkafka's clients (confluent-kafka) and of aiokafka that have another name here, or none.

Owns what an "unknown option" error says about them, and the table of them in ``docs/migration.md``, which
``as_markdown`` prints. Does not accept them: a value may have another unit or another meaning here. Imported
only for a mistake. Immutable; any thread may call.
"""

from typing import Final, NamedTuple

from cyproducer.config.options import OPTIONS_BY_NAME


class Foreign(NamedTuple):
    """What is to be given instead."""

    option: str | None
    """kafka-python's name of the option here."""
    note: str = ""
    client: str = "librdkafka"


_REPORTS: Final = "each send() returns a future: use its add_callback() and add_errback()"
_LOG: Final = "configure the logger 'cyproducer' of Python's logging"
_METRICS: Final = "call metrics() or give metric_reporters"

#: The commonest options of configurations that consumers and producers share.
_OF_CONSUMERS: Final = (
    "group.id",
    "auto.offset.reset",
    "enable.auto.commit",
    "auto.commit.interval.ms",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.records",
    "max.poll.interval.ms",
    "isolation.level",
    "fetch.min.bytes",
    "key.deserializer",
    "value.deserializer",
)

OTHER_NAMES: Final = {
    "metadata.broker.list": Foreign("bootstrap_servers"),
    "message.timeout.ms": Foreign("delivery_timeout_ms"),
    "message.send.max.retries": Foreign("retries"),
    "message.max.bytes": Foreign("max_request_size"),
    "request.required.acks": Foreign("acks"),
    "max.in.flight": Foreign("max_in_flight_requests_per_connection"),
    "queue.buffering.max.ms": Foreign("linger_ms"),
    "queue.buffering.max.kbytes": Foreign("buffer_memory", "in bytes"),
    "queue.buffering.max.messages": Foreign("buffer_memory", "which bounds bytes instead of records"),
    "batch.num.messages": Foreign("batch_size", "which bounds bytes instead of records"),
    "compression.codec": Foreign("compression_type"),
    "socket.timeout.ms": Foreign("request_timeout_ms"),
    "socket.send.buffer.bytes": Foreign("send_buffer_bytes"),
    "socket.receive.buffer.bytes": Foreign("receive_buffer_bytes"),
    "socket.keepalive.enable": Foreign("socket_options", "with (SOL_SOCKET, SO_KEEPALIVE, 1)"),
    "socket.nagle.disable": Foreign("socket_options", "which has TCP_NODELAY by default"),
    "topic.metadata.refresh.interval.ms": Foreign("metadata_max_age_ms"),
    "ssl.ca.location": Foreign("ssl_cafile"),
    "ssl.ca.pem": Foreign("ssl_truststore_certificates"),
    "ssl.certificate.location": Foreign("ssl_certfile"),
    "ssl.certificate.pem": Foreign("ssl_keystore_certificate_chain"),
    "ssl.key.location": Foreign("ssl_keyfile"),
    "ssl.key.pem": Foreign("ssl_keystore_key"),
    "ssl.crl.location": Foreign("ssl_crlfile"),
    "enable.ssl.certificate.verification": Foreign("ssl_context", "with the verify_mode you need"),
    "sasl.mechanisms": Foreign("sasl_mechanism"),
    "sasl.username": Foreign("sasl_plain_username"),
    "sasl.password": Foreign("sasl_plain_password"),
    "sasl.oauthbearer.client.id": Foreign("sasl_oauthbearer_client_credentials_client_id"),
    "sasl.oauthbearer.client.secret": Foreign("sasl_oauthbearer_client_credentials_client_secret"),
    "oauth_cb": Foreign("sasl_oauth_token_provider"),
    "on_delivery": Foreign(None, _REPORTS),
    "dr_cb": Foreign(None, _REPORTS),
    "error_cb": Foreign(None, "errors are in the futures, and wait_ready() reports those of connections"),
    "stats_cb": Foreign(None, _METRICS),
    "statistics.interval.ms": Foreign(None, _METRICS),
    "debug": Foreign(None, _LOG),
    "log_level": Foreign(None, _LOG),
    "logger": Foreign(None, _LOG),
    "max_batch_size": Foreign("batch_size", client="aiokafka"),
    "loop": Foreign(None, "send_async() uses the running loop", client="aiokafka"),
    **dict.fromkeys(
        _OF_CONSUMERS, Foreign(None, "a producer has no use for it, leave it out", client="a consumer")
    ),
}

_BY_DOTS: Final = {name.replace("_", "."): other for name, other in OTHER_NAMES.items()}


def about(key: str) -> str | None:
    """Returns what an error says about the option of another client; None if none has it."""
    other = _BY_DOTS.get(key.lower().replace("_", "."))
    if other is None:
        return None
    if other.option is None:
        return f"option {key!r} is {other.client}'s: {other.note}"
    option = OPTIONS_BY_NAME[other.option]
    shown = (option.java_name or option.dotted_name) if "." in key else option.name
    return f"unknown option {key!r}: {other.client}'s name for {shown!r}" + (other.note and f", {other.note}")


def as_markdown(client: str) -> str:
    """Returns the table of a client's options: its name and what to give here."""
    lines = [f"| {client} | here |", "| --- | --- |"]
    for name, (option, note, of) in OTHER_NAMES.items():
        if of == client:
            lines.append(f"| `{name}` | {', '.join(filter(None, [option and f'`{option}`', note]))} |")
    return "\n".join(lines) + "\n"
