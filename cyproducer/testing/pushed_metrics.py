"""Metrics as a client pushed them to an ``EmbeddedBroker``."""

from typing import NamedTuple


class PushedMetrics(NamedTuple):
    """One push of a client's metrics (KIP-714).

    ``metrics`` is a ``MetricsData`` of OpenTelemetry's protocol, decompressed: the package
    ``opentelemetry-proto`` reads it. ``client_instance_id`` is 16 bytes. ``compression`` is the codec's name.
    ``terminating``: the client's last push.
    """

    client_id: str
    client_instance_id: bytes
    terminating: bool
    compression: str
    metrics: bytes
