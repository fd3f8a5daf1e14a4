"""Runs contests: a process for each run, this producer and its peers in turn, with progress for who waits.

Owns: the order of runs, their processes, and what they printed. Does not own: brokers (``brokers``), what is
run (``cases``), what is made of it. One thread.
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
    """A run ended badly; the message has the end of what it said."""


@dataclass(frozen=True)
class Plan:
    """How much is done."""

    pairs: int = 5
    scale: float = 1.0
    """Of the records of every run."""
    options: tuple[str, ...] = ()
    """``name=value`` of this producer's options, for all its runs."""


class Watch:
    """Tells what goes on: a bar on a terminal, a line for each run in a log."""

    def __init__(self, stream: TextIO, runs: int) -> None:
        self._stream, self._runs, self._done = stream, runs, 0
        self._began = time.monotonic()
        self._bar = Progress(stream, runs)

    def begins(self, text: str) -> None:
        gone = time.monotonic() - self._began
        # At the beginning nobody knows.
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
        """A line that stays."""
        self._bar.close()
        print(text, file=self._stream, flush=True)


def minutes(seconds: float) -> str:
    """``3:07``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def runs_of(cases: Sequence[Case], pairs: int) -> int:
    """How many processes that is, if none is left out."""
    return sum(
        min(pairs, case.most_pairs) * max(1, 2 * len(contest.peers))
        for case in cases
        for contest in case.contests
    )


class Bench:
    """
    Args:
        run: what carries a client's run out; tests pass another one.
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
        """Each contest's results. Rounds go over all contests, so that a drift of the machine hits all."""
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
                # Whoever was skipped once will be again.
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
        if client.name == OWN and self._plan.options:
            given = dict(option.split("=", 1) for option in self._plan.options)
            args["options"] = {**args.get("options", {}), **given}
        try:
            found = self._run(client, args)
        except RunError as error:
            self._watch.say(f"{client.name} failed: {error}")
            # One that failed now may go well next time, but what is left of it would be a choice of good
            # times.
            results.skipped[client.name] = f"failed: {str(error).splitlines()[-1]}"
            return None
        if "skipped" in found:
            results.skipped[client.name] = found["skipped"]
            return None
        return found


def in_turn(contest: Contest, number: int) -> Iterator[tuple[str, Client, Client | None]]:
    """This producer beside each peer, by name; every other time the peer comes first."""
    if not contest.peers:
        yield ALONE, contest.own, None
    for place, peer in enumerate(contest.peers):
        pair = (contest.own, peer)
        first, second = pair if (number + place) % 2 == 0 else pair[::-1]
        yield peer.name, first, second


def in_a_process(client: Client, args: dict[str, Any]) -> Figures:
    """Runs ``client.py``."""
    command = [sys.executable, "-P", str(PROGRAM), client.run, json.dumps(args)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise RunError(f"no end after {RUN_TIMEOUT_S} s") from None
    if done.returncode:
        raise RunError(f"code {done.returncode}\n{done.stderr.strip()[-2000:]}")
    found: Figures = json.loads(done.stdout)
    return found
