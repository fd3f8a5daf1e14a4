"""Carrying out calls at coordinators, with requests that are answered at once."""

import math
from typing import Any

import pytest

from cyproducer.clients import transaction_admin
from cyproducer.clients.application_requests import ApplicationRequest
from cyproducer.clients.transaction_admin import Coordinators
from cyproducer.control.retry import ExponentialBackoff
from cyproducer.control.transaction_ending import Describing
from cyproducer.wire.messages import FIND_COORDINATOR
from cyproducer.wire.transaction_api import (
    DescribeTransactionsResponse,
    FindCoordinatorResponse,
    TransactionDescription,
)

BACKOFF = ExponentialBackoff(1, 1)


class Instant:
    """Requests whose responses are there before anybody waits for them."""

    def send(self, request: ApplicationRequest) -> ApplicationRequest:
        request.node_id, request.where, request.done = 1, "broker:9092", True
        if request.api is FIND_COORDINATOR:
            request.response = FindCoordinatorResponse(0, 0, None, 1, "broker", 9092)
        else:
            found = TransactionDescription(0, "tx", "Empty", 1000, -1, 7, 0, {})
            request.response = DescribeTransactionsResponse(0, [found])
        return request

    def wait(self, requests: Any, timeout_s: float) -> None:
        raise AssertionError("there is nothing to wait for")


def test_calls_that_end_together_make_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_admin, "AT_ONCE", 3)
    calls = [Describing("tx", BACKOFF, lambda: 0.5) for _ in range(7)]
    requests: Any = Instant()
    Coordinators(requests).run(calls, math.inf, math.inf)
    assert all(call.result is not None for call in calls)
