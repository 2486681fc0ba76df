"""As-of joins with a static table: the case OPS-01, a brute-force model, refusals."""

from __future__ import annotations

from datetime import datetime

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import Determinism
from operators.asof import AsofJoin

TIME = pl.Datetime("us")


def join(table: pl.DataFrame, **changes) -> AsofJoin:
    return AsofJoin("l", table, **{"on": {"k": "k"}, "time": "t", "version": "since", **changes})


def table_of(rows) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema={"k": pl.String, "since": pl.Int64, "v": pl.Int64}, orient="row")
    return frame.with_columns(pl.col("since").cast(TIME))


def stream_of(rows) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema={"k": pl.String, "t": pl.Int64, "x": pl.Int64}, orient="row")
    return frame.with_columns(pl.col("t").cast(TIME))


def test_ops_01_the_nearest_earlier_row_of_the_key_whatever_the_order_of_the_table() -> None:
    table = pl.DataFrame(
        {"k": ["a", "a", None], "since": [datetime(2022, m, 1) for m in (9, 6, 12)], "v": [1, 3, 9]}  # noqa: DTZ001
    )
    stream = pl.DataFrame(
        {"k": ["a", None, "a"], "t": [datetime(2023, 1, 1), datetime(2023, 1, 1), datetime(2022, 7, 1)]}  # noqa: DTZ001
    )
    for frames in ([stream], [stream[2:], stream[:2]], [stream[1:2], stream[2:], stream[:1]]):
        found = pl.concat([join(table).apply(frame.lazy()).collect() for frame in frames])
        assert sorted(found.select("k", "t", "v").rows(), key=str) == sorted(
            [("a", stream["t"][0], 1), (None, stream["t"][0], None), ("a", stream["t"][2], 3)], key=str
        )
    nearest = join(table, direction="nearest").apply(stream.lazy()).collect()
    assert nearest.filter(pl.col("k").is_null())["v"].to_list() == [None]


KEYS = st.sampled_from(["a", "b", None])
TIMES = st.none() | st.integers(0, 20)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(KEYS, TIMES, st.integers(0, 99)), max_size=12, unique_by=lambda row: row[:2]),
    st.lists(st.tuples(KEYS, TIMES, st.integers(0, 99)), max_size=12),
    st.sampled_from(["backward", "forward", "nearest"]),
    st.none() | st.integers(1, 6),
    st.sampled_from(["left", "inner"]),
    st.integers(0, 12),
)
def test_every_row_finds_what_the_model_finds(versions, rows, direction, within, how, cut) -> None:
    def match(key, time):
        known = [(at, v) for k, at, v in versions if k == key and None not in (k, at, time)]
        if direction == "backward":
            known = [(time - at, 0, v) for at, v in known if at <= time]
        elif direction == "forward":
            known = [(at - time, 0, v) for at, v in known if at >= time]
        else:
            known = [(abs(at - time), -at, v) for at, v in known]
        found = min(known, default=None)
        return None if found is None or (within is not None and found[0] > within) else found[2]

    operator = join(table_of(versions), direction=direction, within_us=within, how=how)
    frame = stream_of(rows)
    found = pl.concat([operator.apply(part.lazy()).collect() for part in (frame[:cut], frame[cut:])])
    expected = [(k, t, x, match(k, t)) for k, t, x in rows]
    expected = [row for row in expected if how == "left" or row[3] is not None]
    assert sorted(found.with_columns(pl.col("t").to_physical()).rows(), key=str) == sorted(expected, key=str)


def test_versions_of_one_time_are_told_apart_by_offset() -> None:
    table = table_of([("a", 5, 1), ("a", 5, 2), ("a", 5, 3)])
    with pytest.raises(SpecError, match="several rows for one key and time") as caught:
        join(table)
    assert caught.value.code == "LOOKUP_KEY_NOT_UNIQUE"
    known = table.with_columns(
        pl.Series(columns.PARTITION, [0, 0, 0], pl.Int32), pl.Series(columns.OFFSET, [7, 9, 8], pl.Int64)
    )
    found = join(known, columns=["v"]).apply(stream_of([("a", 6, 0)]).lazy()).collect()
    assert found["v"].to_list() == [2]
    assert join(known).determinism is Determinism.EXACT


def test_columns_prefix_and_row_watermark_pass() -> None:
    stream = stream_of([("a", 6, 0)]).with_columns(pl.lit(4, pl.Int64).alias(columns.ROW_WATERMARK))
    found = join(table_of([("a", 5, 1)]), columns=["v", "since"], prefix="of_").apply(stream.lazy()).collect()
    assert found.columns == ["k", "t", "x", columns.ROW_WATERMARK, "of_v", "of_since"]
    empty = join(table_of([])).apply(stream.lazy()).collect()
    assert empty["v"].to_list() == [None]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: join(table_of([]), on={}), "no key"),
        (lambda: join(table_of([]).with_columns(k=pl.struct("k"))), "key 'k' has type Struct"),
        (lambda: join(table_of([]), version="sinc"), "'sinc'(.|\n)*mean 'since'"),
        (lambda: join(table_of([]), version="v"), "'v' of table .* has type Int64"),
        (lambda: join(table_of([]), time="x").apply(stream_of([]).lazy()), "'x' is Int64 in the stream"),
        (lambda: join(table_of([]), on={"x": "k"}).apply(stream_of([]).lazy()), "'x' is Int64 in the stream"),
        (lambda: join(table_of([])).apply(stream_of([]).with_columns(v=1).lazy()), "would add 'v'"),
        (
            lambda: join(table_of([]).with_columns(pl.col("since").cast(pl.Date)), within_us=1),
            "within needs timestamps",
        ),
    ],
)
def test_joins_that_cannot_be_are_refused(make, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()
