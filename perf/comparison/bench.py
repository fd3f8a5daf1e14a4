"""Runs contests: one process per run, this producer and its peers in turn. Shows progress.

Owns the order of the runs, their processes and their output. Does not own brokers (``brokers``), the cases
(``cases``) or the evaluation. For one thread.
"""

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from cyproducer.cli.console import Progress
from perf.comparison.brokers import Brokers, NoBrokerError
from perf.comparison.cases import Case, Client, Contest
from perf.comparison.figures import ALONE, OWN, Figures, Results

PROGRAM = Path(__file__).parents[1] / "client.py"
RUN_TIMEOUT_S = 900
LEAST_RECORDS = 1000
LEAST_SECONDS = 4.0


class RunError(Exception):
    """A run failed. The message has the end of its output."""


@dataclass(frozen=True)
class Plan:
    """The size of the comparison."""

    pairs: int = 5
    scale: float = 1.0
    """Fraction of each run's records."""
    options: tuple[str, ...] = ()
    """Options of this producer, as ``name=value``, for all its runs."""


class Watch:
    """Shows progress: a bar on a terminal, a line per run in a log."""

    def __init__(self, stream: TextIO, runs: int) -> None:
        self._stream, self._runs, self._done = stream, runs, 0
        self._began = time.monotonic()
        self._bar = Progress(stream, runs)

    def begins(self, text: str) -> None:
        gone = time.monotonic() - self._began
        # No estimate before three runs.
        left = (
            f", about {minutes(gone / self._done * (self._runs - self._done))} left"
            if self._done >= 3
            else ""
        )
        line = f"{self._done + 1}/{self._runs} {text}  ({minutes(gone)} gone{left})"
        if self._stream.isatty():
            self._bar.update(self._done, line)
        else:
            print(line, file=self._stream, flush=True)

    def ended(self, runs: int = 1) -> None:
        self._done += runs

    def close(self) -> None:
        self._bar.close()

    def say(self, text: str) -> None:
        """Prints a permanent line."""
        self._bar.close()
        print(text, file=self._stream, flush=True)


def minutes(seconds: float) -> str:
    """Formats seconds as minutes and seconds: ``3:07``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def runs_of(cases: Sequence[Case], pairs: int) -> int:
    """Returns the number of runs, if none is skipped."""
    return sum(
        min(pairs, case.most_pairs) * max(1, 2 * len(contest.peers))
        for case in cases
        for contest in case.contests
    )


class Bench:
    """
    Args:
        run: the function that runs a client; tests pass their own.
    """

    def __init__(
        self,
        brokers: Brokers,
        plan: Plan,
        watch: Watch,
        run: Callable[[Client, dict[str, Any]], Figures] | None = None,
    ) -> None:
        self._brokers, self._plan, self._watch = brokers, plan, watch
        self._run = run or in_a_process

    def measure(self, case: Case) -> dict[str, Results]:
        """Returns each contest's results. Each round runs all contests, so that drift of the machine affects
        all of them alike."""
        found = {contest.at: Results() for contest in case.contests}
        for number in range(min(self._plan.pairs, case.most_pairs)):
            for contest in case.contests:
                self._round(case, contest, number, found[contest.at])
        return found

    def _round(self, case: Case, contest: Contest, number: int, results: Results) -> None:
        bootstrap: str | None
        try:
            bootstrap = self._brokers.bootstrap(contest.broker, contest.topics)
        except NoBrokerError as reason:
            results.skipped[OWN] = str(reason)
            bootstrap = None
        for peer, first, second in in_turn(contest, number):
            found: dict[str, Figures | None] = {}
            for client in (first, second):
                if client is None:
                    continue
                where = f"{case.name}, {contest.at}, pair {number + 1}/{self._plan.pairs}: {client.name}"
                self._watch.begins(where)
                found[client.name] = None
                # A client that was skipped once is not tried again.
                if bootstrap is not None and client.name not in results.skipped:
                    found[client.name] = self._one(client, bootstrap, results)
                self._watch.ended()
            results.add(peer, found.get(OWN), found.get(peer))

    def _one(self, client: Client, bootstrap: str, results: Results) -> Figures | None:
        if client.needs and importlib.util.find_spec(client.needs) is None:
            results.skipped[client.name] = f"{client.needs} isn't installed"
            return None
        args: dict[str, Any] = {**client.args, "bootstrap": bootstrap}
        if "records" in args:
            args["records"] = max(
                min(LEAST_RECORDS, args["records"]), int(args["records"] * self._plan.scale)
            )
        if "seconds" in args:
            args["seconds"] = max(LEAST_SECONDS, args["seconds"] * self._plan.scale)
        if "options" in args:
            files = self._brokers.files
            args["options"] = {
                name: value.format_map(files) if isinstance(value, str) else value
                for name, value in args["options"].items()
            }
        if client.name == OWN and self._plan.options:
            given = dict(option.split("=", 1) for option in self._plan.options)
            args["options"] = {**args.get("options", {}), **given}
        try:
            found = self._run(client, args)
        except RunError as error:
            self._watch.say(f"{client.name} failed: {error}")
            # The client is not tried again: results of only its successful runs would be a biased selection.
            results.skipped[client.name] = f"failed: {str(error).splitlines()[-1]}"
            return None
        if "skipped" in found:
            results.skipped[client.name] = found["skipped"]
            return None
        return found


def in_turn(contest: Contest, number: int) -> Iterator[tuple[str, Client, Client | None]]:
    """Yields each peer's name and the two clients in the order of their runs. The peer comes first every
    other time."""
    if not contest.peers:
        yield ALONE, contest.own, None
    for place, peer in enumerate(contest.peers):
        pair = (contest.own, peer)
        first, second = pair if (number + place) % 2 == 0 else pair[::-1]
        yield peer.name, first, second


def in_a_process(client: Client, args: dict[str, Any]) -> Figures:
    """Runs a client in a new process, with ``client.py``."""
    command = [sys.executable, "-P", str(PROGRAM), client.run, json.dumps(args)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise RunError(f"still running after {RUN_TIMEOUT_S} s") from None
    if done.returncode:
        raise RunError(f"exit code {done.returncode}\n{done.stderr.strip()[-2000:]}")
    found: Figures = json.loads(done.stdout)
    return found
