"""The requests of transactions that clients may send, and what a late one acts on.

Does not own their layout (``tests/scripted/scripted_transactions``). No I/O and no state.
"""

import struct

from tests.scripted import scripted_transactions
from tests.scripted.scripted_transactions import Request
from tests.scripted.scripted_wire import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    TXN_OFFSET_COMMIT,
    Header,
    read_header,
)
from tools.harness.reference_wire import MalformedError

#: API key -> the versions that clients may use: brokers alone use newer ones of AddPartitionsToTxn.
VERSIONS = {
    FIND_COORDINATOR: (0, 6),
    ADD_PARTITIONS_TO_TXN: (0, 3),
    ADD_OFFSETS_TO_TXN: (0, 4),
    END_TXN: (0, 5),
    TXN_OFFSET_COMMIT: (0, 5),
    DESCRIBE_TRANSACTIONS: (0, 0),
}
SECOND_VERSION = {
    END_TXN: 5,
    TXN_OFFSET_COMMIT: 5,
    ADD_PARTITIONS_TO_TXN: 1 << 15,
    ADD_OFFSETS_TO_TXN: 1 << 15,
}
"""API key -> the first version whose epoch says which transaction is meant (KIP-890)."""


def acts_on_any_transaction(frame: bytes) -> bool:
    """Whether a request that is handled late acts on the transaction that is open then."""
    key, version = struct.unpack_from(">hh", frame, 4)
    return bool(version < SECOND_VERSION.get(key, 0))


def read_request(frame: bytes) -> tuple[Header, Request]:
    """Decodes a whole request, including its four length bytes.

    Raises:
        MalformedError: it is not a request of transactions, in a version that clients may use, to the last
        byte.
    """
    if int.from_bytes(frame[:4], "big") != len(frame) - 4:
        raise MalformedError(f"a frame of {len(frame) - 4} bytes has another length")
    header = read_header(frame[4:])
    lowest, highest = VERSIONS[header.api_key]
    if not lowest <= header.version <= highest:
        raise MalformedError(f"API key {header.api_key} version {header.version} is not a client's")
    return header, scripted_transactions.read_request(header)
