"""Tests of the model's sessions: which requests a connection may carry, and what the checks learn."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cyproducer.wire.protocol import encode_sasl_authenticate, encode_sasl_handshake
from tests.scripted.scripted_sasl import SaslServer
from tests.scripted.scripted_wire import API_VERSIONS, PRODUCE, read_header
from tests.simulation.model_sasl import SaslGate, SaslManners, Session
from tests.simulation.world import NS_PER_MS, START_NS, World

LIFETIME_MS = 3000
HANDSHAKE = encode_sasl_handshake(1, 1, "test", "PLAIN")
PASSWORD = encode_sasl_authenticate(1, 2, "test", b"\0alice\0secret")


class OneConnection:
    """A session whose responses arrive at once."""

    def __init__(self) -> None:
        self.world = World(1)
        server = SaslServer(lifetime_ms=LIFETIME_MS)
        self.gate = SaslGate(self.world, SaslManners(server, SaslServer(users={})))
        self.responses: list[bytes] = []
        self.finished = False
        conversation = SimpleNamespace(
            broker=SimpleNamespace(node=1, life=0),
            life=0,
            is_gone=False,
            wire=SimpleNamespace(send=self._answer),
            answer=self._answer,
            finish=lambda: setattr(self, "finished", True),
        )
        self.session = Session(self.gate, cast(Any, conversation))

    def _answer(self, response: bytes, then: Any = None) -> None:
        self.responses.append(response)
        if then is not None:
            then()

    def admits(self, key: int) -> bool:
        return self.session.admits(key, self.world.now_ns)

    def request(self, frame: bytes) -> int:
        """Sends a request; returns the error code of its response."""
        header = read_header(frame[4:])
        assert self.admits(header.api_key)
        self.session.handle(header)
        self.world.run_due()
        return int.from_bytes(self.responses[-1][8:10], "big")

    def authenticate(self) -> int:
        return self.request(HANDSHAKE) or self.request(PASSWORD)

    def wait(self, ms: float) -> None:
        self.world.move_to(self.world.now_ns + int(ms * NS_PER_MS))


@pytest.fixture
def connection() -> OneConnection:
    return OneConnection()


def test_only_one_request_for_versions_comes_before_the_authentication(connection: OneConnection) -> None:
    assert connection.admits(API_VERSIONS)
    assert not connection.admits(API_VERSIONS)
    assert not connection.admits(PRODUCE)
    assert len(connection.gate.trespasses) == 2
    assert connection.authenticate() == 0
    assert connection.admits(PRODUCE)
    assert len(connection.gate.trespasses) == 2
    assert [term.lifetime_ms for term in connection.gate.terms] == [LIFETIME_MS]


def test_nothing_comes_in_the_middle_of_a_renewal(connection: OneConnection) -> None:
    connection.authenticate()
    connection.wait(1000)
    assert connection.request(HANDSHAKE) == 0
    assert not connection.admits(PRODUCE)
    assert connection.gate.trespasses[0].endswith("with API key 0 in the middle of an authentication")


def test_a_renewal_within_a_second_is_refused(connection: OneConnection) -> None:
    connection.authenticate()
    connection.wait(999)
    assert connection.request(HANDSHAKE) == 34
    assert not connection.finished
    assert connection.gate.trespasses[0].endswith("with API key 17 999 ms after an authentication")
    connection.wait(1)
    assert connection.authenticate() == 0


def test_an_ended_session_can_only_be_renewed(connection: OneConnection) -> None:
    connection.authenticate()
    connection.wait(LIFETIME_MS)
    assert connection.admits(PRODUCE)
    connection.wait(1)
    assert not connection.admits(PRODUCE)
    (late,) = connection.gate.late
    assert (late.key, late.term) == (PRODUCE, connection.gate.terms[0])
    assert connection.authenticate() == 0
    assert connection.admits(PRODUCE)
    assert connection.gate.trespasses == []


def test_a_refusal_is_told_and_closes_the_connection(connection: OneConnection) -> None:
    connection.gate.faults[1].add("refuse")
    assert connection.authenticate() == 58
    assert connection.finished
    assert connection.gate.refused_ns == {1: START_NS}
    assert connection.gate.refused_first
    Session(connection.gate, connection.session.conversation)
    assert connection.gate.retries == [(1, 0.0)]
