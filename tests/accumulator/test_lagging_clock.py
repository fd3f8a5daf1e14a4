"""Timestamps where the clock that is read for each record lags behind the exact one."""

from tools.harness.rig import Rig


def test_a_record_is_not_older_than_the_one_its_batch_began_with() -> None:
    """The first record reads the exact clock, the second one that of the last tick, some milliseconds ago."""
    with Rig({"t": [1]}, linger_ms=10) as rig:
        now_ms = rig.clock.unix_ms()
        rig.send("t", b"1")
        rig.clock.set_unix_ms(now_ms - 3)
        rig.send("t", b"2")
        rig.clock.set_unix_ms(now_ms + 2)
        rig.send("t", b"3")
        rig.advance_ms(10)
        (seen,) = rig.requests()
        (batch,) = seen.batches.values()
        assert [record.timestamp for record in batch.records] == [now_ms, now_ms, now_ms + 2]


def test_a_clock_that_was_set_back_is_followed() -> None:
    with Rig({"t": [1]}, linger_ms=10) as rig:
        now_ms = rig.clock.unix_ms()
        rig.send("t", b"1")
        rig.clock.set_unix_ms(now_ms - 60_000)
        rig.send("t", b"2")
        rig.advance_ms(10)
        (seen,) = rig.requests()
        (batch,) = seen.batches.values()
        assert [record.timestamp for record in batch.records] == [now_ms, now_ms - 60_000]
