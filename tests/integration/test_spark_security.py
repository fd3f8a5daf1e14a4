"""Spark with brokers that need TLS and SASL: the format and the functions write, and no secret appears where
Spark or this package shows anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cyproducer.errors import KafkaConfigurationError
from cyproducer.spark import produce_partitions, register
from tests.forked import needs_module
from tests.integration.consume import read_all
from tests.pages import programs
from tools.harness import sasl, tls
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.spark_session import spark_session

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900), needs_module("pyspark")]

ROOT = Path(__file__).parents[2]
AUTHORITY = tls.Authority()
# Spark redacts a value that has one of its words, such as "secret": then these tests would see nothing.
RIGHT, WRONG = "Zq7-geheim", "Zq7-falsch"
DOCUMENTED = "a secret"
#: Of the section about TLS and SASL.
PROGRAMS = [each for each in programs("docs/spark.md") if "broker.example:9093" in each]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    directory = tmp_path_factory.mktemp("kafka-spark-sasl")
    nodes = KafkaCluster(
        properties={
            **tls.broker_properties("SECURE", AUTHORITY, directory),
            **sasl.broker_properties("SECURE", {}),
        },
        listeners={"SECURE": "SASL_SSL"},
        directory=directory / "nodes",
    )
    with nodes:
        sasl.create_scram_user(nodes, "alice", DOCUMENTED, "SCRAM-SHA-512")
        sasl.create_scram_user(nodes, "bob", RIGHT, "SCRAM-SHA-512")
        yield nodes


def test_the_documented_programs_write(cluster: KafkaCluster, tmp_path: Path) -> None:
    format_, of_session, of_function = PROGRAMS

    cluster.create_topic("orders", 1)
    AUTHORITY.file(tmp_path)
    (tmp_path / "alice.password").write_text(f"{DOCUMENTED}\n")
    jaas = re.findall(r"'(org.apache.*?;)'", format_)[0]
    settings = {
        "security__protocol": "SASL_SSL",
        "ssl__truststore__location": str(tmp_path / "ca.pem"),
        "sasl__mechanism": "SCRAM-SHA-512",
        "sasl__jaas__config": jaas,
    }
    session = {f"spark__cyproducer__kafka__{name}": value for name, value in settings.items()}
    with spark_session(tmp_path / "spark", **session) as spark:
        df = spark.range(0, 10, 1, 2).selectExpr("cast(id as string) as value")
        rdd = spark.sparkContext.parallelize([b"%d" % number for number in range(10)], 2)
        for count, program in enumerate((format_, of_session, of_function), 1):
            placed = program.replace("broker.example:9093", cluster.bootstrap("SECURE"))
            exec(placed.replace("/etc/kafka", str(tmp_path)), {"spark": spark, "df": df, "rdd": rdd})
            found = read_all(cluster.bootstrap_servers, "orders", 10 * count)
            assert Counter(r.value for r in found) == {b"%d" % number: count for number in range(10)}
        spark.conf.set("spark.cyproducer.kafka.sasl.plain.password", "too late")
        for use in (lambda: register(spark), lambda: produce_partitions("orders")):
            with pytest.raises(KafkaConfigurationError, match="was made after the application started"):
                use()


LOGGING = """
import logging, sys
logging.basicConfig(stream=sys.stderr, format="%(process)d %(levelname)s %(name)s: %(message)s")
for name in ("cyproducer", "kafka"):
    logging.getLogger(name).setLevel(logging.DEBUG)
logging.getLogger("cyproducer").debug("debugging")
"""

DRIVER = """
import json, sys, traceback, urllib.request
from pathlib import Path

given = json.loads(Path(sys.argv[1]).read_text())
shown, topic = Path(given["shown"]), given["topic"]
# At the end: an installed package comes before the sources.
sys.path.append(given["root"])
from cyproducer.spark import (
    PRODUCED_SCHEMA, SharedConfig, foreach_batch, produce_arrow, produce_partitions, register, shared_producer
)
from cyproducer.spark.options import parse
from tools.harness.spark_session import spark_session

secure, by_user, by_jaas = given["secure"], given["user"], given["jaas"]
function = {**secure, **by_user}


def tell(*what):
    print(*what, flush=True)


def streamed(name):
    text = str(shown.parent / "text")
    df.write.mode("overwrite").text(text)
    checkpoint = str(shown / f"checkpoint-{name}")
    stream = spark.readStream.format("text").load(text).writeStream.trigger(availableNow=True)
    return stream.option("checkpointLocation", checkpoint)


def ended(query):
    try:
        query.awaitTermination(300)
    finally:
        progress = [query.lastProgress, query.recentProgress, query.status, query.exception()]
        tell(*progress, query._jsq.toString(), query._jsq.explainInternal(True))


def of_sink(credentials):
    return {**{f"kafka.{name}": value for name, value in {**secure, **credentials}.items()}, "topic": topic}


def batch():
    more = {**of_sink(by_jaas), "createTopic.partitions": "1"}
    df.write.format("cyproducer").mode("append").options(**more).save()


def batch_of_user():
    df.write.format("cyproducer").mode("append").options(**of_sink(by_user)).save()


def stream():
    ended(streamed("format").format("cyproducer").options(**of_sink(by_jaas)).start())


def of_batches():
    write = foreach_batch(topic, **function)
    tell(write)
    ended(streamed("foreach").foreachBatch(write).start())


def of_partitions():
    produce = produce_partitions(topic, **function)
    tell(produce, vars(produce), rdd.mapPartitions(produce).toDebugString())
    rdd.mapPartitions(produce).count()


def of_arrow():
    produce = produce_arrow(topic, **function)
    written = df.mapInArrow(produce, PRODUCED_SCHEMA)
    written.explain(True)
    tell(produce, vars(produce))
    errors = [row.error for row in written.collect() if row.error]
    assert not errors, errors


def of_config():
    config = SharedConfig(function)
    tell(config, vars(config), parse(of_sink(by_jaas)))

    def send(values):
        print(config, vars(config), file=sys.stderr)
        with shared_producer(config) as producer:
            futures = [producer.send(topic, value) for value in values]
        yield [future.get().offset for future in futures]

    rdd.mapPartitions(send).count()


def pages(ui, app):
    api = f"{ui}/api/v1/applications/{app}"
    addresses = [f"{ui}/{name}/" for name in ("jobs", "SQL", "environment", "StreamingQuery", "stages")]
    addresses += [f"{api}/{name}" for name in ("environment", "jobs", "stages?details=true")]
    executions = f"{api}/sql?details=true&planDescription=true&length=1000"
    with urllib.request.urlopen(executions, timeout=60) as response:
        ids = [each["id"] for each in json.load(response)]
    addresses += [executions, *(f"{ui}/SQL/execution/?id={id}" for id in ids)]
    for number, address in enumerate(addresses):
        with urllib.request.urlopen(address, timeout=60) as response:
            (shown / f"page-{number}").write_bytes(response.read())


with spark_session(shown.parent / "spark", **given["settings"]) as spark:
    register(spark)
    df = spark.range(0, 10, 1, 1).selectExpr("cast(id as string) as value")
    rdd = spark.sparkContext.parallelize([b"%d" % number for number in range(10)], 1)
    ends = {}
    for write in (batch, batch_of_user, stream, of_batches, of_partitions, of_arrow, of_config):
        try:
            write()
            ends[write.__name__] = "written"
        except Exception as error:
            traceback.print_exc()
            tell(error, repr(error))
            ends[write.__name__] = "refused" if "SaslAuthenticationFailedError" in str(error) else str(error)
    pages(spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId)
(shown / "ends").write_text(json.dumps(ends))
"""


def forms(password: str) -> list[str]:
    """A password as text, as numbers (a JVM prints an array of bytes so), and in hexadecimal digits."""
    data = password.encode()
    return [password, ", ".join(map(str, data)), ",".join(map(str, data)), data.hex()]


@pytest.mark.parametrize("password", [RIGHT, WRONG], ids=["succeeding", "failing"])
def test_no_secret_is_in_what_spark_and_the_package_show(
    cluster: KafkaCluster, tmp_path: Path, password: str
) -> None:
    topic = f"spark-{'written' if password == RIGHT else 'refused'}"
    shown = tmp_path / "shown"
    (shown / "events").mkdir(parents=True)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(LOGGING)
    user = {"sasl.plain.username": "bob", "sasl.plain.password": password}
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas = {"sasl.jaas.config": f'{module} required username="bob" password="{password}";'}
    secure = {
        "bootstrap.servers": cluster.bootstrap("SECURE"),
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(AUTHORITY.file(tmp_path)),
        "sasl.mechanism": "SCRAM-SHA-512",
    }
    settings = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.log.level": "INFO",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(shown / "events"),
        "spark.eventLog.compress": "false",
        # Shows the options of a write.
        "spark.sql.ui.explainMode": "extended",
        # Replaced by the options of each write.
        **{f"spark.cyproducer.kafka.{name}": value for name, value in {**secure, **jaas}.items()},
    }
    given = {
        "root": str(ROOT),
        "shown": str(shown),
        "topic": topic,
        "secure": secure,
        "user": user,
        "jaas": jaas,
        "settings": {name.replace(".", "__"): value for name, value in settings.items()},
    }
    (tmp_path / "given.json").write_text(json.dumps(given))
    if password == WRONG:
        cluster.create_topic(topic, 1)
    with (shown / "output").open("wb") as output:
        ran = subprocess.run(
            [sys.executable, "-c", DRIVER, str(tmp_path / "given.json")],
            env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=800,
            check=False,
        )
    files = {file: file.read_text(errors="replace") for file in shown.rglob("*") if file.is_file()}
    printed = files[shown / "output"]
    assert ran.returncode == 0, printed[-3000:]
    for file, text in files.items():
        for form in forms(password):
            assert form not in text, f"{file}: ...{text[max(0, text.index(form) - 300) :][:400]}"
    ends: dict[str, Any] = json.loads(files[shown / "ends"])
    assert set(ends.values()) == {"written" if password == RIGHT else "refused"}, ends
    assert len(ends) == 7
    if password == RIGHT:
        found = read_all(cluster.bootstrap_servers, topic, 70)
        assert Counter(r.value for r in found) == {b"%d" % number: 7 for number in range(10)}
    # What was searched is there: debug logs of several processes, redacted options and settings, pages.
    assert len(set(re.findall(r"^(\d+) DEBUG cyproducer: debugging$", printed, re.MULTILINE))) >= 3
    (events,) = [text for file, text in files.items() if file.name.startswith("events_")]
    pages = "".join(text for file, text in files.items() if file.name.startswith("page-"))
    for text in (events, pages):
        assert f"topic={topic}" in text
        assert "kafka.sasl.jaas.config=*********(redacted)" in text
        assert "kafka.sasl.plain.password=*********(redacted)" in text
    assert '"spark.cyproducer.kafka.sasl.jaas.config":"*********(redacted)"' in events
