"""Lookup joins with a static table."""

from __future__ import annotations

import polars as pl
import pytest
from polars.io.plugins import register_io_source
from polars.testing import assert_frame_equal

from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import Determinism
from operators.lookup import LookupJoin
from operators.segment import Segment
from operators.stateless import Filter, Select

AIRLINES = pl.DataFrame({"carrier": ["UA", "AA", None], "name": ["United", "American", "nobody"], "rank": [1, 2, 3]})
FLIGHTS = pl.DataFrame({"carrier": ["AA", None, "ZZ", "UA", "AA"], "delay": [1, 2, 3, 4, 5]})


def join(**changes) -> LookupJoin:
    return LookupJoin("l", changes.pop("table", AIRLINES), changes.pop("on", "carrier"), **changes)


def run(step: LookupJoin, frame: pl.DataFrame = FLIGHTS) -> pl.DataFrame:
    return step.apply(frame.lazy()).collect()


def test_left_keeps_every_row_in_order_and_null_keys_match_nothing() -> None:
    expected = FLIGHTS.with_columns(pl.Series("name", ["American", None, None, "United", "American"]))
    assert_frame_equal(run(join(columns=["name"])), expected)


def test_inner_drops_rows_without_match() -> None:
    found = run(join(how="inner", columns=["name"]))
    assert found["delay"].to_list() == [1, 4, 5]
    assert found.columns == ["carrier", "delay", "name"]


def test_semi_and_anti_add_nothing() -> None:
    assert run(join(how="semi"))["delay"].to_list() == [1, 4, 5]
    assert run(join(how="anti"))["delay"].to_list() == [2, 3]
    assert run(join(how="semi")).columns == FLIGHTS.columns


def test_semi_with_several_rows_for_a_key_gives_each_row_once() -> None:
    twice = pl.concat([AIRLINES, AIRLINES])
    assert run(join(table=twice, how="semi"))["delay"].to_list() == [1, 4, 5]


def test_all_columns_but_the_keys_by_default() -> None:
    assert run(join()).columns == ["carrier", "delay", "name", "rank"]


def test_keys_of_other_names_and_of_several_columns() -> None:
    table = pl.DataFrame({"code": ["UA", "UA"], "year": [1, 2], "name": ["old", "new"]})
    stream = pl.DataFrame({"carrier": ["UA", "UA", None], "y": [2, 3, 2]})
    found = run(join(table=table, on={"carrier": "code", "y": "year"}), stream)
    assert found.columns == ["carrier", "y", "name"]
    assert found["name"].to_list() == ["new", None, None]


def test_prefix_names_the_added_columns() -> None:
    stream = FLIGHTS.with_columns(name=pl.lit("x"))
    found = run(join(prefix="airline_"), stream)
    assert found.columns == ["carrier", "delay", "name", "airline_name", "airline_rank"]


def test_a_key_may_be_taken_as_a_column_under_another_name() -> None:
    found = run(join(columns=["carrier"], prefix="known_"))
    assert found["known_carrier"].to_list() == ["AA", None, None, "UA", "AA"]


def test_several_rows_for_a_key_are_refused_unless_wanted() -> None:
    twice = pl.concat([AIRLINES, AIRLINES.head(1)])
    with pytest.raises(SpecError, match="several rows for one key") as caught:
        join(table=twice)
    assert caught.value.code == "LOOKUP_KEY_NOT_UNIQUE"
    assert "carrier = 'UA'" in caught.value.detail
    assert run(join(table=twice, how="inner", many=True, columns=["name"]))["delay"].to_list() == [1, 4, 4, 5]


def test_several_null_keys_are_no_duplicates() -> None:
    assert join(table=pl.concat([AIRLINES, AIRLINES.tail(1)])).determinism is Determinism.EXACT


def test_an_empty_table_and_an_empty_stream() -> None:
    assert run(join(table=AIRLINES.clear()))["name"].null_count() == FLIGHTS.height
    found = run(join(), FLIGHTS.clear())
    assert found.height == 0
    assert found.schema == pl.Schema(
        {"carrier": pl.String(), "delay": pl.Int64(), "name": pl.String(), "rank": pl.Int64()}
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: join(on="carier"), "table the lookup table, names column 'carier'(.|\n)*mean 'carrier'"),
        (lambda: join(columns=["nam"]), "'nam'(.|\n)*mean 'name'"),
        (lambda: join(how="full"), "kind 'full'"),
        (lambda: join(on={}), "no key"),
        (lambda: join(how="semi", columns=["name"]), "adds no columns"),
        (lambda: run(join(on={"carier": "carrier"})), "names column 'carier'"),
        (lambda: run(join(), FLIGHTS.with_columns(name=pl.lit(1))), "would add 'name', which the stream already has"),
        (lambda: run(join(), FLIGHTS.with_columns(carrier=pl.lit(1))), "is Int32 in the stream and String"),
    ],
)
def test_joins_that_cannot_be_are_refused(make, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()


@pytest.mark.parametrize("how", ["left", "inner", "semi", "anti"])
def test_projection_and_predicate_reach_the_source(how) -> None:
    seen: list[tuple[object, object]] = []
    frame = FLIGHTS.with_columns(unused=pl.lit(0), other=pl.lit(1))

    def source(with_columns, predicate, n_rows, batch_size):
        seen.append((with_columns, predicate))
        rows = frame if predicate is None else frame.filter(predicate)
        yield rows if with_columns is None else rows.select(with_columns)

    rows = register_io_source(source, schema=frame.schema)
    wanted = ["delay", "name"] if how in {"left", "inner"} else ["delay"]
    added = {"columns": ["name"]} if how in {"left", "inner"} else {}
    chain = Segment([join(how=how, **added), Filter("f", "delay > 1"), Select("s", wanted)])
    found = chain.rows(rows).collect()
    columns, predicate = seen[0]
    assert sorted(columns) == ["carrier", "delay"]
    assert predicate is not None
    assert "delay" in str(predicate)
    assert_frame_equal(found, chain.rows(frame.lazy()).collect())
