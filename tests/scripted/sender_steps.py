"""Helpers for tests that run the sender loop step by step with a ``Rig``."""

import selectors
import socket
from collections.abc import Callable
from typing import Any

from tools.harness.reference_records import PartitionResponse, encode_produce_response
from tools.harness.rig import Peer, Rig, Seen


def response_to(seen: Seen, correlation_id: int | None = None, offset: int = 0) -> bytes:
    """Returns a response that acknowledges every batch of the request."""
    topics: dict[str, list[PartitionResponse]] = {}
    for topic, index in seen.places:
        topics.setdefault(topic, []).append(PartitionResponse(index, base_offset=offset))
    number = seen.request.correlation_id if correlation_id is None else correlation_id
    return encode_produce_response(seen.request.api_version, number, list(topics.items()))


PRODUCER = 4711


class NotingSelector(selectors.SelectSelector):
    """Records the timeouts of its waits, but does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_ms: list[float] = []
        #: Called during each wait.
        self.meanwhile: Callable[[], object] = lambda: None

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None
        self.waits_ms.append(timeout * 1000)
        self.meanwhile()
        return super().select(0)


def grant(rig: Rig, producer_id: int = PRODUCER, epoch: int = 0) -> None:
    """Gives an idempotent producer its id."""
    machine = rig.fates.idempotence
    assert machine.want()
    machine.granted(producer_id, epoch)
    rig.sender.set_identity(producer_id, epoch)


def give(rig: Rig, data: bytes, node: int = 1) -> None:
    rig.peers[node].sock.sendall(data)
    rig.step()


def one(rig: Rig) -> Seen:
    (seen,) = rig.requests()
    return seen


def cause_of_the_end(rig: Rig) -> BaseException:
    ((node, cause),) = rig.control.broken
    rig.control.broken.clear()
    assert node == 1
    assert cause is not None
    return cause


def narrow(peer: Peer) -> None:
    """Makes the sender's socket accept only a few bytes per write."""
    peer.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
