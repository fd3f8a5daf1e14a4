"""The process behind `EmbeddedBroker`: ``mock_cluster.py BROKERS``, not for import.

Runs librdkafka's mock cluster, prints its address as one line of JSON, then executes commands from stdin, one
JSON line each (``["create_topic", "t", 3, 1]``), and replies to each with one line. Ends when stdin closes.

confluent-kafka's Python API reaches the mock only through the option ``test.mock.num.brokers``, which has
neither topics nor failures. So this calls librdkafka's C functions, which the wheel exports, through ctypes.
Names and types are those of ``rdkafka_mock.h``. librdkafka's threads serve; this thread waits for stdin.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable

PRODUCER = 0
"""``RD_KAFKA_PRODUCER``; the mock needs a client to run in, of either kind."""
LOG_ERRORS_ONLY = b"3"
"""syslog's level: the mock's less severe messages are about connecting and disconnecting clients."""


class MockCluster:
    """A mock cluster that exists until the process ends; only that frees its memory.

    Raises:
        ImportError, OSError, AttributeError: The installed confluent-kafka has another core, or librdkafka
            without one of the functions.
    """

    def __init__(self, brokers: int) -> None:
        from confluent_kafka import cimpl

        # Also finds symbols in the libraries that the extension links to, wherever the wheel has them.
        library = ctypes.CDLL(cimpl.__file__)
        pointer, text, integer = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int

        def function(name: str, returns: type | None, *takes: type) -> Callable[..., object]:
            found = library[name]
            found.restype = returns
            found.argtypes = takes
            return found

        set_option = function("rd_kafka_conf_set", integer, pointer, text, text, text, ctypes.c_size_t)
        new_client = function("rd_kafka_new", pointer, integer, pointer, text, ctypes.c_size_t)
        error_text = function("rd_kafka_err2str", text, integer)
        mock = "rd_kafka_mock_"
        new_cluster = function(f"{mock}cluster_new", pointer, pointer, integer)
        bootstraps = function(f"{mock}cluster_bootstraps", text, pointer)
        self._create_topic = function(f"{mock}topic_create", integer, pointer, text, integer, integer)
        self._push_errors = function(
            f"{mock}push_request_errors_array", None, pointer, ctypes.c_int16, ctypes.c_size_t, pointer
        )
        self._set_down = function(f"{mock}broker_set_down", integer, pointer, ctypes.c_int32)
        self._set_up = function(f"{mock}broker_set_up", integer, pointer, ctypes.c_int32)
        self._set_rtt = function(f"{mock}broker_set_rtt", integer, pointer, ctypes.c_int32, integer)
        self._set_leader = function(
            f"{mock}partition_set_leader", integer, pointer, text, ctypes.c_int32, ctypes.c_int32
        )
        self._error_text = error_text

        reason = ctypes.create_string_buffer(512)
        options = function("rd_kafka_conf_new", pointer)()
        set_option(options, b"log_level", LOG_ERRORS_ONLY, reason, len(reason))
        client = new_client(PRODUCER, options, reason, len(reason))
        if not client:
            raise RuntimeError(f"librdkafka could not create a client: {reason.value.decode()}")
        self._cluster = new_cluster(client, brokers)
        if not self._cluster:
            raise RuntimeError(f"librdkafka could not create a mock cluster of {brokers} brokers")
        address = bootstraps(self._cluster)
        assert isinstance(address, bytes)
        self.bootstrap_servers = address.decode()

    def create_topic(self, name: str, partitions: int, replication: int) -> None:
        self._check(
            f"creating topic {name!r} with {partitions} partitions",
            self._create_topic(self._cluster, name.encode(), partitions, replication),
        )

    def fail_next(self, api_key: int, error_codes: list[int]) -> None:
        codes = (ctypes.c_int * len(error_codes))(*error_codes)
        self._push_errors(self._cluster, api_key, len(codes), codes)

    def take_down(self, broker_id: int) -> None:
        self._check(f"taking broker {broker_id} down", self._set_down(self._cluster, broker_id))

    def bring_up(self, broker_id: int) -> None:
        self._check(f"bringing broker {broker_id} up", self._set_up(self._cluster, broker_id))

    def delay(self, broker_id: int, delay_ms: int) -> None:
        self._check(f"delaying broker {broker_id}", self._set_rtt(self._cluster, broker_id, delay_ms))

    def move_leader(self, topic: str, partition: int, broker_id: int) -> None:
        self._check(
            f"moving the leader of {topic}-{partition} to broker {broker_id}",
            self._set_leader(self._cluster, topic.encode(), partition, broker_id),
        )

    def _check(self, what: str, code: object) -> None:
        if code != 0:
            said = self._error_text(code)
            assert isinstance(said, bytes)
            raise RuntimeError(f"{what} failed: {said.decode()}")


def main(brokers: int) -> None:
    try:
        cluster = MockCluster(brokers)
    except (ImportError, OSError, AttributeError) as error:
        version = importlib.metadata.version("confluent-kafka")
        reason = (
            f"confluent-kafka {version} is installed, which has no mock cluster for EmbeddedBroker to run "
            f"({error}): pip install 'cyproducer[testing]' installs a version that has one"
        )
        print(json.dumps({"error": reason}), flush=True)
        return
    commands: dict[str, Callable[..., None]] = {
        "create_topic": cluster.create_topic,
        "fail_next": cluster.fail_next,
        "take_down": cluster.take_down,
        "bring_up": cluster.bring_up,
        "delay": cluster.delay,
        "move_leader": cluster.move_leader,
    }
    print(json.dumps({"bootstrap_servers": cluster.bootstrap_servers}), flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        answer = {}
        try:
            commands[command](*arguments)
        except RuntimeError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    # Also ends librdkafka's threads, without waiting for any of them.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
