"""Producers in multiprocessing's children, as their arguments, and in children that exit in other ways."""

import io
import multiprocessing
import pickle
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from multiprocessing.context import BaseContext
from typing import Any

import pytest

from cyproducer.producer import KafkaProducer
from tests import process_work
from tests.forked import needs_fork
from tests.programs import run_to_exit
from tests.scripted.odd_servers import refusing_address
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import ScriptedCluster


@pytest.fixture(autouse=True)
def quiet_forks() -> Iterator[None]:
    with warnings.catch_warnings():
        # Python warns that a fork with threads may deadlock. That it does not deadlock is under test.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        yield


@pytest.fixture
def handed_down(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ScriptedCluster, KafkaProducer]]:
    """A producer that has sent a record, and that forked children find in ``process_work.inherited``."""
    with ScriptedCluster(orders=1) as cluster, producing(cluster, close_timeout_ms=20_000) as producer:
        producer.send("orders", b"parent").get(WAIT_S)
        monkeypatch.setattr(process_work, "inherited", producer)
        yield cluster, producer


@needs_fork
def test_pool_workers_use_the_parents_producer(
    handed_down: tuple[ScriptedCluster, KafkaProducer],
) -> None:
    cluster, producer = handed_down
    texts = [f"record {i}" for i in range(60)]
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(process_work.threads_of_an_idle_child, range(3)) == [[]] * 3
        offsets = pool.map(process_work.send_and_wait, texts, chunksize=1)
        pool.close()
        pool.join()
    assert sorted(offsets) == list(range(1, 61))
    values = Counter(cluster.topics["orders"].values)
    assert values == Counter([b"parent", *(text.encode() for text in texts)])
    assert producer.send("orders", b"parent").get(WAIT_S).offset == 61


@needs_fork
def test_the_exit_of_a_forked_multiprocessing_child_delivers_its_records(
    handed_down: tuple[ScriptedCluster, KafkaProducer],
) -> None:
    cluster, _ = handed_down
    values = [b"%d" % i for i in range(100)]
    child = multiprocessing.get_context("fork").Process(
        target=process_work.send_and_leave, args=(None, values)
    )
    child.start()
    child.join(WAIT_S)
    assert child.exitcode == 0
    assert cluster.topics["orders"].values == [b"parent", *values]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.slow
def test_a_producer_can_be_an_argument_of_a_process_that_is_not_forked(
    method: str, cluster: ScriptedCluster
) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system has no {method}")
    context: BaseContext = multiprocessing.get_context(method)
    with producing(cluster, value_serializer=process_work.upper, close_timeout_ms=20_000) as producer:
        producer.send("orders", "parent").get(WAIT_S)
        child = context.Process(  # type: ignore[attr-defined]
            target=process_work.send_and_leave, args=(producer, ["a", "b"])
        )
        child.start()
        child.join(WAIT_S)
        assert child.exitcode == 0
        assert cluster.topics["orders"].values == [b"PARENT", b"A", b"B"]


# Pickling


def test_a_pickled_producer_is_its_options() -> None:
    with producing(
        bootstrap_servers=[refusing_address()],
        client_id="shop",
        linger_ms=7,
        key_serializer=process_work.upper,
    ) as producer:
        again = pickle.loads(pickle.dumps(producer))
        try:
            assert type(again) is type(producer)
            assert again is not producer
            assert again.config == producer.config
            assert again.config.key_serializer is process_work.upper
            assert again._runtime is not producer._runtime
        finally:
            again.close(0)


@pytest.mark.parametrize("option", ["value_serializer", "interceptors"])
def test_the_error_names_an_option_that_cannot_be_pickled(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # These picklers take local objects. pyarrow imports the one and PySpark the other, if installed.
    for module in ("cloudpickle", "pyspark.cloudpickle"):
        monkeypatch.delitem(sys.modules, module, raising=False)

    class Local:
        def on_send(self, record: Any) -> Any:
            return record

    given: Any = (lambda value: value) if option == "value_serializer" else [Local()]
    with (
        producing(bootstrap_servers=[refusing_address()], linger_ms=7, **{option: given}) as producer,
        pytest.raises(pickle.PicklingError, match=rf"{option}=.*<locals>.* can't be: ") as raised,
    ):
        pickle.dumps(producer)
    assert raised.value.__cause__ is not None


def test_the_error_for_a_pickled_future_says_what_to_return(producer: KafkaProducer) -> None:
    future = producer.send("orders", b"1")
    with pytest.raises(TypeError, match=r"'orders' can't be pickled: .* Return the result of its get\(\)"):
        pickle.dumps(future)
    metadata = future.get(WAIT_S)
    assert pickle.loads(pickle.dumps(metadata)) == metadata


def give_upper() -> Any:
    return process_work.upper


def test_a_pickler_that_accepts_more_than_pickle_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Generous(pickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if getattr(obj, "__name__", "") == "<lambda>":
                return give_upper, ()
            return NotImplemented

    class Module:
        @staticmethod
        def dumps(value: Any) -> bytes:
            into = io.BytesIO()
            Generous(into).dump(value)
            return into.getvalue()

    # Imitates the module that PySpark ships. The test below uses the real one, if it is installed.
    monkeypatch.setitem(sys.modules, "pyspark.cloudpickle", Module)
    with producing(bootstrap_servers=[refusing_address()], value_serializer=lambda value: value) as producer:
        again = pickle.loads(Module.dumps(producer))
        again.close(0)
        assert again.config.value_serializer is process_work.upper


def test_cloudpickle_accepts_lambda_serializers() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    with producing(
        bootstrap_servers=[refusing_address()], value_serializer=lambda value: b"<%s>" % value
    ) as producer:
        again = pickle.loads(cloudpickle.dumps(producer))
        again.close(0)
        assert again.config.value_serializer(b"x") == b"<x>"


# Forked children that exit in various ways


ENDS = """
import logging, os, sys
from cyproducer.producer import KafkaProducer
logging.basicConfig()
servers, how = sys.argv[1].split(","), sys.argv[2]
producer = KafkaProducer(bootstrap_servers=servers, close_timeout_ms=20000, linger_ms=30000)
producer.send("orders", b"parent")
child = os.fork()
if child == 0:
    futures = [producer.send("orders", b"child %d" % i) for i in range(100)]
    if how == "sys.exit":
        sys.exit(7)
    if how == "os._exit":
        producer.flush()
        os._exit(7)
    if how == "raise":
        raise KeyError("the child's own")
status = os.waitpid(child, 0)[1]
print(os.waitstatus_to_exitcode(status))
"""


@needs_fork
@pytest.mark.parametrize(("how", "status"), [("sys.exit", 7), ("os._exit", 7), ("raise", 1)])
def test_the_exit_of_a_forked_child_delivers_its_own_records_and_not_the_parents(
    how: str, status: int, cluster: ScriptedCluster
) -> None:
    done = run_to_exit(ENDS, ",".join(cluster.bootstrap_servers), how)
    assert (done.returncode, done.stdout) == (0, f"{status}\n")
    assert ("the child's own" in done.stderr) == (how == "raise")
    assert "cyproducer" not in done.stderr
    # The child's first: the parent's records linger until its exit.
    assert cluster.topics["orders"].values == [*(b"child %d" % i for i in range(100)), b"parent"]


IDLE = """
import logging, os, sys
from cyproducer.producer import KafkaProducer
logging.basicConfig()
producer = KafkaProducer(bootstrap_servers=sys.argv[1].split(","), close_timeout_ms=20000, linger_ms=30000)
future = producer.send("orders", b"parent").add_callback(print)
child = os.fork()
if child == 0:
    if sys.argv[2] == "forget":
        del producer, future
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
producer.close()
"""


@needs_fork
@pytest.mark.parametrize("how", ["keep", "forget"])
def test_a_forked_child_that_uses_no_producer_ends_at_once(how: str, cluster: ScriptedCluster) -> None:
    done = run_to_exit(IDLE, ",".join(cluster.bootstrap_servers), how)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("7\nRecordMetadata(")
    assert cluster.topics["orders"].values == [b"parent"]


def test_a_pickled_producer_has_its_password_only_if_that_was_asked_for() -> None:
    options: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1", "ssl_password": "geheim"}
    with KafkaProducer(**options) as producer, pytest.raises(TypeError, match="ssl_password would be in"):
        pickle.dumps(producer)
    with KafkaProducer(**options, pickle_secrets=True) as producer:
        again = pickle.loads(pickle.dumps(producer))
        with again:
            assert again.config.ssl_password.reveal() == "geheim"
