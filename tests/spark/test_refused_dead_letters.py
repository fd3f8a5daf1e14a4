"""Dead letters that are refused themselves, and how many of them may be under way."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cyproducer.errors import MessageSizeTooLargeError
from cyproducer.spark import dead_letters
from cyproducer.spark.columns import Columns
from cyproducer.spark.dead_letters import CUT_BYTES, DeadLetterError, DeadLetters
from tests.spark.writing import PLAIN, values


class Topic:
    """A producer with one topic, of dead letters; it takes values of at most ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self.config = SimpleNamespace(max_request_size=1 << 20, delivery_timeout_ms=1000)
        self.limit = limit
        self.sent: list[int] = []
        self.asked = 0
        self.largest = 0

    def partitions_for(self, topic: str) -> set[int]:
        return {0}

    def flush(self, timeout: float) -> None:
        pass

    def send(self, topic: str, value: bytes, key: bytes | None, headers: Any) -> Any:
        assert len(self.sent) < 100, "again and again"
        self.sent.append(len(value))
        self.largest = len(key or b"") + len(value) + sum(len(name) + len(of) for name, of in headers)

        def get() -> SimpleNamespace:
            self.asked += 1
            if len(value) > self.limit:
                raise MessageSizeTooLargeError(topic)
            return SimpleNamespace(topic=topic, partition=0, offset=len(self.sent))

        return SimpleNamespace(get=get)


def test_a_letter_that_is_refused_when_it_was_cut_is_an_error() -> None:
    topic: Any = Topic(limit=10)
    letters = DeadLetters(topic, "dead")
    letters.send("t", None, values(bytes(CUT_BYTES * 2)), PLAIN, [ValueError("too large")])
    with pytest.raises(DeadLetterError, match="deadLetterTopic 'dead'") as caught:
        letters.finish()
    assert isinstance(caught.value.__cause__, MessageSizeTooLargeError)
    assert len(topic.sent) == 2


def test_letters_are_settled_while_others_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "_UNDER_WAY", 3)
    topic: Any = Topic(limit=10)
    letters = DeadLetters(topic, "dead")
    given = [b"1", b"2", b"3", b"4", b"5"]
    letters.send("t", None, values(*given), PLAIN, [ValueError("no")] * 5)
    assert (len(topic.sent), topic.asked) == (5, 3)
    assert letters.finish() == 5
    assert topic.asked == 5


@pytest.mark.parametrize("key_bytes", [10, 1 << 19, 2 << 20])
def test_key_and_value_are_cut_to_what_one_request_takes(key_bytes: int) -> None:
    topic: Any = Topic(limit=1 << 20)
    letters = DeadLetters(topic, "dead")
    row = pa.record_batch({"key": [bytes(key_bytes)], "value": [bytes(2 << 20)]})
    letters.send("t", None, row, Columns(value="value", key="key"), [ValueError("too large")])
    assert letters.finish() == 1
    most = topic.config.max_request_size
    assert most - 2048 < topic.largest <= most
