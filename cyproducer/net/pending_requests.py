"""Requests other than Produce that have no response yet.

``Connection.pending`` contains those of one connection, by correlation id. Only ``Connector`` changes it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from cyproducer.net.connection import Connection
from cyproducer.wire.protocol import Decode
from cyproducer.wire.schema import Api

OnResponse = Callable[[Connection, int, Any, float], object]
"""Takes the connection, the version, the response and the time in milliseconds."""
OnBroken = Callable[[Connection, Exception, float], object]
"""Takes the connection, the reason why it was closed, and the time in milliseconds."""


class PendingRequest(NamedTuple):
    """A request that has no response yet. See ``Connector.request``."""

    api: Api
    version: int
    decode: Decode
    on_response: OnResponse
    on_broken: OnBroken
