"""Frames over rows: a brute-force model over cuts, orders, restarts and late rows; numbers, lags, ttl, refusals."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel.errors import GraphChangedError, SchemaError, SpecError
from headrace.kernel.protocols import MAIN
from headrace.testing import operator_context
from operators.over import Over
from operators.over_frames import Frame
from tests.windows import CUTS, RESTARTS, ROWS, Row, frame_of, pieces, stored, tail_of

COLUMNS = {
    "n": "count(*)",
    "xs": "count(x)",
    "total": "sum(x)",
    "floats": "sum(y)",
    "mean": "avg(x)",
    "least": "min(y)",
    "most": "max(x)",
    "spread": "var_pop(x)",
    "head": "first_value(x)",
    "tail": "last_value(x)",
    "known": "last(x)",
    "place": "row_number()",
    "rank": "rank()",
    "dense": "dense_rank()",
    "before": "lag(x)",
    "back": "lag(x, 2, x * 10 - 1)",
}
HOLDING = {"kinds": "count(distinct x)", "all": "list(x)", "middle": "median(x)"}
FRAMES = [Frame(), Frame("rows"), Frame("rows", 0), Frame("rows", 2), Frame("range", 0), Frame("range", 7)]


def content(row: Row) -> tuple[Any, ...]:
    return tuple((value is not None, value or 0) for value in (row.k, row.x, row.y))


def model(rows: Sequence[Row], frame: Frame, ttl: int | None) -> list[tuple[Any, ...]]:
    """Each row with what is computed of its frame."""
    out = []
    for key in {row.k for row in rows}:
        members = sorted((row for row in rows if row.k == key), key=lambda row: (row.t, *content(row)))
        gaps = [i + 1 for i, (a, b) in enumerate(itertools.pairwise(members)) if ttl is not None and b.t - a.t >= ttl]
        for low, high in itertools.pairwise([0, *gaps, len(members)]):
            out += [_result(members[low:high], i, frame) for i in range(high - low)]
    return out


def _result(run: Sequence[Row], i: int, frame: Frame) -> tuple[Any, ...]:
    row = run[i]
    if frame.unit == "rows":
        inside = run[: i + 1] if frame.preceding is None else run[max(0, i - frame.preceding) : i + 1]
    else:
        inside = [r for r in run if r.t <= row.t and (frame.preceding is None or r.t >= row.t - frame.preceding)]
    xs = [r.x for r in inside if r.x is not None]
    ys = [r.y for r in inside if r.y is not None]
    lasting = [r.x for r in sorted(inside, key=lambda r: (r.t, r.x is not None, r.x or 0)) if r.x is not None]
    return (
        *(row.t, row.k, row.x, row.y),
        *(len(inside), len(xs), sum(xs) if xs else None, math.fsum(ys) if ys else None),
        *(statistics.mean(xs) if xs else None, min(ys, default=None), max(xs, default=None)),
        *(statistics.pvariance(xs) if xs else None, inside[0].x, inside[-1].x, lasting[-1] if xs else None),
        *(i + 1, 1 + sum(r.t < row.t for r in run), len({r.t for r in run if r.t <= row.t})),
        *(run[i - 1].x if i else None, run[i - 2].x if i > 1 else (None if row.x is None else row.x * 10 - 1)),
    )


def rows_of(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    return frame.with_columns(pl.col("t").to_physical()).rows()


def comparable(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Sorted, numbers as floats with one zero and less digits."""

    def clean(value: Any) -> Any:
        return round(float(value), 3) + 0.0 if isinstance(value, int | float) else value

    return sorted((tuple(map(clean, row)) for row in rows), key=repr)


@settings(max_examples=25, deadline=None)
@given(
    ROWS,
    ROWS,
    CUTS,
    st.integers(0, 30),
    RESTARTS,
    st.sampled_from(FRAMES),
    st.sampled_from([None, 6]),
    st.sampled_from([0, 9]),
)
def test_history_then_tail_equals_the_model_whatever_the_cut(
    history, tail, cuts, bound, restarts, frame, ttl, lateness
) -> None:
    operator = Over("o", "t", COLUMNS, ["k"], frame, ttl, lateness)
    arriving = tail_of(tail, bound)
    schema = operator.partial(frame_of([], []).lazy()).collect_schema()
    instance = operator.open(schema, operator_context())
    out: list[tuple[Any, ...]] = []
    late: list[int] = []
    steps, promised = itertools.count(), None

    def step(given: pl.DataFrame, watermark: int) -> None:
        nonlocal instance, promised
        assert instance.process(operator.partial(given.lazy()).collect()) == {}
        late.extend(operator.late(given.lazy()).collect()["t"].to_physical().to_list())
        for rows in instance.advance(watermark).values():
            assert rows.schema == operator.output_schema(schema)
            assert rows["t"].is_sorted()
            assert promised is None or rows["t"].to_physical().min() >= promised
            out.extend(rows_of(rows))
        outgoing = instance.outgoing_watermark(watermark)
        assert promised is None or promised <= outgoing <= watermark
        promised = outgoing
        if next(steps) in restarts:
            instance = operator.open(schema, operator_context(stored(instance.snapshot())))

    lower = min((row.t for row in history), default=0) - 1
    for piece in pieces(history, cuts):
        step(frame_of(piece, [None] * len(piece)), min(lower, arriving.floor))
    position = 0
    for piece in pieces(tail, cuts):
        given = frame_of(piece, arriving.marks[position : position + len(piece)])
        position += len(piece)
        step(given, arriving.reached(position))
    for rows in instance.drain().values():
        out.extend(rows_of(rows))

    is_late = [row.t < mark - lateness for row, mark in zip(tail, arriving.marks, strict=True)]
    on_time = [row for row, gone in zip(tail, is_late, strict=True) if not gone]
    assert late == [row.t for row, gone in zip(tail, is_late, strict=True) if gone]
    assert comparable(out) == comparable(model([*history, *on_time], frame, ttl))
    assert instance.counts == {"dropped_late": 0, "null_event_time": 0}


@settings(max_examples=15, deadline=None)
@given(ROWS, CUTS, st.sampled_from(FRAMES[2:]))
def test_aggregates_that_hold_every_value_over_frames_with_a_bound(rows, cuts, frame) -> None:
    operator = Over("o", "t", HOLDING, ["k"], frame)
    found: list[dict[str, Any]] = []
    schema = operator.partial(frame_of([]).lazy()).collect_schema()
    instance = operator.open(schema, operator_context())
    for piece in pieces(sorted(rows, key=lambda row: row.t), cuts):
        instance.process(operator.partial(frame_of(piece).lazy()).collect())
        for out in instance.advance(max((row.t for row in piece), default=-100)).values():
            found += out.rows(named=True)
    for out in instance.drain().values():
        found += out.rows(named=True)
    wanted = model(rows, frame, None)
    assert len(found) == len(wanted) == len(rows)
    for row in found:
        assert row["kinds"] == len(set(row["all"]))
        assert row["middle"] == (statistics.median(row["all"]) if row["all"] else None)
    assert sorted(len(row["all"]) for row in found) == sorted(line[5] for line in wanted)


def run(operator: Over, *frames: pl.DataFrame) -> pl.DataFrame:
    """What comes out of batches that lie one behind the other in time."""
    schema = operator.partial(frames[0].lazy()).collect_schema()
    instance = operator.open(schema, operator_context())
    out = [pl.DataFrame(schema=operator.output_schema(schema))]
    for frame in frames:
        instance.process(operator.partial(frame.lazy()).collect())
        out += instance.drain().values()
    return pl.concat(out)


def timed(**values: list[Any]) -> pl.DataFrame:
    times = pl.Series(range(len(next(iter(values.values()))))).cast(pl.Datetime("us"))
    return pl.DataFrame({"t": times, **values})


def test_infinities_nan_and_large_floats_leave_a_frame_again() -> None:
    given = timed(x=[1.0, math.inf, 2.0, -math.inf, math.nan, 3.0, 1e300, 1.0, 2.0])
    columns = {"s": "sum(x)", "lo": "min(x)", "hi": "max(x)"}
    for out in (run(Over("o", "t", columns, frame=Frame("rows", 1)), given),):
        assert repr(out["s"].to_list()) == repr(
            [1.0, math.inf, math.inf, -math.inf, math.nan, math.nan, 1e300, 1e300, 3.0]
        )
        assert out["lo"].to_list() == [1.0, 1.0, 2.0, -math.inf, -math.inf, 3.0, 3.0, 1.0, 1.0]
        assert out["hi"].to_list() == [1.0, math.inf, math.inf, 2.0, -math.inf, 3.0, 1e300, 1e300, 2.0]


@pytest.mark.parametrize("frame", [Frame("rows", 1), Frame("range", 1), Frame("rows"), Frame()])
def test_values_of_any_type(frame) -> None:
    values = {
        "s": ["b", None, "a"],
        "b": [True, None, False],
        "d": pl.Series([5, None, 3]).cast(pl.Date).to_list(),
        "m": pl.Series([1, None, 3]).cast(pl.Decimal(10, 2)).to_list(),
        "bin": [b"x", None, b"y"],
    }
    columns = {f"{f}_{name}": f"{f}({name})" for name in values for f in ("min", "max", "last_value", "lag", "first")}
    out = run(
        Over("o", "t", {**columns, "sum": "sum(m)", "at": "arg_max(s, m)", "all": "bool_and(b)"}, frame=frame),
        *timed(**values).iter_slices(1),
    )
    assert out.height == 3
    assert out["min_s"].to_list() == ["b", "b", "a"]
    assert out["max_d"].cast(pl.Int32).to_list() == ([5, 5, 3] if frame.preceding else [5, 5, 5])
    assert out["lag_bin"].to_list() == [None, b"x", None]
    assert out["sum"].to_list()[2] == (3 if frame.preceding else 4)
    assert out["at"].to_list() == ["b", "b", "a"]
    assert out["all"].to_list() == [True, True, False]


def test_the_default_frame_has_rows_of_the_same_time_and_a_lag_has_its_own_default() -> None:
    given = pl.DataFrame({"t": [1, 1, 2], "x": [1, 2, 3]}).with_columns(pl.col("t").cast(pl.Datetime("us")))
    columns = {"s": "sum(x)", "rank": "rank()", "was": "lag(x, 1, 0)", "half": "lag(x, 1, 0.5)"}
    assert run(Over("o", "t", columns), given).drop("t").rows() == [
        (1, 3, 1, 0, 0.5),
        (2, 3, 1, 1, 1.0),
        (3, 6, 3, 2, 2.0),
    ]


def test_what_is_held_has_a_bound_where_the_frame_has_one() -> None:
    operator = Over("o", "t", {"n": "count(*)"}, ["k"], Frame("range", 5))
    schema = operator.partial(frame_of([]).lazy()).collect_schema()
    instance = operator.open(schema, operator_context())
    for t in range(0, 300, 3):
        instance.process(operator.partial(frame_of([Row(t, str(t % 7))]).lazy()).collect())
        instance.advance(t + 1)
    rows = next(iter(instance.snapshot().keyed.values())).rows
    assert rows < 50
    assert instance.rows_held() < 50


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"columns": {}}, "computes nothing"),
        ({"columns": {"n": "lead(x)"}}, "needs rows that come later"),
        ({"columns": {"n": "lag(x, 0)"}}, "looks back 0 rows"),
        ({"columns": {"n": "lag(x, 1, 2, 3)"}}, "lag takes a value"),
        ({"columns": {"n": "row_number(x)"}}, "takes no argument"),
        ({"columns": {"n": "first_value(x, y)"}}, "takes one argument"),
        ({"columns": {"n": "count(distinct x)"}}, "hold every value"),
        ({"columns": {"n": "sum(k)"}}, "needs a number"),
        ({"columns": {"n": "sum(z)"}}, "column 'z'"),
        ({"columns": {"x": "sum(x)"}}, "already has"),
        ({"columns": {"n": "lag(x, 1, k)"}}, "of another type"),
        ({"by": ["z"]}, "column 'z'"),
        ({"ttl_us": 0}, "positive"),
    ],
)
def test_what_cannot_be_is_refused(changes, wanted) -> None:
    with pytest.raises(SpecError) as caught:
        run(Over(**{"id": "o", "event_time": "t", "columns": {"n": "sum(x)"}, **changes}), frame_of([Row(1)]))
    assert wanted in str(caught.value)


def test_a_sum_that_does_not_fit_is_an_error_and_a_state_of_other_columns_is_refused() -> None:
    given = timed(x=[2**62, 2**62])
    with pytest.raises(SchemaError):
        run(Over("o", "t", {"s": "sum(x)"}), given)
    first, other = Over("o", "t", {"s": "sum(x)"}), Over("o", "t", {"s": "min(x)"})
    schema = first.partial(given.lazy()).collect_schema()
    instance = first.open(schema, operator_context())
    instance.process(first.partial(given.head(1).lazy()).collect())
    assert instance.drain()[MAIN]["s"].to_list() == [2**62]
    assert first.fingerprint != other.fingerprint
    with pytest.raises(GraphChangedError):
        other.open(schema, operator_context(stored(instance.snapshot())))
