"""Early results of windows: a changelog that comes to what the window gives when it closes."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings

from headrace.kernel import columns
from headrace.kernel.errors import GraphChangedError, SpecError
from headrace.kernel.protocols import MAIN, Determinism
from headrace.testing import operator_context
from operators.early_window import EarlyWindow
from operators.session import SessionWindow
from operators.window import CumulatingWindow, HoppingWindow, TumblingWindow
from tests.windows import CUTS, ROWS, Row, frame_of, pieces, small_context, stored

AGGREGATES = {"n": "count(*)", "total": "sum(y)", "most": "max(x)"}
WINDOWS = {
    "tumbling": TumblingWindow("w", "t", 10, AGGREGATES, by=["k"]),
    "hopping": HoppingWindow("w", "t", 10, 5, AGGREGATES, by=["k"]),
    "cumulating": CumulatingWindow("w", "t", 10, 5, AGGREGATES, by=["k"]),
    "session": SessionWindow("w", "t", 4, AGGREGATES, by=["k"]),
    "of all rows": HoppingWindow("w", "t", 10, 5, AGGREGATES),
    "session of all rows": SessionWindow("w", "t", 4, AGGREGATES),
}


class Play:
    """An operator fed with batches that come within a bound of 6 us; restarted from a checkpoint before each."""

    def __init__(self, operator) -> None:
        self.operator = operator
        self.schema = operator.partial(frame_of([]).lazy()).collect_schema()
        self.instance = operator.open(self.schema, small_context())
        self.out = []

    def feed(self, rows, watermark: int) -> pl.DataFrame | None:
        self.instance = self.operator.open(self.schema, small_context(stored(self.instance.snapshot())))
        assert self.instance.process(self.operator.partial(frame_of(rows).lazy()).collect()) == {}
        return self.keep(self.instance.advance(watermark))

    def keep(self, given) -> pl.DataFrame | None:
        frame = given.get(MAIN)
        if frame is not None:
            assert frame.schema == self.operator.output_schema(self.schema)
            self.out.append(frame)
        return frame

    def table(self) -> list:
        if not self.out:
            return []
        whole = pl.concat(self.out)
        names = [name for name in whole.columns if name != columns.WEIGHT]
        weights = whole.group_by(names).agg(pl.col(columns.WEIGHT).sum()).filter(pl.col(columns.WEIGHT) != 0)
        assert weights[columns.WEIGHT].to_list() == [1] * weights.height
        return weights.select(names).sort(names).rows()


@pytest.mark.parametrize("kind", WINDOWS)
@settings(deadline=None, max_examples=8)
@given(ROWS, CUTS)
def test_what_it_comes_to_is_what_the_window_gives(kind, rows, cuts) -> None:
    rows = sorted(rows, key=lambda row: row.t)
    early, plain, given = Play(EarlyWindow(WINDOWS[kind], 3)), WINDOWS[kind], []
    schema = plain.partial(frame_of([]).lazy()).collect_schema()
    instance = plain.open(schema, operator_context())
    for piece in pieces(rows, cuts):
        reached = max((row.t for row in piece), default=-100)
        early.feed(piece, reached)
        early.table()  # no prefix holds a row more or less than once
        instance.process(plain.partial(frame_of(piece).lazy()).collect())
        given.append(instance.advance(reached).get(MAIN))
        early_mark, mark = early.instance.outgoing_watermark(reached), instance.outgoing_watermark(reached)
        assert early_mark == mark
    early.keep(early.instance.drain())
    given.append(instance.drain().get(MAIN))
    frames = [frame for frame in given if frame is not None]
    wanted = pl.concat(frames) if frames else pl.DataFrame()
    assert early.table() == (wanted.sort(wanted.columns).rows() if frames else [])


def test_results_come_when_the_watermark_passes_a_multiple() -> None:
    play = Play(EarlyWindow(TumblingWindow("w", "t", 10, {"n": "count(*)"}), 3))
    one, two = frame_rows(1, 2), frame_rows(4)
    assert weights(play.feed(one, 1)) == [(0, 2, 1)]
    assert play.feed(two, 2) is None
    assert weights(play.feed([], 3)) == [(0, 2, -1), (0, 3, 1)]
    assert play.feed([], 6) is None
    assert weights(play.feed(frame_rows(9, 12), 9)) == [(0, 3, -1), (0, 4, 1), (10, 1, 1)]
    assert play.feed([], 11) is None  # the window closes with what was given out last
    assert play.instance.rows_held() == 2
    assert play.keep(play.instance.drain()) is None


def frame_rows(*times: int) -> list:
    return [Row(time) for time in times]


def weights(frame: pl.DataFrame | None) -> list:
    assert frame is not None
    return frame.select(pl.col("window_start").to_physical(), "n", columns.WEIGHT).rows()


def test_keys_of_which_nothing_has_changed_are_not_looked_at() -> None:
    play = Play(EarlyWindow(WINDOWS["tumbling"], 3))
    play.feed([Row(1, key) for key in "abcdefgh"], 1)
    asked: list[str | None] = []
    inner = play.instance._inner
    results = inner.results
    inner.results = lambda keys: asked.extend(keys["k"]) or results(keys)
    play.instance.process(play.operator.partial(frame_of([Row(2, "c")]).lazy()).collect())
    play.instance.advance(2)
    play.instance.process(play.operator.partial(frame_of([Row(4, "e")]).lazy()).collect())
    given = play.instance.advance(4)[MAIN]
    assert given.select("k", "n", columns.WEIGHT).rows() == [("c", 1, -1), ("c", 2, 1), ("e", 1, -1), ("e", 2, 1)]
    assert sorted(asked) == ["c", "e"]
    assert play.instance.advance(6) == {}


def test_what_it_promises() -> None:
    window = WINDOWS["tumbling"]
    early = EarlyWindow(window, 3)
    assert early.determinism is Determinism.EXACT_TABLE
    assert (early.id, early.ports, early.key_columns) == (window.id, window.ports, window.key_columns)
    assert early.fingerprint != window.fingerprint
    with pytest.raises(SpecError, match="early results every 0"):
        EarlyWindow(window, 0)
    play = Play(early)
    play.feed(frame_rows(1), 1)
    other = EarlyWindow(TumblingWindow("w", "t", 10, {"n": "count(*)"}, by=["x"]), 3)
    schema = other.partial(frame_of([]).lazy()).collect_schema()
    with pytest.raises(GraphChangedError):
        other.open(schema, operator_context(play.instance.snapshot()))
