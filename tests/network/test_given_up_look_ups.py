"""Look-ups of names that are given up: nobody waits for their answers any more."""

import functools
import socket
import threading
from typing import Any

import pytest

from cyproducer.network import connector
from cyproducer.network.dns import Resolver, ResolveRequest
from tests.network.producing import WAIT_S, producing
from tools.harness.until import until

pytestmark = pytest.mark.timeout(60)


def test_errors_name_a_look_up_once_however_often_it_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each attempt of a producer that cannot reach its name server would keep some memory, too."""
    hold = threading.Event()
    asked: list[str] = []

    def look_up(host: str, port: int, **options: Any) -> Any:
        hold.wait(WAIT_S)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    class Counted(Resolver):
        def resolve(self, host: str, port: int, canonical: bool = False) -> ResolveRequest:
            asked.append(host)
            return super().resolve(host, port, canonical)

    monkeypatch.setattr(connector, "Resolver", functools.partial(Counted, getaddrinfo=look_up))
    with producing(
        bootstrap_servers="hangs.example:9092",
        socket_connection_setup_timeout_ms=5,
        socket_connection_setup_timeout_max_ms=5,
    ) as producer:
        until(lambda: len(asked) > 3, "three look-ups that were given up")
        said = producer._runtime.client.diagnosis()
        hold.set()
    assert said.count("still looking up hangs.example:9092") <= 1
    assert "name resolution took over" in said
