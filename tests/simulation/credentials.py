"""Where the client's credentials come from, and the deterministic replacement of its background threads.

Owns when a background task ends, and which calls of the user's function fail. Does not own what the client
does with the results.
"""

from collections.abc import Callable
from typing import TypeVar

from cyproducer.net.blocking_tasks import Background, Task
from tests.simulation.world import World

T = TypeVar("T")


class Tasks(Background):
    """Runs tasks as events, after a time that the history sets."""

    def __init__(self, world: World, wake: Callable[[], None]) -> None:
        super().__init__(wake)
        self._world = world
        self.takes_ms = (0.0, 0.0)

    def start(self, function: Callable[[], T]) -> Task[T]:
        task: Task[T] = Task()
        self._running += 1
        self._world.after(self._world.between(self.takes_ms), self._run, task, function)
        return task


class Vault:
    """Functions of a user that return a password or a token. They fail now and then."""

    def __init__(self, world: World, password: str) -> None:
        self._world = world
        self._password = password
        self._tokens = 0
        self.is_closed = False

    def password(self) -> str:
        self._open()
        return self._password

    def token(self) -> str:
        self._open()
        self._tokens += 1
        return f"token{self._tokens}"

    def _open(self) -> None:
        if self.is_closed:
            self._world.say("the vault is closed")
            self._world.count("credentials that could not be got")
            raise OSError("the vault is closed")
