"""Makes the plan of a soak test from its seed. Pure: the same arguments give the same plan everywhere."""

import random
from dataclasses import dataclass
from typing import Any, NamedTuple

FAULTS = {
    "cut_in": 1e-3,
    "cut_out": 1e-3,
    "lose": 1e-4,
    "stall": 1e-4,
    "delay": 5e-3,
    "split": 2e-3,
    "throttle": 1e-3,
    "refuse": 1e-3,
    "after": 1e-3,
    "move": 2e-3,
    "down": 1e-4,
    "leaderless": 2e-3,
    "no_id": 2e-2,
}
"""Probabilities with ``--strength 1``."""


class Shape(NamedTuple):
    """The shape of a chunk's records."""

    value_size: int
    key_size: int
    headers: int
    to_partition: bool
    """Whether the application chooses the partition."""


@dataclass(frozen=True)
class Plan:
    """Everything that a run depends on, except for the machine."""

    seed: int
    records: int
    producers: int
    brokers: int
    partitions: int
    produce_version: int
    senders: int
    options: dict[str, Any]
    faults: dict[str, float]
    shapes: list[Shape]
    secured: bool = False
    """Whether the broker demands SASL_SSL."""


def make_plan(seed: int, records: int, producers: int, strength: float, secured: bool = False) -> Plan:
    rng = random.Random(seed)
    faults = {name: min(0.5, chance * strength) for name, chance in FAULTS.items()}
    return Plan(
        seed=seed,
        records=records,
        producers=producers,
        brokers=rng.randint(2, 4),
        partitions=rng.randint(4, 16),
        produce_version=rng.choice([7, 8, 9, 10, 12, 13]),
        senders=rng.randint(1, 2),
        options={
            "batch_size": rng.choice([16384, 65536, 131072]),
            "linger_ms": rng.choice([0, 5]),
            "buffer_memory": rng.choice([16 << 20, 32 << 20]),
            "max_in_flight_requests_per_connection": rng.randint(2, 5),
            "request_timeout_ms": 1000,
            "retry_backoff_ms": 10,
            "reconnect_backoff_ms": 10,
            "reconnect_backoff_max_ms": 200,
            "metadata_max_age_ms": 5000,
        },
        faults={**faults, "seed": seed, "delay_ms": 20, "stall_ms": 1500, "down_ms": 200},
        # Each kind once, then random ones. A tenth of the run has all shapes, each several times.
        shapes=[
            Shape(8, 0, 0, False),
            Shape(100, 0, 0, True),
            Shape(40, 16, 0, False),
            Shape(20, 0, 1, True),
            *(
                Shape(
                    rng.randint(8, 200), rng.choice([0, 0, 10]), rng.choice([0, 0, 0, 2]), rng.random() < 0.5
                )
                for _ in range(6)
            ),
        ],
        secured=secured,
    )
