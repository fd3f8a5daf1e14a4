# Whether Python runs threads side by side, without a GIL: a constant, so that the other branch is no code.
cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define CYP_FREE_THREADED 1
    #else
    #define CYP_FREE_THREADED 0
    #endif
    """
    const bint FREE_THREADED "CYP_FREE_THREADED"
