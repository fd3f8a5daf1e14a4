"""Requests as kio writes them, and responses as kio reads them, for the tests of the model."""

import io
from typing import Any

from kio.serial import entity_reader, entity_writer

from tests.scripted.scripted_wire import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from tests.wire.kio_oracle import CORRELATION_ID, make, schema

NAMES = {
    PRODUCE: ("produce", "Produce"),
    INIT_PRODUCER_ID: ("init_producer_id", "InitProducerId"),
    FIND_COORDINATOR: ("find_coordinator", "FindCoordinator"),
    ADD_PARTITIONS_TO_TXN: ("add_partitions_to_txn", "AddPartitionsToTxn"),
    ADD_OFFSETS_TO_TXN: ("add_offsets_to_txn", "AddOffsetsToTxn"),
    END_TXN: ("end_txn", "EndTxn"),
    TXN_OFFSET_COMMIT: ("txn_offset_commit", "TxnOffsetCommit"),
    DESCRIBE_TRANSACTIONS: ("describe_transactions", "DescribeTransactions"),
}


def frame_of(api: int, version: int, /, **values: Any) -> bytes:
    """Returns a request, as kio writes it. Values whose version has no field are left out."""
    module, name = NAMES[api]
    cls = getattr(schema(module, version, "request"), f"{name}Request")
    header = cls.__header_schema__
    buffer = io.BytesIO()
    entity_writer(header)(
        buffer,
        make(
            header,
            request_api_key=api,
            request_api_version=version,
            correlation_id=CORRELATION_ID,
            client_id="c",
        ),
    )
    entity_writer(cls)(buffer, make(cls, **values))
    body = buffer.getvalue()
    return len(body).to_bytes(4, "big") + body


def read(key: int, version: int, response: bytes) -> Any:
    """Reads a response as kio does; it must end where the frame ends."""
    module, name = NAMES[key]
    cls = getattr(schema(module, version, "response"), f"{name}Response")
    assert int.from_bytes(response[:4], "big") == len(response) - 4
    header, size = entity_reader(cls.__header_schema__)(response, 4)
    assert header.correlation_id == CORRELATION_ID
    body, rest = entity_reader(cls)(response, 4 + size)
    assert 4 + size + rest == len(response)
    return body
