import pytest

from cyproducer.base.text import counted


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "record", "0 records"),
        (1, "record", "1 record"),
        (1234, "record", "1,234 records"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
    ],
)
def test_a_count_has_its_noun(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text
