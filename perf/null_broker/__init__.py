"""Runs a Kafka cluster that stores nothing and acknowledges at once, so that only the client is measured.

Owns the broker's process and the communication with it. Does not define its responses; the C file does. Needs
Linux and a C compiler. For any one thread.

    with NullBroker(brokers=3, partitions=12) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        broker.faults(seed=1, cut_in=0.001, lose=0.0001)
        ...
        print(broker.report().records("topic"))
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from perf import compile_c

SOURCE = Path(__file__).parent / "null_broker.c"
USER, PASSWORD = "soak", "secret"
MODULUS = 2**64
"""The modulus of the sums."""


class NullBrokerError(Exception):
    """The null broker can't be compiled or started, or refuses a command."""


@dataclass(frozen=True)
class Report:
    """The broker's counts since its start. ``null_broker.c`` explains the names."""

    requests: dict[str, int]
    faults: dict[str, int]
    """How often each kind of fault happened."""
    batches_acknowledged: int
    """Batches acknowledged without an error, including those that arrived twice."""
    stale: int
    """Refused batches: from an old epoch, or older than the batches that the broker remembers."""
    expired: int
    """Connections that were closed because of a request after the end of their SASL session."""
    topics: dict[str, list[dict[str, Any]]]
    """Topic -> its partitions' counts."""

    def total(self, topic: str, name: str) -> int:
        """Returns the sum of one count over the topic's partitions."""
        return sum(partition[name] for partition in self.topics.get(topic, []))

    def records(self, topic: str) -> int:
        """Returns the number of records in the topic. A record that is sent again is counted once."""
        return self.total(topic, "records")

    def sums(self, topic: str) -> tuple[int, ...]:
        """Returns the sums of the numbers at the start of the values, of their squares and of their cubes,
        modulo 2**64."""
        partitions = self.topics.get(topic, [])
        return tuple(sum(p["sums"][power] for p in partitions) % MODULUS for power in range(3))


def unavailable() -> str | None:
    """Returns why the null broker can't run on this machine, or None."""
    if sys.platform != "linux":
        return "the null broker needs Linux (epoll)"
    if compile_c.compiler() is None:
        return "the null broker needs a C compiler: cc, gcc, clang, or one named by $CC"
    return None


def compiled() -> Path:
    """Returns the program; compiles it if it is not cached. Raises ``NullBrokerError`` if that fails."""
    if problem := unavailable():
        raise NullBrokerError(problem)
    try:
        return compile_c.compiled(SOURCE)
    except compile_c.CompileError as error:
        raise NullBrokerError(str(error)) from error


class NullBroker:
    """A running null broker. Ends with the ``with`` block, and in any case with this process.

    Args:
        brokers: number of brokers, each with its own port; up to 1,024.
        partitions: number of partitions of topics that are created automatically.
        topics: initial topics, with their number of partitions.
        produce_version: the highest Produce version to offer, 3 to 13. Below 10, Metadata versions end at 9.
        check: check batches: checksums, and the numbers at the start of the values (8 bytes; the highest byte
            is the sender's number, below 16). Costs the broker time.
        advertised: the ports to advertise, if a proxy is in front.
        session_ms: require SASL PLAIN with ``USER`` and ``PASSWORD``, again after this time; 0: only once;
            None: no SASL.

    Raises:
        NullBrokerError: there is no compiler, the system is not Linux, or the process does not start.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        partitions: int = 1,
        topics: Mapping[str, int] | None = None,
        produce_version: int = 13,
        check: bool = False,
        advertised: Sequence[int] = (),
        session_ms: int | None = None,
    ) -> None:
        numbers = [f"-b{brokers}", f"-p{partitions}", f"-v{produce_version}"]
        if advertised:
            numbers.append(f"-a{','.join(map(str, advertised))}")
        if session_ms is not None:
            numbers.append(f"-s{session_ms}")
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
        """Creates a topic. Raises ``NullBrokerError`` if it exists."""
        self._order(f"topic {name} {partitions}")

    def faults(self, **settings: float) -> None:
        """Sets the probability of each fault from now on. Faults that are not named are switched off.

        ``seed`` makes the random choices reproducible. ``delay_ms``, ``stall_ms`` and ``down_ms`` limit the
        duration of the faults of these names. ``null_broker.c`` lists the faults.
        """
        self._order(" ".join(["faults", *(f"{name}={value}" for name, value in settings.items())]))

    def shift(self, prefix: str) -> None:
        """Moves the leaders of all topics whose names begin with ``prefix`` to the next broker."""
        self._order(f"shift {prefix}")

    def down(self, broker: int, ms: int) -> None:
        """Takes a broker down for ``ms`` milliseconds; its partitions get other leaders. Counted from 0."""
        self._order(f"down {broker} {ms}")

    def report(self) -> Report:
        """Returns the counts so far."""
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def _order(self, line: str) -> None:
        if not self._ask(line)["done"]:
            raise NullBrokerError(f"the null broker refused the command {line!r}")

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # _read() reports how the process ended.
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NullBrokerError(f"the null broker exited with code {self._process.wait(5)}")
        answer: dict[str, Any] = json.loads(line)
        return answer
