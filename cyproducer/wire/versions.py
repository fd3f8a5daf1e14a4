"""Chooses the version of an API to use with a broker: negotiated, assumed for a broker that does not report
its versions, or none.

Pure functions without state, callable from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping

from cyproducer.errors import IncompatibleBrokerVersion, UnrecognizedBrokerVersion
from cyproducer.wire.messages import API_VERSIONS, CLIENT, METADATA, PRODUCE
from cyproducer.wire.schema import Api

Release = tuple[int, int]

PRODUCE_BY_TOPIC_ID = 13
"""The first Produce version that identifies topics only by id (KIP-516)."""
_METADATA_WITH_TOPIC_ID = 10

_OLDEST_RELEASE = PRODUCE.releases[0][0]


def _highest_common(api: Api, theirs: tuple[int, int], highest: int) -> int | None:
    common = min(theirs[1], highest)
    return common if common >= max(theirs[0], api.lowest) else None


def lacking(api: Api, theirs: Mapping[int, tuple[int, int]], highest: int | None = None) -> str:
    """Returns why an API cannot be used, for an error: the broker does not offer it, or offers only other
    versions.

    Args:
        api: an API that ``negotiate()`` left out, or rejected.
        theirs: what was passed to ``negotiate()``.
        highest: the highest version that this client can use; None: the highest that it implements.
    """
    highest = api.highest if highest is None else highest
    if api.key not in theirs:
        return f"the broker does not offer {api.name}, of which this client speaks {api.lowest} to {highest}"
    return (
        f"no common version of {api.name}: the broker speaks {theirs[api.key][0]} to {theirs[api.key][1]}, "
        f"this client {api.lowest} to {highest}"
    )


def negotiate(theirs: Mapping[int, tuple[int, int]]) -> dict[Api, int]:
    """Returns the highest version that both sides support, for each API that both have (KIP-35).

    APIs that are not required and have no common version are left out, like those that the broker does not
    have.

    Args:
        theirs: API key -> (lowest, highest) version that the broker supports, both inclusive.

    Raises:
        IncompatibleBrokerVersion: the broker does not have a required API, or the two ranges of its versions
            do not overlap.
    """
    chosen: dict[Api, int] = {}
    for api in CLIENT:
        if api is API_VERSIONS:
            # Its version was found by trial, before any version ranges were known.
            continue
        highest = api.highest
        if api is PRODUCE and METADATA.key in theirs and theirs[METADATA.key][1] < _METADATA_WITH_TOPIC_ID:
            # Without ids from Metadata, Produce cannot identify topics by id.
            highest = PRODUCE_BY_TOPIC_ID - 1
        version = _highest_common(api, theirs[api.key], highest) if api.key in theirs else None
        if version is not None:
            chosen[api] = version
        elif api.required:
            raise IncompatibleBrokerVersion(lacking(api, theirs, highest))
    return chosen


def is_too_old(theirs: Mapping[int, tuple[int, int]]) -> bool:
    """Returns whether a broker is older than the oldest supported release; ``theirs``: see `negotiate`."""
    _, oldest = PRODUCE.releases[0]
    return theirs[PRODUCE.key][1] < oldest


def fallback_for(api_version: tuple[int, ...] | None) -> dict[int, tuple[int, int]]:
    """Returns the versions to assume for a broker that closes the connection on ApiVersions.

    Args:
        api_version: the option of that name, a Kafka release such as ``(2, 8)``. A release newer than all
            known ones is treated as the newest known one.

    Returns:
        API key -> (lowest, highest) version, to be passed to ``negotiate()``; without APIs that the release
        does not have.

    Raises:
        UnrecognizedBrokerVersion: ``api_version`` is None, so there is nothing to fall back to.
        IncompatibleBrokerVersion: it is older than Kafka 2.1.
    """
    oldest = ".".join(map(str, _OLDEST_RELEASE))
    if api_version is None:
        raise UnrecognizedBrokerVersion(
            "the broker closed the connection on an ApiVersions request and api_version is not set: "
            f"it may not be a Kafka broker, or be older than {oldest}, or set api_version=(major, minor)"
        )
    major, minor = (*api_version, 0, 0)[:2]
    release = (major, minor)
    if release < _OLDEST_RELEASE:
        raise IncompatibleBrokerVersion(
            f"api_version={api_version!r} is older than Kafka {oldest}, the oldest release supported"
        )
    # Brokers before 4.0 support all versions from 0 on. For newer brokers, the lowest version does not
    # matter, because this client's lowest is above it.
    spoken = {api.key: _spoken_by(release, api) for api in CLIENT}
    return {key: (0, highest) for key, highest in spoken.items() if highest is not None}


def _spoken_by(release: Release, api: Api) -> int | None:
    return max((version for known, version in api.releases if known <= release), default=None)
