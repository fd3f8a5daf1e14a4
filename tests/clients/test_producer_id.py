"""Obtaining the producer id: when it is requested, what delays it, and what happens without one."""

import contextlib
import threading

import pytest

from cyproducer import KafkaProducer, errors
from cyproducer.futures.delivery import RecordFuture
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import Received, ScriptedCluster
from tests.scripted.scripted_model import Act
from tests.scripted.scripted_wire import INIT_PRODUCER_ID, PRODUCE
from tools.harness.until import until

STILL_LOADING, REBALANCING, NOT_AUTHORIZED, UNKNOWN = 14, 15, 31, -1


def test_the_producer_id_is_requested_once_and_is_in_every_batch() -> None:
    with ScriptedCluster(orders=3) as cluster, producing(cluster) as producer:
        for i in range(6):
            producer.send("orders", b"v", partition=i % 3).get(WAIT_S)
        assert len(cluster.received(INIT_PRODUCER_ID)) == 1
        batches = [b for received in cluster.received(PRODUCE) for b in received.batches.values()]
        assert len({(b.producer_id, b.producer_epoch) for b in batches}) == 1
        assert batches[0].producer_id >= 0
        assert sorted(b.base_sequence for b in batches) == [0, 0, 0, 1, 1, 1]


def test_without_idempotence_no_producer_id_is_requested() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster, enable_idempotence=False) as producer:
        producer.send("orders", b"v").get(WAIT_S)
        assert cluster.received(INIT_PRODUCER_ID) == []
        (batch,) = cluster.received(PRODUCE)[0].batches.values()
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)


@pytest.mark.parametrize(
    "trouble",
    [Act(error=STILL_LOADING), Act(error=REBALANCING), Act(error=UNKNOWN), Act(drop=True), Act(cut=7)],
)
def test_a_request_with_a_retriable_failure_is_repeated(trouble: Act) -> None:
    with ScriptedCluster(orders=1) as cluster:
        cluster.act(INIT_PRODUCER_ID, trouble, trouble)
        with producing(cluster) as producer:
            assert producer.send("orders", b"v").get(WAIT_S).offset == 0
        assert len(cluster.received(INIT_PRODUCER_ID)) == 3


def test_a_request_without_a_response_is_repeated_after_its_timeout() -> None:
    with ScriptedCluster(orders=1) as cluster:
        cluster.act(INIT_PRODUCER_ID, Act(silent=True))
        with producing(cluster, request_timeout_ms=200) as producer:
            assert producer.send("orders", b"v").get(WAIT_S).offset == 0
        assert len(cluster.received(INIT_PRODUCER_ID)) == 2


def test_if_producer_ids_are_refused_every_record_fails_with_instructions() -> None:
    sent = threading.Event()
    with ScriptedCluster(orders=1) as cluster:
        granted = threading.Event()
        cluster.act(INIT_PRODUCER_ID, Act(error=NOT_AUTHORIZED, hold=sent))
        cluster.script = lambda received: (
            Act(error=NOT_AUTHORIZED)
            if received.api_key == INIT_PRODUCER_ID and not granted.is_set()
            else None
        )
        with producing(cluster) as producer:
            future = producer.send("orders", b"v")
            sent.set()
            with pytest.raises(
                errors.ClusterAuthorizationFailedError, match="enable_idempotence=False"
            ) as told:
                future.get(WAIT_S)
            assert told.value.maybe_written is False
            with pytest.raises(errors.ClusterAuthorizationFailedError, match="IdempotentWrite"):
                producer.send("orders", b"w").get(WAIT_S)
            producer.flush(WAIT_S)
            assert cluster.received(PRODUCE) == []
            # The requests have a backoff.
            assert len(cluster.received(INIT_PRODUCER_ID)) < 10
            granted.set()
            until(lambda: sends(producer), "the granted rights")


def sends(producer: KafkaProducer) -> bool:
    """Whether a record is acknowledged."""
    try:
        producer.send("orders", b"v").get(WAIT_S)
    except errors.ClusterAuthorizationFailedError:
        return False
    return True


def test_if_producer_ids_are_refused_a_batch_fails_after_its_compression(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compressing = threading.Event()

    class Slow:
        codec_id = 1

        def compress(self, data: memoryview) -> bytes:
            compressing.set()
            until(lambda: others[0].failed(), "the refusal")
            return bytes(data)

    def script(received: Received) -> Act | None:
        if received.api_key != INIT_PRODUCER_ID:
            return None
        return Act(error=NOT_AUTHORIZED if compressing.is_set() else STILL_LOADING)

    others: list[RecordFuture] = []
    monkeypatch.setattr("cyproducer.records.compression.compressor_for", lambda *_: Slow())
    with ScriptedCluster(orders=2) as cluster:
        cluster.script = script
        with producing(cluster, compression_type="gzip", batch_size=1000) as producer:
            producer.partitions_for("orders")
            others.append(producer.send("orders", b"v", partition=1))
            first = producer.send("orders", bytes(600), partition=0)
            with contextlib.suppress(errors.ClusterAuthorizationFailedError):
                # Until the batch with the first record is closed.
                while not compressing.is_set():
                    producer.send("orders", bytes(600), partition=0)
            with pytest.raises(errors.ClusterAuthorizationFailedError):
                first.get(WAIT_S)


def test_if_no_broker_supports_producer_ids_every_record_fails_with_instructions() -> None:
    with ScriptedCluster(orders=1) as cluster:
        cluster.nodes[1].versions.pop(INIT_PRODUCER_ID)
        refused = pytest.raises(errors.UnsupportedVersionError, match="set enable_idempotence=False")
        # From the future, or from send() itself if it is called after the third connection.
        with producing(cluster) as producer, refused:
            producer.send("orders", b"v").get(WAIT_S)
        with producing(cluster, enable_idempotence=False) as producer:
            assert producer.send("orders", b"v").get(WAIT_S).offset == 0
