"""A program that uses transactions, as a generator that is suspended wherever a real one would wait.

Owns the calls of a program, what it does about their errors, and a record of each transaction. Does not own
the plans (``transaction_history``) or what must hold (``transaction_check``).

A program does what the documentation tells: it aborts after an ``AbortableError``, repeats a call that has
timed out, and makes a new producer when the old one has failed for good, or its process was killed.
"""

import enum
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from cyproducer import errors
from cyproducer.clients.transaction_client import TransactionClient
from cyproducer.config import ProducerConfig
from cyproducer.control.transaction_calls import Call, CloseCall, Ending, Event, Offsets, OffsetsCall, State
from cyproducer.net.connection import Connection
from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from cyproducer.wire.messages import ADD_OFFSETS_TO_TXN, ADD_PARTITIONS_TO_TXN, TXN_OFFSET_COMMIT
from cyproducer.wire.schema import Api
from tests.simulation.client import Client, Sent
from tests.simulation.network import Network
from tests.simulation.processes import Process, Processes
from tests.simulation.world import NS_PER_MS, World

Place = tuple[str, int]
Waiting = Generator["Until", bool, None]
FATAL = (errors.ApplicationRecoverableError, errors.InvalidSetupError)


class Until(NamedTuple):
    """What a program waits for: a condition, which it learns, or a time."""

    condition: Callable[[], bool]
    deadline_ns: int


class KilledError(BaseException):
    """The program's process is killed."""


class FatalError(Exception):
    """The producer has failed for good."""


class Send(NamedTuple):
    """After a while, the program sends a record."""

    after_ms: float
    topic: str
    value: bytes
    key: bytes | None
    partition: int | None


class SendOffsets(NamedTuple):
    """After a while, the program sends an offset of a partition for a group. ``as_member``: with what it
    knows of itself as a member; ``stale``: which may be outdated."""

    after_ms: float
    group: str
    topic: str
    partition: int
    as_member: bool
    stale: bool


@dataclass
class Plan:
    """A transaction that a program wants to make."""

    acts: list[Send | SendOffsets]
    ends_with: str = "commit"
    """``commit``, ``abort``, ``prepare`` (and commit then), or ``kill``: the process is killed."""
    before_ms: float = 0.0
    """How long it does nothing before it begins."""
    idle_ms: float = 0.0
    """How long it does nothing before it ends."""
    timeout_ms: float = 1000.0
    """The timeout of each call."""
    repeats: int = 20
    """How often a call that has timed out is repeated before the process is killed."""
    tries_abort: bool = False
    """Whether it tries to abort when a commit has timed out."""
    heedless: bool = False
    """Whether it goes on after an error until it commits."""
    flushes: bool = False
    """Whether records have callbacks, for which a commit waits."""


class Outcome(enum.Enum):
    """What the program knows of a transaction."""

    OPEN = "is open"
    COMMITTED = "was committed"
    ABORTED = "was aborted"
    LOST = "was not ended: the producer failed, or its process was killed"


@dataclass(eq=False)
class Attempt:
    """A transaction of a program, and what became of it."""

    number: int
    client_id: str
    records: list[Sent] = field(default_factory=list)
    #: Records that ``send()`` refused.
    refused: int = 0
    #: By group and partition, all offsets that it has sent.
    offsets: dict[tuple[str, Place], list[int]] = field(default_factory=dict)
    #: ``send_offsets_to_transaction()`` has raised an error.
    offsets_refused: bool = False
    #: ``commit_transaction()`` was called.
    asked_commit: bool = False
    #: ``commit_transaction()`` has raised an ``AbortableError``.
    refused_commit: bool = False
    outcome: Outcome = Outcome.OPEN
    began_ns: int = 0

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.client_id}"


def is_refusal(error: BaseException | None) -> bool:
    """Whether a broker has refused a record for its content, so that it is certainly not written."""
    return isinstance(error, errors.InvalidRecordError | errors.MessageSizeTooLargeError) and (
        error.maybe_written is False
    )


class TransactionalClient(Client):
    """A client with a transactional id, in a process of its own."""

    def __init__(
        self,
        world: World,
        network: Network,
        config: ProducerConfig,
        seed: int,
        step_ms: float,
        records: list[Sent],
    ) -> None:
        self.process = Process(world, step_ms)
        super().__init__(world, network, config, seed, selector=self.process.selector, records=records)
        self.process.step = lambda: self.sender.run_once(1e12)
        #: When this producer failed for good.
        self.fatal_ns: int | None = None
        #: The number of the last transaction that handed a request that adds something to a connection.
        self._tried_in = -1
        connector = self.control._connector
        self._hand_over = connector.request
        connector.request = self._request  # type: ignore[method-assign]
        world.after_step.append(self._note_state)

    @property
    def transactions(self) -> TransactionClient:
        found = self.control.transaction_client
        assert found is not None
        return found

    def _request(self, connection: Connection, api: Api, *rest: Any, **options: Any) -> None:
        if api in (ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT):
            self._tried_in = self.transactions.machine.number
        self._hand_over(connection, api, *rest, **options)

    @property
    def has_tried(self) -> bool:
        """Whether the open transaction has tried to add something. If the connection broke first, its far
        side has seen nothing of that."""
        return self._tried_in == self.transactions.machine.number or self.sender.has_written()

    def _note_state(self) -> None:
        if self.fatal_ns is None and self.transactions.machine.state is State.FATAL_ERROR:
            self.fatal_ns = self.world.now_ns
            self.world.say(f"{self.config.client_id} has failed for good: {self.transactions.machine.cause}")

    def kill(self) -> None:
        """The process ends, without anything that it would do at its end."""
        if not self.closing:
            self.process.end()
            self.close()


class Program:
    """A program with some plans. One at a time uses the transactional id, but a zombie may believe so,
    too."""

    def __init__(
        self,
        name: str,
        world: World,
        network: Network,
        processes: Processes,
        options: dict[str, Any],
        plans: list[Plan],
        seed: int,
        step_ms: float,
        records: list[Sent],
        members: Callable[[str, bool], tuple[int, str, str | None]],
    ) -> None:
        """``members``: returns what a member of a group knows of itself; stale or not."""
        self.name = name
        self.world = world
        self.network = network
        self.processes = processes
        self.options = options
        self.plans = plans
        self.random = random.Random(seed)
        self.step_ms = step_ms
        self.records = records
        self.members = members
        self.attempts: list[Attempt] = []
        self.clients: list[TransactionalClient] = []
        #: Client id, group, generation, member and instance of all offsets that were sent.
        self.memberships: set[tuple[str, str, int, str, str | None]] = set()
        #: What a producer does that is against its documentation.
        self.wrong: list[str] = []
        #: Whether its transactions go on without records that a broker refuses for their content.
        self.drops_refused = False
        #: Whether a failed producer is replaced; else the program ends.
        self.replaces = True
        #: Called before the last plans: the condition for going on.
        self.may_finish: Callable[[], bool] = lambda: True
        self.last_plans: list[Plan] = []
        #: How often the last plan is tried.
        self.last_tries = 20
        #: Whether the last plan was carried out.
        self.finished = False
        self.ended = False
        self._offset = 0
        self._main = self._life()
        self._until: Until | None = None

    @property
    def client(self) -> TransactionalClient:
        return self.clients[-1]

    # Running

    def start(self) -> None:
        self.world.say(f"program {self.name} starts")
        self._until = Until(lambda: True, 0)
        self._run(partial(next, self._main))

    def poll(self) -> None:
        """Goes on if what it waits for has come, unless its process is frozen."""
        while self._until is not None and not (self.clients and self.client.process.is_frozen):
            met = self._until.condition()
            if not met and self.world.now_ns < self._until.deadline_ns:
                return
            self._run(partial(self._main.send, met))

    def kill(self) -> None:
        """Kills the process; the program starts again, in another one."""
        if self._until is not None and self.clients and not self.client.closing:
            self.world.say(f"the process of {self.client.config.client_id} is killed")
            self._run(partial(self._main.throw, KilledError()))

    def freeze(self, span_ms: float) -> None:
        """The process does not run for a while: it sees the clock jump."""
        if self.clients and not self.client.closing:
            until_ns = self.world.after(span_ms, lambda: None)
            self.world.say(f"the process of {self.client.config.client_id} freezes for {span_ms:.0f} ms")
            self.client.process.frozen_until_ns = max(until_ns, self.client.process.frozen_until_ns)

    def _run(self, go_on: Callable[[], Until]) -> None:
        try:
            self._until = go_on()
            self.world.at(self._until.deadline_ns, lambda: None)
        except StopIteration:
            self._until = None
            self.ended = True
            self.world.say(f"program {self.name} ends")

    def _sleep(self, ms: float) -> Waiting:
        if ms > 0:
            yield Until(lambda: False, self.world.now_ns + int(ms * NS_PER_MS))

    # The program

    def _life(self) -> Generator[Until, bool, None]:
        plans = list(self.plans)
        last = list(self.last_plans)
        while plans or (last and self.last_tries > 0):
            try:
                yield from self._use(plans, last)
            except KilledError:
                self._drop("its process was killed")
                yield from self._sleep(self.random.choice((0.0, 10.0, 200.0)))
            except FatalError as error:
                self._drop(f"its producer failed: {error}")
                if not self.replaces:
                    return
                yield from self._sleep(self.random.choice((1.0, 50.0)))

    def _drop(self, why: str) -> None:
        if self.attempts and self.attempts[-1].outcome is Outcome.OPEN:
            self.attempts[-1].outcome = Outcome.LOST
            self.world.say(f"{self.attempts[-1]} is lost: {why}")
        if self.clients:
            self.client.kill()

    def _use(self, plans: list[Plan], last: list[Plan]) -> Waiting:
        """One producer, from its constructor to its end."""
        client_id = f"{self.name}{len(self.clients)}"
        config = ProducerConfig(**self.options, client_id=client_id)
        seed = self.random.getrandbits(32)
        client = TransactionalClient(self.world, self.network, config, seed, self.step_ms, self.records)
        client.transactions.machine.drops_refused = self.drops_refused
        self.clients.append(client)
        client.process.start()
        self.processes.processes.append(client.process)
        self.world.say(f"{client_id} is made")
        yield from self._init(plans[0] if plans else last[0])
        while plans:
            # Popped first: a plan whose producer fails is not tried again.
            plan = plans.pop(0)
            yield from self._sleep(plan.before_ms)
            yield from self._transaction(plan)
        if last:
            yield Until(self.may_finish, 1 << 62)
        while last and self.last_tries > 0:
            self.last_tries -= 1
            yield from self._transaction(last[0])
            if self.attempts[-1].outcome is Outcome.COMMITTED:
                last.pop(0)
                self.finished = True
            else:
                yield from self._sleep(50.0)
        yield from self._close()

    def _close(self) -> Waiting:
        call = CloseCall()
        self.client.transactions._submit(call)
        yield Until(lambda: call.done, self.world.now_ns + 10_000 * NS_PER_MS)
        if not call.done:
            self.wrong.append("closing takes more than 10 s without any trouble")
        self.client.kill()

    # Calls

    def _wait(self, call: Call, timeout_ms: float, name: str) -> Generator[Until, bool, Any]:
        """Waits for a call; raises its error, or ``KafkaTimeoutError``."""
        machine = self.client.transactions
        self.world.say(f"{self.client.config.client_id}: {name}")
        yield Until(lambda: call.told, self.world.now_ns + int(timeout_ms * NS_PER_MS))
        machine.give_up(call)
        return self._result(call, name)

    def _result(self, call: Call, name: str) -> Any:
        client_id = self.client.config.client_id
        if not call.told:
            self.world.say(f"{client_id}: {name} times out")
            raise errors.KafkaTimeoutError(f"{name} timed out")
        if call.error is not None:
            self.world.say(f"{client_id}: {name} raises {call.error!r}")
            self._check_error(call.error, name)
            if self.client.transactions.machine.state is State.FATAL_ERROR:
                self._check_outcomes(f"{name} raises {call.error!r}")
            raise errors.copied(call.error)
        self.world.say(f"{client_id}: {name} succeeds")
        return call.result

    def _check_outcomes(self, what: str) -> None:
        """After an error that ends the producer, as after a success, no outcome comes later."""
        if left := self.client.pending:
            self.wrong.append(f"{what}, and records {left} have no outcome")

    def _check_error(self, error: BaseException, name: str) -> None:
        if not isinstance(error, errors.KafkaError):
            self.wrong.append(f"{name} raises {error!r}")

    def _repeated(
        self, make: Callable[[], Generator[Until, bool, Any]], repeats: int
    ) -> Generator[Until, bool, Any]:
        """Repeats a call that times out; then the process kills itself."""
        for _ in range(repeats):
            try:
                return (yield from make())
            except errors.KafkaTimeoutError:
                continue
        raise KilledError

    def _init(self, plan: Plan) -> Waiting:
        name = "init_transactions()"

        def call() -> Generator[Until, bool, Any]:
            made = Call(Event.INIT, name)
            self.client.transactions._submit(made)
            return self._wait(made, plan.timeout_ms, name)

        while True:
            try:
                yield from self._repeated(call, 1000)
            except errors.InvalidSetupError:
                # Rights may be granted: then the same call works.
                yield from self._sleep(20.0)
            except errors.KafkaError as error:
                raise FatalError(str(error)) from error
            else:
                return

    def _transaction(self, plan: Plan) -> Waiting:
        client = self.client
        attempt = Attempt(len(self.attempts), client.config.client_id, began_ns=self.world.now_ns)
        begin = Call(Event.BEGIN, "begin_transaction()")
        client.transactions._submit(begin)
        try:
            yield from self._wait(begin, 60_000, f"begin_transaction() number {attempt.number}")
        except FATAL as error:
            raise FatalError(str(error)) from error
        except errors.KafkaError as error:
            self.wrong.append(f"begin_transaction() raises {error!r}")
            raise FatalError(str(error)) from error
        self.attempts.append(attempt)
        try:
            yield from self._work(attempt, plan)
            if plan.ends_with != "abort":
                yield from self._commit(attempt, plan)
        except errors.AbortableError:
            pass
        except FATAL as error:
            raise FatalError(str(error)) from error
        if attempt.outcome is Outcome.OPEN:
            yield from self._abort(attempt, plan)

    def _work(self, attempt: Attempt, plan: Plan) -> Waiting:
        for act in plan.acts:
            yield from self._sleep(act.after_ms)
            try:
                if isinstance(act, Send):
                    self._send(attempt, act)
                else:
                    yield from self._send_offsets(attempt, act, plan)
            except errors.AbortableError:
                if not plan.heedless:
                    raise
        yield from self._sleep(plan.idle_ms)
        if plan.ends_with == "kill":
            self.world.say(f"the process of {attempt.client_id} kills itself")
            raise KilledError

    def _send(self, attempt: Attempt, act: Send) -> None:
        client = self.client
        value = b"%d:%b" % (len(self.records), act.value)
        has_memory = client.has_memory
        try:
            sent = client.accept(act.topic, value, act.key, act.partition, has_memory)
        except errors.KafkaError as error:
            self.world.say(f"{attempt.client_id}: send() raises {error!r}")
            attempt.refused += 1
            if isinstance(error, errors.IllegalStateError):
                self.wrong.append(f"send() in {attempt} raises {error!r}")
            if isinstance(error, errors.ApplicationRecoverableError):
                self._check_outcomes(f"send() raises {error!r}")
            if isinstance(error, errors.AbortableError | errors.ApplicationRecoverableError):
                raise
        else:
            attempt.records.append(sent)

    def _send_offsets(self, attempt: Attempt, act: SendOffsets, plan: Plan) -> Waiting:
        # A number that no other call has, so that a committed offset tells which transaction it came from.
        self._offset += 1
        offset = self._offset * 1000 + ord(self.name[0])
        generation, member, instance = self.members(act.group, act.stale) if act.as_member else (-1, "", None)
        client_id = self.client.config.client_id
        place = TopicPartition(act.topic, act.partition)
        offsets = Offsets(
            ConsumerGroupMetadata(act.group, generation, member, instance),
            {place: OffsetAndMetadata(offset, "m", -1)},
        )
        self.memberships.add((client_id, act.group, generation, member, instance))
        attempt.offsets.setdefault((act.group, (act.topic, act.partition)), []).append(offset)
        name = f"send_offsets_to_transaction({act.group}: {offset})"

        def call() -> Generator[Until, bool, Any]:
            made = OffsetsCall(offsets)
            self.client.transactions._submit(made)
            return self._wait(made, plan.timeout_ms, name)

        try:
            yield from self._repeated(call, plan.repeats)
        except errors.KafkaError:
            attempt.offsets_refused = True
            raise

    def _end(self, ending: Ending, plan: Plan) -> Generator[Until, bool, Any]:
        """``Runtime.end_transaction`` without threads: records' callbacks come before the transaction's
        end."""
        client = self.client
        calls = client.transactions
        deadline_ns = self.world.now_ns + int(plan.timeout_ms * NS_PER_MS)
        awaits_callbacks = ending != "abort" and plan.flushes
        name = Event[ending.upper()].value
        self.world.say(f"{client.config.client_id}: {name}")
        call = calls.begin_end(ending, not awaits_callbacks)
        try:
            if awaits_callbacks:
                yield Until(lambda: call.told or call.accepted, deadline_ns)
                yield Until(lambda: call.done or self._is_flushed(), deadline_ns)
                if not call.done:
                    if not self._is_flushed():
                        raise errors.KafkaTimeoutError(f"{name} timed out in its flush")
                    calls.release(call)
            yield Until(lambda: call.told, deadline_ns)
        finally:
            calls.give_up(call)
        return self._result(call, name)

    def _is_flushed(self) -> bool:
        accumulator = self.client.accumulator
        return not (accumulator.incomplete_batches or accumulator.parked_records or self.client.open)

    def _commit(self, attempt: Attempt, plan: Plan) -> Waiting:
        if plan.ends_with == "prepare":
            yield from self._repeated(lambda: self._end("prepare", plan), plan.repeats)
            self._check_done(attempt, "prepare_transaction()", True)
        attempt.asked_commit = True
        for _ in range(plan.repeats):
            try:
                yield from self._end("commit", plan)
            except errors.KafkaTimeoutError:
                if plan.tries_abort:
                    try:
                        yield from self._end("abort", plan)
                    except errors.IllegalStateError:
                        # The commit may be out.
                        continue
                    except errors.KafkaTimeoutError:
                        return
                    attempt.outcome = Outcome.ABORTED
                    self._check_done(attempt, "abort_transaction()", False)
                    return
            except errors.AbortableError:
                attempt.refused_commit = True
                raise
            else:
                attempt.outcome = Outcome.COMMITTED
                self._check_done(attempt, "commit_transaction()", True)
                return
        raise KilledError

    def _abort(self, attempt: Attempt, plan: Plan) -> Waiting:
        for _ in range(plan.repeats):
            try:
                yield from self._end("abort", plan)
            except errors.KafkaTimeoutError:
                continue
            except FATAL as error:
                if isinstance(error, errors.InvalidSetupError):
                    # Rights may be granted: then the same call works.
                    yield from self._sleep(20.0)
                    continue
                raise FatalError(str(error)) from error
            except errors.KafkaError as error:
                self.wrong.append(f"abort_transaction() of {attempt} raises {error!r}")
                raise FatalError(str(error)) from error
            attempt.outcome = Outcome.ABORTED
            self._check_done(attempt, "abort_transaction()", False)
            return
        raise KilledError

    def _check_done(self, attempt: Attempt, name: str, acknowledged: bool) -> None:
        """What must hold when a call that ends a transaction returns."""
        what = f"{name} of {attempt} returns"
        for sent in attempt.records:
            if not sent.future.is_done:
                self.wrong.append(f"{what}, and record {sent.number} has no outcome")
            elif acknowledged and (error := sent.future.exception) is not None:
                if self.drops_refused and is_refusal(error):
                    continue
                self.wrong.append(f"{what}, and record {sent.number} failed: {error!r}")
        if acknowledged and attempt.refused and not self.drops_refused:
            self.wrong.append(f"{what}, and send() had refused {attempt.refused} records")
        if acknowledged and attempt.offsets_refused:
            self.wrong.append(f"{what}, and send_offsets_to_transaction() had failed")
