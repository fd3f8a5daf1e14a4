"""Timeouts of ``as_concurrent()`` that are longer than Python's locks can wait."""

import pytest

from cyproducer.errors import TopicAuthorizationFailedError
from tools.harness.rig import Rig
from tools.harness.until import Running, until_blocked

NOT_AUTHORIZED = 29


@pytest.mark.parametrize("timeout", [1e12, float("inf"), None])
@pytest.mark.parametrize("method", ["result", "exception"])
def test_a_timeout_may_be_longer_than_a_lock_can_wait(method: str, timeout: float | None) -> None:
    with Rig({"t": [1]}) as rig:
        concurrent = rig.send("t", b"v").as_concurrent()
        waiting = Running(getattr(concurrent, method), timeout)
        until_blocked(waiting.thread)
        (seen,) = rig.requests()
        rig.answer(seen, NOT_AUTHORIZED)
        rig.run_callbacks()
        if method == "exception":
            assert isinstance(waiting.outcome(), TopicAuthorizationFailedError)
        else:
            with pytest.raises(TopicAuthorizationFailedError):
                waiting.outcome()
