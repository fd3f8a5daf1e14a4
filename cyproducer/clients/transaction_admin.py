"""Sends requests about transactions to coordinators for application threads, and lists transactions.

Owns the choice of the broker for each request, the number of concurrent calls, and their deadlines. Does not
own the meaning of responses (``control/transaction_ending``), or sending requests
(``application_requests``). Any thread may call it.
"""

import math
import re
from collections import deque
from collections.abc import Sequence
from typing import Any

from cyproducer import errors
from cyproducer.base.clock import monotonic_s
from cyproducer.base.durations import duration
from cyproducer.clients.application_requests import ApplicationRequest, ApplicationRequests
from cyproducer.clients.transaction_client import HIGHEST_OF_FIRST, level_of
from cyproducer.control.coordinator import refusal
from cyproducer.control.transaction_ending import (
    OPEN_STATES,
    STATES,
    CoordinatorCall,
    Describe,
    Ending,
    Request,
)
from cyproducer.control.transaction_requests import FIRST, AskLevel, EndTxn, FindCoordinator, InitProducerId
from cyproducer.net.connector import encode_api_versions
from cyproducer.wire import protocol, transaction_api
from cyproducer.wire.messages import (
    API_VERSIONS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    METADATA,
)
from cyproducer.wire.protocol import Encode, framing
from cyproducer.wire.transaction_api import TransactionListing

AT_ONCE = 100
"""The number of calls that run concurrently."""
LEVEL_AGE_S = 0.1
"""How long a reported level of ``transaction.version`` is used for all transactions of a call. Short, because
a request of the wrong protocol can do harm."""
WITH_DURATION, WITH_PATTERN = 1, 2
"""The first versions of ListTransactions with these filters (KIP-994, KIP-1152)."""
MAX_INT64 = (1 << 63) - 1


class Coordinators:
    """Sends requests to one cluster's coordinators. See the module's docstring."""

    def __init__(self, requests: ApplicationRequests) -> None:
        """``requests`` sends requests."""
        self._requests = requests

    def run(
        self,
        calls: Sequence[CoordinatorCall],
        deadline: float,
        seconds: float,
        ignore: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> None:
        """Carries out calls, ``AT_ONCE`` at a time.

        Args:
            calls: the calls. Each has its outcome afterwards, unless this method raises KafkaTimeoutError.
            deadline: in the time of ``monotonic_s()``.
            seconds: the total time until the deadline, for the message.
            ignore: errors that are not raised.

        Raises:
            KafkaTimeoutError: not all calls are done at the deadline.
            Exception: the error of the first call that has failed.
        """
        left = deque(_Pending(call) for call in calls)
        running: list[_Pending] = []
        # Node id -> the request for its level, and when it was sent.
        levels: dict[int | None, tuple[ApplicationRequest, float]] = {}
        try:
            while True:
                while left and len(running) < AT_ONCE:
                    running.append(left.popleft())
                now_s = monotonic_s()
                for pending in running:
                    self._step(pending, levels, now_s)
                running = [pending for pending in running if not pending.call.done]
                if left and len(running) < AT_ONCE:
                    continue
                if not running:
                    break
                if now_s >= deadline:
                    raise self._too_late(running[0].call, len(running) + len(left), seconds)
                wait_ms = min(pending.call.wait_ms(now_s * 1000) for pending in running)
                asked = [pending.sent for pending in running if pending.sent is not None]
                self._requests.wait(asked, min(deadline - now_s, wait_ms / 1000))
        finally:
            for pending in running:
                if pending.sent is not None:
                    pending.sent.withdraw()
        failed = [call for call in calls if call.error is not None and not isinstance(call.error, ignore)]
        if failed:
            error = failed[0].error
            assert error is not None
            if len(failed) > 1:
                error.add_note(f"{len(failed)} of {len(calls)} have failed; this is the error of the first")
            raise error

    def _too_late(self, call: CoordinatorCall, count: int, seconds: float) -> errors.KafkaTimeoutError:
        more = f"; {count - 1} more are not complete" if count > 1 else ""
        return errors.KafkaTimeoutError(
            f"{call.name} not complete within {seconds:g} s: {call.describe()}; "
            f"{self._requests.diagnosis()}{more}"
        )

    def _step(
        self, pending: "_Pending", levels: dict[int | None, tuple[ApplicationRequest, float]], now_s: float
    ) -> None:
        """Handles the response, if there is one, and sends the next request."""
        call, now_ms = pending.call, now_s * 1000
        while not call.done:
            if pending.sent is not None:
                if not pending.sent.done:
                    return
                sent, pending.sent = pending.sent, None
                self._take(call, pending.request, sent, now_ms)
                continue
            request = call.next_request(now_ms)
            if request is None:
                return
            pending.request = request
            if isinstance(request, AskLevel) and call.coordinator in levels:
                sent, asked_s = levels[call.coordinator]
                if now_s - asked_s <= LEVEL_AGE_S and sent.error is None:
                    pending.sent = sent
                    continue
            pending.sent = self._requests.send(self._to_send(call, request))
            if isinstance(request, AskLevel):
                levels[call.coordinator] = pending.sent, now_s

    def _to_send(self, call: CoordinatorCall, request: Request) -> ApplicationRequest:
        name, node_id = call.transactional_id, call.coordinator
        if isinstance(request, FindCoordinator):
            return ApplicationRequest(
                FIND_COORDINATOR, framing(transaction_api.encode_find_coordinator, *request)
            )
        if isinstance(request, AskLevel):
            return ApplicationRequest(API_VERSIONS, encode_api_versions, node_id=node_id)
        if isinstance(request, Describe):
            encode = framing(transaction_api.encode_describe_transactions, [name])
            return ApplicationRequest(DESCRIBE_TRANSACTIONS, encode, node_id=node_id)
        assert isinstance(call, Ending)
        if isinstance(request, InitProducerId):
            encode = framing(protocol.encode_init_producer_id, name, call.timeout_ms, *request)
            return ApplicationRequest(INIT_PRODUCER_ID, encode, node_id=node_id)
        _, producer_id, epoch, *_ = call.transaction
        encode = framing(transaction_api.encode_end_txn, name, producer_id, epoch, request.commit)
        highest = HIGHEST_OF_FIRST[END_TXN] if request.protocol == FIRST else None
        return ApplicationRequest(END_TXN, encode, node_id=node_id, highest=highest)

    def _take(
        self, call: CoordinatorCall, request: Request | None, sent: ApplicationRequest, now_ms: float
    ) -> None:
        """Passes the outcome of a request to its call."""
        response, where = sent.response, sent.where
        if sent.error is not None and sent.final:
            call.on_failure(sent.error)
        elif sent.error is not None:
            call.on_no_response(sent.error, now_ms)
        elif isinstance(request, FindCoordinator):
            call.on_coordinator(response, where, now_ms)
        elif isinstance(request, Describe):
            call.on_description(response, where, now_ms)
        elif isinstance(call, Ending):
            self._take_end(call, request, sent, now_ms)

    def _take_end(
        self, call: Ending, request: Request | None, sent: ApplicationRequest, now_ms: float
    ) -> None:
        response, where = sent.response, sent.where
        if isinstance(request, EndTxn):
            call.on_ended(response, where, now_ms)
        elif isinstance(request, InitProducerId):
            call.on_fenced(response, where, now_ms)
        elif response.error_code:
            call.on_no_response(refusal(response.error_code, f"ApiVersions at {where}"), now_ms)
        else:
            call.on_level(level_of(response))

    # Listing

    def listing(
        self,
        states: Sequence[str],
        producer_ids: Sequence[int],
        prefix: str | None,
        older_than_s: float | None,
        deadline: float,
        seconds: float,
    ) -> list[TransactionListing]:
        if unknown := [state for state in states if state not in STATES]:
            raise ValueError(f"states={list(states)}: {unknown[0]!r} is not one of {', '.join(STATES)}")
        age_ms = -1
        if older_than_s is not None:
            # Ids without a transaction pass every duration filter.
            states = states or OPEN_STATES
            if not set(states) <= set(OPEN_STATES):
                raise ValueError(f"older_than_s is for open transactions: states {', '.join(OPEN_STATES)}")
            age_ms = math.ceil(min(duration("older_than_s", older_than_s) * 1000, MAX_INT64)) or -1
        pattern = re.escape(prefix) + ".*" if prefix else None

        def encode(version: int, number: int, client_id: str) -> bytes:
            if age_ms >= 0 and version < WITH_DURATION:
                raise errors.UnsupportedVersionError("older_than_s needs brokers of Kafka 3.8 or later")
            asked = pattern if version >= WITH_PATTERN else None
            return transaction_api.encode_list_transactions(
                version, number, client_id, states, producer_ids, age_ms, asked
            )

        failures = 0
        last = ""
        while True:
            found, failure = self._list_once(encode, deadline)
            if failure is None:
                break
            left = deadline - monotonic_s()
            if left <= 0:
                raise errors.KafkaTimeoutError(
                    f"not all brokers have listed their transactions within {seconds:g} s: {failure}{last}; "
                    f"{self._requests.diagnosis()}"
                )
            failures += 1
            last = f", after {failures} failed: {failure}"
            self._requests.pause(failures, left)
        listed: dict[str, TransactionListing] = {}
        for each in found:
            # While a coordinator moves, two brokers may list the same id.
            if each.transactional_id not in listed or each.state in OPEN_STATES:
                listed[each.transactional_id] = each
        return [listed[name] for name in sorted(listed) if name.startswith(prefix or "")]

    def _list_once(
        self, encode: Encode, deadline: float
    ) -> tuple[list[TransactionListing], BaseException | None]:
        """Requests the lists of all brokers; returns them, or an error that may be temporary."""

        def brokers(version: int, number: int, client_id: str) -> bytes:
            # A request without topics creates none, and older versions support only auto-creation.
            return protocol.encode_metadata(version, number, client_id, [], True)

        (metadata,), failure = self._ask_all([ApplicationRequest(METADATA, brokers)], deadline)
        if failure is not None:
            return [], failure
        if metadata.error_code:
            return [], refusal(metadata.error_code, "Metadata")
        requests = [
            ApplicationRequest(LIST_TRANSACTIONS, encode, node_id=broker.node_id)
            for broker in metadata.brokers
        ]
        responses, failure = self._ask_all(requests, deadline)
        for request, response in zip(requests, responses, strict=True):
            if response is not None and response.error_code:
                error = refusal(response.error_code, f"ListTransactions at {request.where}")
                if not error.retriable:
                    raise error
                failure = error
        if failure is not None:
            # What has moved to a broker that has answered before would be missing: all are asked again.
            return [], failure
        return [each for response in responses for each in response.transactions], None

    def _ask_all(
        self, requests: Sequence[ApplicationRequest], deadline: float
    ) -> tuple[list[Any], BaseException | None]:
        """Sends requests; returns their responses (None if missing) and an error that may be temporary."""
        missing = self._requests.ask(requests, deadline)
        failure: BaseException | None = None if missing is None else errors.KafkaTimeoutError(missing)
        for request in requests:
            if request.error is not None:
                if request.final:
                    raise request.error
                failure = request.error
        return [request.response for request in requests], failure


class _Pending:
    """A call, and its request in flight."""

    def __init__(self, call: CoordinatorCall) -> None:
        self.call = call
        self.request: Request | None = None
        self.sent: ApplicationRequest | None = None
