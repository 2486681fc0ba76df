"""What the pushdown relies on in Polars' IO sources."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
from polars.io.plugins import register_io_source

from hybrid_source.pushdown import probe

SCHEMA = pl.Schema({"id": pl.Int64, "k": pl.String, "v": pl.Float64, "ts": pl.Datetime("us", "UTC")})
NEW_YEAR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def holds(predicate: pl.Expr | None, **row: object) -> bool:
    assert predicate is not None
    return pl.DataFrame([row], SCHEMA).filter(predicate).height == 1


def test_columns_and_predicate_are_pushed_through_derived_columns() -> None:
    found = probe(
        lambda rows: [rows.filter(pl.col("ts") >= NEW_YEAR).with_columns(w=pl.col("v") * 2).select("w", "k")], SCHEMA
    )
    assert found.columns == ("k", "v", "ts")
    assert holds(found.predicate, ts=NEW_YEAR)
    assert not holds(found.predicate, ts=dt.datetime(2025, 1, 1, tzinfo=dt.UTC))


def test_group_by_keeps_only_its_columns() -> None:
    found = probe(lambda rows: [rows.filter(pl.col("id") > 3).group_by("k").agg(pl.col("v").sum())], SCHEMA)
    assert found.columns == ("id", "k", "v")
    assert holds(found.predicate, id=4)
    assert not holds(found.predicate, id=3)


def test_two_uses_join_their_predicates_by_or_and_unite_their_columns() -> None:
    found = probe(
        lambda rows: [rows.filter(pl.col("id") > 10).select("id"), rows.filter(pl.col("k") == "a").select("v", "k")],
        SCHEMA,
    )
    assert found.columns == ("id", "k", "v")
    assert holds(found.predicate, id=11, k="b")
    assert holds(found.predicate, id=0, k="a")
    assert not holds(found.predicate, id=0, k="b")


def test_a_use_without_a_predicate_needs_every_row() -> None:
    found = probe(lambda rows: [rows.filter(pl.col("id") > 10).select("id"), rows.select("k")], SCHEMA)
    assert found.columns == ("id", "k")
    assert found.predicate is None


def test_a_row_limit_is_not_pushed() -> None:
    assert probe(lambda rows: [rows.select("id").head(1)], SCHEMA).predicate is None


def test_counting_keeps_a_column_and_all_columns_come_when_all_are_used() -> None:
    assert len(probe(lambda rows: [rows.select(pl.len())], SCHEMA).columns) == 1
    assert probe(lambda rows: [rows], SCHEMA).columns == tuple(SCHEMA)


def test_no_output_needs_a_column_and_no_row_filter() -> None:
    found = probe(lambda _rows: [], SCHEMA)
    assert found.columns == ("id",)
    assert found.predicate is None


@pytest.mark.filterwarnings("ignore::polars.exceptions.PolarsInefficientMapWarning")
def test_a_predicate_in_python_that_cannot_be_handed_down_leaves_the_columns() -> None:
    outer = object()  # not to be pickled by reference

    def check(value: int) -> bool:
        return value > 3 and outer is not None

    found = probe(
        lambda rows: [rows.filter(pl.col("id").map_elements(check, return_dtype=pl.Boolean)).select("k")], SCHEMA
    )
    assert set(found.columns) >= {"id", "k"}


def test_an_error_of_the_pipeline_itself_is_not_hidden() -> None:
    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        probe(lambda rows: [rows.select("nope")], SCHEMA)


@pytest.mark.parametrize("engine", ["streaming", "in-memory"])
def test_polars_leaves_the_filtering_to_the_source(engine: str) -> None:
    def source(
        _columns: list[str] | None, _predicate: pl.Expr | None, _rows: int | None, _batch: int | None
    ) -> Iterator[pl.DataFrame]:
        yield pl.DataFrame({"a": [1, 2, 3]})

    rows = register_io_source(source, schema={"a": pl.Int64}).filter(pl.col("a") > 2)
    assert rows.collect(engine=engine).height == 3  # so every source of ours must filter for itself


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_what_is_asked_of_a_source_does_not_depend_on_rows_that_it_is_joined_with(how: Any) -> None:
    schema = pl.Schema({"first": pl.Int64(), "k": pl.String(), "v": pl.Int64()})
    table = pl.DataFrame({"key": ["a"]})

    def asked(rows: pl.DataFrame) -> tuple[Any, ...]:
        pushed = probe(
            lambda source: [
                source.join(rows.lazy(), left_on="k", right_on="key", how=how, maintain_order="left")
                .filter(pl.col("k") != "b")
                .select("v")
            ],
            schema,
        )
        return pushed.columns, str(pushed.predicate)

    assert asked(table.clear()) == asked(table)
    assert asked(table)[0] == ("k", "v")


def test_a_source_that_an_output_does_not_ask_gives_everything() -> None:
    schema = pl.Schema({"first": pl.Int64(), "k": pl.String()})
    pushed = probe(lambda source: [source.select("k"), pl.LazyFrame({"k": ["a"]})], schema)
    assert (pushed.columns, pushed.predicate) == (("first", "k"), None)
