"""The decoders that the target ``messages`` and its seeds choose from, each with its versions.

The first byte of an input is a place in ``DECODERS``: add new decoders at the end, so that the kept inputs
keep their meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cyproducer.wire import admin_api, messages, protocol, sasl_api, telemetry_api, transaction_api
from cyproducer.wire.schema import Api


class Decoder(NamedTuple):
    """``decode`` takes a version and a frame. ``versions``: how many there are, from ``lowest`` on."""

    decode: Callable[[int, bytes], Any]
    lowest: int
    versions: int


def _decoder(api: Api, decode: Callable[[int, Any], Any] | None = None) -> Decoder:
    """The versions are those that the client uses. ``decode``: None for the decoder of the API."""
    return Decoder(decode or protocol.DECODERS[api], api.lowest, api.highest - api.lowest + 1)


DECODERS = (
    _decoder(messages.API_VERSIONS),
    _decoder(messages.METADATA),
    _decoder(messages.INIT_PRODUCER_ID),
    _decoder(messages.SASL_HANDSHAKE, sasl_api.decode_sasl_handshake),
    _decoder(messages.SASL_AUTHENTICATE, sasl_api.decode_sasl_authenticate),
    _decoder(messages.METADATA, protocol.decode_listing),
    _decoder(messages.FIND_COORDINATOR, transaction_api.decode_find_coordinator),
    _decoder(messages.ADD_PARTITIONS_TO_TXN, transaction_api.decode_add_partitions_to_txn),
    _decoder(messages.ADD_OFFSETS_TO_TXN, transaction_api.decode_add_offsets_to_txn),
    _decoder(messages.END_TXN, transaction_api.decode_end_txn),
    _decoder(messages.TXN_OFFSET_COMMIT, transaction_api.decode_txn_offset_commit),
    _decoder(messages.DESCRIBE_TRANSACTIONS, transaction_api.decode_describe_transactions),
    _decoder(messages.LIST_TRANSACTIONS, transaction_api.decode_list_transactions),
    _decoder(messages.FETCH, admin_api.decode_fetch),
    _decoder(messages.LIST_OFFSETS, admin_api.decode_list_offsets),
    _decoder(messages.CREATE_TOPICS, admin_api.decode_create_topics),
    _decoder(messages.DESCRIBE_CONFIGS, admin_api.decode_describe_configs),
    _decoder(messages.GET_TELEMETRY_SUBSCRIPTIONS, telemetry_api.decode_get_telemetry_subscriptions),
    _decoder(messages.PUSH_TELEMETRY, telemetry_api.decode_push_telemetry),
)


def place_of(decode: Callable[[int, Any], Any]) -> int:
    """Returns the place of a decoder. Raises ``ValueError`` if there is none."""
    return [each.decode for each in DECODERS].index(decode)
