"""How long ``ProducerIdClient`` waits between two requests, and which connections it gives up."""

import math
from types import SimpleNamespace
from typing import Any, cast

from cyproducer import errors
from cyproducer.clients.producer_id import ProducerIdClient
from cyproducer.config import ProducerConfig
from cyproducer.control.idempotence import Idempotence, State
from cyproducer.control.log_limit import LogLimit
from cyproducer.control.retry import ExponentialBackoff
from cyproducer.net.connection import Connection
from cyproducer.net.connector import Connector
from cyproducer.sender.sender import Sender
from cyproducer.wire.messages import INIT_PRODUCER_ID
from cyproducer.wire.responses import InitProducerIdResponse

STILL_LOADING = 14


class Peer:
    """One connection to one broker, with what the client does to the sender and the connector."""

    def __init__(self, version: int | None) -> None:
        versions = {} if version is None else {INIT_PRODUCER_ID: version}
        handshake = SimpleNamespace(versions=versions)
        self.connection = cast(
            Connection,
            SimpleNamespace(handshake=handshake, in_flight=0, where="broker:9092"),
        )
        self.requests = 0
        self.closed: list[BaseException] = []
        self.identities: list[tuple[int, int]] = []
        self.idempotence = Idempotence()
        self.client = ProducerIdClient(
            ProducerConfig(),
            cast(Sender, self),
            self.idempotence,
            ExponentialBackoff(100, 10_000),
            LogLimit(lambda *line: None),
            lambda: 0.5,
            cast(Connector, self),
        )

    # What is called of the sender

    def request_control(self) -> None:
        pass

    def set_identity(self, producer_id: int, epoch: int) -> None:
        self.identities.append((producer_id, epoch))

    def close_connection(self, connection: Connection, cause: BaseException) -> None:
        self.closed.append(cause)

    # What is called of the connector

    def free(self, now_ms: float) -> list[Connection]:
        return [self.connection]

    def request(self, *given: Any) -> None:
        self.requests += 1

    # What the broker says

    def answers(self, error_code: int, now_ms: float) -> None:
        response = InitProducerIdResponse(0, error_code, 7 if error_code == 0 else -1, 0)
        self.client.on_producer_id(self.connection, 4, response, now_ms)


def test_the_backoff_begins_anew_after_an_id_was_granted() -> None:
    """An id that is needed days later does not wait for refusals of the first minute."""
    peer = Peer(version=4)
    now_ms = 0.0
    for refusals in range(1, 5):
        peer.client.tick(now_ms)
        assert peer.requests == refusals
        peer.answers(STILL_LOADING, now_ms)
        now_ms += peer.client.tick(now_ms)
    assert now_ms > 1000
    peer.client.tick(now_ms)
    peer.answers(0, now_ms)
    assert peer.identities == [(7, 0)]
    assert peer.client.tick(now_ms) == math.inf
    # The id is lost.
    peer.idempotence.state = State.NO_ID
    peer.client.tick(now_ms)
    peer.answers(STILL_LOADING, now_ms)
    assert 0 < peer.client.tick(now_ms) <= 120


def test_a_connection_to_a_broker_without_ids_is_closed() -> None:
    """So that the next request may go to another broker."""
    peer = Peer(version=None)
    peer.client.tick(0)
    (cause,) = peer.closed
    assert isinstance(cause, errors.UnsupportedVersionError)
    assert "broker:9092 does not support InitProducerId" in str(cause)
    assert peer.requests == 0
