"""Compares the CPU per record with the clients of other languages: Go, C, Java, Rust.

    make languages                       # seven rounds of all clients in turn: a quarter of an hour
    make languages LANGUAGES="--rounds 3 --clients cyproducer franz-go"
    make languages LANGUAGES="--far --rounds 3 --records 60000"

Each client is a program of its own in this directory. Its arguments are the broker's address, the number of
records and their size. It sends a fifth of them to warm up (Java all of them), then all, to a topic of three
partitions of the null broker, idempotent, with a callback for each record (this producer: with a future for
each), at most 100,000 records without an outcome. It prints its version, and the CPU and the time per record,
as JSON. Values have 100 bytes, and ``linger.ms`` is 5. With ``--far`` they have 1,000 bytes, the broker
answers after 300 ms, and all options are the client's defaults, but for compression and idempotence.

Clients whose tools this machine does not have are left out. The tools are Go; a C compiler and librdkafka's
headers (the library itself is that of confluent-kafka's wheel); Java, its compiler, and Maven; Cargo, which
builds the Rust client in some six minutes.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from perf.comparison.figures import Spread, met, table
from perf.compile_c import CACHE, compiler
from perf.null_broker import NullBroker
from tools.harness.kafka_install import classpath

HERE = Path(__file__).resolve().parent
BUILT = CACHE / "languages"
OWN = "cyproducer"
GOALS = {"librdkafka": 2.5, "franz-go": 2.0, "Java": 6.0, "Rust": 5.0, "confluent-kafka": 4.0}
"""How many times this producer's CPU each client should take, at least."""
TIMEOUT_S = 900
SIZE = 100
FAR_SIZE = 1000
ANSWER_MS = 300
"""Time after which a far broker answers."""


class UnavailableError(Exception):
    """This machine can't build a client. The message says what is missing."""


def needed(tool: str) -> str:
    found = shutil.which(tool)
    if found is None:
        raise UnavailableError(f"{tool} is not on PATH")
    return found


def run(*command: str | Path, cwd: Path | None = None, **environment: str) -> None:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UnavailableError(f"{command[0]} failed:\n{done.stdout[-2000:]}")


def python(client: str) -> list[str]:
    if importlib.util.find_spec(client.replace("-", "_")) is None:
        raise UnavailableError(f"{client} is not installed")
    return [sys.executable, "-P", str(HERE / "python_programs.py"), client]


def go() -> list[str]:
    program = BUILT / "franz-go"
    run(needed("go"), "build", "-o", program, ".", cwd=HERE / "go")
    return [str(program)]


def rust() -> list[str]:
    run(
        needed("cargo"), "build", "--quiet", "--release", "--locked", "--target-dir", BUILT, cwd=HERE / "rust"
    )
    return [str(BUILT / "release" / "languages")]


def java() -> list[str]:
    needed("java")
    jars = classpath()
    run(needed("javac"), "-cp", jars, "-d", BUILT, HERE / "java" / "Bench.java")
    return ["java", "-cp", f"{jars}:{BUILT}", "Bench"]


def librdkafka() -> list[str]:
    found = importlib.util.find_spec("confluent_kafka")
    if found is None or found.origin is None:
        raise UnavailableError("confluent-kafka is not installed")
    libraries = Path(found.origin).parents[1] / "confluent_kafka.libs"
    library = next(libraries.glob("librdkafka-*.so*"), None)
    if library is None:
        raise UnavailableError(f"{libraries} has no librdkafka: this is not a wheel for Linux")
    program = BUILT / "librdkafka"
    command = compiler()
    if command is None:
        raise UnavailableError("there is no C compiler")
    run(*command, "-O2", "-o", program, HERE / "librdkafka.c", library, f"-Wl,-rpath,{libraries}")
    return [str(program)]


CLIENTS: dict[str, Callable[[], list[str]]] = {
    OWN: lambda: python(OWN),
    "librdkafka": librdkafka,
    "franz-go": go,
    "Java": java,
    "Rust": rust,
    "confluent-kafka": lambda: python("confluent-kafka"),
}


def built(names: list[str]) -> dict[str, list[str]]:
    """Builds the programs. Returns client -> command, without those that this machine can't build."""
    BUILT.mkdir(parents=True, exist_ok=True)
    commands = {}
    for name in names:
        print(f"Building the program of {name}", file=sys.stderr, flush=True)
        try:
            commands[name] = CLIENTS[name]()
        except (UnavailableError, RuntimeError) as error:
            print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
    return commands


def measured(command: list[str], records: int, far: bool) -> dict[str, Any]:
    """Runs one program against a null broker of its own. Returns what it printed."""
    with NullBroker(topics={"bench": 3}) as broker:
        if far:
            broker.faults(latency_ms=ANSWER_MS)
        done = subprocess.run(
            [*command, broker.bootstrap_servers, str(records), str(FAR_SIZE if far else SIZE)],
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


def far_report(found: dict[str, list[dict[str, Any]]]) -> str:
    """Formats a table: one line per client, with the records per second to a far broker."""
    rows = []
    for name, rounds in found.items():
        rate = Spread.of(1e6 / figures["wall_us"] for figures in rounds)
        rows.append([f"{name} {rounds[0]['version']}", rate.text() if rate else ""])
    return table(["client", "records/s"], rows)


def report(found: dict[str, list[dict[str, Any]]]) -> str:
    """Formats a table: one line per client, with ratios round by round."""
    rows = []
    own = [figures["cpu_us"] for figures in found.get(OWN, [])]
    for name, rounds in found.items():
        cpu = Spread.of(figures["cpu_us"] for figures in rounds)
        wall = Spread.of(figures["wall_us"] for figures in rounds)
        ratio = Spread.of(figures["cpu_us"] / ours for figures, ours in zip(rounds, own, strict=False))
        goal = GOALS.get(name)
        verdict = "" if goal is None or ratio is None else f"{goal:g}: {met(ratio.median, at_least=goal)}"
        texts = [each.text() if each else "" for each in (cpu, wall, ratio)]
        rows.append([f"{name} {rounds[0]['version']}", *texts, verdict])
    return table(["client", "CPU us per record", "us per record", "CPU / ours", "goal"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=1_500_000)
    parser.add_argument("--far", action="store_true", help="a broker that answers after 300 ms")
    parser.add_argument("--clients", nargs="+", choices=list(CLIENTS), default=list(CLIENTS))
    args = parser.parse_args()
    commands = built(args.clients)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for number in range(args.rounds):
        for name, command in commands.items():
            figures = measured(command, args.records, args.far)
            found[name].append(figures)
            print(
                f"round {number + 1} of {args.rounds}: {name}: {figures['cpu_us']:.2f} us of CPU per record, "
                f"{1e6 / figures['wall_us']:,.0f} records/s",
                file=sys.stderr,
                flush=True,
            )
    print(far_report(found) if args.far else report(found))


if __name__ == "__main__":
    main()
