"""Runs the targets under libFuzzer, with AddressSanitizer and UndefinedBehaviorSanitizer.

    python -m tests.fuzz.run --seconds 60                 all targets, one minute in total (`make test`)
    python -m tests.fuzz.run --inputs 10000000            all targets, that many inputs in total (`make fuzz`)
    python -m tests.fuzz.run --target produce --seed 7    one target, with the seed that a failure printed
    python -m tests.fuzz.run --merge                      keeps the interesting inputs of the runs, in corpus/

Builds the targets first if necessary. Exits with 1 on a finding, after printing the input and how to keep it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import build, corpus

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


@dataclass(frozen=True)
class Target:
    """``share``: of the time; ``inputs``: of each million; ``longest``: largest input in bytes."""

    name: str
    share: float
    inputs: int
    longest: int


TARGETS = (
    Target("produce", 0.10, 499_000, 800),
    Target("frames", 0.08, 200_000, 1000),
    Target("writing", 0.05, 60_000, 200),
    Target("messages", 0.08, 50_000, 700),
    Target("declared", 0.07, 50_000, 700),
    Target("compression", 0.05, 70_900, 1000),
    Target("records", 0.08, 39_000, 300),
    Target("buffers", 0.07, 25_000, 400),
    Target("rig", 0.11, 900, 300),
    Target("tls", 0.08, 100, 150),
    Target("security", 0.05, 3_000, 400),
    Target("arguments", 0.06, 50, 400),
    Target("arrow", 0.07, 1_050, 500),
    Target("embedded", 0.05, 1_000, 1000),
)
OBJECTS_KEEP_MEMORY = ("arguments", "arrow", "buffers", "compression", "tls", "security", "embedded")
assert sum(target.inputs for target in TARGETS) == 1_000_000


def library(name: str) -> str:
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def environment(built: Path, target: Target) -> dict[str, str]:
    """Preloads the sanitizers' libraries, because Python is not built with them."""
    preload = [str(built / "coverage.so"), library("libasan.so"), library("libubsan.so")]
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(preload),
        # Nothing here needs 64 MiB: code that allocates more trusts a size from the wire. Without
        # intercept_tls_get_addr=0, gcc 12's LeakSanitizer crashes if a thread-local variable is 16 bytes into
        # a page: it reads the bytes before it as a header. No thread-local variable here is a pointer.
        "ASAN_OPTIONS": "verify_asan_link_order=0:max_allocation_size_mb=64:allocator_may_return_null=0:"
        "quarantine_size_mb=16:detect_leaks=1:malloc_context_size=2:intercept_tls_get_addr=0",
        "LSAN_OPTIONS": f"suppressions={HERE / 'python_leaks.txt'}:print_suppressions=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": os.pathsep.join(
            [str(built / "lib"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        # Makes AddressSanitizer detect uses of freed Python objects as well, and LeakSanitizer find what they
        # refer to, such as OpenSSL's objects and the contexts of codecs.
        **({"PYTHONMALLOC": "malloc"} if target.name in OBJECTS_KEEP_MEMORY else {}),
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def engine(built: Path, target: Target, options: list[str]) -> tuple[int, str]:
    """Runs one target to its end; returns its exit status and output."""
    again = built / f"{target.name}.sh"
    again.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "engine.py"} {target.name} "$@"\n')
    again.chmod(0o755)
    done = subprocess.run(
        [str(again), *options],
        env={**environment(built, target), "CYPRODUCER_FUZZ_COMMAND": str(again)},
        cwd=built,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode, done.stdout.decode("utf-8", "replace")


def fuzz(
    built: Path, target: Target, seed: int, seconds: float | None, inputs: int | None
) -> tuple[bool, int]:
    """Fuzzes one target; returns whether it found nothing, and how many inputs it tried."""
    found = built / "found" / target.name
    found.mkdir(parents=True, exist_ok=True)
    options = [
        f"-seed={seed}",
        f"-max_len={target.longest}",
        # If an input takes long, there is no time to begin with short ones.
        f"-len_control={0 if target.inputs < 30_000 else 100}",
        # An input takes well below a millisecond; for the rig, a few. An endless loop is a finding.
        "-timeout=20",
        "-rss_limit_mb=1500",
        "-print_final_stats=1",
        # Leaks are checked once, at the end; a check after each input would be much slower.
        "-detect_leaks=0",
        f"-artifact_prefix={built / 'found'}/{target.name}-",
    ]
    if seconds is not None:
        options.append(f"-max_total_time={max(1, round(seconds))}")
    if inputs is not None:
        options.append(f"-runs={inputs}")
    with tempfile.TemporaryDirectory(prefix="cyproducer-fuzz-") as kept:
        corpus.unpack(target.name, Path(kept))
        started = time.monotonic()
        status, said = engine(built, target, [*options, str(found), kept])
        took = time.monotonic() - started
    counted = re.findall(r"number_of_executed_units: (\d+)", said) or re.findall(r"^#(\d+)", said, re.M)
    runs = int((counted or [0])[-1])
    features = (re.findall(r"ft: (\d+)", said) or ["0"])[-1]
    print(f"{target.name}: {runs} inputs in {took:.0f} s, {features} features, seed {seed}", flush=True)
    if status == 0:
        return True, runs
    artifacts = re.findall(r"Test unit written to (\S+)", said)
    print(f"{target.name}: FOUND, exit status {status}\n{said[-12000:]}", flush=True)
    for artifact in artifacts:
        print(
            f"the input, in hexadecimal: {Path(artifact).read_bytes().hex()}\n"
            f"again: python -m tests.fuzz.run --build {built} --target {target.name} --input {artifact}\n"
            f'keep it: python -m tests.fuzz.corpus add {target.name} {artifact} "what it broke"',
            flush=True,
        )
    return False, runs


def merge(built: Path, target: Target) -> None:
    """Replaces the corpus by the fewest inputs with the coverage of the corpus and the last runs."""
    with tempfile.TemporaryDirectory(prefix="cyproducer-fuzz-") as place:
        kept, fewest = Path(place, "kept"), Path(place, "fewest")
        kept.mkdir()
        fewest.mkdir()
        corpus.unpack(target.name, kept)
        found = built / "found" / target.name
        found.mkdir(parents=True, exist_ok=True)
        status, said = engine(
            built, target, ["-merge=1", "-max_len=1000", str(fewest), str(kept), str(found)]
        )
        if status:
            raise SystemExit(said)
        corpus.main(["replace", target.name, str(fewest)])
    print(f"{target.name}: {len(corpus.inputs(target.name))} inputs kept")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "fuzz", help="where to build")
    parser.add_argument("--target", choices=[target.name for target in TARGETS], action="append")
    parser.add_argument("--seconds", type=float, help="in total, on all processors")
    parser.add_argument("--inputs", type=int, help="in total")
    parser.add_argument("--seed", type=int, default=random.randrange(1, 2**31))
    parser.add_argument("--input", help="a file: play only this input")
    parser.add_argument("--merge", action="store_true")
    options = parser.parse_args(arguments)
    built = options.build.resolve()
    if build.main([str(built)]):
        return 1
    targets = [target for target in TARGETS if not options.target or target.name in options.target]
    if options.input:
        status, said = engine(built, targets[0], [str(Path(options.input).resolve())])
        print(said)
        return status
    workers = min(os.cpu_count() or 1, len(targets))
    share = sum(target.share for target in targets)
    portion = sum(target.inputs for target in targets)
    started = time.monotonic()
    results = []
    with ThreadPoolExecutor(workers) as pool:
        if options.merge:
            list(pool.map(lambda target: merge(built, target), targets))
            return 0
        for target in targets:
            seconds = inputs = None
            if options.inputs is not None:
                inputs = -(-options.inputs * target.inputs // portion)
            if options.seconds is not None or options.inputs is None:
                seconds = (options.seconds or 60) * workers * target.share / share
            results.append(pool.submit(fuzz, built, target, options.seed, seconds, inputs))
    total = sum(result.result()[1] for result in results)
    failed = [target.name for target, result in zip(targets, results, strict=True) if not result.result()[0]]
    verdict = f"found something in {', '.join(failed)}" if failed else "found nothing"
    print(f"{total} inputs in {time.monotonic() - started:.0f} s, seed {options.seed}: {verdict}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
