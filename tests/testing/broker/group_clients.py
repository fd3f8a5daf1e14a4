"""Other projects' consumers as members of a group, behind one interface."""

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from tools.harness.until import PATIENCE_S, until

TOPIC: Final = "t"
POLL_S: Final = 0.01


class Client(ABC):
    """A consumer that is subscribed to "t" and commits when it is told to. It works while it is polled."""

    def __init__(self, addresses: str, group: str, instance: str | None = None) -> None:
        self.addresses = addresses
        self.group = group
        self.instance = instance
        #: What it has read.
        self.values: list[bytes] = []

    def options(self) -> dict[str, Any]:
        """Returns the options of a consumer whose names are kafka-python's."""
        return {
            "bootstrap_servers": self.addresses,
            "group_id": self.group,
            "group_instance_id": self.instance,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 50,
            "fetch_max_wait_ms": 50,
        }

    @abstractmethod
    def poll(self) -> None:
        """Takes part in the group for a moment, and reads."""

    @abstractmethod
    def assigned(self) -> set[int]:
        """Returns the partitions that it reads."""

    @abstractmethod
    def commit(self) -> None:
        """Commits what it has read."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the group, unless it is a static member."""


class KafkaPython(Client):
    """kafka-python's, on a thread that polls it all the time.

    It learns the topic before it joins: otherwise it joins twice, and if a call of ``poll()`` ends meanwhile,
    it forgets to read what it is assigned.
    """

    def __init__(self, addresses: str, group: str, instance: str | None = None) -> None:
        super().__init__(addresses, group, instance)
        self._assigned: set[int] = set()
        self._wanted: queue.SimpleQueue[tuple[Callable[[Any], object], Future[None]]] = queue.SimpleQueue()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="kafka-python", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        import kafka  # type: ignore[import-untyped]

        consumer = kafka.KafkaConsumer(TOPIC, **self.options())
        until(lambda: consumer.partitions_for_topic(TOPIC), "metadata")
        while not self._is_over:
            for records in consumer.poll(timeout_ms=100).values():
                self.values += [record.value for record in records]
            self._assigned = {each.partition for each in consumer.assignment()}
            while not self._wanted.empty():
                act, done = self._wanted.get()
                try:
                    act(consumer)
                    done.set_result(None)
                except Exception as error:
                    done.set_exception(error)

    def _call(self, act: Callable[[Any], object]) -> None:
        done: Future[None] = Future()
        self._wanted.put((act, done))
        done.result(PATIENCE_S)

    def poll(self) -> None:
        assert self._thread.is_alive()

    def assigned(self) -> set[int]:
        return self._assigned

    def commit(self) -> None:
        self._call(lambda consumer: consumer.commit())

    def close(self) -> None:
        self._is_over = True
        self._call(lambda consumer: consumer.close())
        self._thread.join(PATIENCE_S)


class Confluent(Client):
    """confluent-kafka's."""

    def __init__(self, addresses: str, group: str, instance: str | None = None) -> None:
        super().__init__(addresses, group, instance)
        from confluent_kafka import Consumer

        settings: dict[str, Any] = {
            "bootstrap.servers": addresses,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 50,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
        if instance is not None:
            settings["group.instance.id"] = instance
        self._consumer = Consumer(settings)
        self._consumer.subscribe([TOPIC])

    def poll(self) -> None:
        message = self._consumer.poll(POLL_S)
        if message is not None:
            assert message.error() is None, message.error()
            value = message.value()
            assert isinstance(value, bytes)
            self.values.append(value)

    def assigned(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


class Aiokafka(Client):
    """aiokafka's. Its loop runs while it is polled.

    ``start()`` and ``getmany()`` return once a rebalance is over, for which other members must be polled: so
    they are tasks, which nobody waits for.
    """

    def __init__(self, addresses: str, group: str, instance: str | None = None) -> None:
        super().__init__(addresses, group, instance)
        self._runner = asyncio.Runner()
        self._consumer: Any = None
        self._reading = self._runner.get_loop().create_task(self._read())

    async def _read(self) -> None:
        import aiokafka  # type: ignore[import-untyped]

        self._consumer = aiokafka.AIOKafkaConsumer(TOPIC, **self.options())
        await self._consumer.start()
        while True:
            for records in (await self._consumer.getmany(timeout_ms=1000)).values():
                self.values += [record.value for record in records]

    def poll(self) -> None:
        self._runner.run(self._poll())

    async def _poll(self) -> None:
        await asyncio.wait([self._reading], timeout=POLL_S)
        if self._reading.done():
            self._reading.result()

    def assigned(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def commit(self) -> None:
        self._runner.run(self._consumer.commit())

    def close(self) -> None:
        self._reading.cancel()
        self._runner.run(self._consumer.stop())
        self._runner.close()


CLIENTS: Final = (KafkaPython, Confluent, Aiokafka)
