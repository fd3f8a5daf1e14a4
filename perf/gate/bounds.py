"""What was stored, and whether what is counted now stays within it. Pure, but for the file."""

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("bounds.json")
TOLERANCE = 0.10
"""By how much more than stored fails: more than compilers and C libraries make of the same sources."""


def kind() -> str:
    """What counts depend on most: the interpreter's minor version and the processor's instructions."""
    major, minor, _ = platform.python_version_tuple()
    return f"{platform.python_implementation()} {major}.{minor} {platform.machine()}"


def stored(file: Path = FILE) -> dict[str, dict[str, float]]:
    """Kind of machine -> workload -> instructions per record."""
    if not file.exists():
        return {}
    found: dict[str, dict[str, float]] = json.loads(file.read_text())
    return found


def store(counts: Mapping[str, float], of: str, file: Path = FILE) -> None:
    """Replaces what was stored for this kind, of the workloads that were counted."""
    all_of_them = stored(file)
    rounded = {name: round(count, 2) for name, count in counts.items()}
    all_of_them[of] = {**all_of_them.get(of, {}), **rounded}
    file.write_text(json.dumps(all_of_them, indent=2, sort_keys=True) + "\n")


@dataclass(frozen=True)
class Verdict:
    """Of one workload."""

    name: str
    counted: float
    bound: float | None
    """None: nothing was stored yet."""

    @property
    def growth(self) -> float:
        """0.1 for a tenth more than stored, below 0 for less."""
        return self.counted / self.bound - 1 if self.bound else 0.0

    @property
    def failed(self) -> bool:
        return self.counted >= self.bound * (1 + TOLERANCE) if self.bound else False

    def line(self) -> str:
        told = f"{self.name:<26}{self.counted:10.1f}"
        if self.bound is None:
            return f"{told}   nothing stored to compare with"
        told += f"   stored {self.bound:10.1f}   {self.growth:+7.1%}"
        if self.failed:
            return f"{told}   FAILED: less than {TOLERANCE:.0%} is let pass"
        if self.growth < -TOLERANCE:
            return f"{told}   cheaper: store it, so that it stays so"
        return told


def judge(counts: Mapping[str, float], bounds: Mapping[str, float]) -> list[Verdict]:
    """Each workload that was counted, beside its bound."""
    return [Verdict(name, counted, bounds.get(name)) for name, counted in sorted(counts.items())]
