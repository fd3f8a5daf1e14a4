"""A broker that leaves the metadata while its name is looked up."""

from typing import cast

from cyproducer.base.clock import ManualClock
from cyproducer.config import ProducerConfig
from cyproducer.control.node_states import Address
from cyproducer.net.connector import Connector
from cyproducer.net.dns import Resolution, Resolver, ResolveRequest
from cyproducer.sender.sender import Sender


class Silent:
    """A resolver that answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[ResolveRequest] = []
        self.answers: list[Resolution] = []

    def resolve(self, host: str, port: int, canonical: bool = False) -> ResolveRequest:
        self.asked.append(ResolveRequest(host, port, canonical))
        return self.asked[-1]

    def poll(self) -> list[Resolution]:
        answers, self.answers = self.answers, []
        return answers


class NoSender:
    """What a connector asks of a sender before there is a connection."""

    def request_control(self) -> None:
        pass


def test_the_look_up_of_a_broker_that_is_dropped_is_no_longer_named_nor_used() -> None:
    resolver = Silent()
    failures: list[BaseException] = []
    connector = Connector(
        ProducerConfig(bootstrap_servers="127.0.0.1:9092"),
        cast(Sender, NoSender()),
        ManualClock(1_000_000_000),
        lambda: 0.5,
        lambda error, now_ms: failures.append(error),
        resolver=cast(Resolver, resolver),
    )
    connector.know(5, "old.example", 9093)
    connector.connect_to(5, 1000)
    (question,) = resolver.asked
    assert connector.diagnosis() == "still looking up old.example:9093"
    connector.drop(5)
    assert connector.diagnosis() == ""
    # The broker is back at another address, whose look-up is not answered by that of the old one.
    connector.know(5, "new.example", 9093)
    connector.connect_to(5, 1000)
    resolver.answers.append(Resolution(question, [Address("old.example", 2, ("192.0.2.1", 9093))], None))
    connector.tick(1000)
    assert connector.diagnosis() == "still looking up new.example:9093"
    assert not connector.connections
    assert not failures
