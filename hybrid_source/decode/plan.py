"""How columns are built from decoded records: one node for each (nested) column of the schema.

A node knows the msgspec type that checks a value while it is decoded, and how a list of such values becomes a series.
What msgspec cannot check (text formats, 64-bit unsigned, single precision) is checked on whole columns afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec
import polars as pl
import pyarrow as pa

from headrace.kernel.errors import SchemaError
from hybrid_source.decode import text

Build = Callable[[Sequence[Any]], tuple[pl.Series, pl.Series | None]]

RAW_NULL: Final = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class Node:
    """One column.

    Attributes:
        dtype: Its type.
        type: What msgspec decodes a value to, null included.
        build: Values to a series, plus a mask of values that must be refused (None: all are good).
        default: What a missing key stands for.
    """

    dtype: pl.DataType
    type: Any
    build: Build
    default: Any = None


@dataclass(frozen=True, slots=True)
class Member:
    """A column inside an object.

    Attributes:
        attribute: The struct's attribute that holds it.
        name: Its name.
        node: How it is built.
        pick: The attribute of each of some structs.
    """

    attribute: str
    name: str
    node: Node
    pick: Callable[[Sequence[Any]], list[Any]]

    @classmethod
    def number(cls, index: int, name: str, node: Node) -> Member:
        """The member at ``index``."""
        # An attribute that stands in the code is read twice as fast as one that is named at run time.
        pick = eval(f"lambda rows: [row.c{index} for row in rows]")  # noqa: S307 - the text holds nothing but a number
        return cls(f"c{index}", name, node, pick)


_UINT64_MAX: Final = 2**64 - 1


def node(path: str, dtype: pl.DataType) -> Node:
    """The node for a column.

    Raises:
        SchemaError: JSON has no agreed form for the type, or the column's name cannot be matched.
    """
    if isinstance(dtype, pl.Struct):
        return _struct(path, dtype)
    if isinstance(dtype, pl.List):
        return _list(path, dtype)
    return _leaf(path, dtype)


def record(path: str, fields: Mapping[str, pl.DataType]) -> tuple[type[msgspec.Struct], list[Member]]:
    """The msgspec struct for an object: its class and its members."""
    members: list[Member] = []
    for index, (name, dtype) in enumerate(fields.items()):
        if any(char in '"\\' or char < " " for char in name):
            raise SchemaError(
                f"column {name!r} of {path or 'the schema'} cannot be read from JSON",
                detail="its name holds a quote, a backslash or a control character",
                hint="rename the field where it is produced",
            )
        members.append(Member.number(index, name, node(f"{path}.{name}" if path else name, dtype)))
    kind = msgspec.defstruct(
        "Record",
        [(member.attribute, member.node.type, member.node.default) for member in members],
        rename={member.attribute: member.name for member in members},
        gc=False,
    )
    return kind, members


def _leaf(path: str, dtype: pl.DataType) -> Node:
    kind = dtype.base_type()
    if kind in _CHECKED:
        return Node(dtype, _CHECKED[kind] | None, _plain(dtype))
    if kind is pl.UInt64:
        return Node(dtype, Annotated[int, msgspec.Meta(ge=0)] | None, _uint64)
    if kind is pl.Float32:
        return Node(dtype, float | None, _float32)
    if isinstance(dtype, pl.Decimal):
        return Node(dtype, msgspec.Raw, _raw(lambda texts: text.decimals(texts, dtype)), RAW_NULL)
    parse = _parser(dtype)
    if parse is None:
        raise SchemaError(
            f"column {path!r} has type {dtype}, which cannot be read from JSON",
            hint="declare the column in the tail's schema with a type that JSON can carry, and convert it in a step",
        )
    return Node(dtype, str | None, _parsed(parse))


def _integer(least: int, most: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=least, le=most)]


_CHECKED: Final[Mapping[type[pl.DataType], Any]] = {
    pl.Int8: _integer(-(2**7), 2**7 - 1),
    pl.Int16: _integer(-(2**15), 2**15 - 1),
    pl.Int32: _integer(-(2**31), 2**31 - 1),
    pl.Int64: _integer(-(2**63), 2**63 - 1),
    pl.UInt8: _integer(0, 2**8 - 1),
    pl.UInt16: _integer(0, 2**16 - 1),
    pl.UInt32: _integer(0, 2**32 - 1),
    pl.Float64: float,
    pl.Boolean: bool,
    pl.String: str,
    pl.Binary: bytes,
}
"""Types that msgspec checks in full while it decodes."""


def _parser(dtype: pl.DataType) -> Callable[[pl.Series], pl.Series] | None:
    if isinstance(dtype, pl.Datetime):
        return lambda texts: text.timestamps(texts, dtype)
    if isinstance(dtype, pl.Date):
        return text.dates
    if isinstance(dtype, pl.Time):
        return text.times
    if isinstance(dtype, pl.Enum | pl.Categorical):
        return lambda texts: text.enums(texts, dtype)
    return None


def _plain(dtype: pl.DataType) -> Build:
    return lambda values: (pl.Series(values, dtype=dtype), None)


def _uint64(values: Sequence[int | None]) -> tuple[pl.Series, pl.Series | None]:
    try:
        return pl.Series(values, dtype=pl.UInt64), None
    except TypeError:
        bad = [value is not None and value > _UINT64_MAX for value in values]
        good = [None if too_large else value for value, too_large in zip(values, bad, strict=True)]
        return pl.Series(good, dtype=pl.UInt64), pl.Series(bad)


def _float32(values: Sequence[float | None]) -> tuple[pl.Series, pl.Series | None]:
    series = pl.Series(values, dtype=pl.Float64).cast(pl.Float32)
    infinite = series.is_infinite().fill_null(value=False)
    return series, infinite if infinite.any() else None


def _parsed(parse: Callable[[pl.Series], pl.Series]) -> Build:
    def build(values: Sequence[str | None]) -> tuple[pl.Series, pl.Series | None]:
        texts = pl.Series(values, dtype=pl.String)
        series = parse(texts)
        return series, _lost(texts, series)

    return build


def _raw(parse: Callable[[pl.Series], pl.Series]) -> Build:
    def build(values: Sequence[msgspec.Raw | None]) -> tuple[pl.Series, pl.Series | None]:
        texts = pl.Series([None if value is None else bytes(value) for value in values], dtype=pl.Binary)
        known = texts.cast(pl.String)
        known = known.set(known == "null", None)
        series = parse(known)
        return series, _lost(known, series)

    return build


def _lost(before: pl.Series, after: pl.Series) -> pl.Series | None:
    return None if before.null_count() == after.null_count() else before.is_not_null() & after.is_null()


def _struct(path: str, dtype: pl.Struct) -> Node:
    fields = {field.name: _instance(field.dtype) for field in dtype.fields}
    kind, members = record(path, fields)

    def build(values: Sequence[Any]) -> tuple[pl.Series, pl.Series | None]:
        series, bad = columns(values, members)
        valid = pl.Series([value is not None for value in values], dtype=pl.Boolean)
        packed = pl.select(pl.struct(series) if series else pl.lit(None, dtype=dtype)).to_series()
        out = packed if valid.all() else packed.to_frame("s").select(pl.when(valid).then(pl.col("s"))).to_series()
        return out, bad

    return Node(dtype, kind | None, build)


def columns(values: Sequence[Any], members: Sequence[Member]) -> tuple[list[pl.Series], pl.Series | None]:
    """The columns of decoded objects (None for a null object), and the mask of those that must be refused."""
    series: list[pl.Series] = []
    refused: pl.Series | None = None
    sparse = None in values
    for member in members:
        pick = attrgetter(member.attribute)
        column = [None if value is None else pick(value) for value in values] if sparse else member.pick(values)
        built, bad = member.node.build(column)
        series.append(built.alias(member.name))
        if bad is not None:
            refused = bad if refused is None else refused | bad
    return series, refused


def _list(path: str, dtype: pl.List) -> Node:
    inner = node(f"{path}[]", _instance(dtype.inner))

    def build(values: Sequence[list[Any] | None]) -> tuple[pl.Series, pl.Series | None]:
        items = list(chain.from_iterable(value for value in values if value))
        lengths = [0 if value is None else len(value) for value in values]
        offsets = [0, *accumulate(lengths)]
        child, bad = inner.build(items)
        valid = pl.Series([value is not None for value in values], dtype=pl.Boolean)
        packed = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), child.to_arrow())
        series = pl.Series("", packed, dtype=dtype)
        if not valid.all():
            series = series.set(~valid, None)
        return series, None if bad is None else _any_item(bad, lengths)

    return Node(dtype, list[inner.type] | None, build)  # type: ignore[name-defined]  # a type made at run time, for msgspec


def _any_item(bad: pl.Series, lengths: Sequence[int]) -> pl.Series:
    flags = iter(bad.to_list())
    return pl.Series([any(list(islice(flags, length))) for length in lengths], dtype=pl.Boolean)


def _instance(dtype: Any) -> pl.DataType:
    made: pl.DataType = dtype() if isinstance(dtype, type) else dtype
    return made
