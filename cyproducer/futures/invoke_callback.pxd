# Which outcomes a callback is called for.
cdef enum:
    ON_SUCCESS = 1
    ON_FAILURE = 2
    ON_BOTH = 3

cdef object bound(object f, tuple args, dict kwargs)
cdef object with_callback(object callbacks, int kind, object function)
cdef bint any_callbacks(object callbacks)
cdef object run_callback(object function, object outcome, object topic)
cdef object run_callbacks(object future, list callbacks, bint succeeded, object outcome, object topic)
