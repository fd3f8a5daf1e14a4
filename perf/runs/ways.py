"""What a program adds to ``send()``: serializers, callbacks, interceptors, partitioners, asyncio, bulk calls.

A way sends records of a key of 16 bytes and a value of 100. In each round a plain ``send()`` sends them, the
way sends them, and the program's own functions run alone; ``added_us`` is the CPU of the second without the
first and the third, in microseconds per record, the median of the rounds. All in one process and close
together: the difference is smaller than the CPU of a process varies on a shared machine.
"""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from perf.runs.measuring import FLUSH_S, WARM_UP_S, Args, Figures, cpu_s
from perf.runs.own import producer

ROUND = 30_000
"""Records per round."""
GATHERED = 1000
TASKS = 100
VALUE = b"x" * 100
TEXT = "x" * 100
KEYS = [b"%016d" % number for number in range(ROUND)]
TEXT_KEYS = [key.decode() for key in KEYS]


class Way(NamedTuple):
    """Functions that do a round each. Every record of the round is acknowledged when ``send`` returns."""

    send: Callable[[], object]
    alone: Callable[[], object]
    """The program's own functions."""
    base: Callable[[], object] | None = None
    """What the way is compared with. None: a plain ``send()``."""


def cost(args: Args) -> Figures:
    """Measures ``args.way``, a key of ``WAYS``."""
    rounds = max(3, args.records // ROUND)
    with WAYS[args.way](args) as way, producer(args) as plain:

        def plainly() -> None:
            send, topic = plain.send, args.topic
            for key in KEYS:
                send(topic, VALUE, key)
            plain.flush(FLUSH_S)

        base = way.base or plainly
        for each in (base, way.send, way.alone):
            each()
        whole, added = [], []
        for _ in range(rounds):
            before = cpu_of(base)
            with_it = cpu_of(way.send)
            alone = cpu_of(way.alone)
            whole.append(with_it)
            added.append(with_it - before - alone)
    return {
        "records": rounds * ROUND,
        "cpu_s_per_million": statistics.median(whole),
        "added_us": statistics.median(added),
    }


def cpu_of(run: Callable[[], object]) -> float:
    """Returns microseconds of CPU per record."""
    before = cpu_s()
    run()
    return (cpu_s() - before) / ROUND * 1e6


def apply(function: Callable[..., object], *columns: list[Any]) -> Callable[[], None]:
    """Returns a function that calls ``function`` with each row, as a program would."""

    def run() -> None:
        if len(columns) == 1:
            for first in columns[0]:
                function(first)
        else:
            for row in zip(*columns, strict=True):
                function(*row)

    return run


def nothing() -> None:
    pass


# Ways of KafkaProducer


@contextmanager
def extended(args: Args, values: list[Any], keys: list[Any], alone: Callable[[], object]) -> Iterator[Way]:
    """Sends through what ``args.options`` has."""
    with producer(args) as own:
        own.send(args.topic, values[0], keys[0]).get(WARM_UP_S)

        def send() -> None:
            to, topic = own.send, args.topic
            for value, key in zip(values, keys, strict=True):
                to(topic, value, key)
            own.flush(FLUSH_S)

        yield Way(send, alone)


def c_serializer(args: Args) -> AbstractContextManager[Way]:
    given = replace(args, options={"value_serializer": str.encode})
    texts = [TEXT] * ROUND
    return extended(given, texts, KEYS, apply(str.encode, texts))


def python_serializer(args: Args) -> AbstractContextManager[Way]:
    def serialize(text: str) -> bytes:
        return text.encode()

    texts = [TEXT] * ROUND
    return extended(
        replace(args, options={"value_serializer": serialize}), texts, KEYS, apply(serialize, texts)
    )


def two_serializers(args: Args) -> AbstractContextManager[Way]:
    given = replace(args, options={"value_serializer": str.encode, "key_serializer": str.encode})
    texts = [TEXT] * ROUND

    def alone() -> None:
        apply(str.encode, texts)()
        apply(str.encode, TEXT_KEYS)()

    return extended(given, texts, TEXT_KEYS, alone)


class Interceptor:
    def on_send(self, record: Any) -> Any:
        return record

    def on_acknowledgement(self, metadata: Any, exception: Any) -> None:
        pass


def interceptor(args: Args) -> AbstractContextManager[Way]:
    one = Interceptor()
    given = replace(args, options={"interceptors": [one]})

    def alone() -> None:
        for key in KEYS:
            one.on_send(key)
            one.on_acknowledgement(key, None)

    return extended(given, [VALUE] * ROUND, KEYS, alone)


def partitioner(args: Args) -> AbstractContextManager[Way]:
    def choose(key: bytes, every: list[int], available: list[int]) -> int:
        return every[key[-1] % len(every)]

    numbers = list(range(3))
    alone = apply(choose, KEYS, [numbers] * ROUND, [numbers] * ROUND)
    return extended(replace(args, options={"partitioner": choose}), [VALUE] * ROUND, KEYS, alone)


@contextmanager
def callback(args: Args) -> Iterator[Way]:
    def called(metadata: Any) -> None:
        pass

    with producer(args) as own:

        def send() -> None:
            to, topic = own.send, args.topic
            for key in KEYS:
                to(topic, VALUE, key).add_callback(called)
            own.flush(FLUSH_S)

        yield Way(send, apply(called, KEYS))


@contextmanager
def send_all(args: Args) -> Iterator[Way]:
    from cyproducer import ProducerRecord

    records = [ProducerRecord(args.topic, VALUE, key) for key in KEYS]
    with producer(args) as own:

        def send() -> None:
            own.send_all(records)
            own.flush(FLUSH_S)

        yield Way(send, nothing)


@contextmanager
def many_headers(args: Args) -> Iterator[Way]:
    """``send_many()`` with headers for each row, over without."""
    headers = [[("trace", key)] for key in KEYS]
    values = [VALUE] * ROUND
    with producer(args) as own:

        def send(**more: Any) -> None:
            own.send_many(args.topic, values, KEYS, **more)
            own.flush(FLUSH_S)

        yield Way(partial(send, headers=headers), nothing, send)


# Other APIs


@contextmanager
def on_delivery(args: Args) -> Iterator[Way]:
    from cyproducer.confluent import Producer

    def called(error: Any, message: Any) -> None:
        pass

    one = Producer({"bootstrap.servers": args.bootstrap})

    def send() -> None:
        produce, poll, topic = one.produce, one.poll, args.topic
        for key in KEYS:
            produce(topic, VALUE, key, on_delivery=called)
            poll(0)
        one.flush()

    with one:
        yield Way(send, apply(called, KEYS, KEYS))


@contextmanager
def in_a_loop(
    args: Args,
    send: Callable[[Any, Args], Coroutine[Any, Any, None]],
    alone: Callable[[], Coroutine[Any, Any, None]],
) -> Iterator[Way]:
    """Sends with ``AIOKafkaProducer`` in one event loop."""
    from cyproducer.aio import AIOKafkaProducer

    async def started() -> Any:
        made = AIOKafkaProducer(bootstrap_servers=args.bootstrap)
        await made.start()
        return made

    with asyncio.Runner() as runner:
        one = runner.run(started())
        yield Way(lambda: runner.run(send(one, args)), lambda: runner.run(alone()))
        runner.run(one.stop())


class Answers:
    """Resolves futures as a client does at best: all that are there in one call of the loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.open: list[asyncio.Future[None]] = []

    def future(self) -> asyncio.Future[None]:
        made = self.loop.create_future()
        if not self.open:
            self.loop.call_soon(self.resolve)
        self.open.append(made)
        return made

    def resolve(self) -> None:
        ready, self.open = self.open, []
        for future in ready:
            future.set_result(None)


def aio_gathered(args: Args) -> AbstractContextManager[Way]:
    async def send(one: Any, args: Args) -> None:
        for first in range(0, ROUND, GATHERED):
            await asyncio.gather(
                *[await one.send(args.topic, VALUE, key) for key in KEYS[first : first + GATHERED]]
            )

    async def alone() -> None:
        answers = Answers()
        for first in range(0, ROUND, GATHERED):
            await asyncio.gather(*[answers.future() for _ in KEYS[first : first + GATHERED]])

    return in_a_loop(args, send, alone)


def aio_tasks(args: Args) -> AbstractContextManager[Way]:
    async def in_tasks(one: Callable[[bytes], Awaitable[Any]]) -> None:
        async def some(keys: list[bytes]) -> None:
            for key in keys:
                await one(key)

        await asyncio.gather(*[some(KEYS[number::TASKS]) for number in range(TASKS)])

    async def send(one: Any, args: Args) -> None:
        async def once(key: bytes) -> None:
            await one.send_and_wait(args.topic, VALUE, key)

        await in_tasks(once)

    async def alone() -> None:
        answers = Answers()

        async def once(key: bytes) -> None:
            await answers.future()

        await in_tasks(once)

    return in_a_loop(args, send, alone)


WAYS: dict[str, Callable[[Args], AbstractContextManager[Way]]] = {
    "a serializer, a C function": c_serializer,
    "a serializer, a Python function": python_serializer,
    "two serializers": two_serializers,
    "a callback": callback,
    "an interceptor": interceptor,
    "a partitioner": partitioner,
    "send_all()": send_all,
    "send_many(), headers for each row": many_headers,
    "cyproducer.confluent, on_delivery and poll(0)": on_delivery,
    "cyproducer.aio, send() and gather()": aio_gathered,
    "cyproducer.aio, send_and_wait() in 100 tasks": aio_tasks,
}
