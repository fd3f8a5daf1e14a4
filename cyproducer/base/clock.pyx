"""The package's two clocks, as functions and as one object that the caller passes in.

Owns reading the monotonic clock (deadlines, ages) and the wall clock (record timestamps), and turning a
caller's timeout into a deadline. Makes no decisions. Any thread may read a clock; only a test or a simulator
moves a manual one.

No other module reads the time. Libraries that freeze time in tests (freezegun, time-machine) replace the
functions of ``time`` and ``datetime``, so a wait that used those functions would never end. They do not
replace C's ``clock_gettime``, which this module calls.
"""

from cyproducer.base.sync cimport (
    FAR_NS,
    cyp_after,
    cyp_monotonic_ns,
    cyp_ms_ns,
    cyp_note64,
    cyp_peek64,
    cyp_s_ns,
    cyp_ticked_wall_ms,
    cyp_wall_ms,
)

from cyproducer.base.durations import duration


cdef class Clock:
    """The system's clocks. Thread-safe."""

    def __cinit__(self):
        self.manual_ns = -1
        self.manual_wall_ms = -1

    cdef int64_t now_ns(self) noexcept nogil:
        cdef int64_t manual = cyp_peek64(&self.manual_ns)
        return manual if manual >= 0 else cyp_monotonic_ns()

    cdef int64_t wall_ms(self) noexcept nogil:
        cdef int64_t manual = cyp_peek64(&self.manual_wall_ms)
        return manual if manual >= 0 else cyp_wall_ms()

    cdef int64_t ticked_wall_ms(self) noexcept nogil:
        """``wall_ms`` at the kernel's last tick."""
        cdef int64_t manual = cyp_peek64(&self.manual_wall_ms)
        return manual if manual >= 0 else cyp_ticked_wall_ms()

    def monotonic_ns(self):
        """Nanoseconds on a clock that never goes backwards."""
        return self.now_ns()

    def unix_ms(self):
        """Milliseconds since the epoch, as in a record's CreateTime."""
        return self.wall_ms()


cdef class ManualClock(Clock):
    """A clock that moves only when a test or a simulator moves it."""

    def __init__(self, int64_t now_ns=0, int64_t unix_ms=1_700_000_000_000):
        if now_ns < 0 or unix_ms < 0:
            raise ValueError(f"now_ns={now_ns}, unix_ms={unix_ms}: both must be >= 0")
        self.manual_ns = now_ns
        self.manual_wall_ms = unix_ms

    def advance_ms(self, double ms):
        """Moves both clocks forward by ``ms`` milliseconds."""
        if not ms >= 0:
            raise ValueError(f"ms={ms}: the monotonic clock does not go back")
        cyp_note64(&self.manual_ns, cyp_after(self.manual_ns, cyp_ms_ns(ms)))
        cyp_note64(&self.manual_wall_ms, cyp_after(self.manual_wall_ms, cyp_ms_ns(ms) // 1_000_000))

    def set_unix_ms(self, int64_t unix_ms):
        """Sets only the wall clock, which may jump in either direction, as real ones do."""
        cyp_note64(&self.manual_wall_ms, unix_ms)


def monotonic_s():
    """Seconds on the system's monotonic clock, which never goes backwards."""
    return cyp_monotonic_ns() / 1e9


def monotonic_ns():
    """Nanoseconds on the clock of ``monotonic_s``."""
    return cyp_monotonic_ns()


def unix_ms():
    """Milliseconds since the epoch, by the system's clock."""
    return cyp_wall_ms()


cdef double duration_of(str name, object value, str unit) except -1:
    """``durations.duration``, with a fast path for a float."""
    if type(value) is float and <double>value >= 0:
        return <double>value
    return duration(name, value, unit)


cdef int64_t deadline_in(str name, object seconds) except -1:
    """The time on the system's monotonic clock at which the argument ``name`` expires; FAR_NS for None.

    Raises ``TypeError`` or ``ValueError`` if ``seconds`` is not a number >= 0.
    """
    if seconds is None:
        return FAR_NS
    return cyp_after(cyp_monotonic_ns(), cyp_s_ns(duration_of(name, seconds, "seconds")))
