"""Batches of Arrow before they are sent: made plain, and looked through for rows that can't be.

Owns: types that Arrow's functions can't take apart, and finding a batch's bad rows at once. Does not own:
what becomes of them (``sending``), nor the checks themselves, which are ``send_arrow()``'s. Any thread.
"""

import pyarrow as pa


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
