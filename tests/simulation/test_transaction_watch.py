"""The watch, without clients: what it accuses them of, and what not."""

from typing import cast

import pytest

from cyproducer.testing.broker.homes import Homes
from cyproducer.testing.broker.partitions import Cluster
from cyproducer.testing.broker.transactions import TransactionManners, Transactions
from cyproducer.wire import transaction_api
from tests.simulation.network import Network, Wire
from tests.simulation.transaction_watch import Watch
from tests.simulation.world import World

NOTHING = ["p0 sends EndTxn for a transaction that has nothing"]


@pytest.mark.parametrize(
    ("commits", "has_tried", "violations"),
    [(False, False, NOTHING), (True, False, NOTHING), (False, True, []), (True, True, NOTHING)],
)
def test_what_was_never_written_counts_for_an_abort_only(
    commits: bool, has_tried: bool, violations: list[str]
) -> None:
    world = World(1)
    cluster = Cluster(world, 1)
    transactions = Transactions(world, cluster, Homes(world, cluster.nodes), TransactionManners())
    watch = Watch(transactions, cluster, Network(world))
    watch.has_tried = lambda client_id: client_id == "p0" and has_tried
    frame = transaction_api.encode_end_txn(5, 1, "p0", "x", 1001, 0, commits)
    watch.on_request(cast(Wire, None), frame, 0)
    assert transactions.violations == violations
