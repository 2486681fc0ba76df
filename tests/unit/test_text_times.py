"""Casts of texts to dates and times."""

from __future__ import annotations

from datetime import UTC, date, datetime, time

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from headrace.testing import operator_context
from operators.expressions import row_expression
from operators.stateless import Filter, Select, WithColumns
from operators.window import TumblingWindow

at = datetime.fromisoformat
TEXTS = {
    "2026-01-02": at("2026-01-02T00:00:00"),
    "2026-01-02 03:04": at("2026-01-02T03:04:00"),
    "2026-01-02T03:04:05": at("2026-01-02T03:04:05"),
    "2026-01-02 03:04:05.123456789": at("2026-01-02T03:04:05.123456"),
    "2026-01-02T03:04:05Z": at("2026-01-02T03:04:05"),
    "2026-01-02T03:04:05.5+02:00": at("2026-01-02T01:04:05.500000"),
    "2026-01-02 03:04:05+0230": at("2026-01-02T00:34:05"),
    "2026-01-02 03:04-05": at("2026-01-02T08:04:00"),
    " 1969-12-31 23:59:59.999999 ": at("1969-12-31T23:59:59.999999"),
    "0001-01-01 00:00:00": at("0001-01-01T00:00:00"),
    "9999-12-31T23:59:59": at("9999-12-31T23:59:59"),
}
WRONG = ["", "no time", "2026-13-01", "2026-02-30 00:00:00", "03:04:05", "2026-01-02 25:00:00", "20260102"]
ROWS = pl.DataFrame({"s": [*TEXTS, None]})


def cast(text: str, rows: pl.DataFrame = ROWS) -> list[object]:
    return Select("s", {"x": text}).apply(rows.lazy()).collect()["x"].to_list()


def test_texts_are_read_as_iso_8601_says() -> None:
    assert cast("cast(s as timestamp)") == [*TEXTS.values(), None]
    assert cast("cast(s as date)") == [*(moment.date() for moment in TEXTS.values()), None]
    assert cast("cast(s as timestamptz)") == [*(moment.replace(tzinfo=UTC) for moment in TEXTS.values()), None]
    times = pl.DataFrame({"s": ["03:04:05", "23:59:59.5"]})
    assert cast("cast(s as time)", times) == [time(3, 4, 5), time(23, 59, 59, 500000)]


def test_what_is_no_time_is_an_error_or_null() -> None:
    wrong = pl.DataFrame({"s": ["2026-01-02", *WRONG]})
    assert cast("try_cast(s as timestamp)", wrong) == [at("2026-01-02T00:00:00"), *[None] * len(WRONG)]
    assert cast("try_cast(s as date)", wrong) == [date(2026, 1, 2), *[None] * len(WRONG)]
    for text in WRONG:
        with pytest.raises(pl.exceptions.InvalidOperationError, match="conversion from `str`"):
            cast("cast(s as timestamp)", pl.DataFrame({"s": [text]}))


def test_rows_are_read_alike_however_they_are_cut() -> None:
    step = Select("s", {"x": "try_cast(s as timestamp)"})
    rows = pl.DataFrame({"s": [*TEXTS, *WRONG]})
    pieces = [step.apply(rows[at : at + 1].lazy()).collect() for at in range(rows.height)]
    assert_frame_equal(pl.concat(pieces), step.apply(rows.lazy()).collect())


def test_one_step_reads_texts_and_times() -> None:
    step = WithColumns("w", {"x": "cast(s as timestamp)"})
    texts, moments = pl.DataFrame({"s": ["2026-01-02"]}), pl.DataFrame({"s": [date(2026, 1, 2)]})
    for rows in (texts, moments, texts):
        assert step.apply(rows.lazy()).collect()["x"].to_list() == [at("2026-01-02T00:00:00")]


def test_casts_inside_others_and_in_conditions() -> None:
    kept = Filter(
        "f", "extract(year from cast(s as timestamp)) < 2000 and cast(cast(s as timestamp) as date) > date '0001-01-02'"
    )
    assert kept.apply(ROWS.lazy()).collect()["s"].to_list() == [" 1969-12-31 23:59:59.999999 "]


def test_other_casts_are_left_alone() -> None:
    for text in ("cast(a as int)", "cast(a as varchar)", "date '2026-01-01' < d"):
        assert not row_expression(text, "x").typed
    assert row_expression("cast(d as date)", "x").typed


def test_arguments_of_aggregates() -> None:
    texts = {"latest": "max(cast(s as timestamp))", "n": "count(case when cast(s as date) > d then 1 end)"}
    window = TumblingWindow("w", "t", 60_000_000, texts)
    rows = ROWS.with_columns(t=pl.lit(at("2026-01-01")).cast(pl.Datetime("us")), d=pl.lit(date(2026, 1, 1)))
    instance = window.open(window.partial(rows.clear().lazy()).collect_schema(), operator_context())
    instance.process(window.partial(rows.lazy()).collect())
    assert instance.drain()["main"].select("latest", "n").rows() == [(max(TEXTS.values()), 9)]
