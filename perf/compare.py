"""Compares this producer with other producers and with bare sockets: tables, plots, goals.

    make perf                                # all cases, in a virtual environment: about half an hour
    make perf PERF="--quick"                 # a short run, under five minutes, not for quoting
    make perf PERF="send get"                # cases by name; --list lists them
    python perf/compare.py send --bootstrap-server HOST:PORT --option linger_ms=5

Writes ``report.md``, ``report.html``, the plots and ``results.json`` to ``perf/report``. Results of cases
that are not run this time stay in the report, each with its date and command. Starts a real Kafka if Java and
Maven are installed.
"""

import argparse
import datetime
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import sys
from pathlib import Path

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from perf.comparison import plots, report
from perf.comparison.bench import Bench, Plan, Watch, runs_of
from perf.comparison.brokers import Brokers
from perf.comparison.cases import CASES
from perf.comparison.figures import table
from perf.comparison.report import Store, Taken

QUICK = Plan(pairs=1, scale=0.1)
OUTPUT = Path(__file__).parent / "report"


def machine() -> str:
    """Describes the machine: cores, processor, system."""
    model = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return f"{os.cpu_count()} cores, {model}, {platform.system()} {platform.release()}"


def versions() -> str:
    found = [f"{platform.python_implementation()} {platform.python_version()}"]
    for name in ("cyproducer", "confluent-kafka", "kafka-python", "aiokafka", "pyarrow"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names of cases (default: all)")
    parser.add_argument("--list", action="store_true", help="list the cases and exit")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK.pairs} pair, with {QUICK.scale:g} of the records"
    )
    parser.add_argument("--pairs", type=int, help="paired runs with each peer (default: 5)")
    parser.add_argument("--scale", type=float, help="fraction of each run's records (default: 1)")
    parser.add_argument("--bootstrap-server", help="a single broker to use instead of starting a Kafka")
    parser.add_argument("--no-real-broker", action="store_true", help="use only the null broker")
    parser.add_argument("--option", action="append", default=[], metavar="N=V", help="this producer's option")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="a directory (default: perf/report)")
    parser.add_argument("--redraw", action="store_true", help="only write the report from results.json")
    args = parser.parse_args()
    if unknown := [name for name in args.cases if name not in CASES]:
        parser.error(f"unknown case {', '.join(unknown)}; must be one of {', '.join(CASES)}")
    if bad := [option for option in args.option if "=" not in option]:
        parser.error(f"--option {bad[0]}: must be NAME=VALUE")
    return args


def command_for(name: str, args: argparse.Namespace) -> str:
    """Returns the command that reproduces this case's figures."""
    words = [name, *(["--quick"] if args.quick else [])]
    for option, given in (("--pairs", args.pairs), ("--scale", args.scale)):
        words += [option, f"{given:g}"] if given is not None else []
    words += ["--bootstrap-server", args.bootstrap_server] if args.bootstrap_server else []
    words += ["--no-real-broker"] if args.no_real_broker else []
    for given in args.option:
        words += ["--option", given]
    return f'make perf PERF="{shlex.join(words)}"'


def write(store: Store, directory: Path) -> None:
    """Writes the plots and the report."""
    drawn = {}
    if importlib.util.find_spec("matplotlib") is None:
        print("no plots: matplotlib isn't installed", file=sys.stderr)
    else:
        drawn = plots.draw_all(store, directory)
    blocks = report.page(store, drawn)
    (directory / "report.md").write_text(report.markdown(blocks))
    (directory / "report.html").write_text(report.web_page(blocks))


def main() -> int:
    args = arguments()
    if args.list:
        for name, case in CASES.items():
            print(f"{name:<18}{case.title}")
        return 0
    args.output.mkdir(parents=True, exist_ok=True)
    store = Store.read(args.output)
    if not args.redraw:
        basis = QUICK if args.quick else Plan()
        plan = Plan(args.pairs or basis.pairs, args.scale or basis.scale, tuple(args.option))
        wanted = [CASES[name] for name in args.cases or CASES]
        watch = Watch(sys.stderr, runs_of(wanted, plan.pairs))
        with Brokers(args.bootstrap_server, without_real=args.no_real_broker) as brokers:
            bench = Bench(brokers, plan, watch)
            for case in wanted:
                store.taken[case.name] = Taken(
                    bench.measure(case),
                    command_for(case.name, args),
                    f"{datetime.date.today():%Y-%m-%d}",
                    machine(),
                    versions(),
                    min(plan.pairs, case.most_pairs),
                )
                # After each case, so that its results are kept if the next one is interrupted.
                store.write(args.output)
        watch.close()
    write(store, args.output)
    shown = [row for row in report.goal_rows(store) if row[-1] in (args.cases or CASES)]
    if shown:
        print(table(("what", "goal", "measured", "verdict", "case"), shown))
    print(f"\n{args.output / 'report.md'}, and as a page {args.output / 'report.html'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
