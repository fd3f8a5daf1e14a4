"""Tests the installation of Kafka's jars, with a fake Maven that records its runs."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tools.harness import kafka_install
from tools.harness.kafka_install import KafkaUnavailableError, classpath, missing_tools

MAVEN = """#!/bin/sh
echo run >> '{runs}'
for argument; do case $argument in -DoutputDirectory=*) jars=${{argument#*=}} ;; esac; done
mkdir "$jars"
{then}
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with Java 17, a working Maven and an empty cache."""
    executable(tmp_path / "bin" / "java", "#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    set_maven(tmp_path, then='echo jar > "$jars/kafka.jar"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(kafka_install, "CACHE", tmp_path / "cache")
    return tmp_path


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def set_maven(machine: Path, then: str) -> None:
    executable(machine / "bin" / "mvn", MAVEN.format(runs=machine / "runs", then=then))


def runs(machine: Path) -> int:
    return len((machine / "runs").read_text().splitlines())


def test_the_jars_are_fetched_once(machine: Path) -> None:
    path = classpath()

    assert Path(path).parent.joinpath("kafka.jar").read_text() == "jar\n"
    assert Path(path).parent.name == f"kafka-{kafka_install.kafka_version()}"
    assert classpath() == path
    assert runs(machine) == 1


def test_concurrent_installations_fetch_once(machine: Path) -> None:
    set_maven(machine, then='sleep 0.3; echo jar > "$jars/kafka.jar"')
    # Forked, so that the children use this test's cache directory.
    fork = multiprocessing.get_context("fork")
    others = [fork.Process(target=classpath) for _ in range(4)]
    for other in others:
        other.start()
    for other in others:
        other.join(20)

    assert [other.exitcode for other in others] == [0] * 4
    assert runs(machine) == 1


def test_a_changed_pom_is_fetched_again(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classpath()
    changed = machine / "pom.xml"
    changed.write_text(kafka_install.POM.read_text() + "<!-- another -->")
    monkeypatch.setattr(kafka_install, "POM", changed)

    classpath()

    assert runs(machine) == 2


def test_a_failed_fetch_leaves_nothing_behind_and_shows_mavens_output(machine: Path) -> None:
    set_maven(machine, then='echo half > "$jars/kafka.jar"; echo no route to repository; exit 1')

    with pytest.raises(KafkaUnavailableError, match=r"(?s)mvn could not fetch Kafka.*no route to repository"):
        classpath()

    assert [path.suffix for path in (machine / "cache").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("version", "wanted"),
    [
        ('openjdk version "17.0.15" 2025-04-15', None),
        ('java version "1.8.0_392"', "Kafka needs Java 17"),
        ("", "printed '', but"),
    ],
)
def test_java_must_be_new_enough(machine: Path, version: str, wanted: str | None) -> None:
    executable(machine / "bin" / "java", f"#!/bin/sh\necho '{version}' >&2\n")

    reason = missing_tools()

    assert reason is None if wanted is None else wanted in str(reason)


def test_maven_is_not_needed_once_the_jars_are_there(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine / "bin"))
    (machine / "bin" / "mvn").rename(machine / "bin" / "hidden")
    assert "install Maven" in str(missing_tools())
    monkeypatch.setenv("PATH", f"{machine / 'bin'}:/usr/bin:/bin")
    (machine / "bin" / "hidden").rename(machine / "bin" / "mvn")
    classpath()
    (machine / "bin" / "mvn").unlink()
    monkeypatch.setenv("PATH", str(machine / "bin"))

    assert missing_tools() is None
