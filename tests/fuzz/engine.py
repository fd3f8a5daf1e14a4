"""Runs one target under libFuzzer, in its own process. ``run.py`` starts it, with the preloaded libraries:

    python tests/fuzz/engine.py TARGET [libFuzzer's arguments]

libFuzzer comes from the atheris wheel, and nothing else of atheris is used: no Python runs between two
inputs, unless the target is written in Python. What libFuzzer sees of Python code are the branches that
``sys.monitoring`` reports.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import Any

MODULES = ("fuzz_network", "fuzz_records", "fuzz_buffers")
COMPARISONS = [f"{kind}cmp{size}" for kind in ("", "const_") for size in (1, 2, 4, 8)]


def load_libfuzzer() -> ctypes.CDLL:
    """The wheel's extension that contains libFuzzer, loaded as a plain shared library."""
    spec = importlib.util.find_spec("atheris")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("libFuzzer is missing: pip install atheris")
    (found,) = Path(spec.submodule_search_locations[0]).glob("core_with_libfuzzer*.so")
    return ctypes.CDLL(str(found))


def attach(libfuzzer: ctypes.CDLL) -> None:
    """Registers the counters of the preloaded ``coverage.c`` with libFuzzer."""
    names = ["8bit_counters_init", *(f"trace_{name}" for name in COMPARISONS), "trace_switch"]
    functions = [
        ctypes.cast(getattr(libfuzzer, f"__sanitizer_cov_{name}"), ctypes.c_void_p).value for name in names
    ]
    ctypes.CDLL(None).cyp_fuzz_attach((ctypes.c_void_p * len(functions))(*functions))


# The targets written in Python.
PLAYED = {
    "rig": "tests.fuzz.fuzz_rig",
    "arguments": "tests.fuzz.fuzz_arguments",
    "arrow": "tests.fuzz.fuzz_arrow",
    "tls": "tests.fuzz.fuzz_tls",
    "security": "tests.fuzz.fuzz_security",
    "embedded": "tests.fuzz.fuzz_embedded",
}
# Those whose product code is written in Python as well.
TRACED = ("security", "embedded")
PLAY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)


def player(module: str) -> Any:
    """A target written in Python. An exception ends the process, as a failed check in the others does."""
    # Imported here: the imports of a rig take longer than many runs of the other targets.
    play = importlib.import_module(module).play

    def run(data: int, size: int) -> int:
        try:
            play(ctypes.string_at(data, size))
        except BaseException:
            traceback.print_exc()
            os.abort()
        return 0

    return PLAY(run)


def trace_python() -> None:
    """Counts the branches that the package's Python code takes, as ``coverage.c`` does for C."""
    # From Python 3.12 on, which fuzzing needs.
    monitoring: Any = getattr(sys, "monitoring")  # noqa: B009
    function = ctypes.CDLL(None).cyp_fuzz_counters
    function.restype = ctypes.c_void_p
    counters = (ctypes.c_uint8 * 8192).from_address(function())
    package = f"{os.sep}cyproducer{os.sep}"

    def took(code: Any, at: int, to: int) -> Any:
        if package not in code.co_filename:
            return monitoring.DISABLE
        place = ((id(code) >> 4) * 31 + at * 17 + to) % 8192
        counters[place] = min(255, counters[place] + 1)
        return None

    monitoring.use_tool_id(monitoring.COVERAGE_ID, "fuzz")
    monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.BRANCH, took)
    monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.BRANCH)


PLAYERS: list[Any] = []

# Rigs are reference cycles: without this, LeakSanitizer would report those that are not collected yet.
COLLECT = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gc.collect() and None)


def address_of(target: str) -> int:
    if target in PLAYED:
        PLAYERS.append(player(PLAYED[target]))
        if target in TRACED:
            trace_python()
        return ctypes.cast(PLAYERS[-1], ctypes.c_void_p).value or 0
    for name in MODULES:
        address = importlib.import_module(name).address(target)
        if address:
            return int(address)
    raise SystemExit(f"there is no target {target!r}")


def main(arguments: list[str]) -> int:
    target, *options = arguments
    address = address_of(target)
    libfuzzer = load_libfuzzer()
    attach(libfuzzer)
    # libFuzzer ends with exit(), so Python's own finalization does not run; LeakSanitizer runs after this.
    ctypes.CDLL(None).__cxa_atexit(COLLECT, None, None)
    # libFuzzer restarts itself by this name to merge.
    itself = os.environ.get("CYPRODUCER_FUZZ_COMMAND", target)
    words = [itself.encode(), *(option.encode() for option in options)]
    argc = ctypes.c_int(len(words))
    argv = ctypes.cast((ctypes.c_char_p * (len(words) + 1))(*words, None), ctypes.POINTER(ctypes.c_char_p))
    run = libfuzzer.LLVMFuzzerRunDriver
    return int(run(ctypes.byref(argc), ctypes.byref(argv), ctypes.c_void_p(address)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
