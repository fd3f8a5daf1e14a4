"""Stores bounds, and compares counts with them. Pure functions, except for the file access."""

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("bounds.json")
TOLERANCE = 0.10
"""Growth that fails. Larger than the differences between compilers and C libraries."""


def kind() -> str:
    """Returns what counts depend on most: the interpreter's minor version and the processor architecture."""
    major, minor, _ = platform.python_version_tuple()
    return f"{platform.python_implementation()} {major}.{minor} {platform.machine()}"


def stored(file: Path = FILE) -> dict[str, dict[str, float]]:
    """Returns kind of machine -> workload -> instructions per record."""
    if not file.exists():
        return {}
    found: dict[str, dict[str, float]] = json.loads(file.read_text())
    return found


def store(counts: Mapping[str, float], of: str, file: Path = FILE) -> None:
    """Replaces the stored bounds of this kind for the workloads that were counted."""
    all_of_them = stored(file)
    rounded = {name: round(count, 2) for name, count in counts.items()}
    all_of_them[of] = {**all_of_them.get(of, {}), **rounded}
    file.write_text(json.dumps(all_of_them, indent=2, sort_keys=True) + "\n")


@dataclass(frozen=True)
class Verdict:
    """The verdict on one workload."""

    name: str
    counted: float
    bound: float | None
    """None: no bound is stored."""

    @property
    def growth(self) -> float:
        """Relative growth: 0.1 for 10% more than stored, negative for less."""
        return self.counted / self.bound - 1 if self.bound else 0.0

    @property
    def failed(self) -> bool:
        return self.counted >= self.bound * (1 + TOLERANCE) if self.bound else False

    def line(self) -> str:
        told = f"{self.name:<26}{self.counted:10.1f}"
        if self.bound is None:
            return f"{told}   no stored bound"
        told += f"   stored {self.bound:10.1f}   {self.growth:+7.1%}"
        if self.failed:
            return f"{told}   FAILED: must be less than {TOLERANCE:.0%} more"
        if self.growth < -TOLERANCE:
            return f"{told}   improved: store the new bound"
        return told


def judge(counts: Mapping[str, float], bounds: Mapping[str, float]) -> list[Verdict]:
    """Compares each counted workload with its bound."""
    return [Verdict(name, counted, bounds.get(name)) for name, counted in sorted(counts.items())]
