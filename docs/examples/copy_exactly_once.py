"""Reads records, transforms them, and writes the results: each exactly once, through crashes and rebalances.

    python copy_exactly_once.py SERVERS SOURCE TARGET GROUP TRANSACTIONAL_ID

Needs cyproducer and confluent-kafka. Run one process per TRANSACTIONAL_ID, as many as there is work for, and
start one that has ended again with the same id. Ctrl-C and SIGTERM end it: what is not committed is read
again by the next one.
"""

import signal
import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from cyproducer import KafkaProducer, errors

MOST_RECORDS = 1000
"""Of one transaction."""


def transform(value: bytes) -> bytes:
    return value.upper()


def rewind(consumer: Consumer) -> None:
    """Goes back to the committed positions: what has been read since was not committed."""
    while True:
        try:
            seek_committed(consumer)
        except KafkaException:
            # A partition that was just assigned cannot be sought yet. What poll() returns is read again.
            consumer.poll(0.1)
        else:
            return


def seek_committed(consumer: Consumer) -> None:
    for place in consumer.committed(consumer.assignment(), timeout=30):
        consumer.seek(
            place if place.offset >= 0 else TopicPartition(place.topic, place.partition, OFFSET_BEGINNING)
        )


def copy(servers: str, source: str, target: str, group_id: str, transactional_id: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group_id,
            # A process that is started again gets its partitions back at once (KIP-345).
            "group.instance.id": transactional_id,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=transactional_id)
    try:
        producer.init_transactions()
        changes: list[object] = []
        # With these callbacks, a rebalance happens only inside consume().
        consumer.subscribe(
            [source],
            on_assign=lambda *_: changes.append("assigned"),
            on_revoke=lambda *_: changes.append("revoked"),
        )
        while True:
            changes.clear()
            # Before the records are read: if they belong to another consumer afterwards, the broker knows.
            group = consumer.consumer_group_metadata()
            messages = [
                message for message in consumer.consume(MOST_RECORDS, timeout=1) if not message.error()
            ]
            if changes:
                # The group's metadata may be from before: begin again with the partitions of now.
                rewind(consumer)
                continue
            if not messages:
                continue
            try:
                with producer.transaction():
                    for message in messages:
                        value = message.value()
                        assert value is not None
                        producer.send(target, transform(value), key=message.key())
                    producer.send_offsets_to_transaction(consumer.position(consumer.assignment()), group)
            except errors.AbortableError as error:
                print(f"aborted, reading again: {error}", file=sys.stderr)
                rewind(consumer)
    finally:
        consumer.close()
        # Aborts a transaction that is open.
        producer.close(timeout=30)


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        copy(*sys.argv[1:])
    except KeyboardInterrupt:
        return 0
    except errors.ApplicationRecoverableError as error:
        print(f"start it again: {error}", file=sys.stderr)
        return 75
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
