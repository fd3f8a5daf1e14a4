"""Tests the comparison: the order of runs, failures, the report, and a small comparison as a whole."""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perf import client, compare, null_broker
from perf.comparison import report
from perf.comparison.bench import Bench, Plan, RunError, Watch, in_turn, runs_of
from perf.comparison.brokers import Brokers
from perf.comparison.cases import CASES, Case, Client, Column, Contest
from perf.comparison.figures import OWN, Figures, Goal
from perf.comparison.report import Store, Taken
from perf.runs import measuring, raw
from tests.perf.produce import batch

CASE = Case(
    "case",
    "A case",
    "What it is about.",
    (
        Contest("a", Client(OWN, "x", {"records": 100_000}), (Client("p", "x"), Client("q", "x")), "none"),
        Contest("b", Client(OWN, "x.own"), (), "none"),
    ),
    (Column("cpu", "CPU"),),
    (
        Goal("CPU of a", "cpu", "a", at_most=2),
        Goal("p by ours", "cpu", "a", at_least=4, peer="p", peer_by_own=True),
    ),
)  # fmt: skip


def bench(run: Any, plan: Plan, stream: io.StringIO | None = None) -> Bench:
    return Bench(Brokers(), plan, Watch(stream or io.StringIO(), 10), run)


def taken(results: Any, pairs: int = 5) -> Taken:
    return Taken(results, 'make perf PERF="case"', "2026-01-01", "two cores", "CPython", pairs)


# The order of runs


def test_each_peer_is_paired_with_this_producer_in_alternating_order() -> None:
    order = []

    def run(one: Client, args: dict[str, Any]) -> Figures:
        order.append(one.name)
        return {"cpu": 1.0}

    results = bench(run, Plan(pairs=2)).measure(CASE)

    assert order == [OWN, "p", "q", OWN, OWN, "p", OWN, OWN, "q", OWN]
    assert len(order) == runs_of([CASE], 2)
    assert len(results["a"].pairs("p", "cpu")) == len(results["a"].pairs("q", "cpu")) == 2
    assert len(results["b"].all_own("cpu")) == 2


def test_both_runs_of_a_pair_are_of_the_same_round() -> None:
    number = 0

    def run(one: Client, args: dict[str, Any]) -> Figures:
        nonlocal number
        number += 1
        return {"cpu": float(number)}

    found = bench(run, Plan(pairs=3)).measure(CASE)["a"]

    assert all(abs(own - other) == 1 for own, other in found.pairs("p", "cpu") + found.pairs("q", "cpu"))


def test_records_are_scaled_down_to_a_minimum() -> None:
    sizes = []

    def run(one: Client, args: dict[str, Any]) -> Figures:
        sizes.append(args.get("records"))
        return {"cpu": 1.0}

    bench(run, Plan(pairs=1, scale=0.5)).measure(CASE)
    assert sizes == [50_000, None, None, 50_000, None]
    sizes.clear()
    bench(run, Plan(pairs=1, scale=0.0001)).measure(CASE)
    assert sizes[0] == 1000


def test_options_are_added_to_this_producers_own_only() -> None:
    given: dict[str, Any] = {}

    def run(one: Client, args: dict[str, Any]) -> Figures:
        given.setdefault(one.name, args.get("options"))
        return {"cpu": 1.0}

    bench(run, Plan(pairs=1, options=("linger_ms=5",))).measure(CASE)

    assert given == {OWN: {"linger_ms": "5"}, "p": None, "q": None}


class EveryBroker(Brokers):
    """Has every kind of broker, at an address where none is."""

    def __init__(self) -> None:
        super().__init__()
        self.files = {"ca": "/ca.pem"}

    def bootstrap(self, kind: str, topics: Mapping[str, int]) -> str:
        return "nowhere:9092"


@pytest.mark.parametrize("name", CASES)
def test_every_run_of_a_case_can_be_started(name: str) -> None:
    given: list[measuring.Args] = []

    def run(one: Client, args: dict[str, Any]) -> Figures:
        given.append(measuring.Args(**json.loads(json.dumps(args))))
        return {}

    Bench(EveryBroker(), Plan(pairs=1), Watch(io.StringIO(), 1000), run).measure(CASES[name])

    assert {each.bootstrap for each in given} == {"nowhere:9092"}


def test_a_failed_run_is_reported_and_other_runs_continue() -> None:
    tries = 0
    stream = io.StringIO()

    def run(one: Client, args: dict[str, Any]) -> Figures:
        nonlocal tries
        if one.name == "p":
            tries += 1
            raise RunError("code 1\nValueError: too much")
        return {"cpu": 1.0}

    found = bench(run, Plan(pairs=3), stream).measure(CASE)["a"]

    assert tries == 1
    assert found.skipped == {"p": "failed: ValueError: too much"}
    assert "ValueError: too much" in stream.getvalue()
    assert len(found.pairs("q", "cpu")) == 3
    assert len(found.all_own("cpu")) == 6


def test_peers_are_measured_if_this_producer_is_skipped() -> None:
    def run(one: Client, args: dict[str, Any]) -> Figures:
        return {"skipped": "no such call"} if one.name == OWN else {"cpu": 4.0}

    found = bench(run, Plan(pairs=2)).measure(CASE)["a"]

    assert found.skipped == {OWN: "no such call"}
    assert found.of_peer("p", "cpu") == [4.0, 4.0]
    assert found.pairs("p", "cpu") == []


def test_a_contest_without_its_broker_is_skipped_with_the_reason() -> None:
    contest = Contest("real", Client(OWN, "x.own"), (Client("p", "x.p"),), "real")
    case = Case("case", "", "", (contest,), ())

    def run(one: Client, args: dict[str, Any]) -> Figures:
        raise AssertionError("a client was run")

    it = Bench(Brokers(without_real=True), Plan(pairs=2), Watch(io.StringIO(), 1), run)

    assert it.measure(case)["real"].skipped == {OWN: "the real broker is disabled"}


def test_progress_in_a_log_is_one_line_per_run_with_the_time_left() -> None:
    stream = io.StringIO()
    bench(lambda *_: {"cpu": 1.0}, Plan(pairs=2), stream).measure(CASE)
    lines = stream.getvalue().splitlines()

    assert len(lines) == 10
    assert lines[0].startswith(f"1/10 case, a, pair 1/2: {OWN}")
    assert "left" not in lines[0]
    assert "about 0:00 left" in lines[9]


# The report


def results_of(own: float, p: float) -> Any:
    cost = {OWN: own, "p": p, "q": 1.0}
    return bench(lambda one, _: {"cpu": cost[one.name]}, Plan(pairs=2)).measure(CASE)


@pytest.fixture
def _only_this_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "CASES", {"case": CASE})


@pytest.mark.usefixtures("_only_this_case")
def test_the_report_has_goals_tables_and_commands() -> None:
    text = report.markdown(report.page(Store({"case": taken(results_of(1.0, 3.0))}), {"case": "case.png"}))

    assert "| CPU of a  | <= 2  | 1.00     | met           | case |" in text
    assert "| p by ours | >= 4x | 3.00     | missed by 25% | case |" in text
    assert '```sh\nmake perf PERF="case"\n```' in text
    assert "![case](case.png)" in text
    assert "at least five" not in text


@pytest.mark.usefixtures("_only_this_case")
def test_the_report_lists_skipped_clients_and_warns_of_few_pairs() -> None:
    results = results_of(1.0, 3.0)
    results["a"].skipped["p"] = "it isn't installed"
    text = report.markdown(report.page(Store({"case": taken(results, pairs=1)}), {}))

    assert "Left out: a, p: it isn't installed." in text
    assert "1 pair. Figures to quote need at least five." in text


@pytest.mark.usefixtures("_only_this_case")
def test_the_web_page_escapes_text_and_marks_missed_goals() -> None:
    page = report.web_page(report.page(Store({"case": taken(results_of(3.0, 3.0))}), {}))

    assert '<td class="missed">missed by 50%</td>' in page
    assert "&lt;= 2" in page


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    store = Store({"case": taken(results_of(1.0, 3.0))})
    store.write(tmp_path)

    assert Store.read(tmp_path) == store
    assert Store.read(tmp_path / "nothing") == Store()


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ([], 'make perf PERF="send"'),
        (["--quick", "--option", "linger_ms=5"], 'make perf PERF="send --quick --option linger_ms=5"'),
        (["--pairs", "7", "--scale", "0.5"], 'make perf PERF="send --pairs 7 --scale 0.5"'),
    ],
)
def test_the_reported_command_reproduces_the_run(
    monkeypatch: pytest.MonkeyPatch, line: list[str], command: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare.py", *line])
    assert compare.command_for("send", compare.arguments()) == command


def test_goals_name_existing_contests_and_peers() -> None:
    for case in CASES.values():
        contests = {contest.at: contest for contest in case.contests}
        assert len(contests) == len(case.contests)
        for goal in case.goals:
            assert goal.at in contests
            assert goal.beside is None or goal.beside in contests
            assert goal.peer is None or goal.peer in [peer.name for peer in contests[goal.at].peers]
        for contest in case.contests:
            assert [first.name for _, first, _ in in_turn(contest, 0)]
            for one in (contest.own, *contest.peers):
                assert callable(client.run_named(one.run))
                measuring.Args(bootstrap="", **one.args)


# The runs


@pytest.mark.parametrize(("share", "found"), [(0.5, 51), (0.99, 100), (1.0, 100), (0.0, 1)])
def test_a_percentile_is_a_measured_value(share: float, found: float) -> None:
    assert measuring.percentile(list(range(1, 101)), share) == found
    assert measuring.percentile([7.0], share) == 7.0


def test_paced_records_are_due_at_equal_intervals_even_if_late() -> None:
    due: list[float] = []
    measuring.paced(measuring.Args("", records=5, rate=1000), due.append)

    assert [round((b - a) * 1e3, 6) for a, b in itertools.pairwise(due)] == [1, 1, 1, 1]


@pytest.mark.slow
def test_json_values_are_json_like_and_of_one_size() -> None:
    assert {len(value) for value in measuring.json_values(1000)} == {1000}
    assert measuring.json_values(1000) == measuring.json_values(1000)


@pytest.mark.skipif(null_broker.unavailable() is not None, reason=str(null_broker.unavailable()))
@pytest.mark.slow
def test_the_raw_socket_detects_refused_requests() -> None:
    with null_broker.NullBroker(topics={"t": 2}, check=True) as broker:
        sock = raw.Socket(broker.bootstrap_servers)
        frame = raw.produce_frame("t", {0: batch(3), 1: raw.batch([b"value"] * 4)})

        assert raw.error_codes("t", sock.ask(frame)[4:]) == [0, 0]
        assert broker.report().records("t") == 7
        sock.check("t", frame)
        with pytest.raises(measuring.SkippedError, match=r"\[3\]"):
            sock.check("t", raw.produce_frame("t", {9: batch(1)}))
        found = raw.in_c(sock.port, [frame], 10, 5, records_per_frame=7)
        assert found["records"] == 70
        assert broker.report().records("t") == 14 + 70


@pytest.mark.slow
def test_a_skipped_run_reports_the_reason_as_its_result() -> None:
    args = json.dumps({"bootstrap": "127.0.0.1:1,127.0.0.1:2"})
    done = subprocess.run(
        [sys.executable, client.__file__, "raw.blocking", args], capture_output=True, text=True
    )

    assert json.loads(done.stdout) == {"skipped": "the raw socket needs a single broker"}, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(null_broker.unavailable() is not None, reason=str(null_broker.unavailable()))
def test_a_small_comparison_writes_its_report(tmp_path: Path) -> None:
    names = ["send-alone", "confluent", "aio", "get", "codecs", "partitions", "memory", "idle-partitions"]
    names += ["import", "first-ack"]
    sizes = ["--pairs", "1", "--scale", "0.003", "--no-real-broker", "--output", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, compare.__file__, *names, *sizes], capture_output=True, text=True, timeout=250
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed" not in done.stdout + done.stderr, done.stderr
    store = Store.read(tmp_path)
    assert list(store.taken) == names
    for name in names:
        for contest in CASES[name].contests:
            found = store.taken[name].results[contest.at]
            if contest.broker == "real":
                assert found.skipped == {OWN: "the real broker is disabled"}
                continue
            for column in CASES[name].columns:
                assert found.all_own(column.metric), (name, contest.at, column.metric)
    text = (tmp_path / "report.md").read_text()
    assert "| ms of importing" in text
    assert (tmp_path / "memory.png").exists() == (importlib.util.find_spec("matplotlib") is not None)
