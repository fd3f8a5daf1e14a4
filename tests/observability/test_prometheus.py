"""The collector for Prometheus: real scrapes, parsed by prometheus_client, of whole producers."""

import gc
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from cyproducer import KafkaProducer, _open_producers
from cyproducer.observability.exports import BOUNDS_S, EXPORTS, Form
from cyproducer.testing import MockProducer
from tests.forked import in_child, needs_fork
from tests.observability.measured import registry, sample_names, sent
from tests.scripted.producing import WAIT_S, options, producing
from tests.scripted.scripted_broker import ScriptedCluster
from tools.harness.rig import Rig
from tools.harness.until import until

# Some of it has no types.
client: Any = pytest.importorskip("prometheus_client")
parser: Any = pytest.importorskip("prometheus_client.parser")
openmetrics: Any = pytest.importorskip("prometheus_client.openmetrics.exposition")
openmetrics_parser: Any = pytest.importorskip("prometheus_client.openmetrics.parser")

from cyproducer import prometheus  # noqa: E402
from cyproducer.prometheus import ProducerCollector  # noqa: E402

SENT = "cyproducer_producer_record_send_total"
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series(families: Iterable[Any]) -> Series:
    """(Name, labels) -> value. Fails if two series are the same."""
    found: Series = {}
    for family in families:
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def collector_registry(*producers: KafkaProducer) -> Any:
    found = client.CollectorRegistry()
    found.register(ProducerCollector(producers or None))
    return found


def scrape(collectors: Any) -> Series:
    return series(parser.text_string_to_metric_families(client.generate_latest(collectors).decode()))


def sent_by(found: Series, **labels: str) -> float | None:
    return found.get((SENT, tuple(sorted(labels.items()))))


def clients(found: Series) -> set[tuple[str, str]]:
    """(Client id, number) of each producer."""
    return {
        (dict(labels)["client_id"], dict(labels).get("producer", ""))
        for name, labels in found
        if name == SENT
    }


@contextmanager
def served(collectors: Any) -> Iterator[str]:
    """Yields the URL of a server of ``prometheus_client``."""
    server, thread = client.start_http_server(0, "127.0.0.1", collectors)
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(WAIT_S)


class Exposed:
    """A ``Rig`` in place of a producer: nothing moves between two readings."""

    def __init__(self, rig: Rig) -> None:
        self.config = SimpleNamespace(client_id="shop")
        self.registry = lambda: registry(rig)


@pytest.mark.parametrize("newer", [False, True])
def test_values_equal_those_of_metrics(monkeypatch: pytest.MonkeyPatch, newer: bool) -> None:
    with Rig({"orders": [7]}) as rig:
        sent(rig, [b"x" * 100] * 5, "orders", then=lambda: rig.clock.advance_ms(20))
        monkeypatch.setattr(prometheus, "numbered", lambda runtimes: [(Exposed(rig), {"client_id": "shop"})])
        collectors = collector_registry()
        if newer:
            found = series(
                openmetrics_parser.text_string_to_metric_families(
                    openmetrics.generate_latest(collectors).decode()
                )
            )
        else:
            found = scrape(collectors)
        shown = registry(rig).snapshot()
    own, node = shown["producer-metrics"], shown["producer-node-metrics.node-7"]
    topic = shown["producer-topic-metrics.orders"]
    me, at, of = (("client_id", "shop"),), ("node", "7"), ("topic", "orders")
    for name, labels, value in (
        ("cyproducer_producer_record_send_total", me, own["record-send-total"]),
        ("cyproducer_producer_buffer_available_bytes", me, own["buffer-available-bytes"]),
        ("cyproducer_producer_request_latency_max_seconds", me, own["request-latency-max"] / 1e3),
        ("cyproducer_node_outgoing_bytes_total", (*me, at), node["outgoing-byte-total"]),
        ("cyproducer_node_request_latency_seconds_sum", (*me, at), node["request-latency-avg"] / 1e3),
        ("cyproducer_node_request_latency_seconds_count", (*me, at), 1),
        ("cyproducer_topic_record_send_total", (*me, of), topic["record-send-total"]),
        ("cyproducer_topic_bytes_total", (*me, of), topic["byte-total"]),
    ):
        assert found[name, labels] == pytest.approx(value) != 0, name
    assert {name for name, _ in found} == sample_names()
    # One series for each metric, of a histogram its buckets, sum and count.
    expected = {Form.COUNTER: 1, Form.GAUGE: 1, Form.SUMMARY: 2, Form.HISTOGRAM: len(BOUNDS_S) + 3}
    assert len(found) == sum(expected[one.form] for exports in EXPORTS.values() for one in exports)


def test_a_histogram_s_buckets_are_cumulative_and_end_with_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    with Rig({"t": [1]}, request_timeout_ms=1e9, delivery_timeout_ms=1e9) as rig:
        for ms in (0.2, 3, 3, 20, 400_000):
            sent(rig, [b"x"], then=lambda ms=ms: rig.clock.advance_ms(ms))  # type: ignore[misc]
        monkeypatch.setattr(prometheus, "numbered", lambda runtimes: [(Exposed(rig), {})])
        found = scrape(collector_registry())
    name = "cyproducer_producer_acknowledgement_latency_seconds"
    buckets = [found[f"{name}_bucket", (("le", str(bound)),)] for bound in BOUNDS_S]
    below = {0.0005: 1, 0.0025: 1, 0.005: 3, 0.01: 3, 0.025: 4, 120.0: 4}
    assert {bound: count for bound, count in zip(BOUNDS_S, buckets, strict=True) if bound in below} == below
    assert buckets == sorted(buckets)
    assert found[f"{name}_bucket", (("le", "+Inf"),)] == found[f"{name}_count", ()] == 5
    assert found[f"{name}_sum", ()] == pytest.approx(400.0262)


@pytest.mark.slow
def test_a_scrape_over_http_has_every_producer_of_the_process() -> None:
    with (
        ScriptedCluster(orders=1) as cluster,
        producing(cluster, client_id="one") as one,
        served(collector_registry()) as url,
    ):
        one.send("orders", b"1").get(WAIT_S)
        one.flush(WAIT_S)
        # The second one comes after the collector.
        with producing(cluster, client_id="two") as two:
            two.send("orders", b"1")
            two.send("orders", b"1")
            two.flush(WAIT_S)
            with urllib.request.urlopen(url, timeout=WAIT_S) as response:
                found = series(parser.text_string_to_metric_families(response.read().decode()))
    assert (sent_by(found, client_id="one"), sent_by(found, client_id="two")) == (1, 2)
    assert found["cyproducer_topic_record_send_total", (("client_id", "two"), ("topic", "orders"))] == 2


@pytest.mark.slow
def test_closed_and_collected_producers_vanish() -> None:
    collectors = collector_registry()
    with ScriptedCluster(orders=1) as cluster:
        before = clients(scrape(collectors))
        with producing(cluster, client_id="closed") as producer:
            assert clients(scrape(collectors)) - before == {("closed", "")}
            producer.close(WAIT_S)
            assert clients(scrape(collectors)) == before
        lost = KafkaProducer(**options(cluster, client_id="lost"))
        assert clients(scrape(collectors)) - before == {("lost", "")}
        del lost
        gc.collect()
        # It is closed in the background, and exposed until then.
        until(lambda: clients(scrape(collectors)) == before, "the end of the collected producer")


@pytest.mark.slow
def test_a_scrape_keeps_no_producer_alive_and_exposes_the_given_ones_only() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster, client_id="other"):
        given = KafkaProducer(**options(cluster, client_id="given"))
        collectors = collector_registry(given)
        assert clients(scrape(collectors)) == {("given", "")}
        del given
        gc.collect()
        assert clients(scrape(collectors)) == set()


def test_producers_with_one_client_id_have_numbers_and_keep_them() -> None:
    collectors = collector_registry()
    with ScriptedCluster(orders=1) as cluster, producing(cluster, client_id="shop") as first:
        first.send("orders", b"1")
        first.flush(WAIT_S)
        assert sent_by(scrape(collectors), client_id="shop") == 1
        with producing(cluster, client_id="shop") as second, producing(cluster, client_id="other"):
            found = scrape(collectors)
            assert sent_by(found, client_id="shop") == 1
            assert sent_by(found, client_id="shop", producer="2") == 0
            assert sent_by(found, client_id="other") == 0
            first.close(WAIT_S)
            # Otherwise the series of the first one would go on with the second one's values.
            assert clients(scrape(collectors)) == {("shop", "2"), ("other", "")}
            # A number becomes free when its producer is closed.
            with producing(cluster, client_id="shop") as third:
                third.send("orders", b"1")
                third.send("orders", b"1")
                third.flush(WAIT_S)
                found = scrape(collectors)
                assert sent_by(found, client_id="shop") == 2
                assert sent_by(found, client_id="shop", producer="2") == 0
            second.close(WAIT_S)


def test_disabled_metrics_are_not_exposed() -> None:
    with producing(bootstrap_servers=["127.0.0.1:1"], metrics_enabled=False) as producer:
        assert scrape(collector_registry(producer)) == {}


def test_a_mock_producer_is_not_exposed() -> None:
    with MockProducer() as producer:
        producer.send("orders", b"1")
        assert scrape(collector_registry(producer)) == {}


@needs_fork
def test_a_forked_child_exposes_what_it_uses_itself() -> None:
    collectors = collector_registry()
    with ScriptedCluster(orders=1) as cluster, producing(cluster, client_id="shop") as producer:
        producer.send("orders", b"1").get(WAIT_S)
        producer.flush(WAIT_S)
        assert sent_by(scrape(collectors), client_id="shop") == 1

        def ask() -> tuple[Any, ...]:
            threads = threading.active_count()
            unused = sent_by(scrape(collectors), client_id="shop")
            # A scrape makes no producer start in a child.
            started = threading.active_count() - threads
            producer.send("orders", b"2").get(WAIT_S)
            producer.flush(WAIT_S)
            used = sent_by(scrape(collectors), client_id="shop")
            producer.close(WAIT_S)
            return unused, started, used

        # As if another thread had been scraping when the process forked.
        with _open_producers._lock:
            assert in_child(ask) == (None, 0, 1)
        assert sent_by(scrape(collectors), client_id="shop") == 1


def test_a_second_collector_in_one_registry_is_refused_without_a_scrape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collectors = collector_registry()

    def refuse(self: ProducerCollector) -> list[Any]:
        raise AssertionError("register() must not read the producers")

    monkeypatch.setattr(ProducerCollector, "collect", refuse)
    with pytest.raises(ValueError, match="Duplicated"):
        collectors.register(ProducerCollector())


@pytest.mark.slow
def test_scrapes_go_on_while_producers_start_send_and_close() -> None:
    collectors = collector_registry()
    failures: list[BaseException] = []
    ended = threading.Event()

    def ask() -> None:
        try:
            while not ended.is_set():
                scrape(collectors)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with ScriptedCluster(orders=2) as cluster:
            for _ in range(10):
                with producing(cluster, client_id="shop") as one, producing(cluster, client_id="shop"):
                    for number in range(100):
                        one.send("orders", b"%d" % number)
                    one.flush(WAIT_S)
    finally:
        ended.set()
        for thread in threads:
            thread.join(WAIT_S)
    assert failures == []


def test_a_scrape_waits_for_no_broker_and_no_callback() -> None:
    held = threading.Event()
    collectors = collector_registry()
    with ScriptedCluster(orders=1) as cluster, producing(cluster, client_id="busy") as busy:
        entered = threading.Event()

        def hold(metadata: Any) -> None:
            entered.set()
            held.wait(WAIT_S)

        busy.send("orders", b"1").add_callback(hold)
        try:
            assert entered.wait(WAIT_S)
            with producing(bootstrap_servers=["127.0.0.1:1"], client_id="alone") as alone:
                alone.send("orders", b"1")
                assert clients(scrape(collectors)) == {("busy", ""), ("alone", "")}
        finally:
            held.set()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
def test_promtool_finds_nothing_to_complain_about() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        text = client.generate_latest(collector_registry(producer))
    told = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert b"cyproducer_topic_bytes_total" in text
    assert (told.returncode, told.stdout, told.stderr) == (0, b"", b"")
