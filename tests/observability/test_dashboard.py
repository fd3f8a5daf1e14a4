"""The dashboard and the alert rules name metrics that exist, and are what their tool and page say."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cyproducer.observability.definitions import PRODUCER
from tests.observability.measured import sample_names
from tools import grafana

ROOT = Path(__file__).parents[2]
RULES = ROOT / "docs" / "prometheus" / "cyproducer.rules.yml"
EXISTING = sample_names()

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus"
)


def named(text: str) -> set[str]:
    return set(re.findall(r"\bcyproducer_\w+", text))


def panels() -> list[dict[str, Any]]:
    found = json.loads(grafana.FILE.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_the_dashboard_is_what_the_tool_makes() -> None:
    assert grafana.FILE.read_text() == grafana.text(), "run python -m tools.grafana"


def test_each_metric_of_the_dashboard_exists() -> None:
    variables = json.dumps(json.loads(grafana.FILE.read_text())["templating"])
    for text in (*expressions(), variables):
        assert named(text)
        assert named(text) <= EXISTING
    # "uid" and file names look alike, and are not checked.
    assert len(expressions()) > 25


def test_a_metric_that_is_not_exposed_in_a_form_is_refused() -> None:
    for name in ("record-send-rate", "request-latency-avg", "no-such-total"):
        with pytest.raises(KeyError):
            grafana.rate(PRODUCER, name)


def test_panels_do_not_overlap_and_have_their_own_ids() -> None:
    found = json.loads(grafana.FILE.read_text())["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in found)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_each_metric_of_the_alerts_exists_and_each_alert_is_documented() -> None:
    text = RULES.read_text()
    expected = re.findall(r"- alert: (\w+)", text)
    names = named(text.replace("cyproducer.rules", ""))
    assert names <= EXISTING
    assert len(names) >= 7
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert re.findall(r"\| `(Kafka\w+)` \|", page) == expected
    assert len(expected) == len(set(expected)) == text.count("expr:") == 7


@needs_promtool
def test_prometheus_accepts_the_alerts_and_the_dashboard_s_queries(tmp_path: Path) -> None:
    queries = tmp_path / "queries.yml"
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(expressions())
    ]
    # JSON is YAML.
    queries.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    for file, count in ((RULES, 7), (queries, len(rules))):
        told = subprocess.run(
            ["promtool", "check", "rules", file], capture_output=True, text=True, check=False
        )
        assert f"SUCCESS: {count} rules found" in told.stdout, told.stderr


@needs_promtool
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    """Each series begins well, goes wrong after 30 minutes, and the alert is not there before."""
    me = 'job="app", client_id="shop"'
    broken: list[tuple[str, dict[str, str]]] = [
        ("KafkaRecordsFailed", {f'cyproducer_topic_record_error_total{{{me}, topic="t"}}': "0x30 5x60"}),
        ("KafkaRecordsFailed", {f'cyproducer_topic_record_error_total{{{me}, topic="new"}}': "_x30 5x60"}),
        ("KafkaBufferExhausted", {f"cyproducer_producer_buffer_exhausted_total{{{me}}}": "0x30 1x60"}),
        (
            "KafkaBufferAlmostFull",
            {
                f"cyproducer_producer_buffer_available_bytes{{{me}}}": "90x30 5x60",
                f"cyproducer_producer_buffer_total_bytes{{{me}}}": "100x90",
            },
        ),
        (
            "KafkaRequestsSlow",
            {
                f'cyproducer_producer_request_latency_seconds_bucket{{{me}, le="1.0"}}': "0+100x30 3000x60",
                f'cyproducer_producer_request_latency_seconds_bucket{{{me}, le="2.5"}}': "0+100x90",
                f'cyproducer_producer_request_latency_seconds_bucket{{{me}, le="+Inf"}}': "0+100x90",
            },
        ),
        ("KafkaThrottled", {f'cyproducer_node_throttle_time_seconds_sum{{{me}, node="1"}}': "0x30 0+30x60"}),
        ("KafkaNoMetadata", {f"cyproducer_producer_metadata_age_seconds{{{me}}}": "300x30 " + "NaN " * 60}),
        ("KafkaCallbacksSlow", {f"cyproducer_producer_callback_queue_lag_seconds{{{me}}}": "0x30 60x60"}),
    ]
    assert {name for name, _ in broken} == set(re.findall(r"- alert: (\w+)", RULES.read_text()))
    tests = []
    for name, given in broken:
        chosen = f'ALERTS{{alertname="{name}"'
        series = [{"series": key, "values": values} for key, values in given.items()]
        tests.append(
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [
                    {"expr": f"count({chosen}}})", "eval_time": "29m", "exp_samples": []},
                    {
                        "expr": f'count(count_over_time({chosen}, alertstate="firing"}}[40m]))',
                        "eval_time": "60m",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    },
                ],
            }
        )
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    told = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
