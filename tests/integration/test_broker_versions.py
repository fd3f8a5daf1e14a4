"""Tests the program behind ``make brokers``: which jars a version gets, and how a failed check is shown."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.integration import broker_versions, old_kafka
from tests.integration.broker_versions import Run
from tools.harness.kafka_install import POM, kafka_version


@pytest.mark.parametrize(
    ("version", "artifacts"),
    [
        ("2.3.1", ["kafka_2.12", "zookeeper"]),
        ("2.8.2", ["kafka_2.13", "zookeeper"]),
        ("3.2.3", ["kafka_2.13"]),
        ("3.9.2", ["kafka_2.13", "slf4j-reload4j"]),
        ("4.4.0", ["kafka_2.13", "log4j-core", "log4j-slf4j-impl"]),
    ],
)
def test_another_version_gets_a_pom(
    version: str, artifacts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_kafka, "CACHE", tmp_path)

    pom = old_kafka.pom_of(version)

    assert kafka_version(pom) == version
    found = ElementTree.parse(pom).iter("{http://maven.apache.org/POM/4.0.0}artifactId")
    assert [each.text for each in found][1:] == artifacts


def test_the_version_of_the_other_tests_has_their_pom() -> None:
    assert old_kafka.pom_of(kafka_version()) == POM


def test_the_table_has_all_versions_and_the_status_that_one_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def broker(version: str, directory: Path) -> Iterator[Any]:
        if version == "2.8.2":
            raise OSError("it does not start")
        yield None

    def fails(run: Run) -> str:
        raise AssertionError("a record is missing")

    monkeypatch.setattr(broker_versions, "old_kafka", broker)
    monkeypatch.setattr(
        broker_versions, "CHECKS", {"good": lambda run: f"{run.records} records", "bad": fails}
    )
    monkeypatch.setattr(sys, "argv", ["", "--versions", "2.8.2", "3.9.1", "--records", "7"])

    assert broker_versions.main() == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-3:] == [
        "Kafka  good       bad",
        "2.8.2  FAILED     FAILED",
        "3.9.1  7 records  FAILED",
    ]
    assert "a record is missing" in printed.err
    assert "it does not start" in printed.err

    monkeypatch.setattr(broker_versions, "CHECKS", {"good": lambda run: "yes"})
    monkeypatch.setattr(sys, "argv", ["", "--versions", "3.9.1"])
    assert broker_versions.main() == 0
