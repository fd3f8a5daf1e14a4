"""Rows of the parent's, asked about in a forked child."""

from collections.abc import Callable

import pytest

from cyproducer import errors
from tests.forked import in_child, needs_fork
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import PRODUCE, Act, ScriptedCluster

pytestmark = needs_fork


def test_rows_of_the_parents_are_refused_in_the_child_while_they_are_pending() -> None:
    """Their callbacks would never be called there, nor a wait end."""
    with ScriptedCluster(orders=1) as cluster, producing(cluster, request_timeout_ms=60_000) as producer:
        acknowledged = producer.send_many("orders", [b"0"])
        acknowledged.get(WAIT_S)
        cluster.act(PRODUCE, Act(silent=True))
        pending = producer.send_many("orders", [b"1", b"2"])
        cluster.wait_for_requests(PRODUCE, 2)

        def ask() -> int:
            asks: list[Callable[[], object]] = [
                pending.get,
                lambda: pending.get(0),
                lambda: pending.add_callback(print),
                lambda: pending.add_errback(print),
                lambda: pending.add_both(print),
                pending.as_concurrent,
            ]
            for each in asks:
                with pytest.raises(errors.IllegalStateError, match="belongs to the parent process"):
                    each()
            assert not pending.is_done
            assert acknowledged.get().count == 1
            called: list[object] = []
            acknowledged.add_callback(called.append)
            assert len(called) == 1
            return len(asks)

        assert in_child(ask) == 6
