"""The events of a history that have to do with the network and the brokers, whatever the clients do.

Owns carrying them out, the network and the logs. Does not own their schedule (``history``,
``transaction_history``).
"""

from collections.abc import Callable

from cyproducer.testing.broker.partitions import Cluster
from tests.simulation.history import Circumstances
from tests.simulation.model_broker import Broker
from tests.simulation.network import Network
from tests.simulation.world import NS_PER_MS, World


class Trouble:
    """A running history. The events are methods; times are milliseconds."""

    brokers: dict[int, Broker]

    def __init__(self, history: Circumstances, trace: Callable[[str], None] | None) -> None:
        self.history = history
        self.lag_ms = history.lag_ms
        self.world = World(history.seed, trace)
        self.cluster = Cluster(self.world, history.nodes)
        self.network = Network(self.world)
        self.network.delay_ms = history.delay_ms
        self.network.splits = history.splits
        self.network.narrow = history.narrow
        self.healed = False

    def end(self) -> None:
        self.world.over = True

    def cut(self, node: int) -> None:
        for wire in self.network.wires_to(node):
            wire.cut()

    def swallow(self, node: int) -> None:
        for wire in self.network.wires_to(node):
            wire.swallow()

    def stall(self, node: int, span_ms: float) -> None:
        self.world.say(f"connections to broker {node} stall for {span_ms:.0f} ms")
        for wire in self.network.wires_to(node):
            wire.stall(self.world.now_ns + int(span_ms * NS_PER_MS))

    def refuse(self, node: int, span_ms: float) -> None:
        self.world.say(f"every other connection is refused for {span_ms:.0f} ms")
        self.network.refuses = 0.5
        self.world.after(span_ms, setattr, self.network, "refuses", 0.0)

    def move(self, which: float, node: int, clean: bool) -> None:
        partitions = self.cluster.partitions()
        partition = partitions[int(which * len(partitions))]
        self.cluster.move(partition, node, clean, self.lag_ms)

    def crash(self, node: int) -> None:
        self.brokers[node].crash()

    def start(self, node: int) -> None:
        self.brokers[node].start()

    def fail_over(self, node: int, clean: bool) -> None:
        """Other brokers become leaders of a crashed broker's partitions."""
        up = [broker.node for broker in self.brokers.values() if broker.is_up and broker.node != node]
        if self.brokers[node].is_up or not up:
            return
        for partition in self.cluster.partitions():
            if partition.leader == node:
                self.cluster.move(partition, self.world.random.choice(up), clean, self.lag_ms)

    def pause(self, node: int, span_ms: float) -> None:
        """A broker does nothing for a while, and then continues."""
        self.world.say(f"broker {node} pauses for {span_ms:.0f} ms")
        self.brokers[node].paused_until_ns = self.world.now_ns + int(span_ms * NS_PER_MS)

    def heal(self) -> None:
        """Ends all trouble, except that clients have to detect connections that swallow everything."""
        self.world.say("all trouble ends")
        self.healed = True
        self.history.manners.fault_rate = 0.0
        self.network.refuses = 0.0
        for broker in self.brokers.values():
            broker.start()
            broker.paused_until_ns = 0
        for wire in self.network.wires:
            wire.stalled_until_ns = 0
        for partition in self.cluster.partitions():
            self.cluster.learn(partition, self.cluster.nodes)
