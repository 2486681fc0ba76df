"""Cut-invariance of windows, deduplication and a custom operator over a union of two logs, through the real engine.

Random logs, cuts, splits, polls, epochs and crashes; two sources read by two threads; against plain Polars.
"""

from __future__ import annotations

import os
import random

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.runtime.graph import Graph, SinkNode, SourceNode, StatefulNode, Stream, TransformNode
from headrace.testing import MemorySink, MemoryTable, StaticProgram
from operators.custom_step import CustomStep
from operators.dedup import Dedup
from operators.session import SessionWindow
from operators.stateless import Select
from operators.union import Union
from operators.window import HoppingWindow
from tests.custom_operators import Gap, Sessionize
from tests.engine import named_source, random_crashes, run_to_end
from tests.worlds import PAYLOAD, random_log, random_script

SECOND = 1_000_000
EXAMPLES = max(12, int(os.environ.get("HEADRACE_EXAMPLES", "0")) // 4)
AGGREGATES = {"n": "count(*)", "s": "sum(v)", "lo": "min(v)", "different": "count(distinct v)"}


def job(sources, tables):
    operators = {
        "hop": HoppingWindow("hop", "ts", 30 * SECOND, 10 * SECOND, AGGREGATES, by=["k"]),
        "visit": SessionWindow("visit", "ts", 15 * SECOND, AGGREGATES, by=["k"]),
        "once": Dedup("once", "ts", ["k", "v"]),
        "latest": Dedup("latest", "ts", ["k"], "last", 40 * SECOND),
        "own": CustomStep("own", Sessionize(Gap(15 * SECOND, "ts")), "own", ["k"], "ts"),
    }
    return StaticProgram(
        "job",
        Graph(
            [
                *(SourceNode(name, source) for name, source in sources.items()),
                TransformNode("plain", Stream("b"), Select("plain", ["v", "ts", "k"])),
                TransformNode("all", Stream("a"), Union("all", PAYLOAD), (Stream("plain"),)),
                *(StatefulNode(name, Stream("all"), operator) for name, operator in operators.items()),
                *(SinkNode(f"to-{name}", Stream(name), MemorySink(name, tables[name]), None) for name in operators),
                SinkNode("to-late", Stream("hop", "late"), MemorySink("late", tables["late"]), None),
            ]
        ),
    )


def outcome(made, dice):
    tables = {name: MemoryTable() for name in ("hop", "visit", "once", "latest", "own", "late")}
    sources = {name: named_source(name, log, random_script(dice, log)) for name, log in made.items()}
    assert run_to_end(job(sources, tables), dice.randint(1, 30), random_crashes(dice)) == "finished"
    return {name: table.rows() for name, table in tables.items()}


AGGREGATED = [
    pl.len().cast(pl.Int64).alias("n"),
    pl.col("v").sum().alias("s"),
    pl.col("v").min().alias("lo"),
    pl.col("v").n_unique().cast(pl.Int64).alias("different"),
]


def expected(rows: pl.DataFrame) -> dict[str, pl.DataFrame]:
    timed = rows.drop_nulls("ts").sort("k", "ts", "v")
    start = pl.col("ts").dt.truncate("10s")
    hops = [timed.with_columns(start.dt.offset_by(f"-{back}s").alias("window_start")) for back in (0, 10, 20)]
    apart = (pl.col("ts").diff().over("k") >= pl.duration(seconds=15)).fill_null(value=True).cum_sum().over("k")
    sessions = timed.with_columns(apart.alias("run")).with_columns(
        pl.col("ts").min().over("k", "run").alias("window_start"),
    )
    pauses = (pl.col("ts").diff().over("k") >= pl.duration(seconds=40)).fill_null(value=True).cum_sum().over("k")
    return {
        "hop": pl.concat(hops).group_by("window_start", "k").agg(AGGREGATED),
        "visit": sessions.group_by("window_start", "k").agg(AGGREGATED),
        "once": timed.unique(["k", "v"], keep="first", maintain_order=True),
        "latest": timed.with_columns(pauses.alias("run")).unique(["k", "run"], keep="last", maintain_order=True),
        "own": sessions.group_by("k", pl.col("window_start").alias("first")).agg(
            pl.len().cast(pl.Int64).alias("n"), (pl.col("ts").max() + pl.duration(seconds=15)).alias("end")
        ),
        "late": rows.filter(pl.col("ts").is_null()),
    }


def same(found: pl.DataFrame, wanted: pl.DataFrame, names: list[str]) -> None:
    rows = found.select(names).sort(names).rows() if found.width else []
    assert rows == wanted.select(names).sort(names).rows()


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 2**63))
def test_output_is_the_same_for_every_cut_split_batch_switch_and_crash_of_both_logs(seed) -> None:
    dice = random.Random(seed)
    made = {"a": random_log(dice, most=25), "b": random_log(dice, most=25)}
    found = outcome(made, dice)
    wanted = expected(pl.concat([log.rows().select(list(PAYLOAD)) for log in made.values()]))
    for name in ("hop", "visit"):
        same(found[name], wanted[name], ["window_start", "k", "n", "s", "lo", "different"])
    for name in ("once", "latest", "late"):
        same(found[name], wanted[name], ["ts", "k", "v"])
    same(found["own"], wanted["own"], ["k", "first", "end", "n"])
