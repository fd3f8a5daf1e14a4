"""Sends requests on behalf of application threads, and passes each response to the thread that waits for it.

Owns the requests that wait for a connection, and the threads that wait for responses. Does not interpret
responses, and does not connect (``connector``). If a connection fails, its requests fail: the caller decides
how to continue, or ``Attempts`` sends another request.

Any number of requests can be in flight, including several of the same kind, alongside the requests of the
rest of the client.

``tick`` runs with the loop lock held, one call at a time. The methods under "From application threads" may be
called from any thread.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from cyproducer import errors
from cyproducer.base.clock import monotonic_s
from cyproducer.base.threads import Condition
from cyproducer.config import ProducerConfig
from cyproducer.control.coordinator import refusal
from cyproducer.control.retry import ExponentialBackoff
from cyproducer.futures.waiting import refuse_wait_of_sender
from cyproducer.net.connection import Connection
from cyproducer.net.connector import Connector
from cyproducer.sender.sender import Sender
from cyproducer.wire.messages import FIND_COORDINATOR, METADATA
from cyproducer.wire.protocol import Decode, Encode
from cyproducer.wire.schema import Api


class ApplicationRequest:
    """A request of the application to a broker, and its outcome.

    ``done``: one of ``response`` and ``error`` is set. ``final``: a retry would get the same error, because
    the broker does not support the API, the broker refuses this client, or the request can't be encoded.
    ``node_id`` and ``where``: the broker to which the request was sent, -1 and "" if there is none.
    """

    def __init__(
        self,
        api: Api,
        encode: Encode,
        *,
        decode: Decode | None = None,
        node_id: int | None = None,
        highest: int | None = None,
    ) -> None:
        """
        Args:
            api: the kind of request.
            encode: encodes the frame.
            decode: decodes the response; None: the decoder in ``DECODERS``. With a custom decoder, a Metadata
                response is only for the application: the client does not store its brokers.
            node_id: the broker to send the request to; None: any.
            highest: the highest version to use; None: the highest negotiated version.
        """
        self.api = api
        self.encode = encode
        self.decode = decode
        self.wanted_node = node_id
        self.highest = highest
        self.node_id = -1
        self.where = ""
        self.response: Any = None
        self.error: BaseException | None = None
        self.final = False
        self.done = False
        self.withdrawn = False

    def withdraw(self) -> None:
        """Withdraws a request for which no thread waits any more: if unsent, it is never sent. Any thread."""
        self.withdrawn = True


class ApplicationRequests:
    """The requests of one client. See the module's docstring."""

    def __init__(
        self,
        config: ProducerConfig,
        sender: Sender,
        connector: Connector,
        nodes: Callable[[], Sequence[int]],
        diagnosis: Callable[[], str],
        backoff: ExponentialBackoff,
    ) -> None:
        """
        Args:
            config: the client's options.
            sender: the loop, which a new request wakes up.
            connector: sends requests, and connects to brokers.
            nodes: returns the nodes to connect to if there is no connection.
            diagnosis: returns the reason why requests fail, for error messages.
            backoff: the delay between two attempts of a call.
        """
        self.diagnosis = diagnosis
        self.backoff = backoff
        self._config = config
        self._sender = sender
        self._connector = connector
        self._nodes = nodes
        # Filled by application threads, emptied by the sender thread.
        self._submitted: deque[ApplicationRequest] = deque()
        # Without a connection yet, in the order in which they were submitted.
        self._waiting: list[ApplicationRequest] = []
        self._closed: BaseException | None = None
        # Notifies application threads that a request is done.
        self._changed = Condition()

    # From application threads

    def send(self, request: ApplicationRequest) -> ApplicationRequest:
        """Sends a request, and returns it; ``wait`` waits for the response."""
        refuse_wait_of_sender(f"asking brokers for {request.api.name}")
        self._submitted.append(request)
        self._sender.request_control()
        return request

    def wait(self, requests: Iterable[ApplicationRequest], timeout_s: float) -> None:
        """Waits until one of them is done, up to ``timeout_s`` seconds; the full time if there are none.

        Raises:
            ProducerClosedError: the client was closed.
        """
        asked = list(requests)
        deadline = monotonic_s() + timeout_s
        with self._changed:
            while not any(request.done for request in asked):
                if self._closed is not None:
                    raise errors.copied(self._closed)
                if not self._changed.wait_until(deadline):
                    return

    def ask(self, requests: Sequence[ApplicationRequest], deadline: float) -> str | None:
        """Sends requests, and waits for all of them until ``deadline``, in the time of ``monotonic_s()``.

        Returns None, or which one is not answered then, for an error message.
        """
        try:
            for request in requests:
                self.send(request)
            while open_ones := [request for request in requests if not request.done]:
                left = deadline - monotonic_s()
                if left <= 0:
                    asked = open_ones[0]
                    node = "any broker" if asked.wanted_node is None else f"broker {asked.wanted_node}"
                    return f"{asked.api.name} is not answered by {node}"
                self.wait(open_ones, left)
        finally:
            for request in requests:
                request.withdraw()
        return None

    def pause(self, failures: int, most_s: float) -> None:
        """Waits before the attempt after so many failures in a row, up to ``most_s`` seconds."""
        # Imported here: most programs need no second attempt, and it takes long.
        import random

        self.wait((), min(most_s, self.backoff.delay_ms(failures, random.random) / 1000))

    # With the loop lock held

    def tick(self, now_ms: float, denied: BaseException | None) -> float:
        """Sends the requests that can be sent; returns the milliseconds until the next attempt.

        ``denied``: the error with which the brokers refuse this client's credentials; None if they do not.
        """
        while self._submitted:
            self._waiting.append(self._submitted.popleft())
        if not self._waiting:
            return math.inf
        wait_ms = math.inf
        still_waiting = []
        for request in self._waiting:
            if request.withdrawn:
                continue
            connection, attempt_ms = self._connection(request, now_ms, denied)
            if connection is not None:
                self._send(request, connection)
            elif not request.done:
                wait_ms = min(wait_ms, attempt_ms)
                still_waiting.append(request)
        self._waiting = still_waiting
        return wait_ms

    def _connection(
        self, request: ApplicationRequest, now_ms: float, denied: BaseException | None
    ) -> tuple[Connection | None, float]:
        """Returns a connection for the request, or None and the milliseconds until the next attempt."""
        if denied is not None:
            # In this case, no connection is ready, and the next attempt may be half a minute away.
            self._refuse(request, errors.copied(denied))
            return None, math.inf
        node_id = request.wanted_node
        connection, wait_ms = self._connector.connection_for(node_id, self._nodes(), now_ms)
        if wait_ms is None:
            self._finish(
                request,
                errors.KafkaConnectionError(f"broker {node_id} cannot be reached: {self.diagnosis()}"),
            )
            return None, math.inf
        return connection, wait_ms

    def _send(self, request: ApplicationRequest, connection: Connection) -> None:
        request.node_id, request.where = connection.node_id, connection.where
        api = request.api
        version = connection.handshake.versions.get(api)
        if version is None:
            error = errors.UnsupportedVersionError(
                f"{connection.where} is too old: it has no {api.name}, which needs {api.since} or later"
            )
            self._refuse(request, error)
            return
        if request.highest is not None:
            version = min(version, request.highest)
        try:
            self._connector.request(
                connection,
                api,
                request.encode,
                partial(self._on_response, request),
                lambda connection, cause, now_ms: self._finish(request, errors.copied(cause)),
                version=version,
                decode=request.decode,
            )
        except Exception as error:
            # A text of the application that can't be encoded fails only this request, not the client.
            self._refuse(request, error)

    def _on_response(
        self, request: ApplicationRequest, connection: Connection, version: int, response: Any, now_ms: float
    ) -> None:
        if request.api is FIND_COORDINATOR and response.error_code == 0:
            self._connector.know(response.node_id, response.host, response.port)
        elif request.api is METADATA and request.decode is None:
            for broker in response.brokers:
                self._connector.know(broker.node_id, broker.host, broker.port)
        self._finish(request, response=response)

    def end(self, error: BaseException) -> None:
        """Ends all waits, because the loop has ended: no further responses will arrive."""
        with self._changed:
            self._closed = error
            self._changed.notify_all()

    def _refuse(self, request: ApplicationRequest, error: BaseException) -> None:
        request.final = True
        self._finish(request, error)

    def _finish(
        self, request: ApplicationRequest, error: BaseException | None = None, response: Any = None
    ) -> None:
        with self._changed:
            request.error, request.response, request.done = error, response, True
            self._changed.notify_all()


class Attempts:
    """Sends the requests of one call, and retries them until its deadline. Not thread-safe."""

    def __init__(
        self,
        requests: ApplicationRequests,
        what: str,
        deadline: float,
        seconds: float,
    ) -> None:
        """
        Args:
            requests: sends requests.
            what: describes the call, for error messages.
            deadline: in the time of ``monotonic_s()``.
            seconds: the total time until the deadline, for error messages.
        """
        self._requests = requests
        self._what = what
        self._deadline = deadline
        self._seconds = seconds
        # Consecutive failures.
        self._failures = 0
        self._last: BaseException | None = None

    def send(self, *requests: ApplicationRequest) -> bool:
        """Sends requests, and waits for all; returns False, after the backoff, if the call must retry.

        Raises:
            KafkaTimeoutError: the deadline has passed.
            Exception: the error of a request that would fail again with the same error.
        """
        if missing := self._requests.ask(requests, self._deadline):
            raise self._too_late(missing)
        failed = [request for request in requests if request.error is not None]
        for request in failed:
            assert request.error is not None
            if request.final:
                raise request.error
        if failed:
            assert failed[0].error is not None
            self.failed(failed[0].error)
        return not failed

    def succeeded(self) -> None:
        """Resets the count of failures, because there was progress."""
        self._failures, self._last = 0, None

    def failed(self, error: BaseException) -> None:
        """Waits before the next attempt.

        Raises:
            KafkaTimeoutError: the deadline has passed.
        """
        self._failures += 1
        self._last = error
        left = self._deadline - monotonic_s()
        if left <= 0:
            raise self._too_late("there is no time for another attempt")
        self._requests.pause(self._failures, left)

    def refused(self, code: int, what: str, message: str | None = None) -> None:
        """Raises the error of a code, or waits if it is retriable. ``message``: the broker's own text."""
        error = refusal(code, what, message)
        if not error.retriable:
            raise error
        self.failed(error)

    def _too_late(self, waiting: str) -> errors.KafkaTimeoutError:
        last = f", after {self._failures} failed: {self._last}" if self._last is not None else ""
        error = errors.KafkaTimeoutError(
            f"{self._what} not complete within {self._seconds:g} s: {waiting}{last}; "
            f"{self._requests.diagnosis()}"
        )
        error.__cause__ = self._last
        return error
