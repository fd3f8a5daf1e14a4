"""Who may do the sender's work on the spot: the interface between a waiting ``get()`` and the send loop.

Owns: no more than the method's name. ``network/loop_ownership`` has the body, which ``buffers/`` may not know.
"""


cdef class Driver:
    """What a waiting thread can drive."""

    cdef bint drive(self, const int32_t* state, int64_t until) except -1 nogil:
        """Sends and receives until ``state`` is no longer 0, at most until the monotonic time ``until`` (ns).

        Returns False, at once, where somebody else does that already.
        """
        return False
