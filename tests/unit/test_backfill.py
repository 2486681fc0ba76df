"""Derived jobs and restrictions: values are literals, ranges are half-open, only what feeds the sink stays."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.jobs.backfill import BackfillRequest, derive, restrict, restriction, warnings
from headrace.jobs.parse import parse_job
from headrace.jobs.spec import JobSpec
from headrace.kernel.errors import SpecError

COLUMNS = {
    "ts": pl.Datetime("us", "UTC"), "naive": pl.Datetime("ns"), "day": pl.Date(), "us": pl.Int64(),
    "origin": pl.String(), "x": pl.Float64(), "ok": pl.Boolean(), "tags": pl.List(pl.String()),
}  # fmt: skip
MOMENTS = st.integers(0, 3 * 86_400_000_000).map(
    lambda us: dt.datetime.fromisoformat("2013-01-01") + dt.timedelta(microseconds=us)
)
TRICKY = ["O'Brien", "x' OR '1'='1", "'; DROP TABLE t; --", 'a" OR 1=1', "", "\\", "%", "null", "é\u0000"]


def job(event_time: str = "ts", **more: Any) -> JobSpec:
    return parse_job(
        {
            "name": "live",
            "sources": {
                "s": {
                    "history": {"table": "lake.a.b", "where": "x < 100 or x > 200"},
                    "tail": {"topic": "t"},
                    "event_time": {"column": event_time, "out_of_orderness": "1h"},
                },
                "other": {"history": {"table": "lake.a.c"}},
            },
            "tables": {"names": {"table": "lake.a.names"}, "unused": {"table": "lake.a.unused"}},
            "steps": [
                {"filter": "x > 0", "from": "s"},
                {"lookup": {"table": "names", "on": "origin"}},
                {"window": {"tumbling": "1h", "by": ["origin"], "aggregate": {"n": "count(*)"}}},
                {"filter": "x > 1", "from": "other", "id": "aside"},
            ],
            "sinks": [
                {"iceberg": {"table": "lake.a.out", "partition_by": ["day(window_start)"]}, "from": "window"},
                {"kafka": {"topic": "o"}, "from": "aside"},
                {"iceberg": {"table": "lake.a.late"}, "from": "window.late"},
            ],
            "checkpoint": {"interval": "3s", "store": "s3://b/live"},
            **more,
        }
    )


def request(**more: Any) -> BackfillRequest:
    given_ = {"job": "j", "sink": "iceberg-lake.a.out", "from": "2013-01-01T00:00:00Z", "target": "lake.a.t", **more}
    return BackfillRequest.model_validate_json(json.dumps(given_))


def kept(frame: pl.DataFrame, wanted: BackfillRequest, spec: JobSpec | None = None) -> pl.DataFrame:
    derived = derive(spec or job(), wanted)
    # As the store does it: through JSON.
    part = json.loads(json.dumps(restriction(derived, wanted, COLUMNS)))
    history = restrict(derived.spec, part).sources[derived.source].history
    assert history is not None
    assert isinstance(history.where, pl.Expr)
    return frame.filter(history.where)


@pytest.mark.parametrize(
    "step", [{"union": ["s", "other"]}, {"join": {"left": "s", "right": "other", "on": ["x"], "right_prefix": "o_"}}]
)
def test_a_sink_that_takes_several_streams_is_refused(step: dict[str, Any]) -> None:
    spec = job(steps=[{**step, "id": "both"}], sinks=[{"iceberg": {"table": "lake.a.out"}, "from": "both"}])
    with pytest.raises(SpecError, match=f"takes a {next(iter(step))} of streams, and a backfill reads one"):
        derive(spec, request())


def test_only_what_feeds_the_sink_stays() -> None:
    spec = derive(job(), request(snapshot=str(2**62), create=True)).spec
    assert list(spec.sources) == ["s"]
    source = spec.sources["s"]
    assert source.tail is None
    assert source.history is not None
    assert source.history.model_dump(exclude_defaults=True) == {
        "table": "lake.a.b", "where": "x < 100 or x > 200", "snapshot": 2**62
    }  # fmt: skip
    assert list(spec.tables) == ["names"]
    assert [(step.id, step.from_) for step in spec.steps] == [
        ("filter", "s"),
        ("lookup", "filter"),
        ("window", "lookup"),
    ]
    assert [sink.model_dump(by_alias=True, exclude_defaults=True) for sink in spec.sinks] == [
        {
            "from": "window",
            "iceberg": {"table": "lake.a.t", "create": True, "partition_by": ("day(window_start)",)},
        }
    ]
    assert (spec.checkpoint.interval, spec.checkpoint.store) == (3_000_000, None)
    assert spec.name == "live-backfill"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"from": None}, ["from"]),
        ({"to": "2013-01-01T00:00:00Z"}, ["to"]),
        ({"sink": None}, ["sink"]),
        ({"sink": "nope"}, ["sink"]),
        ({"sink": "kafka-o"}, ["from"]),
        ({"sink": "iceberg-lake.a.late"}, ["sink"]),
    ],
)
def test_requests_that_do_not_fit(change: dict[str, Any], path: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        derive(job(), request(**change))
    assert caught.value.context["path"] == path
    assert caught.value.code == "BACKFILL_INVALID"


def test_a_source_without_history_or_table() -> None:
    tail = {"topic": "t", "schema": {"ts": "timestamptz"}}
    sinks = [{"iceberg": {"table": "lake.a.o"}}]
    only_tail = {"name": "x", "sources": {"s": {"tail": tail, "event_time": {"column": "ts"}}}, "sinks": sinks}
    with pytest.raises(SpecError, match="no history"):
        derive(parse_job(only_tail), request(sink=None))
    files = {"name": "x", "sources": {"s": {"history": {"parquet": "x/*.parquet"}}}, "sinks": sinks}
    with pytest.raises(SpecError, match="no snapshots"):
        derive(parse_job(files), request(sink=None, snapshot=1, **{"from": None}))


@pytest.mark.parametrize("column", ["ts", "naive", "day", "us"])
@settings(deadline=None, max_examples=60)
@given(
    times=st.lists(MOMENTS, max_size=20),
    lower=MOMENTS,
    length=st.timedeltas(dt.timedelta(microseconds=1), dt.timedelta(days=3)),
)
def test_ranges_are_half_open_for_every_kind_of_time(
    column: str, times: list[dt.datetime], lower: dt.datetime, length: dt.timedelta
) -> None:
    upper = lower + length
    times = [*times, lower, upper, lower.replace(hour=0, minute=0, second=0, microsecond=0)]
    moments = pl.Series(times, dtype=pl.Datetime("us"))
    as_date = moments.dt.truncate("1d") if column == "day" else moments
    values = {
        "ts": moments.dt.replace_time_zone("UTC"), "naive": moments.cast(pl.Datetime("ns")), "day": moments.dt.date(),
        "us": moments.dt.epoch("us"),
    }[column]  # fmt: skip
    frame = pl.DataFrame({column: values, "x": pl.repeat(1.0, len(values), eager=True)})
    wanted = request(**{"from": f"{lower.isoformat()}Z", "to": f"{upper.isoformat()}Z"})
    expected = frame.filter((as_date >= lower) & (as_date < upper))
    assert kept(frame, wanted, job(column)).equals(expected)


@settings(deadline=None, max_examples=60)
@given(texts=st.lists(st.text() | st.sampled_from(TRICKY), min_size=1), chosen=st.sampled_from(TRICKY) | st.text())
def test_api_04_a_value_is_a_literal(texts: list[str], chosen: str) -> None:
    ts = dt.datetime(2013, 1, 2, tzinfo=dt.UTC)
    rows = [{"ts": ts, "origin": text, "x": 1.0} for text in [*texts, chosen, *TRICKY]]
    frame = pl.DataFrame(rows)
    equal = kept(frame, request(filter=[{"column": "origin", "value": chosen}]))
    assert equal["origin"].to_list() == [text for text in frame["origin"] if text == chosen]
    among = kept(frame, request(filter=[{"column": "origin", "op": "in", "value": [chosen, "EWR"]}]))
    assert among["origin"].to_list() == [text for text in frame["origin"] if text in (chosen, "EWR")]


@pytest.mark.parametrize(
    ("op", "expected"),
    [("=", [2]), ("!=", [1, 3]), ("<", [1]), ("<=", [1, 2]), (">", [3]), (">=", [2, 3])],
)
def test_operators(op: str, expected: list[int]) -> None:
    ts = dt.datetime(2013, 1, 2, tzinfo=dt.UTC)
    frame = pl.DataFrame({"ts": [ts] * 3, "x": [1.0] * 3, "us": [1, 2, 3]})
    assert kept(frame, request(filter=[{"column": "us", "op": op, "value": 2}]))["us"].to_list() == expected


def test_the_jobs_own_where_still_holds() -> None:
    """``or`` in it must not swallow the range."""
    early, late = dt.datetime(2012, 1, 1, tzinfo=dt.UTC), dt.datetime(2013, 1, 2, tzinfo=dt.UTC)
    frame = pl.DataFrame({"ts": [early, late, late, late], "x": [1.0, 1.0, 150.0, 250.0]})
    assert kept(frame, request())["x"].to_list() == [1.0, 250.0]


@pytest.mark.parametrize(
    ("condition", "where"),
    [
        ({"column": "nope", "value": 1}, ["filter", 0, "column"]),
        ({"column": "tags", "value": "a"}, ["filter", 0, "column"]),
        ({"column": "us", "value": "1"}, ["filter", 0, "value"]),
        ({"column": "us", "value": True}, ["filter", 0, "value"]),
        ({"column": "us", "value": 1.5}, ["filter", 0, "value"]),
        ({"column": "origin", "value": 1}, ["filter", 0, "value"]),
        ({"column": "ok", "value": 1}, ["filter", 0, "value"]),
        ({"column": "ts", "value": "noon"}, ["filter", 0, "value"]),
        ({"column": "day", "value": "2013-01-01T12:00:00Z"}, ["filter", 0, "value"]),
        ({"column": "us", "op": "in", "value": [1, "2"]}, ["filter", 0, "value", 1]),
        ({"column": "us", "op": "in", "value": 1}, ["filter", 0, "value"]),
        ({"column": "us", "value": [1]}, ["filter", 0, "value"]),
    ],
)
def test_values_that_do_not_fit(condition: dict[str, Any], where: list[Any]) -> None:
    wanted = request(filter=[condition])
    with pytest.raises(SpecError) as caught:
        restriction(derive(job(), wanted), wanted, COLUMNS)
    assert caught.value.context["path"] == where


def test_an_event_time_that_is_no_time() -> None:
    wanted = request()
    with pytest.raises(SpecError, match="no point in time"):
        restriction(derive(job("origin"), wanted), wanted, COLUMNS)


def test_a_range_that_cuts_a_window_is_warned_about() -> None:
    whole = request(to="2013-01-02T00:00:00Z")
    assert list(warnings(derive(job(), whole), whole)) == []
    cut = request(to="2013-01-02T00:30:00Z")
    assert len(list(warnings(derive(job(), cut), cut))) == 1


def test_a_target_that_the_job_writes_itself_is_warned_about() -> None:
    own = request(target="lake.a.late")
    (said,) = warnings(derive(job(), own), own)
    assert "sink 'iceberg-lake.a.late' of the job itself writes lake.a.late, too" in said
