"""The two clocks the package reads, as one object that comes in from outside.

Owns: reading the monotonic clock (deadlines, ages) and the wall clock (record timestamps).
Does not own: any decision. Any thread may read; only a test or a simulator moves a manual clock.
"""

from cyproducer.buffers.sync cimport cyp_monotonic_ns, cyp_ticked_wall_ms, cyp_wall_ms


cdef class Clock:
    """The system's clocks. Thread-safe."""

    def __cinit__(self):
        self.manual_ns = -1
        self.manual_wall_ms = -1

    cdef int64_t now_ns(self) noexcept nogil:
        if self.manual_ns >= 0:
            return self.manual_ns
        return cyp_monotonic_ns()

    cdef int64_t wall_ms(self) noexcept nogil:
        if self.manual_wall_ms >= 0:
            return self.manual_wall_ms
        return cyp_wall_ms()

    cdef int64_t ticked_wall_ms(self) noexcept nogil:
        """``wall_ms`` as of the kernel's last tick."""
        if self.manual_wall_ms >= 0:
            return self.manual_wall_ms
        return cyp_ticked_wall_ms()

    def monotonic_ns(self):
        """Nanoseconds of a clock that never goes back."""
        return self.now_ns()

    def unix_ms(self):
        """Milliseconds since the epoch, as in a record's CreateTime."""
        return self.wall_ms()


cdef class ManualClock(Clock):
    """A clock that moves only when told, so that a test or a simulator owns time."""

    def __init__(self, int64_t now_ns=0, int64_t unix_ms=1_700_000_000_000):
        if now_ns < 0 or unix_ms < 0:
            raise ValueError(f"now_ns={now_ns}, unix_ms={unix_ms}: both must be >= 0")
        self.manual_ns = now_ns
        self.manual_wall_ms = unix_ms

    def advance_ms(self, double ms):
        """Moves both clocks forward by ``ms`` milliseconds."""
        if ms < 0:
            raise ValueError(f"ms={ms}: the monotonic clock does not go back")
        self.manual_ns += <int64_t>(ms * 1_000_000)
        self.manual_wall_ms += <int64_t>ms

    def set_unix_ms(self, int64_t unix_ms):
        """Sets the wall clock alone: it may jump either way, as real ones do."""
        self.manual_wall_ms = unix_ms
