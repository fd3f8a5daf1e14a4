"""A Kafka cluster that keeps nothing and acknowledges at once, so that the client alone is measured.

Owns: its process, and talking to it. Does not own: what it answers; that stands in the C file. Needs Linux
and a C compiler. Any one thread.

    with NullBroker(brokers=3, partitions=12) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        broker.faults(seed=1, cut_in=0.001, lose=0.0001)
        ...
        print(broker.report().records("topic"))
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from perf import compile_c

SOURCE = Path(__file__).parent / "null_broker.c"
MODULUS = 2**64
"""What sums are counted by."""


class NullBrokerError(Exception):
    """It can't be compiled, can't be started, or does not obey."""


@dataclass(frozen=True)
class Report:
    """What the broker counted since it began; see ``null_broker.c`` for each name."""

    requests: dict[str, int]
    faults: dict[str, int]
    """How often each kind of fault happened."""
    batches_acknowledged: int
    """Answers without an error, those for batches that came twice included."""
    stale: int
    """Batches of an old epoch, or older than what is remembered: refused."""
    topics: dict[str, list[dict[str, Any]]]
    """Topic -> its partitions' counts."""

    def total(self, topic: str, name: str) -> int:
        """One of the counts, over the topic's partitions."""
        return sum(partition[name] for partition in self.topics.get(topic, []))

    def records(self, topic: str) -> int:
        """Records in the topic's log; none is counted twice, however often it was sent."""
        return self.total(topic, "records")

    def sums(self, topic: str) -> tuple[int, ...]:
        """Of the numbers that values begin with, their squares and their cubes, modulo 2**64."""
        partitions = self.topics.get(topic, [])
        return tuple(sum(p["sums"][power] for p in partitions) % MODULUS for power in range(3))


def unavailable() -> str | None:
    """Why there can be no null broker on this machine, or None."""
    if sys.platform != "linux":
        return "the null broker needs Linux (epoll)"
    if compile_c.compiler() is None:
        return "the null broker needs a C compiler: cc, gcc, clang, or one named by $CC"
    return None


def compiled() -> Path:
    """The program, compiled where it is not there yet; raises ``NullBrokerError`` where that fails."""
    if problem := unavailable():
        raise NullBrokerError(problem)
    try:
        return compile_c.compiled(SOURCE)
    except compile_c.CompileError as error:
        raise NullBrokerError(str(error)) from error


class NullBroker:
    """A running null broker. Ends with the ``with`` block, and with this process, however that ends.

    Args:
        brokers: how many, each with a port of its own; up to 64.
        partitions: of topics that are made by being asked for.
        topics: topics to begin with, and their partitions.
        produce_version: the newest version of Produce to offer, 3 to 13. Below 10 Metadata ends at 9.
        check: look into batches: checksums, and the numbers that values begin with (8 bytes, the highest one
            the sender's, below 16). Costs the broker time.

    Raises:
        NullBrokerError: no compiler, no Linux, or the process does not start.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        partitions: int = 1,
        topics: Mapping[str, int] | None = None,
        produce_version: int = 13,
        check: bool = False,
    ) -> None:
        numbers = [f"-b{brokers}", f"-p{partitions}", f"-v{produce_version}"]
        self._process = subprocess.Popen(
            [str(compiled()), *numbers, *(["-c"] if check else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.ports: list[int] = self._read()["ports"]
            for name, count in (topics or {}).items():
                self.topic(name, count)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def topic(self, name: str, partitions: int) -> None:
        """Makes a topic; raises ``NullBrokerError`` where there is one already."""
        self._order(f"topic {name} {partitions}")

    def faults(self, **settings: float) -> None:
        """Which faults happen from now on, each with its probability; none that is not named.

        ``seed`` makes the dice fall the same way again, ``delay_ms``, ``stall_ms`` and ``down_ms`` say how
        long the faults of these names last at most. The names stand in ``null_broker.c``.
        """
        self._order(" ".join(["faults", *(f"{name}={value}" for name, value in settings.items())]))

    def report(self) -> Report:
        """What was counted so far."""
        return Report(**self._ask("report"))

    def close(self) -> None:
        """Ends the process. Idempotent."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _order(self, line: str) -> None:
        if not self._ask(line)["done"]:
            raise NullBrokerError(f"the null broker did not obey {line!r}")

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # What is read next says how it ended.
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NullBrokerError(f"the null broker ended with code {self._process.wait(5)}")
        answer: dict[str, Any] = json.loads(line)
        return answer
