"""The broker that coordinates a transactional id or a group, and the log that this coordinator writes.

Owns the assignment of coordinators, their moves, what brokers know about them, the time that a new
coordinator takes to load its log, and the order and durability of writes to that log. Does not own the
contents of the log (``transactions``, ``group_offsets``).

Kafka distributes ids and groups over the partitions of two internal topics; here, each has its own partition.
The log itself is never lost. When a coordinator loses its role, its unfinished writes become durable in
order, up to one of them; the later ones are lost.
"""

from collections.abc import Callable
from typing import NamedTuple

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.world import NS_PER_MS, World

ID, GROUP = "id", "group"
NOBODY = -1

Told = Callable[[int], None]
"""Called with an error code."""


class Write(NamedTuple):
    """``apply`` changes the state once the write is durable, and returns an error code for ``then``."""

    apply: Callable[[], int]
    then: Told
    #: Another broker requested the write, and notices a crash because its connection ends.
    from_broker: bool


class Home:
    """The coordinator of one transactional id or group."""

    __slots__ = ("kind", "leader", "loaded_at_ns", "log_free_ns", "name", "term", "views", "writing")

    def __init__(self, kind: str, name: str, leader: int) -> None:
        self.kind = kind
        self.name = name
        self.leader = leader
        #: Counts elections, as the leader epoch of the partition does.
        self.term = 0
        self.loaded_at_ns = 0
        #: Broker id -> the coordinator that this broker knows.
        self.views: dict[int, int] = {}
        self.writing: list[Write] = []
        self.log_free_ns = 0

    def __repr__(self) -> str:
        return f"{self.kind} {self.name}"


class Homes:
    """The coordinators of all transactional ids and groups; times in milliseconds."""

    def __init__(
        self,
        world: World,
        nodes: list[int],
        log_ms: tuple[float, float] = (0.0, 0.0),
        load_ms: tuple[float, float] = (0.0, 0.0),
        lag_ms: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.world = world
        self.nodes = nodes
        self.log_ms = log_ms
        self.load_ms = load_ms
        self.lag_ms = lag_ms
        self.homes: dict[tuple[str, str], Home] = {}
        #: Called when a coordinator has lost its role, after its unfinished writes.
        self.on_resigned: dict[str, Callable[[Home], object]] = {}
        #: Called when a coordinator has loaded its log.
        self.on_loaded: dict[str, Callable[[Home], object]] = {}

    def home(self, kind: str, name: str) -> Home:
        found = self.homes.get((kind, name))
        if found is None:
            found = self.homes[kind, name] = Home(kind, name, self.world.random.choice(self.nodes))
            found.views = dict.fromkeys(self.nodes, found.leader)
        return found

    def code(self, node: int, home: Home) -> int:
        """Returns the error code if a broker cannot act as the coordinator of a home, or NO_ERROR."""
        if home.leader != node:
            return ErrorCode.NOT_COORDINATOR
        return (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            if self.world.now_ns < home.loaded_at_ns
            else ErrorCode.NO_ERROR
        )

    def is_loaded(self, home: Home) -> bool:
        return home.leader != NOBODY and self.world.now_ns >= home.loaded_at_ns

    def write(self, home: Home, apply: Callable[[], int], then: Told, from_broker: bool = False) -> None:
        """Appends a write to the log. Once it is durable, ``apply`` runs, in the order of the log, and
        returns a code for ``then``. If the coordinator loses its role first, ``apply`` may or may not run,
        and ``then`` gets NOT_COORDINATOR if the broker still runs or if the write is ``from_broker``."""
        entry = Write(apply, then, from_broker)
        home.writing.append(entry)
        due = self.world.now_ns + int(self.world.between(self.log_ms) * NS_PER_MS)
        home.log_free_ns = max(due, home.log_free_ns)
        if home.log_free_ns <= self.world.now_ns and len(home.writing) == 1:
            self._written(home, entry)
        else:
            self.world.at(home.log_free_ns, self._written, home, entry)

    def _written(self, home: Home, entry: Write) -> None:
        if entry in home.writing:
            home.writing.remove(entry)
            entry.then(entry.apply())

    # Moves

    def move(self, home: Home, leader: int) -> None:
        """Elects another coordinator, or the same one again. The coordinator must load the log."""
        self._resign(home, told=True)
        self._elect(home, leader)

    def crash(self, node: int) -> None:
        """Handles the crash of a broker: the ids and groups that it coordinated have no coordinator."""
        for home in self.homes.values():
            if home.leader == node:
                self._resign(home, told=False)
                home.leader = NOBODY

    def fail_over(self, up: list[int]) -> None:
        """Elects a coordinator for each id and group that has none."""
        for home in self.homes.values():
            if home.leader == NOBODY:
                self._elect(home, self.world.random.choice(up))

    def _resign(self, home: Home, told: bool) -> None:
        writing, home.writing = home.writing, []
        home.term += 1
        is_durable = True
        for entry in writing:
            is_durable = is_durable and self.world.chance(0.5)
            if is_durable:
                entry.apply()
            if told or entry.from_broker:
                entry.then(ErrorCode.NOT_COORDINATOR)
        if home.kind in self.on_resigned:
            self.on_resigned[home.kind](home)

    def _elect(self, home: Home, leader: int) -> None:
        world = self.world
        home.leader = leader
        home.term += 1
        home.log_free_ns = 0
        load_ms = world.between(self.load_ms)
        world.say(f"broker {leader} coordinates {home} in term {home.term}, in {load_ms:.1f} ms")
        home.loaded_at_ns = world.after(load_ms, self._loaded, home, home.term)
        for node in self.nodes:
            world.after(world.between(self.lag_ms), self._learn, home, node, home.term)

    def _learn(self, home: Home, node: int, term: int) -> None:
        if home.term == term:
            home.views[node] = home.leader

    def _loaded(self, home: Home, term: int) -> None:
        if home.term == term and home.kind in self.on_loaded:
            self.on_loaded[home.kind](home)
