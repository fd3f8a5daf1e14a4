"""Sends records with cyproducer, a future for each, or with confluent-kafka, a callback for each.
``languages.py`` explains the arguments, of which the first is the client, and the output.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cyproducer(bootstrap: str, value: bytes, options: dict[str, Any]) -> tuple[str, Callable[[int], None]]:
    import cyproducer

    producer = cyproducer.KafkaProducer({"bootstrap.servers": bootstrap, **options})

    def send(records: int) -> None:
        send = producer.send
        for _ in range(records):
            send("bench", value)
        producer.flush()

    return cyproducer.__version__, send


def confluent_kafka(
    bootstrap: str, value: bytes, options: dict[str, Any]
) -> tuple[str, Callable[[int], None]]:
    import confluent_kafka

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, **options}
    )

    def on_delivery(error: Any, _message: Any) -> None:
        if error is not None:
            sys.exit(str(error))

    def send(records: int) -> None:
        produce, poll = producer.produce, producer.poll
        for number in range(records):
            while True:
                try:
                    produce("bench", value, on_delivery=on_delivery)
                except BufferError:
                    poll(0.01)
                else:
                    break
            if number % 1024 == 0:
                poll(0)
        producer.flush()

    return str(confluent_kafka.__version__), send


def main(client: str, bootstrap: str, records: int, size: int) -> None:
    options = {"linger.ms": 5} if size == 100 else {}
    clients = {"cyproducer": cyproducer, "confluent-kafka": confluent_kafka}
    version, send = clients[client](bootstrap, bytes(size), options)
    send(records // 5)
    used, start = cpu_s(), time.monotonic()
    send(records)
    used, elapsed = cpu_s() - used, time.monotonic() - start
    print(
        json.dumps({"version": version, "cpu_us": used * 1e6 / records, "wall_us": elapsed * 1e6 / records})
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
