"""Runs one history of transactions: programs with real clients against the model.

Owns carrying out a history's events, and its end. Does not own the schedule (``transaction_history``), the
programs (``transaction_program``) or the checks (``transaction_check``).
"""

from collections import Counter
from collections.abc import Callable

from cyproducer.testing.broker.group_offsets import Member, Offsets
from cyproducer.testing.broker.homes import ID, Homes
from cyproducer.testing.broker.transactions import Transactions
from tests.simulation.client import Complaints, Sent
from tests.simulation.model_broker import Broker
from tests.simulation.processes import Processes
from tests.simulation.transaction_check import check_transactions, dropped_of
from tests.simulation.transaction_history import (
    GROUPS,
    NEVER_MS,
    TRANSACTIONAL_ID,
    TransactionHistory,
    transaction_history_of,
)
from tests.simulation.transaction_program import Outcome, Plan, Program, TransactionalClient
from tests.simulation.transaction_watch import Watch
from tests.simulation.trouble import Trouble
from tests.simulation.world import NS_PER_MS, START_NS

LONGEST_MS, LONGEST_HOPELESS_MS = 100_000.0, 5000.0
"""How long a history may go on after all trouble has ended: with timeouts that leave time for everything, and
with others."""
MOST_CLIENTS = 100
"""No program may need more producers."""


class TransactionSimulation(Trouble):
    """One running history; its events are methods."""

    history: TransactionHistory

    def __init__(self, history: TransactionHistory, trace: Callable[[str], None] | None = None) -> None:
        super().__init__(history, trace)
        world, manners = self.world, history.transactions
        self.homes = Homes(world, self.cluster.nodes, manners.log_ms, manners.load_ms, manners.lag_ms)
        self.transactions = Transactions(
            world, self.cluster, self.homes, manners, history.manners.replication_ms
        )
        self.offsets = Offsets(world, self.homes, self.transactions)
        self.brokers = {
            node: Broker(node, self.cluster, self.network, history.manners, transactions=self.transactions)
            for node in self.cluster.nodes
        }
        for name, partitions in history.topics.items():
            self.cluster.create_topic(name, partitions)
        self.homes.home(ID, TRANSACTIONAL_ID)
        for name in GROUPS:
            self.offsets.group(name)
        self.generation = 1
        for name, instance in history.members.items():
            self.offsets.group(name).members = {"m1": Member(1, instance)}
        self.complaints = Complaints(world)
        self.watch = Watch(self.transactions, self.cluster, self.network)
        self.watch.level_changes = history.level_changes
        self.watch.failed_ns = self._failed_ns
        self.watch.has_tried = self._has_tried
        self.records: list[Sent] = []
        self.processes = Processes(world)
        world.after_step.append(self._poll)
        world.after_events.append(self._poll)
        self.program = self._program("p", history.plans)
        self.program.last_plans = [history.last_plan]
        self.program.may_finish = lambda: self.healed
        if not history.must_commit:
            self.program.last_tries = 5
        self.zombie = self._program("z", history.zombie_plans)
        self.zombie.replaces = history.races
        #: It took longer than a history may take.
        self.too_long = False

    def _program(self, name: str, plans: list[Plan]) -> Program:
        history = self.history
        program = Program(
            name,
            self.world,
            self.network,
            self.processes,
            history.options,
            plans,
            history.seed ^ ord(name),
            history.step_ms,
            self.records,
            self._member,
        )
        program.drops_refused = history.drops_refused
        return program

    def _member(self, group: str, stale: bool) -> tuple[int, str, str | None]:
        """What a member of a group knows of itself."""
        for name, member in self.offsets.group(group).members.items():
            return member.generation - stale, name, member.instance
        return -1, "", None

    def client(self, client_id: str) -> TransactionalClient | None:
        for program in self.programs:
            for client in program.clients:
                if client.config.client_id == client_id:
                    return client
        return None

    def _failed_ns(self, client_id: str) -> int | None:
        client = self.client(client_id)
        return None if client is None else client.fatal_ns

    def _has_tried(self, client_id: str) -> bool:
        client = self.client(client_id)
        return client is not None and client.has_tried

    @property
    def programs(self) -> list[Program]:
        return [self.program, self.zombie]

    def _poll(self) -> None:
        for program in self.programs:
            program.poll()
        if len(self.program.clients) > MOST_CLIENTS:
            self.too_long = True
            self.end()
        if self.program.ended and (self.zombie.ended or not self.history.zombie_plans):
            self.end()

    def run(self) -> None:
        """Runs to the end, and beyond: brokers handle the requests they hold, and end all transactions."""
        history, world = self.history, self.world
        for event in history.events:
            world.at(START_NS + int(event.at_ms * NS_PER_MS), getattr(self, event.name), *event.args)
        world.after(history.heals_at_ms, self.heal)
        longest_ms = LONGEST_MS if history.must_commit else LONGEST_HOPELESS_MS
        world.after(history.heals_at_ms + longest_ms, self._give_up)
        if history.zombie_at_ms < NEVER_MS:
            world.after(history.zombie_at_ms, self.zombie.start)
        try:
            with self.complaints.collected():
                self.program.start()
                self.processes.run()
                self._end_clients()
                self.network.pump()
                self.heal()
                world.run_out()
                # A wedged id has a new coordinator only now.
                self.restart_wedged()
                world.run_out()
        finally:
            for process in self.processes.processes:
                process.end()
            self.network.close()

    def _end_clients(self) -> None:
        for program in self.programs:
            for client in program.clients:
                client.kill()

    def _give_up(self) -> None:
        if not self.world.over:
            self.too_long = self.history.must_commit
            self.end()

    # Events

    def move_home(self, which: float, node: int) -> None:
        """Another broker coordinates an id or a group."""
        homes = list(self.homes.homes.values())
        if self.brokers[node].is_up:
            self.homes.move(homes[int(which * len(homes))], node)

    def crash(self, node: int) -> None:
        if self.brokers[node].is_up:
            super().crash(node)
            self.homes.crash(node)

    def start(self, node: int) -> None:
        super().start(node)
        self._find_homes()

    def fail_over(self, node: int, clean: bool) -> None:
        super().fail_over(node, clean)
        self._find_homes()

    def _find_homes(self) -> None:
        up = [broker.node for broker in self.brokers.values() if broker.is_up]
        if up:
            self.homes.fail_over(up)

    def freeze(self, span_ms: float) -> None:
        self.program.freeze(span_ms)

    def kill(self) -> None:
        self.program.kill()

    def deny(self, kind: str, name: str, span_ms: float) -> None:
        self.world.say(f"the client has no rights on {kind} {name} for {span_ms:.0f} ms")
        self.transactions.denied.add((kind, name))
        self.world.after(span_ms, self.transactions.denied.discard, (kind, name))

    def level(self, level: int) -> None:
        self.transactions.features.set(level, self.history.lag_ms)

    def expire_ids(self, idle_ms: float) -> None:
        self.transactions.expire(self.world.now_ns - int(idle_ms * NS_PER_MS))

    def rebalance(self, how: str) -> None:
        """The group's members get another generation, or the program becomes another member."""
        group = self.offsets.group("g")
        if not group.members:
            return
        self.generation += 1
        self.world.say(f"group g is rebalanced: generation {self.generation}, {how}")
        for name, member in list(group.members.items()):
            member.generation = self.generation
            if how == "member":
                del group.members[name]
                group.members[f"m{self.generation}"] = member

    def restart_wedged(self) -> None:
        """An operator restarts the coordinator of an id that waits for ever."""
        for txn in self.transactions.ids.values():
            if txn.wedged:
                self.homes.move(txn.home, self.world.random.choice(self.cluster.nodes))

    def heal(self) -> None:
        super().heal()
        self.transactions.manners.fault_rate = 0.0
        self.transactions.denied.clear()
        self._find_homes()
        self._look_for_wedged()

    def _look_for_wedged(self) -> None:
        self.restart_wedged()
        if not self.world.over:
            self.world.after(1000.0, self._look_for_wedged)


def run_transaction_history(
    seed: int,
    trace: Callable[[str], None] | None = None,
    tally: Counter[str] | None = None,
) -> list[str]:
    """Runs the history of a seed; returns its violations, one sentence each.

    Args:
        seed: see ``transaction_history_of``.
        trace: gets a line for each event.
        tally: gets how often what happened.
    """
    simulation = TransactionSimulation(transaction_history_of(seed), trace)
    try:
        simulation.run()
    except AssertionError as error:
        return [f"{type(error).__name__}: {error}"]
    if tally is not None:
        tally.update(simulation.world.tally)
        tally.update(
            f"transaction {attempt.outcome.value}"
            for program in simulation.programs
            for attempt in program.attempts
        )
        tally["transaction was committed without records that were refused"] += sum(
            attempt.outcome is Outcome.COMMITTED and bool(dropped_of(simulation, attempt))
            for program in simulation.programs
            for attempt in program.attempts
        )
    return check_transactions(simulation)
