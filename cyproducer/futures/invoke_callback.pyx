"""Stores and invokes callbacks, for ``RecordFuture`` and ``BulkFuture``.

Owns binding a callback's arguments, how a future stores its callbacks, and calling those that match an
outcome. Does not decide when to call them (``delivery``, ``bulk_future``). Runs on the callback thread, or on
the thread that adds a callback after the outcome is known.

A future stores ``callbacks`` in the smallest form that can hold them, because most futures have one or none:
None; a function, which is called with the metadata of an acknowledged record; a tuple (kind, function); or a
list of such tuples, which other threads may extend while it is emptied. Neither a tuple nor a list is
callable.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF

cimport cython

import logging

cdef extern from *:
    """
    /* What a failed call returns: the exception is set. */
    #define cyp_failed() ((PyObject *)NULL)
    """
    object raise_pending "cyp_failed"()

cdef extern from "<Python.h>":
    PyObject* PyObject_CallOneArg(object function, object argument)

log = logging.getLogger("cyproducer")


cdef object bound(object f, tuple args, dict kwargs):
    if not callable(f):
        raise TypeError(f"a callback must be callable, not {type(f).__name__}")
    return with_arguments(f, args, kwargs) if args or kwargs else f


# Separate from bound(): a function that contains another function allocates its variables at each call.
cdef object with_arguments(object f, tuple args, dict kwargs):
    return lambda outcome: f(*args, outcome, **kwargs)


cdef object with_callback(object callbacks, int kind, object function):
    """Returns a future's ``callbacks`` with one added."""
    if callbacks is None:
        return function if kind == ON_SUCCESS else (kind, function)
    if type(callbacks) is not list:
        callbacks = [callbacks if type(callbacks) is tuple else (ON_SUCCESS, callbacks)]
    callbacks.append((kind, function))
    return callbacks


cdef bint any_callbacks(object callbacks):
    """Whether callbacks are left: an emptied list has none."""
    return callbacks is not None and (type(callbacks) is not list or len(callbacks) > 0)


cdef object run_callbacks(object future, list callbacks, bint succeeded, object outcome, object topic):
    """Calls the callbacks that match the outcome, in order; logs the exceptions that they raise.

    ``future``: has the callbacks. Its critical section guards the list where there is no GIL.
    """
    cdef object next_one
    while True:
        with cython.critical_section(future):
            next_one = callbacks.pop(0) if callbacks else None
        if next_one is None:
            break
        kind, function = next_one
        if kind & (ON_SUCCESS if succeeded else ON_FAILURE):
            run_callback(function, outcome, topic)
    return None


cdef object run_callback(object function, object outcome, object topic):
    """Calls a callback. Logs an ``Exception`` that it raises; other exceptions propagate."""
    cdef PyObject* answer = PyObject_CallOneArg(function, outcome)
    if answer != NULL:
        Py_DECREF(<object>answer)
        return None
    # Only now: entering a try block costs as much as calling a C function.
    try:
        raise_pending()
    except Exception:
        log.exception("a callback of a record for topic %r raised", topic)
    return None
