"""The sink's ``summaryCallback``: stores each batch's summary for the program that started Spark.

Owns the file that both processes use. `keep` runs in Spark's helper process, which imports nothing else of
this package. `kept` runs on the program's main thread, after the batch.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyproducer.spark import WriteSummary

FILE_VARIABLE = "DEMO_SPARK_SUMMARIES"
"""The environment variable with the file's path. Spark's processes inherit it."""
CALLBACK = "demo_spark.summaries:keep"


def keep(summary: WriteSummary) -> None:
    """Appends one summary to the file."""
    with open(os.environ[FILE_VARIABLE], "ab") as file:
        pickle.dump(summary, file)


def so_far(path: Path) -> list[WriteSummary]:
    """Returns all summaries in the file, oldest first."""
    found: list[WriteSummary] = []
    if path.exists():
        with open(path, "rb") as file:
            while file.peek(1):
                found.append(pickle.load(file))
    return found


def kept(path: Path) -> list[WriteSummary]:
    """Returns all summaries since the last call, oldest first, and removes the file."""
    found = so_far(path)
    path.unlink(missing_ok=True)
    return found
