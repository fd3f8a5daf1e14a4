"""A sink that takes Arrow batches as ours does, and discards them: measures the cost of Spark itself. For
streams from Spark 4.1 on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)


@dataclass
class Taken(WriterCommitMessage):
    rows: int


class NowhereWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return Taken(sum(batch.num_rows for batch in iterator))


class NowhereStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return Taken(sum(batch.num_rows for batch in iterator))


class NowhereDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "nowhere"

    def writer(self, schema: Any, overwrite: bool) -> NowhereWriter:
        return NowhereWriter()

    def streamWriter(self, schema: Any, overwrite: bool) -> NowhereStreamWriter:
        return NowhereStreamWriter()
