"""Draws the plots of the documentation from the tables in its pages, so that both have the same figures.

    make plots          # or: python perf/published.py

Measures nothing: ``make perf`` does, and whoever publishes its figures puts them into the tables. Each plot
has the figures that it shows in its own file, so that a test can compare them with the tables without
matplotlib, which only drawing needs.
"""

import importlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
PLOTS = ROOT / "docs" / "plots"

OWN_COLOUR = "#4a8bd0"
OTHER_COLOUR = "#b9b4ab"
FIGURE = re.compile(r"([\d,.]+)(?: \(([\d,.]+)-([\d,.]+)\))?")
DESCRIPTION = "{http://purl.org/dc/elements/1.1/}description"


@dataclass(frozen=True)
class Published:
    """A plot, and the table it shows: the page, the start of the table's header, the columns."""

    page: str
    header: str
    columns: tuple[str, ...]
    draw: Callable[[Any, list[list[str]]], Any]

    def rows(self) -> list[list[str]]:
        """The cells of the columns, row by row; the first is what the row is about."""
        _, found, rest = (ROOT / self.page).read_text(encoding="utf-8").partition(f"\n{self.header}")
        if not found:
            raise ValueError(f"{self.page}: there is no table that begins with {self.header!r}")
        lines = (found + rest).strip().split("\n\n")[0].splitlines()
        table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        at = [table[0].index(column) for column in self.columns]
        return [[re.sub(r"[*`]", "", row[column]) for column in at] for row in table[2:]]


def spread(text: str) -> tuple[float, float, float]:
    """Median, minimum and maximum of a cell such as ``1.74 (0.73-2.53)``."""
    found = FIGURE.match(text)
    if found is None:
        raise ValueError(f"{text!r}: must be a median, and may have minimum and maximum in brackets")
    median, least, greatest = (float(part.replace(",", "")) if part else None for part in found.groups())
    assert median is not None
    return median, median if least is None else least, median if greatest is None else greatest


def bars(axes: Any, names: Sequence[str], cells: Sequence[str], title: str) -> None:
    """Draws one bar per name, the first one on top, each with its range and its median as text."""
    places = range(len(names))[::-1]
    for place, name, cell in zip(places, names, cells, strict=True):
        median, least, greatest = spread(cell)
        colour = OWN_COLOUR if name.startswith("cyproducer") else OTHER_COLOUR
        ends = [[median - least], [greatest - median]]
        axes.barh(place, median, xerr=ends, color=colour, height=0.6, capsize=3, ecolor="#555555")
        axes.annotate(
            f"{median:g}", (greatest, place), (6, 0), textcoords="offset points", va="center", color="#222222"
        )
    axes.set_yticks(places, names)
    axes.grid(axis="y", visible=False)
    axes.set_title(title, fontsize=10)
    axes.margins(x=0.15)


def send(plt: Any, rows: list[list[str]]) -> Any:
    figure, (rate, cpu) = plt.subplots(1, 2, figsize=(9, 2.6), sharey=True)
    names = [re.sub(r"confluent-kafka [\d.]+", "confluent-kafka", row[0]) for row in rows]
    bars(rate, names, [row[1] for row in rows], "million records per second")
    bars(cpu, names, [row[2] for row in rows], "CPU seconds per million records (log scale)")
    cpu.set_xscale("log")
    cpu.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    cpu.set_xlim(left=0.1)
    return figure


def latency(plt: Any, rows: list[list[str]]) -> Any:
    """One panel per percentile: lines for both clients over the record rates, without linger."""
    figure, panels = plt.subplots(1, 3, figsize=(9, 2.8), sharey=True)
    found = [row for row in rows if row[0].endswith(", 0")]
    rates = [int(row[0].split(", ")[0].replace(",", "")) for row in found]
    for number, (axes, title) in enumerate(
        zip(panels, ("half of the records", "99 %", "99.9 %"), strict=True)
    ):
        for column, name, colour in ((1, "cyproducer", OWN_COLOUR), (2, "confluent-kafka", "#d1662a")):
            values = [float(row[column].split(" / ")[number]) for row in found]
            axes.plot(rates, values, marker="o", color=colour, label=name)
        axes.set_xscale("log")
        axes.set_xticks(rates, [f"{rate // 1000} k" for rate in rates])
        axes.set_xticks([], minor=True)
        axes.set_yscale("log")
        axes.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
        axes.set_xlabel("records/s")
        axes.set_title(title, fontsize=10)
    panels[0].set_ylabel("callback within, ms")
    panels[0].legend(fontsize=8)
    return figure


def spark(plt: Any, rows: list[list[str]]) -> Any:
    figure, (rate, cpu) = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
    names = [re.sub(r" \(.*?\)", "", row[0]) for row in rows]
    bars(rate, names, [row[1] for row in rows], "million rows per second")
    bars(cpu, names, [row[2] for row in rows], "CPU microseconds per row")
    return figure


PUBLISHED = {
    "send": Published(
        "README.md",
        "| client | records/s, M |",
        ("client", "records/s, M", "CPU s per million records"),
        send,
    ),
    "latency": Published(
        "perf/README.md",
        "| records/s, `linger_ms` |",
        ("records/s, `linger_ms`", "cyproducer", "confluent-kafka"),
        latency,
    ),
    "spark": Published(
        "docs/spark.md",
        "| sink | rows/s, M |",
        ("sink", "rows/s, M", "CPU of JVM and Python, us/row"),
        spark,
    ),
}


def shown(name: str) -> list[list[str]]:
    """The rows that a stored plot shows."""
    found = ElementTree.parse(PLOTS / f"{name}.svg").getroot().find(f".//{DESCRIPTION}")
    if found is None or found.text is None:
        raise ValueError(f"{name}.svg: was not drawn by perf/published.py")
    rows: list[list[str]] = json.loads(found.text)
    return rows


def main() -> None:
    # Imported by name, because mypy also runs without matplotlib.
    importlib.import_module("matplotlib").use("Agg")
    plt = importlib.import_module("matplotlib.pyplot")
    plt.rcParams.update(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#e4e4e4",
            "axes.axisbelow": True,
            "legend.frameon": False,
            # The same file each time, and small.
            "svg.fonttype": "none",
            "svg.hashsalt": "cyproducer",
        }
    )
    PLOTS.mkdir(exist_ok=True)
    for name, published in PUBLISHED.items():
        rows = published.rows()
        figure = published.draw(plt, rows)
        figure.tight_layout()
        about = {"Date": None, "Description": json.dumps(rows)}
        figure.savefig(PLOTS / f"{name}.svg", metadata=about)
        plt.close(figure)
        print(PLOTS / f"{name}.svg")


if __name__ == "__main__":
    main()
