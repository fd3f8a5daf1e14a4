"""A fake of the PySpark names that the sink imports, for tests without Spark.

The fakes have only the attributes that ``cyproducer.spark`` reads. Tests with a real Spark check that Spark's
classes have them too.
"""

import importlib
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

SOURCE = "cyproducer.spark.source"


class DataType:
    """The base class of all types."""

    def simpleString(self) -> str:
        return type(self).__name__.removesuffix("Type").lower()


class StringType(DataType):
    pass


class BinaryType(DataType):
    pass


class ByteType(DataType):
    pass


class ShortType(DataType):
    pass


class IntegerType(DataType):
    pass


class LongType(DataType):
    pass


class DoubleType(DataType):
    pass


class TimestampType(DataType):
    pass


class TimestampNTZType(DataType):
    pass


@dataclass
class StructField:
    name: str
    dataType: DataType


class StructType(DataType):
    def __init__(self, fields: list[StructField]) -> None:
        self.fields = fields

    @property
    def names(self) -> list[str]:
        return [field.name for field in self.fields]


class ArrayType(DataType):
    def __init__(self, elementType: DataType) -> None:
        self.elementType = elementType


class MapType(DataType):
    def __init__(self, keyType: DataType, valueType: DataType) -> None:
        self.keyType, self.valueType = keyType, valueType


class Row(tuple[Any, ...]):
    pass


class DataSource:
    def __init__(self, options: dict[str, str]) -> None:
        self.options = options


class DataSourceWriter:
    pass


class DataSourceArrowWriter(DataSourceWriter):
    pass


class DataSourceStreamWriter:
    pass


class DataSourceStreamArrowWriter(DataSourceStreamWriter):
    pass


class WriterCommitMessage:
    pass


class AnalysisException(Exception):
    pass


class SparkSession:
    """The session of the process, if a test makes one."""

    _instantiatedSession: "SparkSession | None" = None

    def __init__(self, settings: dict[str, str]) -> None:
        self.conf = SimpleNamespace(getAll=settings)
        of_start = SimpleNamespace(getAll=lambda: list(settings.items()))
        self.sparkContext = SimpleNamespace(getConf=lambda: of_start)

    @classmethod
    def getActiveSession(cls) -> "SparkSession | None":
        return None


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, of) for name, of in columns.items()])


def headers_of(content: DataType) -> ArrayType:
    return ArrayType(schema(key=StringType(), value=content))


def _module(name: str, *members: type, **more: object) -> ModuleType:
    module = ModuleType(name)
    vars(module).update({member.__name__: member for member in members}, **more)
    return module


@contextmanager
def fake_pyspark(*, arrow_streams: bool = True, version: str = "4.3.0") -> Iterator[None]:
    """Replaces PySpark with this fake until the block ends. ``arrow_streams``: as in Spark 4.1 and later.
    Before version 4 there is no module ``pyspark.sql.datasource``."""
    names = _module(
        "pyspark.sql.types", DataType, StringType, BinaryType, ByteType, ShortType, IntegerType, LongType,
        DoubleType, TimestampType, TimestampNTZType, StructField, StructType, ArrayType, MapType, Row,
    )  # fmt: skip
    sources = _module(
        "pyspark.sql.datasource", DataSource, DataSourceArrowWriter, DataSourceStreamWriter,
        DataSourceWriter, WriterCommitMessage,
    )  # fmt: skip
    if arrow_streams:
        vars(sources)["DataSourceStreamArrowWriter"] = DataSourceStreamArrowWriter
    old = version < "4"
    sql = _module("pyspark.sql", SparkSession, types=names, **({} if old else {"datasource": sources}))
    cloudpickle = _module("pyspark.cloudpickle", dumps=pickle.dumps)
    given = {
        "pyspark": _module("pyspark", sql=sql, cloudpickle=cloudpickle, __version__=version),
        "pyspark.cloudpickle": cloudpickle,
        "pyspark.errors": _module("pyspark.errors", AnalysisException),
        "pyspark.sql": sql,
        "pyspark.sql.types": names,
        **({} if old else {"pyspark.sql.datasource": sources}),
    }
    before = {name: sys.modules.pop(name, None) for name in (*given, SOURCE, "pyspark_cyproducer")}
    sys.modules.update(given)
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


@contextmanager
def source_module(*, arrow_streams: bool = True) -> Iterator[Any]:
    """Imports ``cyproducer.spark.source`` with this fake."""
    with fake_pyspark(arrow_streams=arrow_streams):
        yield importlib.import_module(SOURCE)
