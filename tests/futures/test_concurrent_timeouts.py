"""Timeouts of ``as_concurrent()`` that are longer than Python's locks can wait."""

import threading
from typing import Any

import pytest

from cyproducer.errors import TopicAuthorizationFailedError
from tools.harness.rig import Rig
from tools.harness.until import PATIENCE_S, until_blocked

NOT_AUTHORIZED = 29


@pytest.mark.parametrize("timeout", [1e12, float("inf"), None])
@pytest.mark.parametrize("method", ["result", "exception"])
def test_a_timeout_may_be_longer_than_a_lock_can_wait(method: str, timeout: float | None) -> None:
    outcomes: list[Any] = []
    with Rig({"t": [1]}) as rig:
        concurrent = rig.send("t", b"v").as_concurrent()

        def wait() -> None:
            try:
                outcomes.append(getattr(concurrent, method)(timeout))
            except BaseException as error:
                outcomes.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        until_blocked(thread)
        (seen,) = rig.requests()
        rig.answer(seen, NOT_AUTHORIZED)
        rig.run_callbacks()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert [type(each) for each in outcomes] == [TopicAuthorizationFailedError]
