"""Runs one history: the product against the model, from the first record to the last zombie request.

Owns carrying out a history's events, and its end. Does not own the schedule (``history``) or the checks
(``check``).
"""

import math
from collections import Counter
from collections.abc import Callable

from cyproducer.config import ProducerConfig
from cyproducer.testing.broker.partitions import SEQUENCES
from tests.simulation.check import check
from tests.simulation.client import Client, Sent
from tests.simulation.credentials import Vault
from tests.simulation.history import FORGETS_AFTER_MS, PASSWORD, History, history_of
from tests.simulation.model_broker import Broker
from tests.simulation.model_sasl import SaslGate
from tests.simulation.trouble import Trouble
from tests.simulation.world import NS_PER_MS, START_NS

LONGEST_MS = 200_000.0
"""No history may take longer."""


class Simulation(Trouble):
    """One running history; its events are methods."""

    history: History

    def __init__(self, history: History, trace: Callable[[str], None] | None = None) -> None:
        super().__init__(history, trace)
        world = self.world
        self.gate = None if history.sasl is None else SaslGate(world, history.sasl)
        self.brokers = {
            node: Broker(node, self.cluster, self.network, history.manners, self.gate)
            for node in self.cluster.nodes
        }
        for name, (partitions, born_ms) in history.topics.items():
            self.cluster.create_topic(name, partitions, born_ms)
        self.vault = Vault(world, PASSWORD)
        options = dict(history.options)
        if history.asks_vault and "sasl_plain_password" in options:
            options["sasl_plain_password"] = self.vault.password
        elif history.asks_vault:
            options["sasl_oauth_token_provider"] = self.vault
        config = ProducerConfig(**options)
        self.client = Client(world, self.network, config, history.seed, history.step_ms)
        self.client.shrinks = any(event.name == "make_anew" for event in history.events)
        self.places_wound: set[tuple[str, int]] = set()
        if history.sequences_left:
            self.client.on_acknowledged = self.wind
        self.sends_left = 0
        for event in history.events:
            self.sends_left += event.name == "send"
            world.at(START_NS + int(event.at_ms * NS_PER_MS), getattr(self, event.name), *event.args)
        self.healed = math.isinf(history.heals_at_ms)
        if not self.healed:
            world.after(history.heals_at_ms, self.heal)
        if history.closes_at_ms is not None:
            world.after(history.closes_at_ms, self.end)
        world.after(LONGEST_MS, self.end)
        world.after_step.append(self._see_whether_done)
        world.after_events.append(self._see_whether_done)

    def run(self) -> None:
        """Runs to the end, and beyond: brokers handle the requests they hold after the client is closed."""
        try:
            with self.client.complaints.collected():
                while not self.world.over:
                    self.client.step()
                self.client.close()
                self.network.pump()
                self.world.run_out()
        finally:
            self.network.close()

    def _see_whether_done(self) -> None:
        if not self.sends_left and not self.client.open:
            self.end()

    # Events

    def send(self, topic: str, value: bytes, key: bytes | None, partition: int | None) -> None:
        self.sends_left -= 1
        if not self.client.closing:
            self.client.send(topic, value, key, partition)

    def flush(self) -> None:
        self.client.flush()

    def freeze(self, span_ms: float) -> None:
        """The client's process does not run for a while: it sees the clock jump."""
        self.world.say(f"the client freezes for {span_ms:.0f} ms")
        self.world.frozen_until_ns = self.world.now_ns + int(span_ms * NS_PER_MS)

    def wall(self, jump_ms: int) -> None:
        self.world.clock.set_unix_ms(self.world.clock.unix_ms() + jump_ms)

    def grow(self) -> None:
        self.cluster.add_partitions("t", 1)

    def make_anew(self, partitions: int, gap_ms: float) -> None:
        """Deletes the topic with all its records, and creates another one with the same name."""
        self.world.say(
            f"the topic is deleted, and recreated with {partitions} partitions after {gap_ms:.0f} ms"
        )
        self.cluster.delete_topic("t")
        self.cluster.create_topic("t", partitions, gap_ms)

    def expire(self) -> None:
        """Brokers forget the producers that have been idle for a long time."""
        self.cluster.expire_producers(self.world.now_ns - int(FORGETS_AFTER_MS * NS_PER_MS))

    def break_authentication(self, node: int, fault: str, span_ms: float) -> None:
        assert self.gate is not None
        self.world.say(f"authentications by broker {node}: {fault} for {span_ms:.0f} ms")
        self.gate.faults[node].add(fault)
        self.world.after(span_ms, self.gate.faults[node].discard, fault)

    def close_vault(self, span_ms: float) -> None:
        """Getting credentials fails for a while."""
        self.vault.is_closed = True
        self.world.after(span_ms, setattr, self.vault, "is_closed", False)

    def slow_vault(self, span_ms: float) -> None:
        """Getting credentials takes up to this long, for as long."""
        self.world.say(f"background tasks take up to {span_ms:.0f} ms")
        self.client.tasks.takes_ms = (0.0, span_ms)
        self.world.after(span_ms, setattr, self.client.tasks, "takes_ms", (0.0, 0.0))

    def wind(self, sent: Sent) -> None:
        """Moves the sequences of a record's partition, in broker and client, to just before their end.

        Only if the partition has no batch in flight, and no record was ever retried: a broker that still held
        an old request would see its sequences again, which cannot happen within the time of 2**31 records.
        """
        assert sent.metadata is not None
        topic, index = sent.topic, sent.metadata.partition
        counters = self.client.accumulator.counters()
        if (
            (topic, index) in self.places_wound
            or counters["records_retried"]
            or counters["records_failed"]
            or not self.cluster.topics[topic].partitions[index].can_wind
        ):
            return
        last = SEQUENCES - 1 - self.history.sequences_left
        if self.client.sender.set_next_sequence(topic, index, last + 1):
            self.cluster.topics[topic].partitions[index].wind(last)
            self.world.say(f"{topic}-{index} continues after sequence {last}")
            self.places_wound.add((topic, index))

    def heal(self) -> None:
        super().heal()
        self.history.manners.id_fault_rate = 0.0
        self.vault.is_closed = False
        self.client.tasks.takes_ms = (0.0, 0.0)
        if self.gate is not None:
            self.gate.heal()


def run_history(
    seed: int,
    idempotence: bool | None = None,
    trace: Callable[[str], None] | None = None,
    authentication: bool | None = None,
    tally: Counter[str] | None = None,
) -> list[str]:
    """Runs the history of a seed; returns its violations, one sentence each.

    Args:
        seed: see ``history_of``, as for ``idempotence`` and ``authentication``.
        idempotence: see ``history_of``.
        trace: gets a line for each event.
        authentication: see ``history_of``.
        tally: gets the number of histories with each kind of event that authentication has.
    """
    simulation = Simulation(history_of(seed, idempotence, authentication), trace)
    try:
        simulation.run()
    except AssertionError as error:
        return [f"{type(error).__name__}: {error}"]
    if tally is not None:
        tally.update(simulation.world.tally)
        tally.update(f"histories with {what}" for what in simulation.world.tally)
    return check(simulation)
