"""Carts that nobody came back to: an operator in Python with state and timers, in a job over Parquet files.

An action is `add` (with the price in cents) or `buy`. A cart is given out when its shopper has done nothing for half an
hour of event time.
"""

from dataclasses import dataclass
from datetime import timedelta

import polars as pl

import headrace
from headrace.operators import CustomOperator, Determinism


@dataclass(frozen=True)
class Waiting:
    minutes: int = 30


class AbandonedCarts(CustomOperator):
    Args = Waiting
    determinism = Determinism.EXACT

    def __init__(self, args):
        super().__init__(args)
        self.wait = timedelta(minutes=args.minutes)
        self.timer_delay = self.wait  # no timer is set for earlier than that

    def output_schema(self, schema):
        return {"shopper": schema["shopper"], "items": pl.Int64, "cents": pl.Int64, "given_up": schema["at"]}

    def tables(self, schema):
        return {"carts": {"items": pl.Int64, "cents": pl.Int64}}

    def process(self, rows, state, timers):
        bought = pl.col("action") == "buy"
        buyers = rows.filter(bought).select("shopper").unique()
        state["carts"].remove(buyers)
        timers.clear_event_time(buyers)

        since = rows.filter(bought.cum_sum(reverse=True).over("shopper") == 0)
        new = since.group_by("shopper").agg(
            pl.len().cast(pl.Int64).alias("items"),
            pl.col("cents").sum(),
            (pl.col("at").max() + self.wait).alias("time"),
        )
        timers.set_event_time(new)
        both = pl.concat([new.drop("time"), state["carts"].find(new)])
        state["carts"].put(both.group_by("shopper").agg(pl.col("items", "cents").sum()))

    def on_event_time(self, due, state, timers):
        carts = due.join(state["carts"].find(due), on="shopper", nulls_equal=True)
        state["carts"].remove(due)
        return carts.select("shopper", "items", "cents", pl.col("time").alias("given_up"))


job = (
    headrace.Job("abandoned-carts")
    .source("actions", history={"parquet": "data/actions/*.parquet"}, event_time={"column": "at"})
    .custom(AbandonedCarts, by="shopper", order_by="at", args={"minutes": 30}, event_time="given_up")
    .sink_iceberg("local.shop.abandoned_carts", create=True)
)
