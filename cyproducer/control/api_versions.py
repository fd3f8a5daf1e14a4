"""Which version of each API to speak with a broker.

Owns the versions this package implements and the choice among them; does not own the handshake that
learns the broker's side. Pure functions without state, callable from any thread.
"""

from collections.abc import Mapping
from typing import NamedTuple

from cyproducer.errors import IncompatibleBrokerVersion, UnrecognizedBrokerVersion

PRODUCE = 0
METADATA = 3
API_VERSIONS = 18
INIT_PRODUCER_ID = 22

#: API key -> (lowest, highest) version this package encodes and decodes, both inclusive.
IMPLEMENTED: Mapping[int, tuple[int, int]] = {
    PRODUCE: (3, 13),
    METADATA: (1, 13),
    API_VERSIONS: (0, 4),
    INIT_PRODUCER_ID: (0, 5),
}

_NAMES = {
    PRODUCE: "Produce",
    METADATA: "Metadata",
    API_VERSIONS: "ApiVersions",
    INIT_PRODUCER_ID: "InitProducerId",
}

#: The first Produce version that names topics by id alone, and the first Metadata version that tells
#: these ids (KIP-516).
_PRODUCE_BY_TOPIC_ID = 13
_METADATA_WITH_TOPIC_ID = 10

#: API key -> first version in whose responses a throttle time means that the client has to wait: before,
#: the broker did, and answered late (KIP-219).
_CLIENT_THROTTLES = {PRODUCE: 6, METADATA: 6, API_VERSIONS: 2, INIT_PRODUCER_ID: 1}

#: Kafka release -> highest Produce, Metadata, ApiVersions and InitProducerId version it speaks.
#: A release that is not listed speaks what the next older one does.
_RELEASES: Mapping[tuple[int, int], tuple[int, int, int, int]] = {
    (2, 1): (7, 7, 2, 1),
    (2, 3): (7, 8, 2, 1),
    (2, 4): (8, 9, 3, 2),
    (2, 5): (8, 9, 3, 3),
    (2, 7): (8, 9, 3, 4),
    (2, 8): (9, 11, 3, 4),
    (3, 1): (9, 12, 3, 4),
    (3, 7): (10, 12, 3, 4),
    (3, 8): (11, 12, 3, 5),
    (3, 9): (11, 12, 4, 5),
    (4, 0): (12, 13, 4, 5),
    (4, 1): (13, 13, 4, 5),
}
_OLDEST_RELEASE = min(_RELEASES)


class NegotiatedVersions(NamedTuple):
    """The version to use for each API with one broker."""

    produce: int
    metadata: int
    #: None where the broker does not offer the API at all: no idempotence with it.
    init_producer_id: int | None


def _highest_common(api_key: int, theirs: tuple[int, int], ours: tuple[int, int]) -> int:
    highest = min(theirs[1], ours[1])
    if highest < max(theirs[0], ours[0]):
        raise IncompatibleBrokerVersion(
            f"no common version of {_NAMES[api_key]}: the broker speaks {theirs[0]} to {theirs[1]}, "
            f"this client {ours[0]} to {ours[1]}"
        )
    return highest


def negotiate(theirs: Mapping[int, tuple[int, int]]) -> NegotiatedVersions:
    """The highest version both sides speak, for each API the producer uses (KIP-35).

    Args:
        theirs: API key -> (lowest, highest) version the broker speaks, both inclusive.

    Raises:
        IncompatibleBrokerVersion: the two ranges of an API do not overlap, or the broker lacks Produce
            or Metadata.
    """
    for api_key in (PRODUCE, METADATA):
        if api_key not in theirs:
            raise IncompatibleBrokerVersion(
                f"the broker does not offer {_NAMES[api_key]}, "
                f"of which this client speaks {IMPLEMENTED[api_key][0]} to {IMPLEMENTED[api_key][1]}"
            )
    metadata = _highest_common(METADATA, theirs[METADATA], IMPLEMENTED[METADATA])
    lowest_produce, highest_produce = IMPLEMENTED[PRODUCE]
    if metadata < _METADATA_WITH_TOPIC_ID:
        # Without ids from Metadata there is nothing to name a topic by.
        highest_produce = _PRODUCE_BY_TOPIC_ID - 1
    produce = _highest_common(PRODUCE, theirs[PRODUCE], (lowest_produce, highest_produce))
    init_producer_id = None
    if INIT_PRODUCER_ID in theirs:
        init_producer_id = _highest_common(
            INIT_PRODUCER_ID, theirs[INIT_PRODUCER_ID], IMPLEMENTED[INIT_PRODUCER_ID]
        )
    return NegotiatedVersions(produce, metadata, init_producer_id)


def client_throttles(api_key: int, version: int) -> bool:
    """Whether a throttle time in such a response asks the client to send nothing for so long (KIP-219)."""
    return version >= _CLIENT_THROTTLES[api_key]


def fallback_for(api_version: tuple[int, ...] | None) -> dict[int, tuple[int, int]]:
    """What to take for the broker's versions where it hangs up on ApiVersions.

    Args:
        api_version: the option of that name, a Kafka release such as ``(2, 8)``; a release newer than
            all known ones counts as the newest known one.

    Returns:
        API key -> (lowest, highest) version, to be passed to ``negotiate()``.

    Raises:
        UnrecognizedBrokerVersion: ``api_version`` is None, so that there is nothing to fall back to.
        IncompatibleBrokerVersion: it is older than Kafka 2.1.
    """
    oldest = ".".join(map(str, _OLDEST_RELEASE))
    if api_version is None:
        raise UnrecognizedBrokerVersion(
            "the broker closed the connection on an ApiVersions request and api_version is not set: "
            f"it may be no Kafka broker, or one older than {oldest}, or set api_version=(major, minor)"
        )
    release = (*api_version, 0)[:2]
    if release < _OLDEST_RELEASE:
        raise IncompatibleBrokerVersion(
            f"api_version={api_version!r} is older than Kafka {oldest}, the oldest release supported"
        )
    highest = _RELEASES[max(known for known in _RELEASES if known <= release)]
    # Brokers before 4.0 start at 0; for newer ones the lowest never matters, ours being above it.
    return {
        api_key: (0, version)
        for api_key, version in zip((PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER_ID), highest, strict=True)
    }
