"""The options that the accumulator and the sender read, without a ``ProducerConfig``."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

DEFAULTS: Final[Mapping[str, Any]] = {
    "client_id": "rig",
    "transactional_id": None,
    "acks": -1,
    "batch_size": 16384,
    "linger_ms": 0.0,
    "enable_idempotence": False,
    "partitioner_adaptive_partitioning_enable": True,
    "partitioner_availability_timeout_ms": 0.0,
    "partitioner_single_broker_ms": 30_000.0,
    "max_in_flight_requests_per_connection": 5,
    "max_request_size": 1 << 20,
    "far_request_size": 1 << 20,
    "request_timeout_ms": 30_000.0,
    "delivery_timeout_ms": 120_000.0,
    "receive_message_max_bytes": 1 << 20,
    "metrics_num_samples": 2,
    "metrics_sample_window_ms": 30_000.0,
}
"""The producer's names. Sizes are bytes."""


def accumulator_options(**overrides: Any) -> SimpleNamespace:
    """Returns the options as attributes: the defaults, except for ``overrides``.

    Raises:
        TypeError: an override is none of the options.
    """
    if unknown := overrides.keys() - DEFAULTS.keys():
        raise TypeError(f"{', '.join(sorted(unknown))}: no option of the accumulator or the sender")
    return SimpleNamespace(**{**DEFAULTS, **overrides})
