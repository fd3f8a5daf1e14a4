"""The version of OpenTelemetry's semantic conventions whose names attributes have.

Owns the names that version 1.45.0 has changed, and the choice between the versions. Does not own the values
or the other names (``tracing``, ``metrics``).

By OpenTelemetry's rule for conventions that are not stable yet, a program opts in to the newer version with
the environment variable ``OTEL_SEMCONV_STABILITY_OPT_IN``, a list with commas: ``messaging`` stands for the
newer names, ``messaging/dup`` for both. Every name stays as it was without it.
"""

import os
from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeVar

Value = TypeVar("Value")

OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"

RENAMED: Final = {
    "messaging.system": "messaging.system.name",
    "messaging.kafka.message.key": "kafka.message.key",
    "messaging.kafka.message.tombstone": "kafka.message.tombstone",
    "messaging.kafka.offset": "kafka.offset",
    "messaging.kafka.cluster.id": "kafka.cluster.id",
}
"""Name in version 1.44.0 -> name in 1.45.0."""


class Version(Enum):
    """The names that attributes have."""

    V1_44 = "1.44.0"
    V1_45 = "1.45.0"
    BOTH = "1.44.0 and 1.45.0"

    @property
    def schema_url(self) -> str:
        number = Version.V1_44.value if self is Version.V1_44 else Version.V1_45.value
        return f"https://opentelemetry.io/schemas/{number}"

    def rename(self, attributes: Mapping[str, Value]) -> Mapping[str, Value]:
        """Returns ``attributes``, whose names are those of 1.44.0, with the names of this version."""
        if self is Version.V1_44:
            return attributes
        newer = {RENAMED.get(name, name): value for name, value in attributes.items()}
        return {**attributes, **newer} if self is Version.BOTH else newer


def opted_in(opt_in: str) -> Version:
    """Returns the version for a value of ``OPT_IN``. Other categories in the list (``http``) are ignored."""
    categories = {each.strip() for each in opt_in.split(",")}
    if "messaging/dup" in categories:
        return Version.BOTH
    return Version.V1_45 if "messaging" in categories else Version.V1_44


CHOSEN: Final = opted_in(os.environ.get(OPT_IN, ""))
"""The version of this process, chosen once, as OpenTelemetry's own instrumentations do."""
