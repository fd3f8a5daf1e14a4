"""Random programs with serializers, interceptors and partitioners do in C what the model does in Python."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cyproducer.control.cluster_view import BrokerMetadata, ClusterView, TopicView
from cyproducer.control.partitioners import CustomPartitioner
from cyproducer.send.bulk_path import BulkPath
from cyproducer.send.extensions import Extensions
from cyproducer.serializers import ConfluentSerializer
from cyproducer.structs import ProducerRecord
from tests.send.extended_model import Model
from tools.harness.rig import Rig

LEADERS = {0: 1, 1: 1, 2: 1, 3: -1}
VIEW = ClusterView(
    {1: BrokerMetadata(1, "b", 9092, None)},
    {"orders": TopicView(LEADERS, False), "sparse": TopicView({7: 1, 2: 1}, False)},
    None,
    None,
)
PROGRAMS, CHUNKS, RECORDS = 400, 10, 12


class Wrong(Exception):
    """What a program's own function raises."""


class Script:
    """A program: what its functions do, by a seed, and the log of what they were given."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.log: list[Any] = []

    def happens(self, one_in: int) -> bool:
        return self.dice.randrange(one_in) == 0

    def note(self, what: str, *details: Any) -> None:
        self.log.append((what, *(repr(each) for each in details)))

    # Serializers

    def serialized(self, what: str, data: Any, headers: Any = None) -> Any:
        if headers is not None and self.happens(3):
            headers.append((what, b"added"))
        if self.happens(12):
            raise Wrong(what)
        if self.happens(15):
            return self.dice.choice([None, "text", 5, bytearray(b"buffer")])
        return None if data is None else str(data).encode()

    def serializer(self, what: str) -> Any:
        script = self

        class Serializer:
            def serialize(self, topic: str, headers: Any, data: Any) -> Any:
                script.note(f"serialize {what}", topic, headers, data)
                return script.serialized(what, data, headers if isinstance(headers, list) else None)

        def function(data: Any) -> Any:
            script.note(what, data)
            return script.serialized(what, data)

        def with_context(data: Any, context: Any) -> Any:
            script.note(what, data, context.topic, str(context.field), context.headers)
            return script.serialized(
                what, data, context.headers if isinstance(context.headers, list) else None
            )

        kinds: list[Callable[[], Any]] = [
            lambda: None,
            lambda: function,
            Serializer,
            lambda: ConfluentSerializer(with_context, what),
        ]
        return self.dice.choice(kinds)()

    # Interceptors

    def interceptor(self, number: int) -> Any:
        script = self

        def on_send(record: ProducerRecord) -> Any:
            script.note(f"on_send {number}", *record)
            if script.happens(8):
                raise Wrong("on_send")
            if script.happens(8):
                return None
            if script.happens(4):
                return record._replace(value="changed", partition=script.dice.choice([None, 1, 9]))
            return record

        def on_acknowledgement(metadata: Any, error: Any) -> None:
            script.note(f"on_acknowledgement {number}", metadata, type(error))
            if script.happens(8):
                raise Wrong("on_acknowledgement")

        methods = {"on_send": on_send, "on_acknowledgement": on_acknowledgement}
        names = self.dice.choice([["on_send"], ["on_acknowledgement"], list(methods)])
        return SimpleNamespace(**{name: methods[name] for name in names})

    # Partitioners

    def answer(self) -> Any:
        if self.happens(10):
            raise Wrong("partitioner")
        if self.happens(8):
            return self.dice.choice([None, True, -1, 99, "1", 2**70, 1.0])
        return self.dice.choice([0, 1, 2])

    def partitioner(self) -> Any:
        script = self

        def keyed(key: Any, every: Any, available: Any) -> Any:
            script.note("partitioner", key, list(every), list(available))
            return script.answer()

        class Six:
            def partition(self, topic: Any, key: Any, kb: Any, value: Any, vb: Any, cluster: Any) -> Any:
                script.note("partition", topic, key, kb, value, vb, cluster is VIEW)
                return script.answer()

        class Hooked(Six):
            def on_new_batch(self, topic: Any, cluster: Any, before: Any) -> None:
                script.note("on_new_batch", topic, cluster is VIEW, before)

        kinds: list[Callable[[], Any]] = [lambda: None, lambda: keyed, Six, Hooked]
        return self.dice.choice(kinds)()

    # The records

    def record(self) -> tuple[Any, ...]:
        dice = self.dice
        return (
            dice.choice(["orders"] * 8 + ["or ders", None]),
            dice.choice([None, "value", b"bytes", 7]),
            dice.choice([None, None, "key", b"k"]),
            dice.choice([None, None, [], [("h", b"1")], (("t", None),), {"a": b"1"}, 5, [("x", "no bytes")]]),
            dice.choice([None, None, None, 0, 2, -1, "0"]),
            dice.choice([None, 1000]),
        )


class ExtendedPath(BulkPath[Any, Any]):
    def _view_of(self, topic: str, timeout_s: float) -> ClusterView:
        return VIEW


def played(seed: int, by_model: bool) -> list[Any]:
    """Runs a program, and returns everything that it could see."""
    script = Script(seed)
    with Rig({"orders": [1] * 4}) as rig:
        rig.connect(1)
        key, value = script.serializer("key"), script.serializer("value")
        interceptors = [script.interceptor(number) for number in range(script.dice.randrange(3))]
        partitioner = script.partitioner()
        send: Callable[..., Any]
        if by_model:
            send = Model(rig, VIEW, key, value, interceptors, partitioner).send
        else:
            custom = None if partitioner is None else CustomPartitioner(partitioner)
            extensions = Extensions(
                key_serializer=key, value_serializer=value, interceptors=interceptors, custom=custom
            )
            extensions.use(SimpleNamespace(view=VIEW))
            path = ExtendedPath()
            path._open_path(rig.accumulator, 1 << 20, 1000, extensions)
            send = path.send
        futures = []
        for number in range(RECORDS):
            if number == RECORDS - 1 and script.happens(3):
                rig.accumulator.close()
            record = script.record()
            kept = repr(record[3])
            try:
                futures.append(send(*record))
                script.note("sent")
            except Exception as error:
                # The name of the partitioner is not the model's.
                text = str(error).split("returned")[-1].split(": must be")[0]
                script.note("raised", type(error), text, getattr(error, "__notes__", []))
            assert repr(record[3]) == kept, "the caller's headers have changed"
            if script.happens(3):
                for seen in rig.requests():
                    for place, batch in seen.batches.items():
                        script.note("wire", place, batch.records)
                    rig.answer(seen, error=script.dice.choice([0, 0, 29]))
            if script.happens(2):
                rig.run_callbacks()
        rig.answer_all()
        rig.run_callbacks()
        for place, records in rig.log.items():
            script.note("log", place, records)
        for future in futures:
            script.note("outcome", future.value, type(future.exception))
    return script.log


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_random_program_sees_what_the_model_shows_it(chunk: int) -> None:
    seen: set[str] = set()
    for seed in range(chunk * PROGRAMS // CHUNKS, (chunk + 1) * PROGRAMS // CHUNKS):
        log = played(seed, by_model=False)
        assert log == played(seed, by_model=True), seed
        seen |= {entry[0].split()[0] for entry in log}
    # The programs have come everywhere.
    assert seen >= {
        *("serialize", "key", "value", "on_send", "on_acknowledgement"),
        *("partitioner", "partition", "on_new_batch", "sent", "raised", "wire", "log", "outcome"),
    }
