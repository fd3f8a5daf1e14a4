"""Sends a record by each codec to the embedded broker, with the installed package. The test of a wheel.

Fails on a free-threaded Python if the package has switched the GIL on.
"""

import sys
import sysconfig

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
    if sys.version_info >= (3, 13) and sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert not sys._is_gil_enabled(), "importing the package has switched the GIL on"
    print("sent with", cyproducer.__version__, "from", cyproducer.__file__)


if __name__ == "__main__":
    main()
