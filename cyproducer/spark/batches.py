"""Prepares Arrow batches for sending: converts uncommon column types, and finds rows that can't be sent.

Owns the conversion of types that Arrow's compute functions don't support, and finding all bad rows of a batch
at once. Does not decide what happens to bad rows (``sending``). Does not check batches up front:
``send_arrow()`` checks them, and refuses a batch at its first bad row. Only then does this module look for
the other bad rows. Any thread.
"""

import pyarrow as pa
import pyarrow.compute as pc

from cyproducer.errors import UnknownTopicOrPartitionError, record_too_large
from cyproducer.producer import KafkaProducer
from cyproducer.records.record_batch import HEADER_BYTES
from cyproducer.spark.columns import Columns


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the same rows without view and dictionary columns. ``send_arrow()`` accepts those, but Arrow's
    functions can't compute their lengths or take rows out of them. Copies nothing if the batch has no such
    columns; batches from Spark itself have none."""
    if not any(_is_odd(of) for of in batch.schema.types):
        return batch
    columns = [
        column.cast(_plain_type(column.type)) if _is_odd(column.type) else column for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _is_odd(of: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(of) or types.is_string_view(of) or types.is_binary_view(of):
        return True
    return types.is_nested(of) and any(_is_odd(of.field(number).type) for number in range(of.num_fields))


def _plain_type(of: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(of):
        return _plain_type(of.value_type)
    # A view column may hold more data than the types with 32-bit offsets can.
    if types.is_string_view(of):
        return pa.large_string()
    if types.is_binary_view(of):
        return pa.large_binary()
    if types.is_list(of):
        return pa.list_(_plain_type(of.value_type))
    if types.is_large_list(of):
        return pa.large_list(_plain_type(of.value_type))
    if types.is_struct(of):
        return pa.struct([(field.name, _plain_type(field.type)) for field in of])
    return of


def refused_rows(
    producer: KafkaProducer, topic: str, rows: pa.RecordBatch, columns: Columns, error: Exception
) -> dict[int, Exception]:
    """Returns ``bad_rows`` of a batch that ``send_arrow()`` has just refused as a whole with ``error``."""
    # The producer refreshes the topic's metadata before it raises this error, but before no other error.
    refreshed = isinstance(error, UnknownTopicOrPartitionError)
    partitions = len(producer.partitions_for(topic)) if refreshed else None
    return bad_rows(rows, columns, partitions, producer.config.max_request_size)


def bad_rows(
    rows: pa.RecordBatch, columns: Columns, partitions: int | None, limit: int
) -> dict[int, Exception]:
    """Returns the rows whose content can't be sent, as a mapping from row number to cause.

    ``partitions``: the topic's partition count; None if that is not certain. ``limit``: ``max_request_size``.
    Does not find everything: ``send_arrow()`` still refuses the rest, such as malformed text.
    """
    found: dict[int, Exception] = {}
    _nameless_headers(rows, columns, found)
    _partitions(rows, columns, partitions, found)
    _timestamps(rows, columns, found)
    _nothing_to_write(rows, columns, found)
    _too_large(rows, columns, limit, found)
    return found


def _numbers(mask: pa.Array) -> list[int]:
    """Returns the numbers of the rows for which ``mask`` is true."""
    numbers: list[int] = pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist()
    return numbers


def _nameless_headers(rows: pa.RecordBatch, columns: Columns, found: dict[int, Exception]) -> None:
    if columns.headers is None:
        return
    column = rows.column(columns.headers)
    nameless = pc.is_null(pc.struct_field(pc.list_flatten(column), [0]))
    for number in pc.unique(pc.list_parent_indices(column).filter(nameless)).to_pylist():
        found[number] = ValueError(f"column {columns.headers!r}: a header has no key: keys must not be null")


def _partitions(
    rows: pa.RecordBatch, columns: Columns, partitions: int | None, found: dict[int, Exception]
) -> None:
    if columns.partition is None:
        return
    column = rows.column(columns.partition)
    bad = pc.less(column, 0)
    if partitions is not None:
        bad = pc.or_(bad, pc.greater_equal(column, partitions))
    for number in _numbers(bad):
        wanted = column[number].as_py()
        text = f"column {columns.partition!r}: {wanted} is not a partition of the topic"
        if partitions is not None:
            text = f"{text}, which has {partitions} partitions, 0 to {partitions - 1}"
        error = ValueError(text) if wanted < 0 else UnknownTopicOrPartitionError(text)
        found.setdefault(number, error)


def _timestamps(rows: pa.RecordBatch, columns: Columns, found: dict[int, Exception]) -> None:
    if columns.timestamp is None:
        return
    # As integers: Python's datetime can't represent all of them.
    column = rows.column(columns.timestamp).cast(pa.int64())
    for number in _numbers(pc.less(column, 0)):
        error = ValueError(
            f"column {columns.timestamp!r}: {column[number].as_py()} is not a valid timestamp: must be "
            "at or after the epoch, 1970, and below 2**63 in milliseconds"
        )
        found.setdefault(number, error)


def _nothing_to_write(rows: pa.RecordBatch, columns: Columns, found: dict[int, Exception]) -> None:
    nothing = pc.is_null(rows.column(columns.value))
    if columns.key is not None:
        nothing = pc.and_(nothing, pc.is_null(rows.column(columns.key)))
    for number in _numbers(nothing):
        error = ValueError(
            f"column {columns.value!r}: is null, and so is the key: a record needs a value or a key (a "
            "tombstone is a key with a null value)"
        )
        found.setdefault(number, error)


def _too_large(rows: pa.RecordBatch, columns: Columns, limit: int, found: dict[int, Exception]) -> None:
    sizes = _request_sizes(rows, columns)
    for number in _numbers(pc.greater(sizes, limit)):
        size = sizes[number].as_py()
        found.setdefault(number, record_too_large(f"column {columns.value!r}: the record", size, limit))


def _request_sizes(rows: pa.RecordBatch, columns: Columns) -> pa.Array:
    """Returns each row's size in bytes as the only record of a batch, computed as ``records/row_source``
    does."""
    body = _field_sizes(rows.column(columns.value))
    body = pc.add(body, _field_sizes(rows.column(columns.key)) if columns.key is not None else 1)
    body = pc.add(body, _headers_sizes(rows.column(columns.headers)) if columns.headers is not None else 1)
    # Attributes, timestamp delta and offset delta: one byte each, as both deltas are 0.
    body = pc.add(body, 3)
    return pc.add(pc.add(body, _varint_sizes(body)), HEADER_BYTES)


def _field_sizes(column: pa.Array) -> pa.Array:
    """Returns the size in bytes of each key, value, header key or header value, including the length
    prefix."""
    lengths = pc.fill_null(pc.binary_length(column).cast(pa.int64()), 0)
    # The length of a null is -1, whose varint takes one byte, like that of 0.
    return pc.add(lengths, _varint_sizes(lengths))


def _headers_sizes(column: pa.Array) -> pa.Array:
    """Returns the size in bytes of each row's headers, including the count prefix."""
    pairs = pc.list_flatten(column)
    names, contents = (pc.struct_field(pairs, [place]) for place in (0, 1))
    ends = pc.cumulative_sum(pc.add(_field_sizes(names), _field_sizes(contents)))
    before = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    counts = pc.fill_null(pc.list_value_length(column).cast(pa.int64()), 0)
    last = pc.cumulative_sum(counts)
    sizes = pc.subtract(before.take(last), before.take(pc.subtract(last, counts)))
    return pc.add(sizes, _varint_sizes(counts))


def _varint_sizes(numbers: pa.Array) -> pa.Array:
    """Returns the number of bytes that each number takes as a zigzag varint. Numbers must not be negative."""
    sizes = pa.scalar(1, pa.int64())
    for bits in (6, 13, 20, 27, 34):
        sizes = pc.add(sizes, pc.greater_equal(numbers, 1 << bits).cast(pa.int64()))
    return sizes
