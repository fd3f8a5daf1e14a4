"""Logs lines from any thread of the package. Handlers never run on a sender thread, but on ``user_thread``.

Owns formatting a line and the record of its origin. Does not own the thread that emits it (``user_thread``),
or the limit on how often a line is logged (``control/log_limit``).
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import Any

from cyproducer.base.clock import unix_ms
from cyproducer.base.text import line_prefix, printable
from cyproducer.base.threads import current_name
from cyproducer.base.unpatched import get_ident
from cyproducer.base.user_thread import user_thread


class Log:
    """A logger for code that may run on a sender thread; handlers and filters run on ``user_thread``.

    The calling thread checks whether the level is enabled, without calling anything that a user can replace,
    and formats the arguments into the text: one printable line.
    """

    def __init__(self, name: str, client_id: str | None = None) -> None:
        """
        Args:
            name: the logger's name.
            client_id: the producer that every line is about; the line begins with it.
        """
        self._logger = logging.getLogger(name)
        self._prefix = "" if client_id is None else line_prefix(client_id)

    def debug(self, text: str, *args: object) -> None:
        """Logs ``text % args``."""
        self._log(logging.DEBUG, text, args)

    def info(self, text: str, *args: object) -> None:
        """Logs ``text % args``."""
        self._log(logging.INFO, text, args)

    def warning(self, text: str, *args: object) -> None:
        """Logs ``text % args``."""
        self._log(logging.WARNING, text, args)

    def error(self, text: str, *args: object) -> None:
        """Logs ``text % args``."""
        self._log(logging.ERROR, text, args)

    def exception(self, text: str, *args: object) -> None:
        """Logs ``text % args`` as an error, with the exception that is being handled."""
        self._log(logging.ERROR, text, args, sys.exc_info())

    def log(self, level: int, text: str, *args: object) -> None:
        """Logs ``text % args``."""
        self._log(level, text, args)

    def _log(self, level: int, text: str, args: tuple[object, ...], exc_info: Any = None) -> None:
        if not _enabled(self._logger, level):
            return
        frame = sys._getframe(2)
        where = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        user_thread.put_line(
            partial(
                _emit,
                self._logger,
                level,
                self._prefix + printable(text % args if args else text),
                where,
                exc_info,
                unix_ms() / 1000,
                get_ident(),
                current_name(),
            )
        )


def _enabled(logger: logging.Logger | None, level: int) -> bool:
    """``Logger.isEnabledFor`` without its cache: filling the cache takes logging's lock, which
    ``logging.config`` holds while it constructs handlers."""
    if logger is None or logger.disabled or logger.manager.disable >= level:
        return False
    while logger is not None:
        if logger.level:
            return level >= logger.level
        logger = logger.parent
    return True


def _emit(
    logger: logging.Logger,
    level: int,
    message: str,
    where: tuple[str, int, str],
    exc_info: Any,
    created: float,
    ident: int,
    thread_name: str,
) -> None:
    """Makes the log record with the values of its origin, and passes it to the filters and handlers."""
    path, line, function = where
    record = logger.makeRecord(logger.name, level, path, line, message, (), exc_info, function)
    record.relativeCreated -= (record.created - created) * 1000
    record.created = created
    record.msecs = int((created - int(created)) * 1000) + 0.0
    record.thread = ident
    record.threadName = thread_name
    logger.handle(record)
