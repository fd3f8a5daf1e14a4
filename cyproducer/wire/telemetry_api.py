"""The requests that push metrics (KIP-714): encodes them, and decodes the responses.

As in ``protocol``, every function is pure and callable from any thread. Imported only where it is used,
because each type takes 0.1 ms to create.
"""

from typing import NamedTuple

from cyproducer.wire.messages import (
    GET_TELEMETRY_SUBSCRIPTIONS,
    PUSH_TELEMETRY,
)
from cyproducer.wire.protocol import DECODERS, invalid
from cyproducer.wire.schema import NO_UUID, Frame


class GetTelemetrySubscriptionsResponse(NamedTuple):
    """Which metrics a broker wants to be pushed, how often and how (KIP-714)."""

    throttle_time_ms: int
    error_code: int
    #: 16 bytes, for all later requests of this client, to any broker.
    client_instance_id: bytes
    subscription_id: int
    #: The ids of codecs, the preferred one first.
    accepted_compression_types: list[int]
    push_interval_ms: int
    telemetry_max_bytes: int
    #: Whether sums are pushed as the increase since the last push.
    delta_temporality: bool
    #: Prefixes of names; "*" and "" are all metrics, no prefix is none.
    requested_metrics: list[str]

    def wants(self, name: str) -> bool:
        """Whether the metric is to be pushed."""
        return "*" in self.requested_metrics or name.startswith(tuple(self.requested_metrics))


class PushTelemetryResponse(NamedTuple):
    """Whether a broker has taken metrics (KIP-714)."""

    throttle_time_ms: int
    error_code: int


def encode_get_telemetry_subscriptions(
    version: int, correlation_id: int, client_id: str | None, instance_id: bytes
) -> bytes:
    """Encodes a GetTelemetrySubscriptions request v0 as a whole frame (KIP-714).

    Args:
        instance_id: 16 bytes, from an earlier response; ``NO_UUID`` to be given one.
    """
    request = GET_TELEMETRY_SUBSCRIPTIONS.request(instance_id)
    return GET_TELEMETRY_SUBSCRIPTIONS.encode_request(version, correlation_id, client_id, request)


def encode_push_telemetry(
    version: int,
    correlation_id: int,
    client_id: str | None,
    instance_id: bytes,
    subscription_id: int,
    terminating: bool,
    codec_id: int,
    metrics: bytes,
) -> bytes:
    """Encodes a PushTelemetry request v0 as a whole frame (KIP-714).

    Args:
        instance_id: 16 bytes, from the subscription.
        terminating: whether it is this client's last push.
        codec_id: the codec of ``metrics``, as in record batches; 0: none.
        metrics: OTLP's ``MetricsData``, compressed.
    """
    request = PUSH_TELEMETRY.request(instance_id, subscription_id, terminating, codec_id, metrics)
    return PUSH_TELEMETRY.encode_request(version, correlation_id, client_id, request)


def decode_get_telemetry_subscriptions(version: int, frame: Frame) -> GetTelemetrySubscriptionsResponse:
    """Decodes a GetTelemetrySubscriptions response v0. Without an error, the instance id must not be zero."""
    found = GetTelemetrySubscriptionsResponse(*GET_TELEMETRY_SUBSCRIPTIONS.decode_response(version, frame))
    if found.error_code == 0 and found.client_instance_id == NO_UUID:
        message = f"GetTelemetrySubscriptions v{version} response"
        raise invalid(message, "client_instance_id is zero, must be an id")
    return found


def decode_push_telemetry(version: int, frame: Frame) -> PushTelemetryResponse:
    """Decodes a PushTelemetry response v0."""
    return PushTelemetryResponse(*PUSH_TELEMETRY.decode_response(version, frame))


DECODERS |= {
    GET_TELEMETRY_SUBSCRIPTIONS: decode_get_telemetry_subscriptions,
    PUSH_TELEMETRY: decode_push_telemetry,
}
