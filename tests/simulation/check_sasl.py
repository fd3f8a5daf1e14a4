"""Checks what must hold after a history in which brokers require authentication.

Does not own the other promises (``check``), which hold in these histories as well.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cyproducer.errors import (
    IllegalSaslStateError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from tests.scripted.scripted_wire import SASL_HANDSHAKE
from tests.simulation.model_sasl import HASTE_MS, Term
from tests.simulation.world import NS_PER_MS, START_NS

if TYPE_CHECKING:
    from tests.simulation.simulate import Simulation

RENEWAL = (0.85, 0.95)
"""The part of a session after which it is renewed."""
SOONEST_MS = HASTE_MS + 50
"""The client authenticates no sooner than this after the last authentication."""
JITTER = 0.2
"""How much shorter than ``authentication_backoff_ms`` a backoff may be."""
MANY_RETRIES = 100
"""With fewer, records may fail with the error of their last attempt."""
SLACK_MS = 5.0
"""How late the client may do anything: it sleeps in whole milliseconds."""


def check_sasl(simulation: "Simulation") -> Iterator[str]:
    """Returns the violations."""
    gate = simulation.gate
    if gate is None:
        return
    yield from gate.trespasses
    yield from _late(simulation)
    yield from _renewals(simulation)
    yield from _hammering(simulation)
    for sent in simulation.client.records:
        if isinstance(
            sent.error, SaslAuthenticationFailedError | UnsupportedSaslMechanismError | IllegalSaslStateError
        ):
            # Records that wait for metadata fail at once if no broker accepts the client. Others are retried.
            if not sent.parked and simulation.client.config.retries > MANY_RETRIES:
                yield f"record {sent.number} was queued, and failed with {sent.error!r}"
            elif sent.parked and not gate.refused_first and not simulation.history.asks_vault:
                yield f"record {sent.number} failed because of a re-authentication: {sent.error!r}"


def _slack_ns(simulation: "Simulation", from_ns: int, to_ns: int) -> int:
    """How late the client may do what is due at ``to_ns``, since ``from_ns``."""
    slack_ms = SLACK_MS + 2 * simulation.history.step_ms
    from_ms, to_ms = (from_ns - START_NS) / NS_PER_MS, (to_ns - START_NS) / NS_PER_MS
    for start, end in simulation.history.frozen:
        if start <= to_ms + slack_ms and end >= from_ms:
            slack_ms += end - start
    return int(slack_ms * NS_PER_MS)


def _late(simulation: "Simulation") -> Iterator[str]:
    """After the end of a session the client sends no request; those before it may arrive later."""
    assert simulation.gate is not None
    for late in simulation.gate.late:
        term = late.term
        if term is None or simulation.history.narrow:
            # Requests may wait for room in the socket.
            continue
        end_ns = term.told_ns + term.lifetime_ms * NS_PER_MS
        over_ns = late.begun_ns - end_ns
        if over_ns > _slack_ns(simulation, term.told_ns, end_ns):
            yield (
                f"{term.wire}: a request with API key {late.key} was sent {over_ns / NS_PER_MS:.3f} ms after "
                "the end of the session"
            )


def _renewals(simulation: "Simulation") -> Iterator[str]:
    """Sessions are renewed in time, but not too early; later only if getting the credentials takes long."""
    assert simulation.gate is not None
    for term in simulation.gate.terms:
        wire = term.wire
        begun = (at for key, at in wire.requests if key == SASL_HANDSHAKE and at > term.told_ns)
        next_ns = next(begun, None)
        soonest_ns, latest_ns = _due(term)
        if next_ns is not None and next_ns < soonest_ns:
            after_ms = (next_ns - term.told_ns) / NS_PER_MS
            yield f"{wire}: a session of {term.lifetime_ms} ms was renewed after {after_ms:.3f} ms"
        if not term.lifetime_ms or simulation.history.asks_vault or simulation.history.narrow:
            continue
        at_ns = next_ns or (simulation.world.now_ns if wire.is_open else wire.ended_ns)
        if at_ns > latest_ns + _slack_ns(simulation, term.told_ns, latest_ns):
            after_ms = (at_ns - term.told_ns) / NS_PER_MS
            yield f"{wire}: a session of {term.lifetime_ms} ms was not renewed for {after_ms:.3f} ms"


def _due(term: Term) -> tuple[int, int]:
    """When the renewal may begin, and when it must."""
    low, high = (int(part * term.lifetime_ms * NS_PER_MS) for part in RENEWAL)
    soonest_ns = term.told_ns + int(SOONEST_MS * NS_PER_MS)
    # The client counts from when it makes its last request. That may be before the first byte is written, but
    # not before the handshake that it follows.
    asked_ns = max(
        (at for key, at in term.wire.requests if key == SASL_HANDSHAKE and at <= term.told_ns),
        default=term.told_ns,
    )
    return max(soonest_ns, asked_ns + low) - 1000, max(soonest_ns, term.told_ns + high)


def _hammering(simulation: "Simulation") -> Iterator[str]:
    """Once a broker has refused the client, the client tries it only after its backoff."""
    assert simulation.gate is not None
    shortest_ms = simulation.client.config.authentication_backoff_ms * (1 - JITTER)
    for node, after_ms in simulation.gate.retries:
        if after_ms < shortest_ms:
            yield (
                f"broker {node} refused the client, which connected again after {after_ms:.3f} ms; "
                f"the backoff is at least {shortest_ms:.0f} ms"
            )
