"""Calling callbacks: what a future of a record and a future of many do alike.

Owns: binding their arguments, and calling those that an outcome is for. Does not own: when that is
(``delivery``, ``bulk_future``). On the thread that runs callbacks, or on whoever registers one too late to
wait.
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
    """Calls those that the outcome is for, in their order; what they raise is logged."""
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
