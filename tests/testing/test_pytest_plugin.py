"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.testing.run_pytest import run_pytest


def run(directory: Path, test: str) -> tuple[str, dict[str, int]]:
    (directory / "test_it.py").write_text(textwrap.dedent(test))
    return run_pytest(directory)


@pytest.mark.slow
def test_without_its_fixtures_the_plugin_does_not_import_the_package(tmp_path: Path) -> None:
    output, counts = run(
        tmp_path,
        """
        import sys
        def test_nothing():
            assert "pytest_cyproducer" in sys.modules
            assert not {name.split(".")[0] for name in sys.modules} & {"cyproducer", "confluent_kafka"}
        """,
    )
    assert counts == {"passed": 1}, output


@pytest.mark.slow
def test_the_mock_producer_is_new_for_each_test_and_closed_after_it(tmp_path: Path) -> None:
    output, counts = run(
        tmp_path,
        """
        import pytest
        seen = []
        @pytest.mark.parametrize("number", [1, 2])
        def test_one(mock_producer, number):
            assert mock_producer.history() == []
            assert mock_producer.send("t", b"v").get(0).offset == 0
            assert not any(producer.bootstrap_connected() for producer in seen)
            seen.append(mock_producer)
        """,
    )
    assert counts == {"passed": 2}, output


@pytest.mark.slow
def test_each_test_has_a_broker_of_its_own_and_its_records_are_delivered(tmp_path: Path) -> None:
    output, counts = run(
        tmp_path,
        """
        import pytest
        seen = []
        @pytest.mark.parametrize("number", [1, 2])
        def test_one(kafka_broker, kafka_producer, number):
            kafka_broker.create_topic("same-name", 1)
            future = kafka_producer.send("same-name", b"v", partition=0)
            seen.append((kafka_broker, kafka_producer, future))
        def test_afterwards():
            for broker, producer, future in seen:
                assert future.get(0).offset == 0
                assert broker.pid is None
                assert "closed" in repr(producer)
        def test_a_test_may_close_the_producer(kafka_producer):
            kafka_producer.close()
        """,
    )
    assert counts == {"passed": 4}, output


@pytest.mark.slow
def test_records_without_an_outcome_are_an_error_and_the_producer_is_closed(tmp_path: Path) -> None:
    output, counts = run(
        tmp_path,
        """
        import pytest_cyproducer
        pytest_cyproducer.DELIVERY_S = 0.2
        seen = []
        def test_undelivered(kafka_broker, kafka_producer):
            kafka_producer.wait_ready(30)
            kafka_broker.take_down(1)
            kafka_producer.send("t", b"v")
            seen.append((kafka_broker, kafka_producer))
        def test_afterwards():
            (broker, producer), = seen
            assert (broker.pid, "closed" in repr(producer)) == (None, True)
        """,
    )
    assert counts == {"passed": 2, "error": 1}, output
    assert "KafkaTimeoutError: flush(0.2)" in output
