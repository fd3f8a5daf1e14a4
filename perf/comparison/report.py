"""Writes the report as Markdown and HTML: the goals, then each case with the command that reproduces it.

Owns the results file and the two pages. Does not own the plots (``plots``) or the arithmetic (``figures``).
"""

import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from perf.comparison.cases import CASES, Case, Contest
from perf.comparison.figures import OWN, Figures, Results, Spread, ratios, table

RESULTS = "results.json"


@dataclass
class Taken:
    """One case's results, and how they were measured."""

    results: dict[str, Results]
    """By contest."""
    command: str
    when: str
    machine: str
    versions: str
    pairs: int


@dataclass
class Store:
    """The results of all measured cases, by name. A later run of a case replaces an earlier one."""

    taken: dict[str, Taken] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> "Store":
        file = directory / RESULTS
        if not file.exists():
            return cls()
        store = cls()
        for name, found in json.loads(file.read_text()).items():
            found["results"] = {at: Results(**one) for at, one in found["results"].items()}
            store.taken[name] = Taken(**found)
        return store

    def write(self, directory: Path) -> None:
        text = json.dumps({name: asdict(taken) for name, taken in self.taken.items()}, indent=1)
        (directory / RESULTS).write_text(text + "\n")


@dataclass(frozen=True)
class Block:
    """A block of the page. ``kind``: heading1, heading2, text, code, table or plot."""

    kind: str
    text: str = ""
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def page(store: Store, plots: dict[str, str]) -> list[Block]:
    """Returns the whole report. ``plots``: case -> file name of its plot."""
    blocks = [
        Block("heading1", "cyproducer and its peers"),
        Block(
            "text",
            "Each run is a separate process. CPU is its user and system time (getrusage) between the first "
            "measured record and the last acknowledgement. This producer and a peer run in turn; ratios are "
            "computed within these pairs. Figures are medians, with minimum and maximum in brackets. "
            "perf/README.md describes the method.",
        ),
    ]
    blocks.append(Block("heading2", "Goals"))
    rows = list(goal_rows(store))
    blocks.append(Block("table", "", ("what", "goal", "measured", "verdict", "case"), rows))
    for name, case in CASES.items():
        if name in store.taken:
            blocks += section(case, store.taken[name], plots.get(name))
    return blocks


def goal_rows(store: Store) -> Iterator[list[str]]:
    for name, case in CASES.items():
        results = store.taken[name].results if name in store.taken else {}
        for goal in case.goals:
            spread = goal.measured(results)
            measured = "" if spread is None else spread.text(goal.digits)
            verdict = goal.verdict(results) if name in store.taken else "not measured"
            yield [goal.text, goal.bound(), measured, verdict, name]


def section(case: Case, taken: Taken, plot: str | None) -> list[Block]:
    few = "" if taken.pairs >= 5 else " Figures to quote need at least five."
    pairs = f"{taken.pairs} pair{'s' if taken.pairs != 1 else ''}"
    how = f"{taken.when}; {taken.machine}; {taken.versions}; {pairs}.{few}"
    blocks = [Block("heading2", case.title), Block("text", case.note), Block("code", taken.command)]
    blocks += [Block("text", how), Block("table", "", *case_table(case, taken.results))]
    skipped = [
        f"{contest.at}, {name}: {reason}"
        for contest in case.contests
        for name, reason in taken.results.get(contest.at, Results()).skipped.items()
    ]
    blocks += [Block("text", f"Left out: {'; '.join(skipped)}.")] if skipped else []
    if plot is not None:
        blocks.append(Block("plot", plot))
    return blocks


def case_table(case: Case, results: dict[str, Results]) -> tuple[list[str], list[list[str]]]:
    """Returns header and rows: a row per contest and client. Peers' rows have the ratio to this producer."""
    beside = [column for column in case.columns[:2] if any(contest.peers for contest in case.contests)]
    header = ["at", "client", *(column.title for column in case.columns)]
    header += [f"{column.title.split(',')[0]} / {OWN}'s" for column in beside]
    rows = []
    for contest in case.contests:
        found = results.get(contest.at, Results())
        for name in (OWN, *(peer.name for peer in contest.peers)):
            cells = [cell(found, name, column.metric, column.digits, column.scale) for column in case.columns]
            if not any(cells):
                continue
            ratio = ["" if name == OWN else ratio_cell(found, name, column.metric) for column in beside]
            rows.append([contest.at, name, *cells, *ratio])
    return header, rows


def cell(found: Results, name: str, metric: str, digits: int, scale: float) -> str:
    spread = Spread.of(found.all_own(metric) if name == OWN else found.of_peer(name, metric))
    return "" if spread is None else spread.text(digits, scale)


def ratio_cell(found: Results, name: str, metric: str) -> str:
    spread = Spread.of(ratios(found.pairs(name, metric), peer_by_own=True))
    return "" if spread is None else spread.text(2)


def markdown(blocks: Sequence[Block]) -> str:
    parts = []
    for block in blocks:
        if block.kind.startswith("heading"):
            parts.append(f"{'#' * int(block.kind[-1])} {block.text}")
        elif block.kind == "code":
            parts.append(f"```sh\n{block.text}\n```")
        elif block.kind == "table":
            parts.append(table(block.header, block.rows))
        elif block.kind == "plot":
            parts.append(f"![{Path(block.text).stem}]({block.text})")
        else:
            parts.append(block.text)
    return "\n\n".join(parts) + "\n"


STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color:
#222 } table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; margin: 1rem 0
} th, td { border-bottom: 1px solid #ddd; padding: .25rem .7rem; text-align: left; vertical-align: top } th {
border-bottom: 2px solid #999 } pre { background: #f4f4f4; padding: .6rem; overflow-x: auto } img { max-
width: 100% } .met { color: #176b2c } .missed { color: #a8201a } .not { color: #777 }
"""


def web_page(blocks: Sequence[Block]) -> str:
    out = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>cyproducer and its peers</title>',
        f"<style>{STYLE}</style>",
    ]
    for block in blocks:
        text = html.escape(block.text)
        if block.kind.startswith("heading"):
            out.append(f"<h{block.kind[-1]}>{text}</h{block.kind[-1]}>")
        elif block.kind == "code":
            out.append(f"<pre>{text}</pre>")
        elif block.kind == "table":
            out.append(web_table(block))
        elif block.kind == "plot":
            out.append(f'<p><img src="{text}" alt="{html.escape(Path(block.text).stem)}">')
        else:
            out.append(f"<p>{text}")
    return "\n".join(out) + "\n</html>\n"


def web_table(block: Block) -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}{_colour(text)}>{html.escape(text)}</{tag}>" for text in row)

    return (
        "<table>" + cells(block.header, "th") + "".join(cells(row, "td") for row in block.rows) + "</table>"
    )


def _colour(text: str) -> str:
    first = text.split(" ")[0].split(":")[0]
    return f' class="{first}"' if first in ("met", "missed", "not") else ""


def points(case: Case, results: dict[str, Results], name: str, metric: str) -> list[tuple[float, Spread]]:
    """Returns a client's points on a plot: each contest's ``x`` and the client's value there."""
    found = []
    for contest in case.contests:
        at = results.get(contest.at, Results())
        spread = Spread.of(at.all_own(metric) if name == OWN else at.of_peer(name, metric))
        if spread is not None:
            found.append((contest.x, spread))
    return found


def runs(contest: Contest, results: dict[str, Results], name: str) -> list[Figures]:
    """Returns all runs of one client in a contest."""
    found = results.get(contest.at, Results())
    if name == OWN:
        return [one for taken in found.own.values() for one in taken]
    return [*found.peers.get(name, []), *found.unpaired.get(name, [])]
