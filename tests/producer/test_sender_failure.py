"""The sender thread ends because of a bug: no record waits for ever, and each says what happened."""

import pytest

from cyproducer import errors
from tests.scripted.producing import WAIT_S, FailingSelector, producing
from tests.scripted.scripted_broker import PRODUCE, Act, ScriptedCluster


def test_records_of_a_sender_that_failed_name_its_error(cluster: ScriptedCluster) -> None:
    FailingSelector.fail.clear()
    with producing(cluster, selector=FailingSelector) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        cluster.act(PRODUCE, Act(silent=True))
        future = producer.send("orders", b"2")
        cluster.wait_for_requests(PRODUCE, 2)
        FailingSelector.fail.set()
        producer._runtime.sender.wake()
        with pytest.raises(
            errors.KafkaError, match=r"the sender thread failed: LookupError\('an unf"
        ) as caught:
            future.get(WAIT_S)
        assert caught.value.maybe_written is True
        producer._runtime.thread.join(WAIT_S)
        assert not producer._runtime.thread.is_alive()
        with pytest.raises(errors.ProducerClosedError):
            producer.send("orders", b"3")
        # Closing has nothing to wait for.
        producer.close(3600)
