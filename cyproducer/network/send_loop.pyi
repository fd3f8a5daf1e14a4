import selectors
from typing import Any

from typing_extensions import disjoint_base

from cyproducer.accumulator.record_accumulator import RecordAccumulator
from cyproducer.base.clock import Clock
from cyproducer.futures.driving import Driver
from cyproducer.network.connection import Connection
from cyproducer.network.poller import Poller

@disjoint_base
class SendLoop(Driver):
    def __init__(
        self,
        accumulator: RecordAccumulator,
        selector: selectors.BaseSelector,
        clock: Clock,
        *,
        client_id: str,
        acks: int,
        max_in_flight: int,
        max_request_size: int,
        request_timeout_ms: float,
        delivery_timeout_ms: float,
        receive_max: int,
    ) -> None: ...
    @property
    def accumulator(self) -> RecordAccumulator: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def poller(self) -> Poller: ...
    @property
    def control(self) -> Any: ...
    def wake(self) -> None: ...
    def request_control(self) -> None: ...
    def close_connection(self, connection: Connection, cause: BaseException | None) -> None: ...
