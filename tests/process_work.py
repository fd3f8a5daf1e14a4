"""The functions of the tests' multiprocessing children, in a module that a spawned child can import."""

from typing import Any

from cyproducer.producer import KafkaProducer
from tests.forked import own_threads

TIMEOUT_S = 60.0

#: For forked children, which inherit it.
inherited: KafkaProducer | None = None


def upper(value: str) -> bytes:
    """A serializer that can be pickled."""
    return value.upper().encode()


def send_and_wait(text: str) -> int:
    """Sends with the inherited producer; returns the offset."""
    assert inherited is not None
    return inherited.send("orders", text.encode()).get(TIMEOUT_S).offset


def threads_of_an_idle_child(number: int) -> list[str]:
    """The names of the package's threads in a child that sends nothing."""
    return own_threads()


def send_and_leave(producer: KafkaProducer | None, values: list[Any]) -> None:
    """Sends without waiting: the exit of the process must deliver the records."""
    chosen = producer or inherited
    assert chosen is not None
    for value in values:
        chosen.send("orders", value)
