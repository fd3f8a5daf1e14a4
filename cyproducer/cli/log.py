"""Shows the producer's log lines while a command runs, except those that the command itself reports."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

from cyproducer.cli.console import say

LOGGER = logging.getLogger("cyproducer")


class Lines(logging.Handler):
    """Writes log lines to stderr, except those about failed records, one for each batch: commands count these
    records by cause."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one log line, with its traceback if it has one."""
        if record.levelno != logging.ERROR or record.exc_info:
            say(sys.stderr, *self.format(record).split("\n"))


@contextlib.contextmanager
def shown(quiet: bool = False) -> Iterator[None]:
    """Shows log lines of level WARNING and above on stderr; with ``quiet``, only exceptions."""
    handler = Lines(logging.ERROR if quiet else logging.WARNING)
    LOGGER.addHandler(handler)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
