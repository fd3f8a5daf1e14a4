"""Copies a topic exactly once: a consume-transform-produce loop, run as a process of its own.

    transactional_copy.py SERVERS SOURCE TARGET AUDIT GROUP TRANSACTIONAL_ID [--option VALUE ...]

Reads committed records of SOURCE with librdkafka's consumer, writes ``transform(value)`` to the partition of
TARGET that has the same number, one record per partition and transaction to AUDIT, and the offsets with the
transaction. Prints a line per outcome: ``joined``, ``committed COUNT``, ``aborted WHY``, ``fatal WHY``. Ends
in order on SIGTERM.

Needs the package and confluent-kafka only: `exactly_once` also runs it on an installed package.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition

import cyproducer
from cyproducer import KafkaProducer, errors

FATAL = 3
"""The exit status of a copier whose producer or consumer can't go on."""
PATIENCE_S = 120.0
PHASES = ("begun", "sent", "flushed", "offsets", "committing", "committed")
"""Where ``--die`` kills the process."""
MOST_RECORDS = 200
ABORTED_SHARE = 0.1
"""The share of transactions that the program aborts although nothing failed."""


def transform(value: bytes) -> bytes:
    return b"copy of " + value


def audit(partition: int, first: int, last: int) -> bytes:
    """Returns the value that says which offsets of a partition a transaction has copied."""
    return b"%d %d %d" % (partition, first, last)


class ConsumerFailedError(Exception):
    """The consumer can't go on: another one has its place in the group."""


class Copier:
    """The loop. For one thread."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._rng = random.Random(arguments.seed)
        self._transactions = 0
        self._fatal_transaction = self._rng.randint(1, 5)
        self._ending = False
        self._rebalanced = False
        self._next: dict[int, int] = {}
        """The offset that comes next, of each partition: the source has no gaps."""
        signal.signal(signal.SIGTERM, self._end)
        # Through the module, where development may put another producer.
        self._producer: KafkaProducer = cyproducer.KafkaProducer(
            bootstrap_servers=arguments.servers,
            transactional_id=arguments.transactional_id,
            transaction_timeout_ms=arguments.transaction_timeout_ms,
            request_timeout_ms=3_000,
            retry_backoff_ms=20,
            retry_backoff_max_ms=500,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=500,
            # Many batches per transaction.
            batch_size=1_000,
        )
        options: dict[str, Any] = {
            "bootstrap.servers": arguments.servers,
            "group.id": arguments.group,
            "group.protocol": arguments.protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
        if arguments.protocol == "classic":
            options |= {"session.timeout.ms": arguments.session_timeout_ms, "heartbeat.interval.ms": 300}
        if arguments.instance:
            options["group.instance.id"] = arguments.instance
        self._consumer = Consumer(options)

    def run(self) -> None:
        """Copies until SIGTERM.

        Raises:
            ApplicationRecoverableError: The producer can't go on.
            ConsumerFailedError: The consumer can't go on.
        """
        try:
            self._until_settled(self._producer.init_transactions)
            # With these, the group gives no partition to another member before `consume` has returned.
            self._consumer.subscribe(
                [self._arguments.source],
                on_assign=self._changed,
                on_revoke=self._changed,
                on_lost=self._changed,
            )
            say("joined")
            while not self._ending:
                self._turn()
        finally:
            self._consumer.close()
        self._producer.close()

    def _turn(self) -> None:
        # Before the records are taken: a member that is paused after it, and loses them, is refused.
        group = self._consumer.consumer_group_metadata()
        self._rebalanced = False
        messages = self._consumer.consume(self._rng.randint(1, MOST_RECORDS), 0.2)
        failures = [error for message in messages if (error := message.error()) is not None]
        if any(error.fatal() for error in failures):
            raise ConsumerFailedError(failures)
        if self._rebalanced or failures or not self._follow(messages):
            self._rewind()
        elif messages:
            try:
                self._copy(messages, group)
            except errors.ApplicationRecoverableError:
                raise
            except errors.KafkaError as error:
                self._abort(reason(error))

    def _follow(self, messages: Sequence[Message]) -> bool:
        """Returns whether the records are the next ones of their partitions, and counts them as taken.

        They may not be: a seek during a rebalance may come too late for librdkafka, which then reads records
        again.
        """
        for message in messages:
            partition, offset = message.partition(), message.offset()
            if partition is None or offset is None or self._next.get(partition) != offset:
                say(f"record {offset} of partition {partition}, and {self._next} are the next")
                return False
            self._next[partition] = offset + 1
        return True

    def _copy(self, messages: Sequence[Message], group: object) -> None:
        producer, arguments = self._producer, self._arguments
        self._transactions += 1
        producer.begin_transaction()
        self._maybe_die("begun")
        ranges: dict[int, tuple[int, int]] = {}
        for message in messages:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            copied = transform(message.value() or b"")
            producer.send(arguments.target, copied, key=message.key(), partition=partition)
            ranges[partition] = (ranges.get(partition, (offset,))[0], offset)
        for partition, (first, last) in ranges.items():
            producer.send(arguments.audit, audit(partition, first, last), partition=0)
        self._maybe_die("sent")
        if self._dies_at("flushed") or self._rng.random() < 0.2:
            producer.flush()
            self._maybe_die("flushed")
        offsets = [
            TopicPartition(arguments.source, partition, last + 1) for partition, (_, last) in ranges.items()
        ]
        self._until_settled(lambda: producer.send_offsets_to_transaction(offsets, group))
        self._maybe_die("offsets")
        if self._rng.random() < ABORTED_SHARE:
            self._abort("by choice")
            return
        if self._dies_at("committing"):
            threading.Timer(self._rng.uniform(0, 0.02), self._die).start()
        self._until_settled(producer.commit_transaction)
        self._maybe_die("committed")
        say(f"committed {len(messages)}")

    def _abort(self, why: str) -> None:
        self._until_settled(self._producer.abort_transaction)
        say(f"aborted {why}")
        self._rewind()

    def _rewind(self) -> None:
        """Goes back to the group's committed offsets, behind which nothing is copied yet."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                found = self._consumer.committed(self._consumer.assignment(), timeout=5)
                for each in found:
                    if each.error is not None:
                        raise KafkaException(each.error)
                    offset = each.offset if each.offset >= 0 else OFFSET_BEGINNING
                    self._consumer.seek(TopicPartition(each.topic, each.partition, offset))
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise
                # The coordinator moves, or an assignment has no fetcher yet.
                say(f"cannot rewind: {error.args[0].name()}")
                self._rebalanced = False
                self._consumer.poll(0.1)
            else:
                if not self._rebalanced:
                    self._next = {each.partition: max(0, each.offset) for each in found}
                    return
                self._rebalanced = False

    def _until_settled(self, call: Any) -> None:
        """Calls until the outcome is known: after a timeout the same call goes on."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                call()
            except errors.KafkaTimeoutError as error:
                if time.monotonic() > deadline:
                    raise
                say(f"timeout {reason(error)}")
                time.sleep(0.1)
            else:
                return

    def _changed(self, _consumer: Consumer, _partitions: object) -> None:
        self._rebalanced = True

    def _end(self, *_: object) -> None:
        self._ending = True

    def _dies_at(self, phase: str) -> bool:
        return bool(self._arguments.die == phase) and self._transactions >= self._fatal_transaction

    def _maybe_die(self, phase: str) -> None:
        if self._dies_at(phase):
            self._die()

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def reason(error: BaseException) -> str:
    cause = f" <- {type(error.__cause__).__name__}" if error.__cause__ is not None else ""
    return f"{type(error).__name__}{cause}: {error}".replace("\n", " ")


def say(what: str) -> None:
    print(what, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("servers", "source", "target", "audit", "group", "transactional_id"):
        parser.add_argument(name)
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic")
    parser.add_argument("--instance", help="the member's group.instance.id (default: dynamic membership)")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--die", choices=PHASES, help="die here, in one of the first transactions")
    parser.add_argument("--transaction-timeout-ms", type=int, default=6_000)
    parser.add_argument("--session-timeout-ms", type=int, default=2_000)
    try:
        Copier(parser.parse_args()).run()
    except (errors.ApplicationRecoverableError, ConsumerFailedError) as error:
        say(f"fatal {reason(error)}")
        # Without the exits of threads and libraries: a process that can't go on may end in any way.
        os._exit(FATAL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
