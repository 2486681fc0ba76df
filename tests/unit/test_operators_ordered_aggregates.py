"""Aggregates that order rows or hold their values: first, last, arg_min, arg_max, list, count distinct, quantiles."""

from __future__ import annotations

import math
import statistics

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import MAIN, Determinism
from headrace.testing import operator_context
from operators.aggregate_text import aggregate
from operators.aggregates import arg_max, arg_min, collected, count_distinct, first, last, quantile
from operators.keyed_aggregate import KeyedAggregate
from operators.window import HoppingWindow, TumblingWindow
from tests.windows import pieces, stored

AGGREGATES = {
    "first": "first(x)",
    "last": "last(x)",
    "least": "arg_min(x, y)",
    "most": "arg_max(x, y)",
    "all": "list(x)",
    "different": "count(distinct x)",
    "median": "median(x)",
    "high": "quantile(x, 0.9)",
}
SCHEMA = {
    "t": pl.Int64,
    columns.PARTITION: pl.Int32,
    columns.OFFSET: pl.Int64,
    "k": pl.String,
    "x": pl.Int64,
    "y": pl.Float64,
}


@st.composite
def rows(draw):
    out = []
    for offset in range(draw(st.integers(0, 25))):
        y = draw(st.none() | st.sampled_from([0.0, -0.0, 1.5, -2.0, math.nan]))
        x = draw(st.none() | st.integers(-3, 3))
        out.append((draw(st.integers(-8, 12)), offset % 2, offset, draw(st.sampled_from("ab")), x, y))
    return out


def frame_of(given) -> pl.DataFrame:
    frame = pl.DataFrame(given, schema=SCHEMA, orient="row")
    return frame.with_columns(pl.col("t").cast(pl.Datetime("us", "UTC")))


def linear(values: list[int], q: float) -> float | None:
    """The quantile as percentile_cont defines it."""
    if not values:
        return None
    at = q * (len(values) - 1)
    low, high = math.floor(at), math.ceil(at)
    return values[low] + (values[high] - values[low]) * (at - low)


def model(given) -> dict:
    out = {}
    for key in {(row[0] // 10 * 10, row[3]) for row in given}:
        members = sorted(row for row in given if (row[0] // 10 * 10, row[3]) == key)
        known = [row for row in members if row[4] is not None]
        ranked = [row for row in known if row[5] is not None and not math.isnan(row[5])]
        xs = [row[4] for row in known]
        out[key] = {
            "first": xs[0] if xs else None,
            "last": xs[-1] if xs else None,
            "least": min(ranked, key=lambda row: (row[5], row[:3]))[4] if ranked else None,
            "most": max(ranked, key=lambda row: (row[5], row[:3]))[4] if ranked else None,
            "all": xs,
            "different": len(set(xs)),
            "median": statistics.median(xs) if xs else None,
            "high": linear(sorted(xs), 0.9),
        }
    return out


def run(operator, given, cuts, restart) -> pl.DataFrame | None:
    schema = operator.partial(frame_of([]).lazy()).collect_schema()
    instance = operator.open(schema, operator_context())
    for number, piece in enumerate(pieces(given, cuts)):
        instance.process(operator.partial(frame_of(piece).lazy()).collect())
        if number == restart:
            instance = operator.open(schema, operator_context(stored(instance.snapshot())))
    return instance.drain().get(MAIN)


@settings(max_examples=50, deadline=None)
@given(rows(), st.lists(st.integers(0, 30), max_size=4), st.integers(0, 4), st.randoms(use_true_random=False))
def test_results_equal_the_model_whatever_the_order_and_the_cuts(given, cuts, restart, random) -> None:
    shuffled = random.sample(given, len(given))
    out = run(TumblingWindow("w", "t", 10, AGGREGATES, by=["k"]), shuffled, cuts, restart)
    found = (
        {}
        if out is None
        else {
            (row["window_start"], row["k"]): {name: row[name] for name in AGGREGATES}
            for row in out.with_columns(pl.col("window_start").to_physical()).iter_rows(named=True)
        }
    )
    expected = model(given)
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        high, wanted = found[key].pop("high"), values.pop("high")
        assert (high is None) == (wanted is None)
        assert high is None or math.isclose(high, wanted, abs_tol=1e-12)
        assert found[key] == values


@settings(max_examples=20, deadline=None)
@given(rows(), st.lists(st.integers(0, 30), max_size=4), st.randoms(use_true_random=False))
def test_without_offsets_rows_of_one_time_are_ordered_by_what_they_hold(given, cuts, random) -> None:
    class Blind(TumblingWindow):
        def partial(self, rows):
            return super().partial(rows.drop(columns.PARTITION, columns.OFFSET))

    operator = Blind("w", "t", 10, AGGREGATES, by=["k"])
    one, other = run(operator, given, [], -1), run(operator, random.sample(given, len(given)), cuts, 1)
    assert (one is None) == (other is None)
    assert one is None or other is None or assert_frame_equal(one, other) is None


def test_engines_agree() -> None:
    given = [(t * 7 % 40, t % 2, t, "ab"[t % 2], t % 5, float(t % 3)) for t in range(200)]
    operator = HoppingWindow("w", "t", 20, 10, AGGREGATES, by=["k"])
    both = [operator.partial(frame_of(given).lazy()).collect(engine=engine) for engine in ("in-memory", "streaming")]
    outs = []
    for partials in both:
        instance = operator.open(partials.schema, operator_context())
        instance.process(partials)
        outs.append(instance.drain()[MAIN])
    assert_frame_equal(*outs)


def test_text_key_and_class() -> None:
    assert aggregate("count( DISTINCT x )", "w").text == "count(distinct x)"
    assert aggregate("Arg_Max(a, b + 1)", "w").text == "arg_max(a, b + 1)"
    assert aggregate("median(x)", "w").text == "quantile(x, 0.5)"
    assert aggregate("array_agg(x)", "w").text == "list(x)"
    made = [first("x"), last("x"), arg_min("x", "y"), arg_max("x", "y"), collected("x"), count_distinct("x")]
    operator = TumblingWindow(
        "w", "t", 10, {f"a{i}": one for i, one in enumerate([*made, quantile(pl.col("x"), 0.25)])}
    )
    assert operator.determinism is Determinism.EXACT
    assert "arg_min:x, y" in operator.fingerprint
    assert "values:[a6]" in operator.fingerprint


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("quantile(x)", "not an aggregate"),
        ("quantile(x, 1.5)", "'1.5' is no fraction"),
        ("quantile(x, y)", "'y' is no fraction"),
        ("arg_min(x)", "not an aggregate"),
        ("first(x, y)", "not an aggregate"),
        ("first()", "not an aggregate"),
        ("count(distinct)", "not an aggregate"),
        ("count(distinct x, y)", "not an aggregate"),
        ("list(sum(x))", "holds an aggregate"),
        ("median(k)", "needs a number, not String"),
        ("first(l)", "List.*not supported"),
        ("arg_min(x, l)", "List.*not supported"),
    ],
)
def test_what_cannot_be_is_refused(written: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        TumblingWindow("w", "t", 10, {"a": written}).partial(
            frame_of([]).with_columns(l=pl.lit([1], pl.List(pl.Int8))).lazy()
        )


def test_a_running_aggregate_has_no_event_time_to_order_by() -> None:
    with pytest.raises(SpecError, match="needs an event time"):
        KeyedAggregate("a", {"f": "first(x)"}, ["k"]).partial(frame_of([]).lazy())
