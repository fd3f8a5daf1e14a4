"""What tests of Spark's side without Spark share: a broker in this process, and no producer left behind."""

from collections.abc import Iterator

import pytest

from cyproducer.spark import close_all
from cyproducer.testing import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    close_all()
