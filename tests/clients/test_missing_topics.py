"""Missing topics do not affect other topics."""

import logging
import re
import threading

import pytest

from cyproducer import errors
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import ScriptedCluster
from tools.harness.until import until

MEMORY = 1 << 20


def test_a_thread_that_floods_a_missing_topic_does_not_block_others() -> None:
    stop = threading.Event()
    ended: list[BaseException] = []

    with (
        ScriptedCluster(orders=1) as cluster,
        producing(
            cluster, buffer_memory=MEMORY, max_block_ms=60_000, allow_auto_create_topics=False
        ) as producer,
    ):
        producer.send("orders", b"1").get(WAIT_S)

        def flood() -> None:
            try:
                while not stop.is_set():
                    producer.send("missing", bytes(1000))
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=flood)
        thread.start()
        pool = producer._runtime.accumulator.pool
        parked = producer._runtime.accumulator
        until(lambda: parked.parked_records * 1300 > MEMORY // 8 - 2600, "the flood")
        for _ in range(100):
            producer.send("orders", bytes(1000)).get(WAIT_S)
        assert pool.used_bytes < MEMORY // 4
        assert not ended
        stop.set()
        producer.close(0)
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.mark.slow
def test_the_error_of_a_blocked_send_says_that_the_topic_is_missing() -> None:
    with (
        ScriptedCluster(orders=1) as cluster,
        producing(
            cluster, buffer_memory=MEMORY, max_block_ms=200, allow_auto_create_topics=False
        ) as producer,
    ):

        def flood() -> None:
            for _ in iter(int, 1):
                producer.send("missing", bytes(1000))

        with pytest.raises(errors.BufferExhaustedError) as caught:
            flood()
        assert "no metadata of topic 'missing' within max_block_ms=200" in str(caught.value)
        assert (
            "topic 'missing' does not exist (UnknownTopicOrPartitionError), and allow_auto_create_topics is "
            "False: create it"
        ) in str(caught.value)


def test_missing_topics_log_few_lines_and_may_be_created_later(caplog: pytest.LogCaptureFixture) -> None:
    with (
        ScriptedCluster(orders=1) as cluster,
        producing(cluster, max_block_ms=300, allow_auto_create_topics=False) as producer,
    ):
        producer.send("orders", b"1").get(WAIT_S)
        client = producer._runtime.client
        with caplog.at_level(logging.ERROR, "cyproducer"):
            # Parked at the same time, so that one check of the sender finds all of them.
            futures = [producer.send(f"missing-{i}", b"1") for i in range(50)]
            for future in futures:
                with pytest.raises(errors.KafkaTimeoutError, match="no metadata"):
                    future.get(WAIT_S)

        def failed() -> list[int]:
            """The number of records in each line, with those of the lines that it stands for.

            A slow machine parks and fails the records in several groups: the lines of the second group and of
            all later ones in the same second become one.
            """
            lines = [r.getMessage() for r in caplog.records]
            numbers = [re.findall(r"(?:\] |more like it, of )(\d+) records?", line) for line in lines]
            return [sum(map(int, each)) for each in numbers if each]

        # Another thread logs them.
        until(lambda: sum(failed()) == 50, "the lines")
        assert len(failed()) < 25
        assert client._asked == set()
        assert producer._runtime.accumulator.counters()["records_failed"] == 50
        # The topic may be created later.
        cluster.create_topic("missing-1")
        assert producer.send("missing-1", b"1").get(WAIT_S).offset == 0


def test_a_topic_is_requested_even_if_ctrl_c_interrupts_the_request() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        client = producer._runtime.client

        class Interrupted(set[str]):
            def add(self, name: str) -> None:
                raise KeyboardInterrupt

        client._asked = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            client.want_topic("orders")
        until(lambda: client.view.partitions_for_topic("orders") == {0}, "the topic")


def test_a_topic_that_a_record_waits_for_is_not_forgotten() -> None:
    """No broker can be reached for longer than ``metadata_max_idle_ms``."""
    with ScriptedCluster(t=1) as cluster:
        cluster.nodes[1].stop()
        with producing(cluster, metadata_max_idle_ms=1) as producer:
            future = producer.send("t", b"v")
            # The third attempt comes 20 ms after the first one. A slow machine sees a later one.
            thrice = re.compile(r"refused ([3-9]|\d\d+) times")
            until(lambda: thrice.search(producer._runtime.client.diagnosis()) is not None, "failed attempts")
            cluster.nodes[1].start()
            assert future.get(WAIT_S).offset == 0
