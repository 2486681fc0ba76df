"""Types are widened where streams meet; values never change, and none is lost."""

from __future__ import annotations

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from headrace.kernel.errors import SpecError
from operators.join_sides import JoinInput, JoinSide, JoinSides
from operators.lookup import LookupJoin
from operators.selection import selected
from operators.union import Union, united
from operators.widening import common_type

WIDER = [
    ([pl.Int32(), pl.Int64()], pl.Int64()),
    ([pl.UInt32(), pl.Int32()], pl.Int64()),
    ([pl.UInt8(), pl.Int8()], pl.Int16()),
    ([pl.UInt8(), pl.UInt16(), pl.UInt64()], pl.UInt64()),
    ([pl.UInt64(), pl.Int8()], None),
    ([pl.Int16(), pl.Float32()], pl.Float32()),
    ([pl.Int32(), pl.Float32()], pl.Float64()),
    ([pl.Int64(), pl.Float64()], None),
    ([pl.Float32(), pl.Float64()], pl.Float64()),
    ([pl.Null(), pl.String(), pl.Null()], pl.String()),
    ([pl.Decimal(9, 2), pl.Int32()], pl.Decimal(12, 2)),
    ([pl.Decimal(9, 2), pl.Decimal(12, 6)], pl.Decimal(13, 6)),
    ([pl.Decimal(38, 0), pl.Decimal(3, 2)], None),
    ([pl.Decimal(9, 2), pl.Float64()], None),
    ([pl.String(), pl.Int32()], None),
    ([pl.Boolean(), pl.Int8()], None),
    ([pl.Datetime("us", "UTC"), pl.Datetime("us")], None),
    ([pl.List(pl.Int8()), pl.List(pl.Int8())], pl.List(pl.Int8())),
    ([], None),
]


@pytest.mark.parametrize(("types", "wanted"), WIDER, ids=str)
def test_the_common_type_holds_every_value_of_all(types: list[pl.DataType], wanted: pl.DataType | None) -> None:
    assert common_type(types) == wanted == common_type(types[::-1])


def test_a_union_widens_numbers_of_every_stream() -> None:
    first, second = pl.LazyFrame({"a": [1]}, {"a": pl.Int32}), pl.LazyFrame({"a": [2**40]}, {"a": pl.Int64})
    schema = united([first.collect_schema(), second.collect_schema()])
    union = Union("u", schema)
    together = pl.concat([union.apply(rows).collect() for rows in (first, second)])
    assert_frame_equal(together, pl.DataFrame({"a": [1, 2**40]}, {"a": pl.Int64}))


def test_a_union_of_types_that_nothing_holds_is_refused() -> None:
    streams = [pl.Schema({"a": pl.Int64}), pl.Schema({"a": pl.Float64})]
    with pytest.raises(SpecError, match="different columns") as caught:
        Union("u", united(streams)).apply(pl.LazyFrame(schema=streams[1]))
    assert "'a' is Int64 and Float64" in (caught.value.detail or "")


def sides(left: pl.Schema, right: pl.Schema, on: dict[str, str]) -> JoinSides:
    return JoinSides("j", "inner", JoinSide(left, [*on]), JoinSide(right, [*on.values()], prefix="r."))


def test_keys_of_joins_are_compared_in_a_type_that_holds_both() -> None:
    left, right = pl.LazyFrame({"k": [1]}, {"k": pl.Int16}), pl.LazyFrame({"k": [70_000]}, {"k": pl.UInt32})
    join = sides(left.collect_schema(), right.collect_schema(), {"k": "k"})
    tagged = [JoinInput("i", join, side).apply(rows) for side, rows in (("left", left), ("right", right))]
    both = pl.concat(tagged).collect()
    assert both[join.keys[0]].to_list() == both["k"].to_list() == [1, 70_000]
    assert join.output() == {"k": pl.Int64}
    assert [passage.names for passage in join.passages()] == [{}, {}]  # wrapping around differs by type


def test_keys_of_joins_that_no_type_holds_are_refused() -> None:
    with pytest.raises(SpecError, match="key 'a' is Int64 on the left and 'b' is String on the right"):
        sides(pl.Schema({"a": pl.Int64}), pl.Schema({"b": pl.String}), {"a": "b"})


@pytest.mark.parametrize("types", [(pl.Int64, pl.Int8), (pl.Int8, pl.Int64), (pl.UInt16, pl.Int64)], ids=str)
def test_keys_of_tables_are_found_whatever_their_width(types: tuple[type[pl.DataType], type[pl.DataType]]) -> None:
    mine, other = types
    big = [2**40] if other == pl.Int64 else []
    table = pl.DataFrame({"id": pl.Series([1, 2, *big], dtype=other), "name": ["one", "two", *["big"] * len(big)]})
    rows = pl.LazyFrame({"k": pl.Series([2, 3, None], dtype=mine)})
    found = LookupJoin("l", table, {"k": "id"}).apply(rows).collect()
    assert found.schema == {"k": mine, "name": pl.String}
    assert found.rows() == [(2, "two"), (3, None), (None, None)]


def test_a_selection_of_constants_has_a_value_for_every_row() -> None:
    rows = pl.DataFrame({"a": [1, 2, 3], "w": [7, 8, 9]})
    for given in (rows, rows.lazy()):
        found = selected(given, [pl.lit(1).alias("one"), (pl.lit("x") + "y").alias("a")], ("w", "z")).lazy().collect()
        assert found.rows() == [(1, "xy", 7), (1, "xy", 8), (1, "xy", 9)]
        assert selected(given, [pl.lit(1).alias("one")]).lazy().collect().rows() == [(1,)] * 3
    assert selected(rows.clear(), [pl.lit(1).alias("one")]).height == 0
