"""The versions of requests that a release of Kafka supports.

Owns the releases of the requests that this package's client does not use. The releases of the other requests
are part of their declarations (``wire/messages``). Sources: Kafka's message schemas and the KIPs that they
name.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from cyproducer.wire import messages
from cyproducer.wire.schema import Api

NEWEST: Final = (4, 4)
DEFAULT: Final = (4, 1)
OLDEST: Final = (2, 1)

_RELEASES: Final[Mapping[Api, str]] = {
    messages.OFFSET_COMMIT: "2.1:6 2.3:7 2.4:8 3.6:9",
    messages.OFFSET_FETCH: "2.1:5 2.4:6 2.5:7 3.0:8 3.6:9",
    messages.JOIN_GROUP: "2.1:3 2.2:4 2.3:5 2.4:6 2.5:7 3.2:9",
    messages.HEARTBEAT: "2.1:2 2.3:3 2.4:4",
    messages.LEAVE_GROUP: "2.1:2 2.4:4 3.2:5",
    messages.SYNC_GROUP: "2.1:2 2.3:3 2.4:4 2.5:5",
    messages.DESCRIBE_GROUPS: "2.1:2 2.3:4 2.4:5 4.0:6",
    messages.LIST_GROUPS: "2.1:2 2.4:3 2.6:4 3.8:5",
    messages.DELETE_GROUPS: "2.1:1 2.4:2",
    messages.OFFSET_DELETE: "2.4:0",
    messages.CONSUMER_GROUP_HEARTBEAT: "4.0:1",
    messages.CONSUMER_GROUP_DESCRIBE: "4.0:1",
    messages.DELETE_TOPICS: "2.1:3 2.4:4 2.7:5 2.8:6",
    messages.DELETE_RECORDS: "2.1:1 2.5:2",
    messages.OFFSET_FOR_LEADER_EPOCH: "2.1:2 2.3:3 2.8:4",
    messages.CREATE_PARTITIONS: "2.1:1 2.4:2 2.7:3",
    messages.INCREMENTAL_ALTER_CONFIGS: "2.3:0 2.4:1",
    messages.UPDATE_FEATURES: "2.7:0 3.3:1 4.0:2",
    messages.DESCRIBE_CLUSTER: "2.8:0 3.7:1 4.0:2",
    messages.DESCRIBE_PRODUCERS: "2.8:0",
    messages.LIST_CONFIG_RESOURCES: "3.7:0 4.1:1",
}


def parsed(release: str) -> tuple[int, int]:
    """Parses a release. Raises ``ValueError`` if the text is not a release, or it is not supported."""
    found = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)?", release)
    if found is None:
        raise ValueError(f"kafka_version={release!r}: must be a release of Kafka, such as '4.1' or '2.8'")
    wanted = int(found[1]), int(found[2])
    if not OLDEST <= wanted <= NEWEST:
        oldest, newest = (".".join(map(str, each)) for each in (OLDEST, NEWEST))
        raise ValueError(f"kafka_version={release!r}: must be {oldest} to {newest}")
    return wanted


def versions(apis: Iterable[Api], release: tuple[int, int]) -> dict[int, tuple[int, int]]:
    """Returns API key -> the lowest and the highest declared version that a release supports."""
    found = {}
    for api in apis:
        steps = api.releases or tuple(_step(each) for each in _RELEASES.get(api, "2.1:99").split())
        highest = max((version for since, version in steps if since <= release), default=-1)
        highest = min(highest, api.declared.last)
        if api is messages.ADD_PARTITIONS_TO_TXN:
            # Only brokers use newer versions.
            highest = min(highest, api.highest)
        if highest >= api.declared.first:
            found[api.key] = api.declared.first, highest
    return found


def transaction_level(release: tuple[int, int]) -> int:
    """Returns the level of ``transaction.version`` of a new cluster (KIP-890)."""
    return 2 if release >= (4, 0) else 0


def _step(text: str) -> tuple[tuple[int, int], int]:
    release, version = text.split(":")
    major, minor = release.split(".")
    return (int(major), int(minor)), int(version)
