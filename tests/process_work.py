"""What multiprocessing's children of the tests do. In a module, so that a spawned child can import it."""

from typing import Any

from cyproducer.producer import KafkaProducer
from tests.forked import own_threads

TIMEOUT_S = 20.0

#: For children of a fork, which inherit it.
inherited: KafkaProducer | None = None


def upper(value: str) -> bytes:
    """A serializer that can be pickled."""
    return value.upper().encode()


def send_and_wait(text: str) -> int:
    """Sends by the inherited producer; returns the offset."""
    assert inherited is not None
    return inherited.send("orders", text.encode()).get(TIMEOUT_S).offset


def threads_of_an_idle_child(number: int) -> list[str]:
    """The names of the package's threads, where nothing was sent."""
    return own_threads()


def send_and_leave(producer: KafkaProducer | None, values: list[Any]) -> None:
    """Sends without waiting: what is not sent is left to the exit of the process."""
    chosen = producer or inherited
    assert chosen is not None
    for value in values:
        chosen.send("orders", value)
