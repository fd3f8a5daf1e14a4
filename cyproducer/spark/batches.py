"""Batches of Arrow before they are sent: made plain, and looked through for rows that can't be.

Owns: types that Arrow's functions can't take apart, and finding all of a batch's bad rows at once. Does not
own: what becomes of them (``sending``), nor the checks, which are ``send_arrow()``'s: it refuses a batch for
its first bad row, and only then the others are looked for. Any thread.
"""

import pyarrow as pa
import pyarrow.compute as pc

from cyproducer.errors import RecordTooLargeError, UnknownTopicOrPartitionError
from cyproducer.producer import KafkaProducer
from cyproducer.records.record_batch import HEADER_BYTES
from cyproducer.spark.columns import Columns


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows without views and dictionaries, which ``send_arrow()`` takes, but whose lengths Arrow's
    functions can't tell, nor take rows out of them. Nothing is copied where there are none, as in what Spark
    itself hands over."""
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
    # A column of views may hold more than the small types can.
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
    """``bad_rows`` of a batch that ``send_arrow()`` has just refused as a whole, with ``error``."""
    # Only then a broker has been asked again how many partitions there are.
    refreshed = isinstance(error, UnknownTopicOrPartitionError)
    partitions = len(producer.partitions_for(topic)) if refreshed else None
    return bad_rows(rows, columns, partitions, producer.config.max_request_size)


def bad_rows(
    rows: pa.RecordBatch, columns: Columns, partitions: int | None, limit: int
) -> dict[int, Exception]:
    """The rows that can't be sent for what they are, by their numbers, each with its own cause.

    ``partitions``: how many the topic has; None where that is not certain. ``limit``: ``max_request_size``.
    What is not found here, such as malformed text, ``send_arrow()`` still refuses.
    """
    found: dict[int, Exception] = {}
    _nameless_headers(rows, columns, found)
    _partitions(rows, columns, partitions, found)
    _timestamps(rows, columns, found)
    _nothing_to_write(rows, columns, found)
    _too_large(rows, columns, limit, found)
    return found


def _numbers(mask: pa.Array) -> list[int]:
    """Of the rows for which it is true."""
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
        text = f"column {columns.partition!r}: {wanted} is no partition of the topic"
        if partitions is not None:
            text = f"{text}, which has {partitions}, 0 to {partitions - 1}"
        error = ValueError(text) if wanted < 0 else UnknownTopicOrPartitionError(text)
        found.setdefault(number, error)


def _timestamps(rows: pa.RecordBatch, columns: Columns, found: dict[int, Exception]) -> None:
    if columns.timestamp is None:
        return
    # As numbers: not every one of them is a date of Python's.
    column = rows.column(columns.timestamp).cast(pa.int64())
    for number in _numbers(pc.less(column, 0)):
        error = ValueError(
            f"column {columns.timestamp!r}: {column[number].as_py()} is no timestamp: must be at or after "
            "the epoch, 1970, and in milliseconds below 2**63"
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
        error = RecordTooLargeError(
            f"column {columns.value!r}: the record takes {size} bytes, batch header included, and "
            f"max_request_size is {limit}",
            record_size=size,
            limit=limit,
        )
        found.setdefault(number, error)


def _request_sizes(rows: pa.RecordBatch, columns: Columns) -> pa.Array:
    """Each row's bytes as the only record of a batch, as ``records/row_source`` counts them."""
    body = _field_sizes(rows.column(columns.value))
    body = pc.add(body, _field_sizes(rows.column(columns.key)) if columns.key is not None else 1)
    body = pc.add(body, _headers_sizes(rows.column(columns.headers)) if columns.headers is not None else 1)
    # Attributes, and the differences of the timestamp and the offset, which are 0.
    body = pc.add(body, 3)
    return pc.add(pc.add(body, _varint_sizes(body)), HEADER_BYTES)


def _field_sizes(column: pa.Array) -> pa.Array:
    """Bytes of a key, a value, or either part of a header, with their length before them."""
    lengths = pc.fill_null(pc.binary_length(column).cast(pa.int64()), 0)
    # A null's length is -1, which takes as little as 0.
    return pc.add(lengths, _varint_sizes(lengths))


def _headers_sizes(column: pa.Array) -> pa.Array:
    """Bytes of each row's headers, with their number before them."""
    pairs = pc.list_flatten(column)
    names, contents = (pc.struct_field(pairs, [place]) for place in (0, 1))
    ends = pc.cumulative_sum(pc.add(_field_sizes(names), _field_sizes(contents)))
    before = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    counts = pc.fill_null(pc.list_value_length(column).cast(pa.int64()), 0)
    last = pc.cumulative_sum(counts)
    sizes = pc.subtract(before.take(last), before.take(pc.subtract(last, counts)))
    return pc.add(sizes, _varint_sizes(counts))


def _varint_sizes(numbers: pa.Array) -> pa.Array:
    """Bytes of the numbers, none of them negative, as zigzag varints."""
    sizes = pa.scalar(1, pa.int64())
    for bits in (6, 13, 20, 27, 34):
        sizes = pc.add(sizes, pc.greater_equal(numbers, 1 << bits).cast(pa.int64()))
    return sizes
