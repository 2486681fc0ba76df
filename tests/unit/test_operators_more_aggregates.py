"""Variances, covariances, sketches, booleans, joined texts, FILTER, and aggregates combined of others."""

from __future__ import annotations

import math
from fractions import Fraction

import duckdb
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import MAIN, Determinism
from headrace.testing import operator_context
from operators.aggregate_text import aggregate
from operators.aggregates import (
    all_true,
    any_true,
    approx_count_distinct,
    combined,
    correlation,
    count,
    covariance,
    joined,
    stddev,
    total,
    variance,
)
from operators.window import HoppingWindow, TumblingWindow
from tests.windows import pieces, stored

SCHEMA = {"t": pl.Int64, columns.OFFSET: pl.Int64, "k": pl.String, "x": pl.Float64, "y": pl.Float64, "s": pl.String}
AGGREGATES = {
    "vp": "var_pop(x)",
    "vs": "variance(x)",
    "sp": "stddev_pop(x)",
    "ss": "stddev(x)",
    "cp": "covar_pop(x, y)",
    "cs": "covar_samp(x, y)",
    "cor": "corr(x, y)",
    "every": "bool_and(x > 0)",
    "some": "bool_or(x > 0)",
    "text": "string_agg(s, '; ')",
    "about": "approx_count_distinct(s)",
    "few": "count(*) filter (where x > 0)",
    "part": "sum(x) FILTER (WHERE y > 0)",
    "one": "any_value(s)",
}
VALUES = st.none() | st.sampled_from([0.0, -0.0, 1.5, -2.25, 0.1, 1e9 + 0.5, -3e12, 7e-9])


def frame_of(rows) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").with_columns(pl.col("t").cast(pl.Datetime("us", "UTC")))


def run(operator, frames) -> pl.DataFrame:
    """The rows of all windows, with a checkpoint between any two batches."""
    state, out = None, []
    schema = operator.partial(frame_of([]).lazy()).collect_schema()
    instance = operator.open(schema, operator_context())
    for frame in frames:
        instance.process(operator.partial(frame.lazy()).collect())
        state = stored(instance.snapshot())
        instance = operator.open(schema, operator_context(state))
    out = instance.drain().get(MAIN)
    return operator.finish(pl.LazyFrame(schema=schema)).collect() if out is None else out


def alone(text, values, dtype=pl.Float64, **more):
    frame = pl.DataFrame({"x": pl.Series(values, dtype=dtype), **more})
    frame = frame.with_columns(t=pl.lit(0).cast(pl.Datetime("us", "UTC")))
    operator = TumblingWindow("w", "t", 10, {"out": text})
    instance = operator.open(operator.partial(frame.lazy()).collect_schema(), operator_context())
    for row in frame.iter_slices(1):
        instance.process(operator.partial(row.lazy()).collect())
    return instance.drain()[MAIN]["out"].item()


ROWS = st.lists(
    st.tuples(st.integers(0, 25), st.sampled_from("ab"), VALUES, VALUES, st.none() | st.sampled_from(["p", "q", "r"])),
    max_size=20,
)


QUERY = """
    select k, t - t % 10 as start, bool_and(x > 0), bool_or(x > 0), string_agg(s, '; ' order by t, _kafka_offset),
        count(*) filter (where x > 0), sum(x) filter (where y > 0) is null
    from given group by all order by start, k
"""


@settings(deadline=None, max_examples=12)
@given(ROWS, st.lists(st.integers(0, 30), max_size=4), st.randoms(use_true_random=False))
def test_results_do_not_depend_on_order_or_cuts_and_are_those_of_a_batch(found, cuts, order) -> None:
    rows = [(t, offset, k, x, y, s) for offset, (t, k, x, y, s) in enumerate(found)]
    operator = TumblingWindow("w", "t", 10, AGGREGATES, by=["k"])
    once = run(operator, [frame_of(rows)])
    order.shuffle(rows)
    assert run(operator, [frame_of(piece) for piece in pieces(rows, cuts)]).equals(once)
    relation = duckdb.from_arrow(frame_of(rows).with_columns(pl.col("t").to_physical()).to_arrow())
    wanted = relation.query("given", QUERY).fetchall()
    named = once.with_columns(pl.col("window_start").to_physical(), pl.col("part").is_null())
    assert named.select("k", "window_start", "every", "some", "text", "few", "part").rows() == wanted
    for row in once.iter_rows(named=True):
        start = row["window_start"].microsecond
        members = [(x, y, s) for t, _, k, x, y, s in rows if k == row["k"] and t // 10 * 10 == start]
        check_moments(row, members)
        assert row["about"] == len({s for _, _, s in members if s is not None})


def check_moments(row, members) -> None:
    xs = [Fraction(x) for x, _, _ in members if x is not None]
    assert close(row["vp"], spread(xs, xs, 0)), row
    assert close(row["vs"], spread(xs, xs, 1))
    assert row["sp"] == (None if row["vp"] is None else math.sqrt(row["vp"]))
    assert row["ss"] == (None if row["vs"] is None else math.sqrt(row["vs"]))
    both = [(Fraction(x), Fraction(y)) for x, y, _ in members if x is not None and y is not None]
    first, second = [x for x, _ in both], [y for _, y in both]
    assert close(row["cp"], spread(first, second, 0))
    assert close(row["cs"], spread(first, second, 1))
    if row["cor"] is not None:
        wanted = spread(first, second, 0) / math.sqrt(spread(first, first, 0)) / math.sqrt(spread(second, second, 0))
        assert math.isclose(row["cor"], wanted, rel_tol=1e-12, abs_tol=1e-12)


def spread(xs, ys, less) -> float | None:
    """The covariance, exactly."""
    if len(xs) <= less:
        return None
    mx, my = sum(xs) / len(xs), sum(ys) / len(ys)
    return float(sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / (len(xs) - less))


def close(found, wanted) -> bool:
    return found is wanted if wanted is None else math.isclose(found, wanted, rel_tol=1e-13, abs_tol=1e-18)


def test_a_variance_far_from_zero_loses_no_digits() -> None:
    values = [1.7e15 + delta for delta in (0.0, 0.25, 0.5, 0.75)]
    assert alone("var_pop(x)", values) == 0.078125
    assert alone("stddev_pop(x)", [3.0] * 5) == 0.0
    assert alone("var_samp(x)", [4.0]) is None
    assert alone("corr(x, 2 * x)", [1.0, 2.0, 4.0]) == pytest.approx(1.0, rel=1e-15)
    assert alone("corr(x, 2 * x)", [1.0, 1.0]) is None
    assert alone("var_pop(x)", [1, 2, 3, 4], pl.Int32) == 1.25
    assert math.isnan(alone("var_pop(x)", [1.0, math.inf]))
    assert math.isnan(alone("corr(x, 2 * x)", [1.0, 2.0, math.nan]))
    assert alone("var_pop(x)", [None, None]) is None


def test_a_sketch_counts_many_values_within_its_error() -> None:
    frame = pl.DataFrame({"x": range(200_000)}).with_columns(t=pl.lit(0).cast(pl.Datetime("us", "UTC")))
    operator = HoppingWindow(
        "w", "t", 20, 10, {"n": "approx_count_distinct(x)", "m": "approx_count_distinct(mod(x, 50))"}
    )
    instance = operator.open(operator.partial(frame.lazy()).collect_schema(), operator_context())
    for piece in frame.iter_slices(70_000):
        instance.process(operator.partial(piece.lazy()).collect())
    for row in instance.drain()[MAIN].iter_rows(named=True):
        assert abs(row["n"] - 200_000) < 200_000 * 0.05
        assert row["m"] == 50


def test_what_python_says_is_what_text_says() -> None:
    pairs = {
        "bool_and(x)": all_true("x"),
        "bool_or(x)": any_true("x"),
        "string_agg(x, ', ')": joined("x", ", "),
        "approx_count_distinct(x)": approx_count_distinct("x"),
        "var_pop(x)": variance("x", population=True),
        "var_samp(x)": variance("x"),
        "stddev_pop(x)": stddev("x", population=True),
        "stddev_samp(x)": stddev("x"),
        "covar_pop(x, y)": covariance("x", "y", population=True),
        "covar_samp(x, y)": covariance("x", "y"),
        "corr(x, y)": correlation("x", "y"),
        "sum(case when (y > 1) then (x) end)": total("x").where("y > 1"),
        "count(case when (y > 1) then (1) end)": count().where("y > 1"),
    }
    for text, made in pairs.items():
        assert made.text == text
        assert aggregate(text, "test").text == text
    assert aggregate("string_agg(x, 'it''s')", "test").separator == "it's"
    assert aggregate("listagg(x)", "test").text == "string_agg(x, ',')"
    assert aggregate("sum(x) filter (where y > (1 + 0))", "test").text == "sum(case when (y > (1 + 0)) then (x) end)"


def test_any_aggregation_that_can_be_split() -> None:
    weighted = combined(
        {"value": total(pl.col("x") * pl.col("n")), "size": total("n")}, lambda part: part["value"] / part["size"]
    )
    assert alone(weighted, [1.0, 4.0], n=[1, 3]) == 3.25
    assert alone(weighted.where(pl.col("n") > 1), [1.0, 4.0], n=[1, 3]) == 4.0
    assert weighted.determinism is Determinism.EXACT
    assert weighted.text.startswith("combined(value = sum(")
    with pytest.raises(SpecError, match="no parts"):
        combined({}, lambda part: pl.lit(1))
    with pytest.raises(SpecError, match="combined"):
        combined({"n": count()}, lambda part: part["n"].sum())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sum(x) filter (y > 1)", "not an aggregate"),
        ("sum(x) filter (where sum(y) > 1)", "holds an aggregate"),
        ("filter (where x)", "not an aggregate"),
        ("string_agg(x, y)", "not an aggregate"),
        ("corr(x)", "not an aggregate"),
        ("combined(x)", "not an aggregate"),
        ("var_pop(s)", "needs a number"),
        ("bool_or(x)", "needs a boolean"),
        ("string_agg(x)", "needs text"),
        ("approx_count_distinct(l)", "not supported"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        alone(text, [1.0], s=["a"], l=[[1]], y=[1])
