"""Telemetry of an embedded cluster (KIP-714): one subscription for all clients, and what they pushed.

Owns the two requests and the checks that a broker makes. As with Kafka, brokers offer telemetry only if
something takes the metrics: here, once a test has subscribed.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cyproducer.errors.error_code import ErrorCode
from cyproducer.records.codecs import CODECS
from cyproducer.testing.pushed_metrics import PushedMetrics
from cyproducer.wire.messages import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from cyproducer.wire.schema import NO_UUID

if TYPE_CHECKING:
    from cyproducer.testing.broker.server import Call

APIS: Final = (GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY)
LARGEST: Final = 100 << 20
"""The most bytes that a push may have once it is decompressed."""


class Subscription(NamedTuple):
    """What clients are to push; ``subscription_id`` differs from that of each earlier one."""

    metrics: tuple[str, ...]
    push_interval_ms: int
    delta: bool
    codec_ids: tuple[int, ...]
    max_bytes: int
    subscription_id: int


class Telemetry:
    """The subscription of a cluster; None: brokers do not offer telemetry."""

    def __init__(self) -> None:
        self.subscription: Subscription | None = None
        self.pushes: list[PushedMetrics] = []


def get_telemetry_subscriptions(call: "Call") -> Any:
    response = GET_TELEMETRY_SUBSCRIPTIONS.response
    subscription = call.cluster.telemetry.subscription
    code = call.fault()
    if subscription is None:
        code = ErrorCode.UNSUPPORTED_VERSION
    if code or subscription is None:
        return response(0, code, NO_UUID, 0, [], 0, 0, False, [])
    instance_id = call.request.client_instance_id
    if instance_id == NO_UUID:
        instance_id = call.world.random.getrandbits(128).to_bytes(16, "big")
    return response(
        0,
        0,
        instance_id,
        subscription.subscription_id,
        list(subscription.codec_ids),
        subscription.push_interval_ms,
        subscription.max_bytes,
        subscription.delta,
        list(subscription.metrics),
    )


def push_telemetry(call: "Call") -> Any:
    return PUSH_TELEMETRY.response(0, call.fault() or _push(call))


def _push(call: "Call") -> int:
    # Imported here: the codecs take long to import, and few tests need them.
    from cyproducer.records.compression import DecompressionError, decompress_any

    telemetry, request = call.cluster.telemetry, call.request
    subscription = telemetry.subscription
    if subscription is None:
        return ErrorCode.UNSUPPORTED_VERSION
    if request.client_instance_id == NO_UUID:
        return ErrorCode.INVALID_REQUEST
    if request.subscription_id != subscription.subscription_id:
        return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    if request.compression_type and request.compression_type not in subscription.codec_ids:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    if len(request.metrics) > subscription.max_bytes:
        return ErrorCode.TELEMETRY_TOO_LARGE
    try:
        metrics = decompress_any(request.compression_type, request.metrics, LARGEST)
    except DecompressionError:
        return ErrorCode.INVALID_RECORD
    pushed = PushedMetrics(
        call.header.client_id or "",
        bytes(request.client_instance_id),
        request.terminating,
        CODECS[request.compression_type].name,
        bytes(metrics),
    )
    telemetry.pushes.append(pushed)
    return ErrorCode.NO_ERROR


HANDLERS: Final[Mapping[Any, Callable[["Call"], Any]]] = {
    GET_TELEMETRY_SUBSCRIPTIONS: get_telemetry_subscriptions,
    PUSH_TELEMETRY: push_telemetry,
}
