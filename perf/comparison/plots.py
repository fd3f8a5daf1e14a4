"""Draws the plots of a report, with matplotlib, which only this module needs.

Each function takes a case and its results, and draws medians with bars from minimum to maximum. A client has
the same colour in all plots.
"""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from perf.comparison.cases import CALLBACK, CASES, CONFLUENT, KAFKA_PYTHON, POLLING, Case
from perf.comparison.figures import OWN, Results, Spread
from perf.comparison.report import Store, points, runs

COLOURS = {OWN: "#1f5fa8", CONFLUENT: "#d1662a", CALLBACK: "#e3a27f", KAFKA_PYTHON: "#5b9a4a"}
OTHER = "#8a6fb0"
SIZE = (8.0, 4.6)
DPI = 120


def draw_all(store: Store, directory: Path) -> dict[str, str]:
    """Writes a PNG for each case that has a plot and results. Returns case -> file name.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    # Imported by name, because mypy also runs without matplotlib.
    importlib.import_module("matplotlib").use("Agg")
    plt = importlib.import_module("matplotlib.pyplot")

    plt.rcParams.update(
        {
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#dddddd",
            "axes.axisbelow": True,
            "legend.frameon": False,
        }
    )
    drawn = {}
    for name, draw in PLOTS.items():
        if name not in store.taken:
            continue
        figure = draw(plt, CASES[name], store.taken[name].results)
        if figure is None:
            continue
        figure.tight_layout()
        figure.savefig(directory / f"{name}.png", dpi=DPI)
        plt.close(figure)
        drawn[name] = f"{name}.png"
    return drawn


def line(
    axes: Any,
    found: Sequence[tuple[float, Spread]],
    label: str,
    colour: str,
    scale: float = 1,
    style: str = "-",
) -> None:
    """Draws medians, each with a bar from minimum to maximum."""
    x = [at for at, _ in found]
    middle = [spread.median * scale for _, spread in found]
    below = [(spread.median - spread.least) * scale for _, spread in found]
    above = [(spread.greatest - spread.median) * scale for _, spread in found]
    axes.errorbar(
        x, middle, yerr=[below, above], label=label, color=colour, linestyle=style, marker="o", markersize=4,
        capsize=3, linewidth=1.6,
    )  # fmt: skip


def ticks(axes: Any, case: Case, names: Callable[[float], str] = lambda x: f"{x:,.0f}") -> None:
    """Makes the x axis logarithmic, with ticks only at the contests."""
    at = sorted({contest.x for contest in case.contests})
    axes.set_xscale("log")
    axes.set_xticks(at, [names(x) for x in at])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(case.axis)


def plain_log(axis: Any) -> None:
    """Labels a logarithmic axis with plain numbers: 0.1, 1, 10."""
    ticker = importlib.import_module("matplotlib.ticker")
    axis.set_major_locator(ticker.LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=20))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def bytes_name(size: float) -> str:
    return f"{size:.0f} B" if size < 1000 else f"{size / 1000:.0f} kB"


def sizes(plt: Any, case: Case, results: dict[str, Results]) -> Any:
    figure, axes = plt.subplots(figsize=SIZE)
    for name in (KAFKA_PYTHON, CONFLUENT, OWN):
        line(axes, points(case, results, name, "cpu_s_per_million"), name, COLOURS[name])
    ticks(axes, case, bytes_name)
    axes.set_yscale("log")
    plain_log(axes.yaxis)
    axes.set_xlabel("size of a value")
    axes.set_ylabel("CPU, us per record")
    axes.set_title("CPU per record by value size")
    axes.legend()
    return figure


def latency(plt: Any, case: Case, results: dict[str, Results]) -> Any:
    """Draws one panel per percentile; in one panel the lines would overlap."""
    wanted = (("p50_ms", "half of the records"), ("p99_ms", "99 %"), ("p999_ms", "99.9 %"))
    figure, panels = plt.subplots(1, len(wanted), figsize=(12, 4.4), sharey=True)
    for axes, (metric, title) in zip(panels, wanted, strict=True):
        for name in (CONFLUENT, OWN):
            line(axes, points(case, results, name, metric), name, COLOURS[name])
        ticks(axes, case, lambda x: f"{x:.0f}" if x < 1000 else f"{x / 1000:.0f} k")
        axes.set_yscale("log")
        plain_log(axes.yaxis)
        axes.set_title(title)
    panels[0].set_ylabel("acknowledged within, ms")
    panels[0].legend()
    figure.suptitle("Latency by record rate")
    return figure


def load(plt: Any, case: Case, results: dict[str, Results]) -> Any:
    """Draws each contest's latency distribution: the share of records whose callback runs within a time."""
    figure, panels = plt.subplots(2, 3, figsize=(12, 7.2), sharex=True, sharey=True)
    shown = (0.5, 0.9, 0.99, 0.999)
    for axes, contest in zip(panels.flat, case.contests, strict=True):
        for name, colour in ((POLLING, COLOURS[CONFLUENT]), (OWN, COLOURS[OWN])):
            for number, run in enumerate(runs(contest, results, name)):
                curve = run.get("distribution", [])
                axes.plot(
                    [1 / (1 - share) for share, _ in curve],
                    [ms for _, ms in curve],
                    color=colour,
                    linewidth=1.6 if number == 0 else 0.7,
                    label=name if number == 0 else None,
                )
        axes.set_xscale("log")
        axes.set_xticks([1 / (1 - share) for share in shown], [f"{share:.1%}" for share in shown])
        axes.set_xticks([], minor=True)
        axes.set_yscale("log")
        plain_log(axes.yaxis)
        axes.set_title(contest.at, fontsize=10)
    for axes in panels[1]:
        axes.set_xlabel("share of the records")
    for axes in panels[:, 0]:
        axes.set_ylabel("callback within, ms")
    panels[0][0].legend(fontsize=8)
    figure.suptitle("Latency under load, to the callback")
    return figure


def pressure(plt: Any, case: Case, results: dict[str, Results]) -> Any:
    """Draws the rate over the minute: one line per codec, one panel per method of sending."""
    figure, panels = plt.subplots(1, 3, figsize=(12, 4.4), sharey=True)
    styles = ("-", "--", "-.", ":", (0, (1, 1)))
    for contest in case.contests:
        way, codec = contest.at.split(", ")
        axes = panels[("send", "send_many", "send_arrow").index(way)]
        same = [each.at for each in case.contests if each.at.startswith(f"{way},")]
        style = styles[same.index(contest.at)]
        for name in (OWN, CONFLUENT):
            for run in list(runs(contest, results, name))[:1]:
                axes.plot(
                    [at for at, _ in run["course"]],
                    [rate / 1000 for _, rate in run["course"]],
                    color=COLOURS[name],
                    linestyle=style,
                    linewidth=1.4,
                    label=f"{name}, {codec}",
                )
        axes.set_title(f"{way}()")
        axes.set_xlabel("s")
        axes.legend(fontsize=6)
    panels[0].set_ylabel("thousand records/s")
    panels[0].set_ylim(bottom=0)
    figure.suptitle("A minute of exhausted buffer memory, round trips of 20 ms")
    return figure


def threads(plt: Any, case: Case, results: dict[str, Results]) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4))
    line(left, points(case, results, OWN, "records_per_s"), OWN, COLOURS[OWN], 1e-3)
    left.set_ylabel("send().get(), thousands per second")
    left.set_title("Throughput")
    left.set_ylim(bottom=0)
    line(right, points(case, results, OWN, "p50_us"), "half of the calls", COLOURS[OWN], 1e-3)
    line(right, points(case, results, OWN, "p99_us"), "99 %", COLOURS[OWN], 1e-3, "--")
    right.set_yscale("log")
    plain_log(right.yaxis)
    right.set_ylabel("done within, ms")
    right.set_title("Time per call")
    right.legend()
    for axes in (left, right):
        ticks(axes, case)
    figure.suptitle("send().get() from threads on one producer")
    return figure


def partitions(plt: Any, case: Case, results: dict[str, Results]) -> Any:
    figure, axes = plt.subplots(figsize=SIZE)
    for even, style, label in ((False, "-", "no key"), (True, "--", "to each partition in turn")):
        found = [
            (contest.x, spread)
            for contest in case.contests
            if contest.own.args["even"] is even
            and (spread := Spread.of(results.get(contest.at, Results()).all_own("cpu_s_per_million")))
        ]
        line(axes, found, label, COLOURS[OWN], 1, style)
    ticks(axes, case)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("CPU, us per record")
    axes.set_title("Cost by number of partitions")
    axes.legend()
    return figure


def memory(plt: Any, case: Case, results: dict[str, Results]) -> Any:
    figure, axes = plt.subplots(figsize=SIZE)
    (contest,) = case.contests
    for name in (KAFKA_PYTHON, CONFLUENT, OWN):
        for number, run in enumerate(runs(contest, results, name)):
            course = run.get("course") or [[0, 0]]
            axes.plot(
                [at for at, _ in course],
                [mb for _, mb in course],
                color=COLOURS[name],
                linewidth=1.4 if number == 0 else 0.7,
                alpha=1 if number == 0 else 0.35,
                label=name if number == 0 else None,
            )
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("s since the first record")
    axes.set_ylabel("resident MB")
    axes.set_title("Memory during a stream of records, one line per run")
    axes.legend()
    return figure


def send(plt: Any, case: Case, results: dict[str, Results]) -> Any:
    """Draws bars on a logarithmic axis: the slowest client takes a hundred times as long as the fastest."""
    figure, panels = plt.subplots(
        1, len(case.contests), figsize=(12, 3.8), sharex=True, sharey=True, squeeze=False
    )
    for axes, contest in zip(panels[0], case.contests, strict=True):
        found = results.get(contest.at, Results())
        names = [OWN, *(peer.name for peer in contest.peers)][::-1]
        for place, name in enumerate(names):
            metric = "cpu_s_per_million"
            spread = Spread.of(found.all_own(metric) if name == OWN else found.of_peer(name, metric))
            if spread is None:
                continue
            ends = [[spread.median - spread.least], [spread.greatest - spread.median]]
            axes.barh(place, spread.median, xerr=ends, color=COLOURS.get(name, OTHER), height=0.6, capsize=3)
            axes.annotate(
                f"{spread.median:.2f}", (spread.greatest, place), (6, 0), textcoords="offset points",
                va="center",
            )  # fmt: skip
        axes.set_yticks(range(len(names)), names)
        axes.grid(axis="y", visible=False)
        axes.set_xscale("log")
        plain_log(axes.xaxis)
        axes.margins(x=0.2)
        axes.set_xlabel("CPU s per million records")
        axes.set_title(contest.at)
    figure.suptitle("send() with a future for every record")
    return figure


PLOTS: dict[str, Callable[[Any, Case, dict[str, Results]], Any]] = {
    "send": send,
    "threads": threads,
    "partitions": partitions,
    "memory": memory,
    "sizes": sizes,
    "latency": latency,
    "load": load,
    "pressure": pressure,
}
