"""Connection states: the order of addresses, backoff, timeouts, idle connections and error texts."""

import math
import random
import socket
from collections import Counter

import pytest

from cyproducer.control.node_states import (
    SHORTEST_IDLE_MS,
    STAGGER_MS,
    Address,
    Connections,
    ConnectionState,
    cause_text,
)

REFUSED = ConnectionRefusedError(111, "Connection refused")
DISCONNECTED = ConnectionState.DISCONNECTED
CONNECTING = ConnectionState.CONNECTING
HANDSHAKING = ConnectionState.HANDSHAKING
READY = ConnectionState.READY
RESOLVING = ConnectionState.RESOLVING
BACKING_OFF = ConnectionState.BACKING_OFF


def address(host: str, port: int = 9092) -> Address:
    if ":" in host:
        return Address("broker1", socket.AF_INET6, (host, port, 0, 0))
    return Address("broker1", socket.AF_INET, (host, port))


FIRST, SECOND, THIRD = address("10.0.0.1"), address("10.0.0.2"), address("10.0.0.3")


def with_node(*addresses: Address, connections_max_idle_ms: float = 540_000) -> Connections:
    connections = Connections(lambda: 0.5, connections_max_idle_ms=connections_max_idle_ms)
    connections.add(1, "broker1", 9092)
    if addresses:
        connections.resolved(1, addresses)
    return connections


def complete(connections: Connections, now_ms: float) -> None:
    """A connection to the first address completes its handshake."""
    connections.begin_connect(1, now_ms)
    connections.connected(1, FIRST, now_ms)
    connections.ready(1, FIRST, now_ms)


def ready(now_ms: float = 0, connections_max_idle_ms: float = 540_000) -> Connections:
    connections = with_node(FIRST, SECOND, connections_max_idle_ms=connections_max_idle_ms)
    complete(connections, now_ms)
    return connections


def fail_round(connections: Connections, now_ms: float) -> None:
    connections.resolved(1, [FIRST])
    connections.begin_connect(1, now_ms)
    connections.failed(1, FIRST, REFUSED, now_ms)


def test_a_connection_goes_through_its_states() -> None:
    connections = with_node()
    assert connections.state(1, 0) is DISCONNECTED
    assert connections.needs_addresses(1)
    assert connections.connect_delay_ms(1, 0) == 0
    connections.resolved(1, [FIRST, SECOND])
    assert not connections.needs_addresses(1)
    assert connections.begin_connect(1, 0) == FIRST
    assert connections.state(1, 0) is CONNECTING
    assert connections.connect_delay_ms(1, 0) == STAGGER_MS
    connections.connected(1, FIRST, 1)
    assert connections.connect_delay_ms(1, 1) == math.inf
    assert connections.state(1, 1) is HANDSHAKING
    assert not connections.is_ready(1)
    connections.ready(1, FIRST, 2)
    assert connections.state(1, 2) is READY
    assert connections.is_ready(1)
    assert connections.connect_delay_ms(1, 2) == math.inf


def test_events_in_the_wrong_state_are_refused() -> None:
    connections = with_node()
    with pytest.raises(RuntimeError, match="cannot connect to node 1: 'broker1' has not been resolved"):
        connections.begin_connect(1, 0)
    connections.resolved(1, [FIRST])
    with pytest.raises(RuntimeError, match="node 1 is disconnected, it must be connecting"):
        connections.connected(1, FIRST, 0)
    connections.begin_connect(1, 0)
    with pytest.raises(RuntimeError, match="cannot connect to node 1: it is connecting, not disconnected"):
        connections.begin_connect(1, 0)
    with pytest.raises(RuntimeError, match=r"node 1 is connecting at .*, it must be handshaking"):
        connections.ready(1, FIRST, 0)
    with pytest.raises(KeyError):
        connections.state(2, 0)
    with pytest.raises(ValueError, match="no addresses for broker1:9092"):
        connections.resolved(1, [])


def test_nodes_are_added_moved_and_removed() -> None:
    connections = ready()
    assert not connections.add(1, "broker1", 9092)
    assert connections.is_ready(1)
    assert connections.add(1, "elsewhere", 9092)
    assert connections.state(1, 0) is DISCONNECTED
    assert connections.needs_addresses(1)
    assert connections.endpoint(1) == ("elsewhere", 9092)
    assert connections.add(1, "elsewhere", 9093)
    assert 1 in connections
    connections.remove(1)
    connections.remove(1)
    assert 1 not in connections
    assert not connections.is_ready(1)


# Addresses and backoff


def test_the_next_address_is_tried_at_once_and_backoff_follows_the_last() -> None:
    connections = with_node(FIRST, SECOND, FIRST)
    assert connections.begin_connect(1, 0) == FIRST
    connections.failed(1, FIRST, REFUSED, 10)
    assert connections.connect_delay_ms(1, 10) == 0
    assert connections.timed_out(1_000_000) == []
    assert connections.begin_connect(1, 10) == SECOND
    connections.connected(1, SECOND, 15)
    connections.failed(1, SECOND, "TLS handshake failed", 20)
    assert connections.state(1, 20) is BACKING_OFF
    assert connections.connect_delay_ms(1, 20) == pytest.approx(50)
    assert connections.needs_addresses(1)
    with pytest.raises(RuntimeError, match="it is backing off, not disconnected"):
        connections.begin_connect(1, 20)
    assert connections.state(1, 70) is DISCONNECTED
    assert connections.connect_delay_ms(1, 70) == 0


def test_backoff_grows_with_each_round_and_ends_at_its_maximum() -> None:
    connections = with_node()
    now_ms = 0.0
    delays = []
    for _ in range(12):
        fail_round(connections, now_ms)
        delays.append(connections.connect_delay_ms(1, now_ms))
        now_ms += delays[-1]
    assert delays == pytest.approx([50, 100, 200, 400, 800, *[1000] * 7])


def test_a_completed_handshake_forgets_failures() -> None:
    connections = with_node()
    fail_round(connections, 0)
    fail_round(connections, 1000)
    connections.resolved(1, [FIRST])
    complete(connections, 2000)
    assert connections.diagnosis(2000) == ""
    connections.failed(1, FIRST, "connection reset", 3000)
    assert connections.connect_delay_ms(1, 3000) == pytest.approx(50)


def test_a_lost_connection_backs_off_and_resolves_again() -> None:
    connections = ready()
    connections.failed(1, FIRST, "connection reset", 1000)
    assert connections.state(1, 1000) is BACKING_OFF
    assert connections.needs_addresses(1)


def test_a_refused_password_is_not_tried_at_the_next_address() -> None:
    connections = with_node(FIRST, SECOND)
    connections.begin_connect(1, 0)
    connections.connected(1, FIRST, 0)
    connections.failed(1, FIRST, "authentication failed", 0, try_next_address=False)
    assert connections.state(1, 0) is BACKING_OFF


def test_closing_on_purpose_is_not_a_failure() -> None:
    connections = ready()
    connections.closed(1)
    assert connections.connect_delay_ms(1, 0) == 0
    assert connections.needs_addresses(1)
    assert connections.diagnosis(0) == ""
    connections = with_node(FIRST)
    connections.begin_connect(1, 0)
    connections.closed(1)
    assert connections.timed_out(1_000_000) == []


def test_a_failure_without_a_connection_changes_nothing() -> None:
    connections = with_node()
    fail_round(connections, 0)
    connections.failed(1, FIRST, "late", 10)
    assert connections.connect_delay_ms(1, 10) == pytest.approx(40)
    assert "late" not in connections.diagnosis(10)


def test_a_failed_resolution_backs_off() -> None:
    connections = with_node()
    connections.resolution_failed(1, "name or service not known", 0)
    assert connections.connect_delay_ms(1, 0) == pytest.approx(50)
    assert connections.needs_addresses(1)


def test_rebootstrap_when_all_nodes_fail() -> None:
    connections = with_node()
    connections.add(2, "broker2", 9092)
    assert not connections.all_failing([1])
    fail_round(connections, 0)
    assert connections.all_failing([1])
    assert not connections.all_failing([1, 2])
    assert not connections.all_failing([1, 7])
    assert not connections.all_failing([])
    connections.resolution_failed(2, "no", 0)
    assert connections.all_failing([1, 2])
    # Another attempt is not a success yet.
    connections.resolved(1, [FIRST])
    connections.begin_connect(1, 1000)
    assert connections.all_failing([1, 2])
    connections.connected(1, FIRST, 1000)
    connections.ready(1, FIRST, 1000)
    assert not connections.all_failing([1, 2])


def test_rebootstrap_needs_a_failed_attempt_not_only_a_lost_connection() -> None:
    connections = ready()
    connections.failed(1, FIRST, "connection reset", 1000)
    assert not connections.all_failing([1])
    connections.resolved(1, [FIRST, SECOND])
    connections.begin_connect(1, 2000)
    connections.failed(1, FIRST, REFUSED, 2000)
    # There is another address.
    assert not connections.all_failing([1])
    connections.begin_connect(1, 2000)
    connections.connected(1, SECOND, 2000)
    connections.failed(1, SECOND, "no completed handshake", 2000)
    assert connections.all_failing([1])


def test_a_node_keeps_its_backoff_across_a_rebootstrap() -> None:
    connections = with_node()
    for now_ms in (0, 1000, 2000):
        fail_round(connections, now_ms)
    connections.retire(1)
    assert 1 not in connections
    assert connections.next_event_ms(2000) == math.inf
    connections.retire(1)
    assert connections.add(1, "broker1", 9092)
    assert connections.connect_delay_ms(1, 2000) == pytest.approx(200)
    assert not connections.all_failing([1])
    fail_round(connections, 3000)
    assert connections.connect_delay_ms(1, 3000) == pytest.approx(400)
    assert connections.all_failing([1])


def test_a_node_that_comes_back_elsewhere_has_no_backoff() -> None:
    connections = with_node()
    fail_round(connections, 0)
    connections.retire(1)
    connections.add(1, "elsewhere", 9092)
    assert connections.connect_delay_ms(1, 0) == 0
    connections.remove(1)
    connections.add(1, "broker1", 9092)
    assert connections.connect_delay_ms(1, 0) == 0


def test_a_node_retired_while_connected_comes_back_disconnected() -> None:
    connections = ready()
    connections.retire(1)
    connections.add(1, "broker1", 9092)
    assert connections.connect_delay_ms(1, 0) == 0
    assert connections.needs_addresses(1)
    connections.resolved(1, [FIRST])
    connections.begin_connect(1, 0)
    connections.retire(1)
    connections.add(1, "broker1", 9092)
    assert connections.timed_out(1_000_000) == []


def test_backoff_is_per_node_and_has_jitter() -> None:
    draws = iter([0.0, 0.0, 0.999, 0.999])
    connections = Connections(lambda: next(draws))
    for node_id in (1, 2, 3):
        connections.add(node_id, "broker", 9092 + node_id)
    # One random number for the setup timeout, one for the backoff.
    for node_id in (1, 2):
        connections.resolved(node_id, [FIRST])
        connections.begin_connect(node_id, 0)
        connections.failed(node_id, FIRST, REFUSED, 0)
    assert connections.connect_delay_ms(1, 0) == pytest.approx(40)
    assert connections.connect_delay_ms(2, 0) == pytest.approx(60, abs=0.1)
    assert connections.connect_delay_ms(3, 0) == 0


# Timeouts and idleness


def test_the_setup_timeout_grows_with_each_failed_round() -> None:
    connections = with_node(FIRST)
    connections.begin_connect(1, 0)
    assert connections.timed_out(9_999) == []
    assert connections.next_event_ms(1_000) == pytest.approx(9_000)
    assert connections.timed_out(10_000) == [(1, FIRST, "no connection within 10000 ms")]
    connections.failed(1, FIRST, "timeout", 10_000)
    assert connections.timed_out(1_000_000) == []
    connections.resolved(1, [FIRST])
    connections.begin_connect(1, 20_000)
    connections.connected(1, FIRST, 21_000)
    assert connections.timed_out(39_999) == []
    assert connections.timed_out(40_000) == [(1, FIRST, "no completed handshake within 20000 ms")]
    connections.failed(1, FIRST, "timeout", 40_000)
    connections.resolved(1, [FIRST])
    connections.begin_connect(1, 50_000)
    assert connections.timed_out(80_000) == [(1, FIRST, "no connection within 30000 ms")]


def test_a_ready_connection_does_not_time_out() -> None:
    assert ready().timed_out(1_000_000) == []


def test_idle_connections_are_reported_until_they_are_closed() -> None:
    connections = ready(now_ms=1000)
    assert connections.next_event_ms(1000) == 540_000
    connections.active(1, 5000)
    assert connections.idle(544_999) == []
    assert connections.next_event_ms(544_999) == 1
    assert connections.idle(545_000) == [1]
    connections.closed(1)
    assert connections.idle(545_000) == []
    assert connections.next_event_ms(545_000) == math.inf


def test_a_negative_idle_time_means_never() -> None:
    connections = ready(connections_max_idle_ms=-1)
    assert connections.idle(1e15) == []
    assert connections.next_event_ms(0) == math.inf


def test_the_end_of_a_backoff_is_reported_once() -> None:
    connections = with_node()
    assert connections.next_event_ms(0) == math.inf
    fail_round(connections, 0)
    assert connections.next_event_ms(20) == pytest.approx(30)
    assert connections.next_event_ms(50) == math.inf


# Error texts


def test_the_diagnosis_names_each_address_and_its_last_failure() -> None:
    connections = Connections(lambda: 0.5)
    connections.add(1, "broker1", 9092)
    for now_ms in (0, 100, 300):
        connections.resolved(1, [address("127.0.0.1"), address("::1")])
        connections.failed(1, connections.begin_connect(1, now_ms), REFUSED, now_ms)
        connections.failed(1, connections.begin_connect(1, now_ms), f"timed out at {now_ms}", now_ms)
    connections.add(2, "broker2", 9093)
    connections.resolution_failed(2, "name or service not known", 400)
    connections.add(3, "10.0.0.3", 9094)
    connections.resolved(3, [address("10.0.0.3", 9094)])
    connections.failed(3, connections.begin_connect(3, 450), REFUSED, 450)
    connections.add(-1, "10.0.0.3", 9094)
    connections.resolved(-1, [address("10.0.0.3", 9094)])
    connections.failed(-1, connections.begin_connect(-1, 450), REFUSED, 450)
    assert connections.diagnosis(500) == (
        "broker1:9092 (127.0.0.1:9092): connection refused 3 times, last 0.2 s ago; "
        "broker1:9092 ([::1]:9092): timed out at 300 0.2 s ago; "
        "broker2:9093: name or service not known 0.1 s ago; "
        "10.0.0.3:9094: connection refused 0.1 s ago"
    )


def test_the_diagnosis_forgets_addresses_the_name_no_longer_has() -> None:
    connections = with_node()
    fail_round(connections, 0)
    connections.resolved(1, [SECOND])
    assert connections.diagnosis(0) == ""


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        ("as it is", "as it is"),
        (REFUSED, "connection refused"),
        (OSError(1, "[SSL: WRONG_VERSION] wrong"), "[SSL: WRONG_VERSION] wrong"),
        (OSError(1, "TLS failed"), "TLS failed"),
        (OSError("only a message"), "only a message"),
        (ValueError("bad"), "bad"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_causes_as_text(cause: str | BaseException, text: str) -> None:
    assert cause_text(cause) == text


# Parallel attempts


def test_the_next_address_is_tried_in_parallel_to_one_without_an_outcome() -> None:
    connections = with_node(FIRST, SECOND, THIRD)
    connections.begin_connect(1, 0)
    assert connections.due(STAGGER_MS - 1) == []
    assert connections.next_event_ms(100) == STAGGER_MS - 100
    with pytest.raises(RuntimeError, match="it is connecting, not disconnected"):
        connections.begin_connect(1, STAGGER_MS - 1)
    assert connections.due(STAGGER_MS) == [1]
    assert connections.begin_connect(1, STAGGER_MS) == SECOND
    assert connections.due(STAGGER_MS) == []
    # When one fails the next begins at once, in parallel to the remaining one.
    connections.failed(1, SECOND, REFUSED, 310)
    assert connections.state(1, 310) is CONNECTING
    assert connections.due(310) == [1]
    assert connections.begin_connect(1, 310) == THIRD
    assert connections.next_event_ms(310) == pytest.approx(10_000 - 310)
    assert [late[:2] for late in connections.timed_out(10_000)] == [(1, FIRST)]
    assert connections.connected(1, THIRD, 400) == [FIRST]
    assert connections.ready(1, THIRD, 410) == []
    assert connections.diagnosis(500) == ""


def test_the_first_connected_address_wins_and_the_others_have_not_failed() -> None:
    connections = with_node(FIRST, SECOND, THIRD)
    for now_ms in (0, 300, 600):
        connections.begin_connect(1, now_ms)
    assert connections.connected(1, SECOND, 610) == [FIRST, THIRD]
    assert connections.state(1, 610) is HANDSHAKING
    # They are not tried in parallel to the winner, only if its handshake fails.
    assert connections.due(10_000) == []
    connections.failed(1, SECOND, "no Kafka", 700)
    assert connections.state(1, 700) is DISCONNECTED
    assert connections.begin_connect(1, 700) == FIRST
    connections.failed(1, FIRST, REFUSED, 700)
    assert connections.begin_connect(1, 700) == THIRD
    connections.failed(1, THIRD, REFUSED, 700)
    assert connections.connect_delay_ms(1, 700) == pytest.approx(50)
    assert connections.all_failing([1])


def test_a_bootstrap_servers_addresses_are_tried_until_a_handshake_completes() -> None:
    connections = Connections(lambda: 0.5)
    connections.add(-1, "alias", 9092, bootstrap=True)
    connections.resolved(-1, [FIRST, SECOND, THIRD])
    connections.begin_connect(-1, 0)
    assert connections.connected(-1, FIRST, 1) == []
    assert connections.due(STAGGER_MS) == [-1]
    connections.begin_connect(-1, STAGGER_MS)
    assert connections.connected(-1, SECOND, 301) == []
    assert connections.ready(-1, SECOND, 302) == [FIRST]
    assert connections.is_ready(-1)
    # Outcomes of abandoned attempts are ignored.
    assert connections.failed(-1, FIRST, REFUSED, 303) == []
    assert connections.is_ready(-1)
    connections.failed(-1, SECOND, "reset", 304)
    assert connections.state(-1, 304) is BACKING_OFF


def test_the_end_of_a_round_gives_up_all_its_attempts() -> None:
    connections = with_node(FIRST, SECOND, THIRD)
    connections.begin_connect(1, 0)
    connections.begin_connect(1, 300)
    assert connections.failed(1, SECOND, "wrong password", 310, try_next_address=False) == [FIRST]
    # Trying again soon would do harm: the backoff is the longest, 30 s, but for its jitter.
    assert connections.state(1, 20_000) is BACKING_OFF
    connections.resolved(1, [FIRST, SECOND])
    connections.begin_connect(1, 40_000)
    connections.begin_connect(1, 40_300)
    assert connections.closed(1) == [FIRST, SECOND]
    assert connections.next_event_ms(40_300) == math.inf


def test_seek_returns_the_next_node_while_one_has_no_outcome() -> None:
    connections = Connections(lambda: 0.5)
    for node_id in (-1, -2, -3):
        connections.add(node_id, f"server{-node_id}", 9092, bootstrap=True)
    nodes = [-2, -1, -3, -9]
    assert connections.seek(nodes, 0) == (-2, 0)
    connections.begin_resolve(-2, 0)
    assert connections.state(-2, 0) is RESOLVING
    assert connections.seek(nodes, 100) == (None, STAGGER_MS - 100)
    # A lookup that hangs is passed over like an address that hangs.
    assert connections.seek(nodes, STAGGER_MS) == (-1, 0)
    connections.resolved(-1, [FIRST, SECOND])
    connections.begin_connect(-1, STAGGER_MS)
    assert connections.seek(nodes, STAGGER_MS) == (None, STAGGER_MS)
    # Its second address does not delay another node.
    connections.begin_connect(-1, 2 * STAGGER_MS)
    assert connections.seek(nodes, 2 * STAGGER_MS) == (-3, 0)
    connections.resolved(-3, [THIRD])
    connections.begin_connect(-3, 2 * STAGGER_MS)
    assert connections.seek(nodes, 10 * STAGGER_MS) == (None, math.inf)


def test_seek_skips_a_failed_node_during_its_backoff() -> None:
    connections = with_node(FIRST)
    connections.begin_connect(1, 0)
    connections.failed(1, FIRST, REFUSED, 1)
    assert connections.seek([1], 40) == (None, math.inf)
    assert connections.next_event_ms(40) == pytest.approx(11)
    assert connections.seek([1], 51) == (1, 0)


def test_a_lookup_has_the_setup_timeout_of_a_connection() -> None:
    connections = with_node()
    connections.begin_resolve(1, 0)
    with pytest.raises(RuntimeError, match="node 1 is resolving, it must be disconnected"):
        connections.begin_resolve(1, 0)
    assert connections.connect_delay_ms(1, 5000) == math.inf
    assert connections.next_event_ms(5000) == pytest.approx(5000)
    assert connections.timed_out(10_000) == [(1, None, "name resolution took over 10000 ms")]
    connections.resolution_failed(1, "no answer", 10_000)
    assert connections.state(1, 10_000) is BACKING_OFF
    assert connections.timed_out(1_000_000) == []


def test_with_an_idle_time_of_zero_a_connection_still_gets_its_first_request() -> None:
    connections = ready(connections_max_idle_ms=0)
    assert connections.idle(SHORTEST_IDLE_MS - 1) == []
    assert connections.idle(SHORTEST_IDLE_MS) == [1]


def test_a_refused_password_of_an_established_connection_waits_for_its_backoff() -> None:
    connections = ready()
    connections.failed(1, FIRST, "wrong password at the renewal", 10, try_next_address=False)
    assert connections.state(1, 20_000) is BACKING_OFF


@pytest.mark.parametrize("given_ms", [40, 1000, 5000])
def test_a_refusal_waits_for_its_own_backoff_and_no_less_than_any_failure(given_ms: float) -> None:
    connections = Connections(lambda: 0.5, reconnect_backoff_ms=1000, authentication_backoff_ms=given_ms)
    connections.add(1, "broker1", 9092)
    connections.resolved(1, [FIRST])
    connections.begin_connect(1, 0)
    connections.connected(1, FIRST, 0)
    connections.failed(1, FIRST, "wrong password", 0, try_next_address=False)
    wait_ms = max(1000, given_ms)
    assert connections.connect_delay_ms(1, 0) == wait_ms
    # The next failure has nothing to do with credentials.
    fail_round(connections, wait_ms)
    assert connections.connect_delay_ms(1, wait_ms) == 1000


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])
@pytest.mark.parametrize("outage_ms", [100, 3_000, 20_000, 600_000])
def test_after_any_outage_the_next_attempt_begins_within_a_second(outage_ms: float, jitter: float) -> None:
    connections = Connections(lambda: jitter)
    connections.add(1, "broker1", 9092)
    now_ms = 0.0
    while now_ms < outage_ms:
        fail_round(connections, now_ms)
        now_ms += connections.connect_delay_ms(1, now_ms)
    assert now_ms - outage_ms <= 1000


def test_a_broker_that_comes_back_is_not_overrun() -> None:
    """
    1. A broker with 1,000 connections goes for 12 s; it is tried by all in the meantime.
    2. It comes back, and all connect within a second, though not at the same time.
    """
    returns_ms, clients = 12_000, 1000
    draw = random.Random(7).random
    attempts: list[float] = []
    for _ in range(clients):
        connections = ready()
        connections._random = draw
        connections.failed(1, FIRST, "connection reset", 0)
        now_ms = 0.0
        while now_ms < returns_ms:
            now_ms += connections.connect_delay_ms(1, now_ms)
            attempts.append(now_ms)
            fail_round(connections, now_ms)
    last_second = [at_ms for at_ms in attempts if returns_ms - 1000 <= at_ms < returns_ms]
    assert len(last_second) < 1.2 * clients
    tenths = Counter(int(at_ms - returns_ms) // 100 for at_ms in attempts if at_ms >= returns_ms)
    assert sum(tenths.values()) == clients
    # 100 if they were spread evenly.
    assert max(tenths.values()) < 250


def test_a_refusal_counts_for_all_nodes_with_the_same_host_and_port() -> None:
    """A bootstrap server and the broker behind it are two nodes."""
    connections = with_node(FIRST)
    connections.add(-1, "broker1", 9092, bootstrap=True)
    connections.add(2, "broker2", 9092)
    # An attempt that began before the refusal, and fails in another way after it.
    connections.resolved(-1, [FIRST])
    connections.begin_connect(-1, 0)
    connections.begin_connect(1, 0)
    connections.connected(1, FIRST, 0)
    connections.failed(1, FIRST, "wrong password", 0, try_next_address=False)
    connections.failed(-1, FIRST, REFUSED, 10)
    connections.add(3, "broker1", 9092)
    assert [connections.connect_delay_ms(node_id, 20_000) for node_id in (1, -1, 2, 3)] == [
        10_000,
        10_000,
        0,
        10_000,
    ]
    assert connections.next_event_ms(20_000) == 10_000
    assert {connections.state(node_id, 30_000) for node_id in (1, -1, 3)} == {DISCONNECTED}


def test_an_accepted_connection_ends_the_refusal_for_the_other_nodes() -> None:
    connections = with_node(FIRST)
    connections.add(2, "broker1", 9092)
    connections.resolved(2, [FIRST])
    for node_id in (1, 2):
        connections.begin_connect(node_id, 0)
        connections.connected(node_id, FIRST, 0)
    connections.failed(1, FIRST, "wrong password", 0, try_next_address=False)
    connections.ready(2, FIRST, 5)
    connections.closed(2)
    assert connections.state(2, 6) is DISCONNECTED
