"""Requests other than Produce that have no response yet, and the decoders of all responses.

``Connection.pending`` has those of a connection by correlation id. Only ``Connector`` changes it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from cyproducer.network import protocol
from cyproducer.network.connection import Connection
from cyproducer.wire.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TXN_OFFSET_COMMIT,
)
from cyproducer.wire.schema import Api

Decode = Callable[[int, bytes], Any]
"""Makes a response from its version and its frame."""
OnResponse = Callable[[Connection, int, Any, float], object]
"""Takes the connection, the version, the response and the time in milliseconds."""
OnBroken = Callable[[Connection, Exception, float], object]
"""Takes the connection, the reason why it was closed, and the time in milliseconds."""

DECODERS: dict[Api, Decode] = {
    API_VERSIONS: protocol.decode_api_versions,
    SASL_HANDSHAKE: protocol.decode_sasl_handshake,
    SASL_AUTHENTICATE: protocol.decode_sasl_authenticate,
    METADATA: protocol.decode_metadata,
    INIT_PRODUCER_ID: protocol.decode_init_producer_id,
    FIND_COORDINATOR: protocol.decode_find_coordinator,
    ADD_PARTITIONS_TO_TXN: protocol.decode_add_partitions_to_txn,
    ADD_OFFSETS_TO_TXN: protocol.decode_add_offsets_to_txn,
    TXN_OFFSET_COMMIT: protocol.decode_txn_offset_commit,
    END_TXN: protocol.decode_end_txn,
    DESCRIBE_TRANSACTIONS: protocol.decode_describe_transactions,
    LIST_TRANSACTIONS: protocol.decode_list_transactions,
    FETCH: protocol.decode_fetch,
    LIST_OFFSETS: protocol.decode_list_offsets,
    CREATE_TOPICS: protocol.decode_create_topics,
    DESCRIBE_CONFIGS: protocol.decode_describe_configs,
}


class PendingRequest(NamedTuple):
    """A request that has no response yet. See ``Connector.request``."""

    api: Api
    version: int
    decode: Decode
    on_response: OnResponse
    on_broken: OnBroken
