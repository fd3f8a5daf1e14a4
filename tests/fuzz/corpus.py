"""Manages the kept inputs: one file per target in ``corpus/``, one input per line, in hexadecimal.

A comment after ``#`` says what the input once broke. The normal tests play all inputs, and every fuzzing run
begins with them.

    python -m tests.fuzz.corpus add TARGET FILE "what it broke"    adds an input that libFuzzer has written
    python -m tests.fuzz.corpus replace TARGET DIRECTORY           replaces lines without a comment by those
    files
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent / "corpus"


def lines_of(target: str) -> list[str]:
    path = HERE / f"{target}.txt"
    return path.read_text().splitlines() if path.exists() else []


def inputs(target: str) -> list[bytes]:
    """All kept inputs of a target."""
    return [bytes.fromhex(line.partition("#")[0]) for line in lines_of(target)]


def unpack(target: str, directory: Path) -> None:
    """Writes each input to its own file, as libFuzzer reads them."""
    for number, data in enumerate(inputs(target)):
        (directory / f"kept-{number:04}").write_bytes(data)


def write(target: str, lines: list[str]) -> None:
    HERE.mkdir(exist_ok=True)
    (HERE / f"{target}.txt").write_text("".join(f"{line}\n" for line in lines))


def main(arguments: list[str]) -> int:
    match arguments:
        case ["add", target, file, what]:
            write(target, [*lines_of(target), f"{Path(file).read_bytes().hex()}  # {what}"])
        case ["replace", target, directory]:
            commented = [line for line in lines_of(target) if "#" in line]
            known = {line.partition(" ")[0] for line in commented}
            found = {path.read_bytes().hex() for path in Path(directory).iterdir()} - known - {""}
            write(target, commented + sorted(found, key=lambda line: (len(line), line)))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
