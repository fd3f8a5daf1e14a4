"""``_send_at_once()``, which ``send_async()`` calls, where many callbacks are due."""

import pytest

from cyproducer.futures.completion import CompletionQueue
from cyproducer.futures.delivery import RecordFuture
from cyproducer.send.send_path import WouldBlock
from tools.harness.rig import Rig


def test_a_callback_does_not_wait_for_callbacks() -> None:
    """It would wait for itself: ``send()`` does not either."""
    accepted: list[RecordFuture] = []

    with Rig({"t": [1]}, completions=CompletionQueue(None, 1)) as rig:

        def send() -> RecordFuture:
            return rig.path._send_at_once("t", b"more", None, None, None, None, None)

        rig.send("t", b"v").add_callback(lambda metadata: accepted.append(send()))
        rig.answer_all()
        assert rig.completions.backlog == 1
        with pytest.raises(WouldBlock) as blocked:
            send()
        assert blocked.value.what == "callbacks"
        rig.run_callbacks()
        (future,) = accepted
        rig.answer_all()
        assert future.get(0).offset == 1
