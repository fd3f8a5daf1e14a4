"""Human-readable lines about requests and responses of an embedded cluster: ``--log requests``.

Owns the text. A line has the time, the node, the client, the request and its subject, and the errors in the
response.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from cyproducer.base.text import printable
from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker import batches
from cyproducer.testing.broker.server import Call
from cyproducer.testing.broker.world import NS_PER_MS
from cyproducer.wire.messages import FETCH, METADATA, PRODUCE

SHOWN: Final = 3
"""How many partitions of a request are named."""
_SUBJECTS: Final = (
    "transactional_id", "v3_and_below_transactional_id", "group_id", "key", "mechanism",
)  # fmt: skip
_LISTS: Final = ("coordinator_keys", "groups", "groups_names", "transactional_ids", "topic_names", "topics")


def line(call: Call, response: Any) -> str:
    """Returns a line about a request and its response."""
    when = datetime.fromtimestamp(call.world.now_ns / NS_PER_MS / 1000).strftime("%H:%M:%S.%f")[:-3]
    errors = sorted(set(_errors(response)))
    outcome = ", ".join(errors) if errors else "ok"
    about = _about(call)
    return (
        f"{when} {call.node.id} {printable(call.header.client_id or '-')} {call.api.name} v{call.version}"
        f"{' ' if about else ''}{printable(about)} -> {outcome}"
    )


def _about(call: Call) -> str:
    request = call.request
    if call.api is PRODUCE:
        return _few(
            f"{_name(call, topic.name, topic.topic_id)}-{each.index} ({_batch(each.records)})"
            for topic in request.topic_data
            for each in topic.partition_data
        )
    if call.api is FETCH:
        return _few(
            f"{_name(call, topic.topic, topic.topic_id)}-{each.partition} from {each.fetch_offset}"
            for topic in request.topics
            for each in topic.partitions
        )
    if call.api is METADATA and request.topics is None:
        return "all topics"
    for name in _SUBJECTS:
        found = getattr(request, name, None)
        if found:
            return str(found)
    for name in _LISTS:
        if found := getattr(request, name, None):
            return _few(_named(each) for each in found)
    return ""


def _name(call: Call, name: str, topic_id: bytes) -> str:
    if name:
        return name
    topic = call.cluster.topic(topic_id)
    return topic_id.hex() if topic is None else topic.name


def _named(value: Any) -> str:
    return str(getattr(value, "name", getattr(value, "group_id", getattr(value, "topic", value))))


def _batch(data: bytes | None) -> str:
    if data is None or len(data) < batches.HEADER_BYTES:
        return "no batch"
    records = batches.read(data).records
    return f"{records} record{'s' * (records != 1)}, {len(data)} B"


def _few(names: Iterator[str]) -> str:
    every = list(names)
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ", ".join(every[:SHOWN]) + more


def _errors(value: Any) -> Iterator[str]:
    """Yields the names of all error codes of a response."""
    if isinstance(value, list):
        for each in value:
            yield from _errors(each)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for name, each in zip(value._fields, value, strict=True):
            if name.endswith("error_code") and each:
                yield ErrorCode(each).name
            else:
                yield from _errors(each)
