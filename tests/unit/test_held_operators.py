"""What operators hold by time: checkpoints follow the change, it spills, and goes on at another parallelism."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from headrace.kernel.held import HeldLayout
from headrace.kernel.protocols import MAIN, OperatorInstance, OperatorState, ShowsState, StatefulOperator
from headrace.runtime.exchange import Workers, open_operator
from headrace.state.backend import StateBackend, StateOptions
from headrace.state.checkpoint import CheckpointStore
from headrace.state.keyed import Sizes
from headrace.state.records import Checkpoint, SavedOperator
from headrace.testing import memory_store, operator_context
from operators.custom_step import CustomStep
from operators.dedup import Dedup
from operators.interval_join import IntervalJoin
from operators.join_sides import JoinInput, JoinSide, JoinSides
from operators.over import Over
from operators.session import SessionWindow
from operators.slices import Slices
from operators.time_scales import Utc
from operators.top import TopN
from operators.version_join import VersionJoin
from operators.window import CumulatingWindow, HoppingWindow, TumblingWindow
from operators.window_join import WindowJoin
from tests.custom_operators import Gap, Sessionize

SCHEMA = pl.Schema({"t": pl.Datetime("us", "UTC"), "k": pl.Int64(), "v": pl.Int64()})
MANY, FEW = 200_000, 100
SPAN = 10_000
SUMS = {"n": "count(*)", "s": "sum(v)"}
PLAIN: Mapping[str, StatefulOperator] = {
    "tumbling": TumblingWindow("w", "t", SPAN, SUMS, by=["k"]),
    "hopping": HoppingWindow("w", "t", SPAN, SPAN // 2, SUMS, by=["k"]),
    "cumulating": CumulatingWindow("w", "t", SPAN, SPAN // 4, SUMS, by=["k"]),
    "session": SessionWindow("w", "t", SPAN, SUMS, by=["k"]),
    "dedup first": Dedup("d", "t", by=["k"]),
    "dedup last": Dedup("d", "t", by=["k"], keep="last", ttl_us=SPAN),
    "custom": CustomStep("c", Sessionize(Gap(SPAN)), "c", ["k"], "t"),
    "custom timers": CustomStep("c", Sessionize(Gap(SPAN)), "c", ["k"]),
    "over": Over("o", "t", {"before": "count(*)"}, by=["k"]),
    "top": TopN("top", "t", 2, order_by=[("v", True)], by=["k"], size_us=SPAN),
}


def rows_of(first: int, count: int, at: int) -> pl.DataFrame:
    keys = pl.int_range(first, first + count, eager=True)
    times = (at + keys % 1000).cast(SCHEMA["t"])
    return pl.DataFrame({"t": times, "k": keys, "v": keys * 7 % 1001})


def taken(operator: StatefulOperator, rows: pl.DataFrame) -> pl.DataFrame:
    return operator.partial(rows.lazy()).collect()


def join_of(how: Any, kind: str) -> StatefulOperator:
    """One whose left side waits."""
    right = pl.Schema({**SCHEMA, "until": SCHEMA["t"]})
    until = "until" if kind == "until" else None
    sides = JoinSides("j", how, JoinSide(SCHEMA, ["k"], "t"), JoinSide(right, ["k"], "t", "r_", until=until))
    if kind == "window":
        return WindowJoin("j", sides, Slices(SPAN, SPAN, 0, Utc()))
    if kind == "version":
        return VersionJoin("j", sides)
    return IntervalJoin("j", sides, 0 if until else -SPAN, None if until else SPAN)


JOINS = {
    "interval join": join_of("full", "interval"),
    "interval anti join": join_of("anti", "interval"),
    "interval join until": join_of("left", "until"),
    "window join": join_of("left", "window"),
    "temporal join": join_of("left", "version"),
}


def tagged(operator: Any, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of the left side, each hundredth of which has one of the right side."""
    right = rows.gather_every(100).with_columns((pl.col("t") + pl.duration(microseconds=SPAN)).alias("until"))
    both = [
        JoinInput("i", operator.sides, "left").apply(rows.lazy()),
        JoinInput("i", operator.sides, "right").apply(right.lazy()),
    ]
    return operator.partial(pl.concat(both)).collect()


INPUTS: Mapping[str, tuple[StatefulOperator, Callable[[pl.DataFrame], pl.DataFrame]]] = {
    **{name: (operator, lambda rows, operator=operator: taken(operator, rows)) for name, operator in PLAIN.items()},
    **{name: (operator, lambda rows, operator=operator: tagged(operator, rows)) for name, operator in JOINS.items()},
}


@dataclass
class Kept:
    """The checkpoints of one operator."""

    folder: Path
    memory: int = 1 << 30

    def __post_init__(self) -> None:
        self.store = memory_store()
        self.checkpoints = CheckpointStore(self.store, "job")
        self.epoch = 0

    def backend(self) -> StateBackend:
        return StateBackend(StateOptions(self.memory, self.folder))

    def save(self, instance: OperatorInstance) -> int:
        """Bytes that were written."""
        before = set(self.store.blobs.list(""))
        self.epoch += 1
        record = Checkpoint("job", "l", self.epoch, "a", created_us=1)
        self.name, _ = self.checkpoints.save(record, {"o": SavedOperator("f", (), instance.snapshot())})
        return sum(len(self.store.blobs.get(name)) for name in {*self.store.blobs.list("")} - before)

    def load(self, backend: StateBackend) -> OperatorState:
        _, states = self.checkpoints.load(self.name, backend.runs)
        return states["o"].state


def opened(operator: StatefulOperator, schema: pl.Schema, context: Any, workers: Workers) -> OperatorInstance:
    return open_operator(operator, schema, context, workers)


@pytest.mark.parametrize("name", INPUTS)
def test_sta_a_checkpoint_after_a_small_change_is_small_and_goes_on_anywhere(name: str, tmp_path: Path) -> None:
    operator, partials = INPUTS[name]
    kept, first = Kept(tmp_path, memory=1 << 20), partials(rows_of(0, MANY, 0))
    backend, workers = kept.backend(), Workers(2)
    instance = opened(operator, first.schema, backend.context("operator 'o'"), workers)
    instance.process(first)
    assert sum(path.stat().st_size for path in backend.runs.open().glob("*.arrow")) > MANY * 8
    whole = kept.save(instance)
    instance.process(partials(rows_of(MANY - FEW // 2, FEW, 1000)))
    changed = kept.save(instance)
    assert changed < whole / 10
    assert kept.save(instance) < whole / 10

    after = kept.backend()
    more = Workers(3)
    again = opened(operator, first.schema, after.context("operator 'o'", kept.load(after)), more)
    assert again.rows_held() >= instance.rows_held() - FEW
    last = partials(rows_of(10, 5, 2 * SPAN))
    given = [played(each, last) for each in (instance, again)]
    assert given[0].equals(given[1])
    assert given[0].height > MANY * 9 // 10
    for each in (workers, more, backend, after):
        each.close()


def played(instance: OperatorInstance, last: pl.DataFrame) -> pl.DataFrame:
    emissions = [instance.process(last), instance.advance(SPAN // 2), instance.advance(SPAN), instance.drain()]
    out = pl.concat([emission[MAIN] for emission in emissions if MAIN in emission])
    return out.sort(out.columns)


@pytest.mark.parametrize("name", ["tumbling", "hopping", "cumulating", "session", "top"])
def test_sta_rows_that_lie_in_several_files_are_read_as_one(name: str) -> None:
    operator, partials = INPUTS[name]
    first = partials(rows_of(0, 40, 0))
    sizes = Sizes(small=2, fan=9, segment=99, whole=2)
    instance = operator.open(first.schema, operator_context(options=StateOptions(sizes=sizes)))
    for _ in range(2):
        instance.process(first)
        state = instance.snapshot()
    ((table, kept),) = state.held.items()
    layout = HeldLayout(table, kept.schema, kept.key, kept.time, kept.version)
    frames = operator_context(state, options=StateOptions(sizes=sizes)).held(layout).frames()
    assert sum(frame.height for frame in frames) == 80
    assert isinstance(operator, ShowsState)
    shown = operator.shown(table, pl.concat(frames).lazy()).collect()
    if name == "top":
        assert sorted(shown["k"]) == sorted([*range(40)] * 2)
    else:
        assert shown.sort("k")["k"].to_list() == [*range(40)]
        assert set(shown["n"]) == {2}
