"""Sends a record by each codec to the embedded broker, with the installed package. The test of a wheel."""

import cyproducer
from cyproducer import KafkaProducer
from cyproducer.testing import EmbeddedBroker


def main() -> None:
    with EmbeddedBroker() as broker:
        for codec in (None, "gzip", "snappy", "lz4", "zstd"):
            with KafkaProducer(
                bootstrap_servers=broker.bootstrap_servers, compression_type=codec
            ) as producer:
                assert producer.send("orders", b"a record").get(timeout=30).topic == "orders"
    print("sent with", cyproducer.__version__, "from", cyproducer.__file__)


if __name__ == "__main__":
    main()
