"""Invokes callbacks, for ``RecordFuture`` and ``BulkFuture``.

Owns binding a callback's arguments, and calling the callbacks that match an outcome. Does not decide when to
call them (``delivery``, ``bulk_future``). Runs on the callback thread, or on the thread that adds a callback
after the outcome is known.
"""

import logging

log = logging.getLogger("cyproducer")


cdef object bound(object f, tuple args, dict kwargs):
    if not callable(f):
        raise TypeError(f"a callback must be callable, not {type(f).__name__}")
    if not args and not kwargs:
        return f
    return lambda outcome: f(*args, outcome, **kwargs)


cdef object run_callbacks(list callbacks, bint succeeded, object outcome, object topic):
    """Calls the callbacks that match the outcome, in order; logs the exceptions that they raise."""
    while callbacks:
        try:
            kind, function = callbacks.pop(0)
        except IndexError:
            break
        if not kind & (ON_SUCCESS if succeeded else ON_FAILURE):
            continue
        try:
            function(outcome)
        except Exception:
            log.exception("a callback of a record for topic %r raised", topic)
    return None
