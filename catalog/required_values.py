"""What must not be null inside of a column: fields of structs, elements of lists, keys and values of maps."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from pyiceberg import types as ice

from catalog.schemas import KEY, VALUE


def requires(kind: ice.IcebergType) -> bool:
    """Whether anything inside of a value of this type must not be null."""
    return any(required or requires(inner) for _, inner, required in _inside(kind))


def lacks(source: pl.DataType, kind: ice.IcebergType, path: str) -> str | None:
    """The path of a required field of a struct that rows of type ``source`` do not have; None if they have all."""
    if isinstance(source, pl.List | pl.Array) and isinstance(kind, ice.ListType):
        return lacks(_instance(source.inner), kind.element_type, f"{path}.element")
    if not isinstance(source, pl.Struct) or not isinstance(kind, ice.StructType):
        return None
    have = {field.name: _instance(field.dtype) for field in source.fields}
    for name, inner, required in _inside(kind):
        if name not in have and required:
            return f"{path}.{name}"
        if name in have and (found := lacks(have[name], inner, f"{path}.{name}")):
            return found
    return None


def null_inside(values: pl.Series, kind: ice.IcebergType, path: str) -> str | None:
    """The path of something required that is null in ``values``, which have the column's own type; None if nothing is.

    What lies in a struct or list that is null is not there, and so not null.
    """
    present = values.drop_nulls()
    if isinstance(kind, ice.ListType | ice.MapType):
        present = present.filter(present.list.len() > 0).explode()
    for name, inner, required in _inside(kind):
        held = present if isinstance(kind, ice.ListType) else present.struct.field(name)
        if required and held.null_count():
            return f"{path}.{name}"
        if found := null_inside(held, inner, f"{path}.{name}"):
            return found
    return None


def _inside(kind: ice.IcebergType) -> Iterator[tuple[str, ice.IcebergType, bool]]:
    """What a value of this type consists of: name, type, and whether it is required."""
    match kind:
        case ice.StructType():
            yield from ((field.name, field.field_type, field.required) for field in kind.fields)
        case ice.ListType():
            yield "element", kind.element_type, kind.element_required
        case ice.MapType():
            yield KEY, kind.key_type, True
            yield VALUE, kind.value_type, kind.value_required


def _instance(kind: object) -> pl.DataType:
    return kind if isinstance(kind, pl.DataType) else kind()  # type: ignore[operator] # a type's class
