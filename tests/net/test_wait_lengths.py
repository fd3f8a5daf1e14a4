"""How long the sender's waits last: never less than asked, or it would spin until the time is there."""

import time

from tools.harness.rig import Rig


def test_a_wait_counted_in_milliseconds_is_rounded_up() -> None:
    """From 10 ms on they are counted so: a wait that ends early is followed by one of no length."""
    with Rig({"t": [1]}) as rig:
        # Else it does not wait.
        rig.control.delay_ms = 1000.0
        rig.step()
        for _ in range(5):
            began = time.monotonic()
            rig.step(10.9)
            assert time.monotonic() - began >= 0.0109
