"""A producer that commits offsets of the group "g" in a transaction."""

from typing import Any

from cyproducer.wire.messages import ADD_OFFSETS_TO_TXN, END_TXN, INIT_PRODUCER_ID, TXN_OFFSET_COMMIT
from tests.testing.broker.group_bench import Bench, G


class Transaction:
    """A transaction that commits an offset of the group."""

    def __init__(self, bench: Bench, timeout_ms: int = 60_000) -> None:
        self.peer = bench.peer()
        begun = self.peer.ask(
            INIT_PRODUCER_ID, 4, transactional_id="x", transaction_timeout_ms=timeout_ms, producer_id=-1,
            producer_epoch=-1,
        )  # fmt: skip
        self.who = {
            "transactional_id": "x",
            "producer_id": begun.producer_id,
            "producer_epoch": begun.producer_epoch,
        }
        assert self.peer.ask(ADD_OFFSETS_TO_TXN, 3, group_id=G, **self.who).error_code == 0

    def commit(self, offset: int, **fields: Any) -> int:
        request = TXN_OFFSET_COMMIT.request
        topics = [
            request.TxnOffsetCommitRequestTopic(
                name="t", partitions=[request.TxnOffsetCommitRequestPartition(0, offset, -1, None)]
            )
        ]
        response = self.peer.ask(TXN_OFFSET_COMMIT, 3, group_id=G, topics=topics, **self.who, **fields)
        code: int = response.topics[0].partitions[0].error_code
        return code

    def end(self, commits: bool) -> None:
        assert self.peer.ask(END_TXN, 3, committed=commits, **self.who).error_code == 0
