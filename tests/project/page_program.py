"""Runs the Python blocks of one page, given as JSON on stdin, and writes what each has printed to a file.

A program of its own: pages configure logging, and leave producers open.
"""

import contextlib
import io
import json
import sys
from pathlib import Path


def main() -> None:
    page = json.load(sys.stdin)
    names: dict[str, object] = {"__name__": page["name"]}
    printed = []
    for line, text in page["blocks"]:
        # Line numbers in tracebacks are those of the page.
        code = compile("\n" * (line - 1) + text, page["name"], "exec")
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(code, names)
        printed.append(output.getvalue())
    Path(sys.argv[1]).write_text(json.dumps(printed), encoding="utf-8")


main()
