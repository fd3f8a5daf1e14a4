"""The table of pending requests: each gets a response, or the reason why there is none."""

from collections.abc import Iterator
from copy import copy
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.config import ProducerConfig
from cyproducer.net.connection import Connection
from cyproducer.net.connector import Connector
from cyproducer.wire.messages import FIND_COORDINATOR, METADATA
from cyproducer.wire.schema import Api
from tools.harness.rig import Rig


class Sending:
    """A connection of a rig, on which a connector's methods send requests. Their frames are not read."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.connector = Connector.__new__(Connector)
        self.connector._loop = rig.sender
        self.connector._clock = rig.clock
        self.connector._config = ProducerConfig()
        self.connection = rig.connect(1).connection
        #: What was called, in order: the name that was given to the request, and the response or the cause.
        self.called: list[tuple[str, Any]] = []
        rig.control.on_broken = self.on_broken  # type: ignore[method-assign, assignment]

    def on_broken(self, connection: Connection, cause: Exception, now_ms: float) -> None:
        self.connector.fail_pending(connection, cause, now_ms)

    def request(
        self, name: str, decode: Any = None, raises: Exception | None = None, api: Api = METADATA
    ) -> int:
        def on_response(connection: Connection, version: int, response: Any, now_ms: float) -> None:
            self.called.append((name, response))
            if raises is not None:
                raise raises

        numbers: list[int] = []

        def encode(version: int, number: int, client_id: str) -> bytes:
            numbers.append(number)
            return bytes(8)

        self.connector.request(
            self.connection,
            api,
            encode,
            on_response,
            lambda connection, cause, now_ms: self.called.append((name, cause)),
            version=1,
            decode=decode or (lambda version, frame: frame),
        )
        return numbers[0]

    def answer(self, number: int, frame: bytes = b"response") -> None:
        self.connector.on_frame(self.connection, number, frame, 0.0)


@pytest.fixture
def sending() -> Iterator[Sending]:
    with Rig() as rig:
        yield Sending(rig)


def test_each_response_goes_to_its_request(sending: Sending) -> None:
    first, second = sending.request("first"), sending.request("second")
    assert list(sending.connection.pending) == [first, second]
    sending.answer(first, b"1")
    sending.answer(second, b"2")
    assert sending.called == [("first", b"1"), ("second", b"2")]
    assert not sending.connection.pending


def test_the_requests_of_a_connection_that_is_closed_fail_in_the_order_of_sending(sending: Sending) -> None:
    for name in ("first", "second", "third"):
        sending.request(name)
    cause = errors.KafkaConnectionError("gone")
    sending.rig.sender.close_connection(sending.connection, cause)
    assert sending.called == [("first", cause), ("second", cause), ("third", cause)]
    assert not sending.connection.pending


def test_a_response_that_cannot_be_decoded_fails_its_request_and_those_after_it(sending: Sending) -> None:
    error = errors.KafkaProtocolError("malformed")

    def decode(version: int, frame: bytes) -> Any:
        raise error

    first = sending.request("first", decode)
    sending.request("second")
    sending.answer(first)
    assert sending.called == [("first", error), ("second", error)]


def test_a_response_that_ends_the_connection_is_the_only_call_of_its_request(sending: Sending) -> None:
    error = errors.KafkaError("refused")
    first = sending.request("first", raises=error)
    sending.request("second")
    sending.answer(first)
    assert sending.called == [("first", b"response"), ("second", error)]


def test_a_throttle_time_counts_from_the_version_on_in_which_the_client_has_to_wait(sending: Sending) -> None:
    class Response:
        throttle_time_ms = 500

    throttling = copy(FIND_COORDINATOR)
    throttling.client_throttles = 1
    for api in (METADATA, throttling):
        sending.answer(sending.request("any", lambda version, frame: Response(), api=api))
        assert (sending.connection.throttled_ms(0.0) > 0) is (api is not METADATA)


def test_a_request_on_a_socket_that_is_gone_fails_at_once(sending: Sending) -> None:
    sending.connection.sock.shutdown(1)
    sending.request("first")
    ((name, cause),) = sending.called
    assert name == "first"
    assert isinstance(cause, errors.KafkaConnectionError)
