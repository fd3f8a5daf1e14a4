"""``docs/migration.md``: its tables are those of the code. ``test_pages.py`` runs its programs."""

import re
from pathlib import Path

import pytest

import cyproducer
from cyproducer.config.other_clients import as_markdown

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "migration.md").read_text()


@pytest.mark.parametrize("client", ["librdkafka", "aiokafka"])
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
