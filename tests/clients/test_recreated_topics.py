"""Topic ids, and topics that are deleted and recreated while records are in flight."""

import threading
import uuid
from typing import Any

import pytest

from cyproducer import errors
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import METADATA, PRODUCE, Act, ScriptedCluster
from tools.harness.reference_records import PartitionResponse, encode_produce_response
from tools.harness.rig import Rig

ID_A, ID_B = uuid.UUID(int=0xA << 96), uuid.UUID(int=1)


# Topics without an id


def test_a_request_with_a_topic_without_id_uses_names_for_all_topics() -> None:
    with Rig(produce_version=13, linger_ms=1) as rig:
        rig.sender.apply_topic("known", ID_A.bytes, [1])
        rig.sender.apply_topic("unknown", b"", [1])
        for name in ("known", "unknown"):
            rig.send(name, b"1")
        rig.clock.advance_ms(1)
        (seen,) = rig.requests()
        assert seen.request.api_version == 12
        assert sorted(str(topic) for topic, _ in seen.request.topics) == ["known", "unknown"]
        rig.answer(seen)
        assert rig.control.broken == []
        # One by one: an id that starts with zero bytes is valid.
        rig.send("known", b"2")
        rig.clock.advance_ms(1)
        (seen,) = rig.requests()
        assert (seen.request.api_version, seen.request.topics[0][0]) == (13, ID_A)
        rig.sender.apply_topic("unknown", ID_B.bytes, [1])
        rig.send("unknown", b"2")
        rig.clock.advance_ms(1)
        (seen,) = rig.requests()
        assert (seen.request.api_version, seen.request.topics[0][0]) == (13, ID_B)


def test_during_an_upgrade_requests_use_names_until_a_broker_sends_topic_ids() -> None:
    with ScriptedCluster(2) as cluster:
        cluster.create_topic("orders", 1, [2])
        cluster.nodes[1].versions[METADATA] = (0, 9)
        given = {"bootstrap_servers": [cluster.nodes[1].address], "metadata_max_age_ms": 20}
        with producing(cluster, **given) as producer:
            producer.send("orders", b"1").get(WAIT_S)
            assert [r.header.version for r in cluster.received(PRODUCE)] == [12]
            cluster.nodes[1].stop()
            cluster.wait_for(lambda: sum(r.connection.node.id == 2 for r in cluster.received(METADATA)) > 1)
            producer.send("orders", b"2").get(WAIT_S)
            assert [r.header.version for r in cluster.received(PRODUCE)] == [12, 13]


# Recreated topics


def test_a_response_is_understood_even_if_the_topic_id_has_changed() -> None:
    with Rig(produce_version=13) as rig:
        rig.sender.apply_topic("t", ID_A.bytes, [1])
        future = rig.send("t", b"1")
        (seen,) = rig.requests()
        rig.sender.apply_topic("t", ID_B.bytes, [1])
        number = seen.request.correlation_id
        rig.pending.remove(seen)
        seen.peer.sock.sendall(
            encode_produce_response(13, number, [(ID_A, [PartitionResponse(0, base_offset=7)])])
        )
        rig.step()
        assert future.get(0).offset == 7
        assert rig.control.broken == []


def test_queued_batches_do_not_overtake_batches_that_the_old_topic_has_yet_to_reject() -> None:
    with Rig(produce_version=13, batch_size=1000) as rig:
        rig.sender.apply_topic("t", ID_A.bytes, [1])
        for i in range(2):
            rig.send("t", b"%d" % i + bytes(600))
        refused = rig.requests()
        rig.sender.apply_topic("t", ID_B.bytes, [1])
        rig.send("t", b"2" + bytes(600))
        rig.accumulator.close()
        for seen in refused:
            assert rig.requests() == []
            number = seen.request.correlation_id
            rig.pending.remove(seen)
            answer = [(ID_A, [PartitionResponse(0, 100)])]
            seen.peer.sock.sendall(encode_produce_response(13, number, answer))
            rig.step()
        rig.clock.advance_ms(100)
        again = rig.requests()
        assert {r.request.topics[0][0] for r in again} == {ID_B}
        assert [value[:1] for r in again for value in r.values() if value] == [b"0", b"1", b"2"]


def test_records_go_to_the_recreated_topic_in_order() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster, batch_size=200) as producer:
        producer.send("orders", b"old").get(WAIT_S)
        hold = threading.Event()
        refused = Act(error=100, append=False)
        cluster.act(PRODUCE, Act(hold=hold, error=100, append=False), refused, refused, refused, refused)
        futures = [producer.send("orders", b"%d" % i + bytes(150)) for i in range(8)]
        cluster.wait_for_requests(PRODUCE, 6)
        topic = cluster.create_topic("orders", 1)
        hold.set()
        for future in futures:
            future.get(WAIT_S)
        assert [value[:1] for value in topic.values if value] == [b"%d" % i for i in range(8)]
        key = cluster.received(PRODUCE)[-1].produce
        assert key is not None
        assert key.topics[0][0] == topic.id


def test_queued_records_of_a_removed_partition_fail_at_once() -> None:
    with ScriptedCluster(2) as cluster:
        cluster.create_topic("orders", 3, [1, 1, 2])
        with producing(cluster, metadata_max_age_ms=20) as producer:
            producer.send("orders", b"1", partition=0).get(WAIT_S)
            cluster.nodes[2].stop()
            future = producer.send("orders", b"2", partition=2)
            topic = cluster.create_topic("orders", 1, [1])
            with pytest.raises(errors.UnknownTopicOrPartitionError, match="recreated with 1 part") as caught:
                future.get(WAIT_S)
            assert "orders-2 no longer exists" in str(caught.value)
            assert caught.value.maybe_written is False
            assert producer.send("orders", b"3").get(WAIT_S).partition == 0
            assert topic.values == [b"3"]


def test_rejected_records_of_a_removed_partition_fail_too() -> None:
    with ScriptedCluster(2) as cluster, producing(cluster, metadata_max_age_ms=20) as producer:
        cluster.create_topic("orders", 2, [2, 1])
        for partition in range(2):
            producer.send("orders", b"1", partition=partition).get(WAIT_S)
        hold = threading.Event()
        cluster.act(PRODUCE, Act(hold=hold, error=100, append=False))
        future = producer.send("orders", b"2", partition=1)
        cluster.wait_for_requests(PRODUCE, 3)
        topic = cluster.create_topic("orders", 1, [2])
        # Only broker 2 responds: when it gets the second request, the first response has been handled.
        cluster.wait_for_requests(METADATA, len(cluster.received(METADATA)) + 2)
        assert not future.is_done
        hold.set()
        with pytest.raises(errors.UnknownTopicOrPartitionError, match="orders-1 no longer exists") as caught:
            future.get(WAIT_S)
        assert caught.value.maybe_written is False
        assert len(cluster.received(PRODUCE)) == 3
        assert topic.values == []


def test_without_topic_ids_records_wait_for_their_partition_to_reappear() -> None:
    with ScriptedCluster(2) as cluster:
        for node in cluster.nodes.values():
            node.versions[METADATA] = (0, 9)
        topic = cluster.create_topic("orders", 2, [1, 2])
        with producing(cluster, metadata_max_age_ms=20) as producer:
            producer.send("orders", b"1", partition=1).get(WAIT_S)
            cluster.nodes[2].stop()
            future = producer.send("orders", b"2", partition=1)
            last = topic.partitions.pop()
            cluster.wait_for_requests(METADATA, len(cluster.received(METADATA)) + 3)
            cluster.nodes[2].start()
            cluster.wait_for_requests(METADATA, len(cluster.received(METADATA)) + 3)
            assert not future.is_done
            assert len(cluster.received(PRODUCE)) == 1
            topic.partitions.append(last)
            assert future.get(WAIT_S).offset == 1


class CompressingOnce:
    """A sender for which a thread seems to compress a batch during the first ``fail_beyond`` call."""

    def __init__(self, sender: Any) -> None:
        self.sender = sender
        self.counts: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sender, name)

    def fail_beyond(self, name: str, count: int) -> bool:
        if count == 3:
            return bool(self.sender.fail_beyond(name, count))
        self.counts.append(count)
        return len(self.counts) == 1 or bool(self.sender.fail_beyond(name, count))


def test_a_batch_under_compression_is_handled_on_a_later_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedCluster(2) as cluster:
        cluster.create_topic("orders", 3, [1, 1, 2])
        with producing(cluster) as producer:
            sender = CompressingOnce(producer._runtime.client._sender)
            monkeypatch.setattr(producer._runtime.client, "_sender", sender)
            producer.send("orders", b"1", partition=0).get(WAIT_S)
            cluster.nodes[2].stop()
            future = producer.send("orders", b"2", partition=2)
            cluster.create_topic("orders", 1, [1])
            producer.send("orders", b"3", partition=0)
            with pytest.raises(errors.UnknownTopicOrPartitionError):
                future.get(WAIT_S)
            assert sender.counts == [1, 1]


class SlowCompressor:
    """Returns the data unchanged, but not before the test lets it."""

    codec_id = 1

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may = threading.Event()

    def compress(self, data: memoryview) -> memoryview:
        self.began.set()
        self.may.wait(WAIT_S)
        return data


def test_a_batch_under_compression_fails_after_that() -> None:
    compressor = SlowCompressor()
    with Rig(batch_size=1000, linger_ms=1000, compressor=compressor) as rig:
        rig.sender.apply_topic("t", ID_A.bytes, [1, 1])
        first = rig.send("t", bytes(600), partition=1)
        futures = []
        thread = threading.Thread(target=lambda: futures.append(rig.send("t", bytes(600), partition=1)))
        thread.start()
        assert compressor.began.wait(WAIT_S)
        rig.sender.apply_topic("t", ID_B.bytes, [1])
        assert rig.sender.fail_beyond("t", 1)
        assert not first.is_done
        compressor.may.set()
        thread.join()
        assert not rig.sender.fail_beyond("t", 1)
        assert [type(future.exception) for future in (first, *futures)] == [
            errors.UnknownTopicOrPartitionError
        ] * 2
        rig.clock.advance_ms(1000)
        assert rig.requests() == []
