"""Values of declared structures in which no field is empty."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cyproducer.wire.schema import Field, Struct

UUID = bytes(range(16))


def filled(
    struct: Struct,
    version: int,
    elements: int = 1,
    number: int = 1,
    named: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Returns a value of a structure. A field that the version does not have has its default.

    Args:
        struct: the structure.
        version: the version of the message.
        elements: how many elements each array has.
        number: the value of each integer; the elements of an array have 1, 2, and so on.
        named: the values of fields by name, at any depth; of an array, that of its elements, or a list.
    """

    def one(field: Field, number: int) -> Any:
        if isinstance(field.kind, Struct):
            return filled(field.kind, version, elements, number, named)
        if field.name in named:
            return named[field.name]
        others = {"string": "_abc"[number], "text": "b", "bytes": b"c", "records": b"d", "uuid": UUID}
        return others.get(field.kind, number)

    def value(field: Field) -> Any:
        if version not in field.versions:
            return field.zero()
        if isinstance(named.get(field.name), list):
            return named[field.name]
        if field.array:
            return [one(field, each) for each in range(1, elements + 1)]
        return one(field, number)

    return struct.type(*map(value, struct.fields))
