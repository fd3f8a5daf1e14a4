"""``docs/migration.md``: its programs run, and its tables are those of the code."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import cyproducer
from cyproducer.config.other_clients import OTHER_NAMES, as_markdown
from tests.network.scripted_broker import ScriptedCluster

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "migration.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(orders=1) as running:
        yield running


def test_every_code_block_is_one_of_the_programs() -> None:
    assert PAGE.count("```") == 2 * len(PROGRAMS) == 2 * 7


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_sends_its_record(program: str, cluster: ScriptedCluster) -> None:
    exec(program.replace("localhost:9092", cluster.nodes[1].address), {})
    (record,) = cluster.topics["orders"].partitions[0].records
    assert record.value == b"paid"


@pytest.mark.parametrize("client", sorted({other.client for other in OTHER_NAMES.values()}))
def test_the_table_of_options_is_that_of_the_errors(client: str) -> None:
    assert as_markdown(client) in PAGE


def test_the_classes_that_the_page_names_are_as_it_says() -> None:
    errors = cyproducer.errors
    claims = re.findall(r"`(\w+)`, (?:which is )?an? `(\w+)`", PAGE)
    assert {"RecordTooLargeError", "BufferExhaustedError", "InvalidTopicError"} < {ours for ours, _ in claims}
    for ours, base in claims:
        assert issubclass(getattr(errors, ours), getattr(errors, base, None) or ValueError), (ours, base)
    for option, default in re.findall(
        r"^\| `(batch_size|buffer_memory)` \| [^|]* \| (\d+)", PAGE, re.MULTILINE
    ):
        assert cyproducer.KafkaProducer.DEFAULT_CONFIG[option] == int(default)


def test_the_readme_leads_to_the_page() -> None:
    assert "(docs/migration.md)" in (ROOT / "README.md").read_text()
