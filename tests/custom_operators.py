"""Operators as people write them, for tests; jobs name them ``tests.custom_operators:NAME``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import polars as pl

from headrace.operators import CustomOperator, Determinism, State, StateTable, Timers

TIME = pl.Datetime("us", "UTC")


@dataclass(frozen=True)
class Gap:
    gap_us: int = 10
    time: str = "t"


class Sessionize(CustomOperator):
    """Sessions by key: rows less than a gap apart; given out when the gap has passed."""

    Args = Gap
    determinism = Determinism.EXACT

    def __init__(self, args: Gap) -> None:
        super().__init__(args)
        self.gap = timedelta(microseconds=args.gap_us)
        self.timer_delay = self.gap

    def output_schema(self, schema: pl.Schema) -> Mapping[str, Any]:
        time = schema[self.args.time]
        return {"k": schema["k"], "first": time, "end": time, "n": pl.Int64()}

    def tables(self, schema: pl.Schema) -> Mapping[str, Any]:
        return {"open": {"first": schema[self.args.time], "n": pl.Int64()}}

    def process(self, rows: pl.DataFrame, state: State, timers: Timers) -> None:
        new = rows.group_by("k").agg(
            pl.col(self.args.time).min().alias("first"),
            pl.len().cast(pl.Int64).alias("n"),
            pl.col(self.args.time).max().alias("last"),
        )
        known = state["open"].find(new).rename({"first": "first_before", "n": "n_before"})
        both = new.join(known, on="k", how="left", nulls_equal=True)
        state["open"].put(
            both.select(
                "k", pl.coalesce("first_before", "first").alias("first"), pl.col("n") + pl.col("n_before").fill_null(0)
            )
        )
        timers.set_event_time(new.select("k", (pl.col("last") + self.gap).alias("time")))

    def on_event_time(self, due: pl.DataFrame, state: State, timers: Timers) -> pl.DataFrame:
        done = due.join(state["open"].find(due), on="k", nulls_equal=True)
        state["open"].remove(due)
        return done.select("k", "first", pl.col("time").alias("end"), "n")


class RowByRowSessions(Sessionize):
    """The same without a promise of how early timers are set: rows come one time at a time."""

    def __init__(self, args: Gap) -> None:
        super().__init__(args)
        self.timer_delay = timedelta(0)


class Difference(CustomOperator):
    """Each row with the difference to the one before it, of its key; no timers."""

    determinism = Determinism.EXACT

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        return pl.Schema({**schema, "delta": pl.Int32()})

    def tables(self, schema: pl.Schema) -> Mapping[str, Any]:
        return {"last": {"x": pl.Int32()}}

    def process(self, rows: pl.DataFrame, state: State, timers: Timers) -> pl.DataFrame:
        before = state["last"].find(rows).rename({"x": "before"})
        joined = rows.join(before, on="k", how="left", nulls_equal=True, maintain_order="left")
        previous = pl.coalesce(pl.col("x").shift(1).over("k"), pl.col("before"))
        first = pl.int_range(pl.len()).over("k") == 0
        delta = pl.when(first).then(pl.col("x") - pl.col("before")).otherwise(pl.col("x") - previous)
        out = joined.with_columns(delta.alias("delta")).drop("before")
        state["last"].put(rows.group_by("k", maintain_order=True).agg(pl.col("x").last()))
        return out


@dataclass(frozen=True)
class After:
    seconds: int = 10
    table: str = "counts"


class Silence(CustomOperator):
    """Says of which keys no row has come for a while, by the clock."""

    Args = After

    def output_schema(self, schema: pl.Schema) -> Mapping[str, Any]:
        return {"k": schema["k"], "silent_since": TIME, "rows": pl.Int64()}

    def tables(self, schema: pl.Schema) -> Mapping[str, Any]:
        return {"counts": StateTable({"rows": pl.Int64()})}

    def process(self, rows: pl.DataFrame, state: State, timers: Timers) -> None:
        new = rows.group_by("k").agg(pl.len().cast(pl.Int64).alias("rows"))
        known = state["counts"].find(new).rename({"rows": "before"})
        both = new.join(known, on="k", how="left", nulls_equal=True)
        state["counts"].put(both.select("k", pl.col("rows") + pl.col("before").fill_null(0)))
        at = pl.lit(timers.now + timedelta(seconds=self.args.seconds))
        timers.set_processing_time(new.select("k", at.alias("time")))

    def on_processing_time(self, due: pl.DataFrame, state: State, timers: Timers) -> pl.DataFrame:
        known = due.join(state[self.args.table].find(due), on="k", nulls_equal=True)
        return known.select("k", pl.col("time").alias("silent_since"), "rows")


not_an_operator = 3
