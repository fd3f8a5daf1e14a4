"""Installs a real Kafka: has Maven copy the jars that ``pom.xml`` names to a cache.

Owns the cache directory and the check whether this machine can run a broker. Does not start brokers
(`kafka_cluster`). Several test runs may install at the same time: a file lock lets only one of them do it.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from xml.etree import ElementTree

POM = Path(__file__).with_name("pom.xml")
CACHE = Path(__file__).resolve().parents[2] / ".cache"
OLDEST_JAVA = 17
"""Kafka 4's brokers do not start on an older version."""


class KafkaUnavailableError(RuntimeError):
    """This machine can't run a broker. The message says what to install."""


def kafka_version(pom: Path | None = None) -> str:
    """Returns the Kafka version that a POM names. Default: ``pom.xml``."""
    pom = pom or POM
    name = "{http://maven.apache.org/POM/4.0.0}"
    version = ElementTree.parse(pom).findtext(f"{name}properties/{name}kafka.version")
    if version is None:
        raise KafkaUnavailableError(f"{pom} has no property kafka.version")
    return version


def missing_tools(pom: Path | None = None) -> str | None:
    """Returns a sentence that says what this machine lacks to run a broker, or ``None``."""
    pom = pom or POM
    java = shutil.which("java")
    if java is None:
        return (
            f"java is not on PATH: install Java {OLDEST_JAVA} or newer (Debian: apt-get install default-jre)"
        )
    # The version is printed to stderr, for example `openjdk version "17.0.15" 2025-04-15`.
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < OLDEST_JAVA:
        return f"{java} -version printed {said.strip()!r}, but Kafka needs Java {OLDEST_JAVA} or newer"
    if shutil.which("mvn") is None and not _installed(pom):
        return "mvn is not on PATH and the cache has no Kafka: install Maven (Debian: apt-get install maven)"
    return None


def classpath(pom: Path | None = None) -> str:
    """Returns the class path of a Kafka. Downloads Kafka if it is not in the cache.

    ``pom``: which Kafka; default: ``pom.xml``. All need the same Java.

    Raises:
        KafkaUnavailableError: Java or Maven is missing, or Maven failed. The message has the end of its
            output.
    """
    pom = pom or POM
    if reason := missing_tools(pom):
        raise KafkaUnavailableError(reason)
    directory = _directory(pom)
    if not _installed(pom):
        CACHE.mkdir(parents=True, exist_ok=True)
        with open(CACHE / f"{directory.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Another run may have installed Kafka while this one waited for the lock.
            if not _installed(pom):
                _install(pom)
    return f"{directory}/*"


def _directory(pom: Path) -> Path:
    return CACHE / f"kafka-{kafka_version(pom)}"


def _installed(pom: Path) -> bool:
    """Returns whether the cache has this POM's Kafka. The copy of the POM is written last, so if it is there
    and equal, the directory is complete."""
    try:
        return (_directory(pom) / POM.name).read_bytes() == pom.read_bytes()
    except FileNotFoundError:
        return False


def _install(pom: Path) -> None:
    directory = _directory(pom)
    with tempfile.TemporaryDirectory(prefix="kafka-", dir=CACHE) as scratch:
        jars = Path(scratch) / "jars"
        maven = subprocess.run(
            ["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={jars}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if maven.returncode != 0:
            said = maven.stdout[-2000:]
            raise KafkaUnavailableError(
                f"mvn could not fetch Kafka {kafka_version(pom)} (exit {maven.returncode}):\n{said}"
            )
        shutil.copyfile(pom, jars / POM.name)
        shutil.rmtree(directory, ignore_errors=True)
        jars.rename(directory)
