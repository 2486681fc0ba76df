"""Every kind of join in one job, from its spec to tables: over two histories, against plain Polars; and refusals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import headrace
from headrace.jobs.compile import CompiledJob, compile_job
from headrace.jobs.config import load_config
from headrace.jobs.planning import plan_job
from headrace.jobs.run import run_job
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import Determinism
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal

EPOCH = datetime(1969, 12, 31, tzinfo=UTC)
BIDS = pl.DataFrame(
    {
        "at": [EPOCH + timedelta(minutes=37 * n % 4000) for n in range(300)],
        "item": [n * 7 % 40 if n % 9 else None for n in range(300)],
        "price": [n * 13 % 101 for n in range(300)],
    },
    schema_overrides={"at": pl.Datetime("us", "UTC")},
)
ITEMS = pl.DataFrame(
    {
        "id": [n * 3 % 50 for n in range(60)],
        "since": [EPOCH + timedelta(minutes=59 * n) for n in range(60)],
        "price": [n * 11 % 70 for n in range(60)],
    },
    schema_overrides={"since": pl.Datetime("us", "UTC")},
)
NAMED = ITEMS.rename({"price": "item_price", "id": "item_id", "since": "item_since"})


def job_of(folder: Path) -> headrace.Job:
    on = {"item": "id"}
    return (
        headrace.Job("joins")
        .source("bids", history={"parquet": f"{folder}/bids.parquet", "split_rows": 70}, event_time={"column": "at"})
        .source("items", history={"parquet": f"{folder}/items.parquet"}, event_time={"column": "since"})
        .join("bids", "items", on=on, how="left", within="3h", right_prefix="item_", id="near")
        .sink_iceberg("local.ns.near", create=True, from_="near")
        .window("1d", by="item", aggregate={"n": "count(*)"}, id="days", from_="near")
        .sink_iceberg("local.ns.days", create=True, from_="days")
        .join("bids", "items", on=on, where="price > item_price", right_prefix="item_", id="all")
        .sink_iceberg("local.ns.all", create=True, from_="all")
        .join("bids", "bids", on=["item", "at"], within={"lower": "0s", "upper": "0s"}, right_prefix="r_", id="self")
        .sink_iceberg("local.ns.self", create=True, from_="self")
        .join("bids", "items", on=on, how="left", as_of="backward", right_prefix="item_", id="rated")
        .sink_iceberg("local.ns.rated", create=True, from_="rated")
        .join(
            "bids", "items", on=on, how="full", window={"hopping": "2h", "every": "1h"}, right_prefix="item_", id="hop"
        )
        .top(1, order_by=["price desc", "item_price"], by="item", id="best")
        .sink_iceberg("local.ns.hop", create=True, from_="hop")
        .sink_iceberg("local.ns.best", create=True, from_="best")
    )


def compiled(job: headrace.Job, folder: Path) -> CompiledJob:
    return compile_job(job.spec(), load_config(state_path=folder / "state", cwd=folder))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("joins")
    BIDS.write_parquet(made / "bids.parquet", row_group_size=50)
    ITEMS.write_parquet(made / "items.parquet")
    return made


@pytest.fixture(scope="module")
def done(folder: Path) -> CompiledJob:
    job = compiled(job_of(folder), folder)
    run_job(job.spec, job.config, RunOptions("caught-up"), SilentObserver(), StopSignal())
    return job


def table(job: CompiledJob, name: str) -> pl.DataFrame:
    frame = pl.from_arrow(job.catalogs.load(f"local.ns.{name}").scan().to_arrow())
    assert isinstance(frame, pl.DataFrame)
    return frame


def same(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    order = expected.columns
    assert_frame_equal(found.select(order).sort(order), expected.sort(order), check_dtypes=False)


def near() -> pl.DataFrame:
    pairs = BIDS.with_row_index().join(NAMED, left_on="item", right_on="item_id", how="inner", coalesce=False)
    close = pairs.filter((pl.col("at") - pl.col("item_since")).abs() <= timedelta(hours=3))
    rest = BIDS.with_row_index().join(close, on="index", how="anti")
    return pl.concat([close, rest], how="diagonal").drop("index")


def test_an_interval_join_of_histories(done: CompiledJob) -> None:
    same(table(done, "near"), near())


def test_windows_stand_behind_a_join(done: CompiledJob) -> None:
    expected = near().group_by(pl.col("at").dt.truncate("1d").alias("window_start"), "item").agg(n=pl.len())
    same(table(done, "days"), expected)


def test_a_regular_join_of_histories_gives_plain_rows(done: CompiledJob) -> None:
    pairs = BIDS.join(NAMED, left_on="item", right_on="item_id", how="inner", coalesce=False)
    same(table(done, "all"), pairs.filter(pl.col("price") > pl.col("item_price")))


def test_a_self_join(done: CompiledJob) -> None:
    expected = BIDS.join(BIDS.rename({"price": "r_price"}), on=["item", "at"], how="inner")
    same(table(done, "self"), expected)


def test_a_temporal_join_takes_the_version_that_held(done: CompiledJob) -> None:
    versions = NAMED.sort("item_since").with_columns(item_at="item_since")
    expected = BIDS.sort("at").join_asof(
        versions, left_on="at", right_on="item_at", by_left="item", by_right="item_id", check_sortedness=False
    )
    matched = pl.col("item_since").is_not_null()
    expected = expected.with_columns(item_id=pl.when(matched).then("item")).drop("item_at", strict=False)
    same(table(done, "rated"), expected)


def test_a_window_join_and_what_stands_behind_it(done: CompiledJob) -> None:
    def windowed(rows: pl.DataFrame, time: str) -> pl.DataFrame:
        start = pl.col(time).dt.truncate("1h")
        hours = [start - timedelta(hours=1), start]
        return pl.concat([rows.with_columns(window_start=hour) for hour in hours])

    left, right = windowed(BIDS, "at"), windowed(NAMED, "item_since")
    expected = left.join(
        right, left_on=["item", "window_start"], right_on=["item_id", "window_start"], how="full", coalesce=False
    )
    start = pl.coalesce("window_start", "window_start_right")
    expected = expected.with_columns(window_start=start, window_end=start + timedelta(hours=2))
    same(table(done, "hop"), expected.drop("window_start_right"))
    best = table(done, "hop").group_by("window_start", "item").agg(pl.col("price").max())
    same(table(done, "best"), best)


def test_the_plan_names_both_inputs_and_what_joins_promise(folder: Path) -> None:
    job = compiled(job_of(folder), folder)
    shown = {operator.id: operator for operator in plan_job(job).operators}
    assert set(shown) == {"near", "days", "all", "self", "rated", "hop", "best"}
    assert (shown["near"].kind, shown["near"].input) == ("join", "bids, items")
    assert (
        shown["near"].fingerprint
        == "interval join, left of source bids with source items on item = id, over at and since, from -3h to 3h"
    )
    assert {operator.determinism for operator in shown.values()} == {Determinism.EXACT}


def test_state_of_one_side_never_serves_the_other_and_stateless_steps_keep_it(folder: Path) -> None:
    base = job_of(folder)._with(_steps=[], _sinks=[]).filter("at is not null", id="few", from_="bids")
    base = base.select({"at": "since", "item": "id", "price": "price"}, id="alike", from_="items")
    shown = set()
    for left, right in (("bids", "alike"), ("alike", "bids"), ("few", "alike")):
        job = base.join(left, right, on="item", right_prefix="r_", id="j").sink_iceberg("local.ns.out", create=True)
        if left != "few":
            job = job.sink_iceberg("local.ns.few", create=True, from_="few")
        shown.add(compiled(job, folder).sketch().fingerprint())
    assert len(shown) == 2


BOTH = {"on": {"item": "id"}, "right_prefix": "r_"}


@pytest.mark.parametrize(
    ("join", "message"),
    [
        ({"within": "1h", "ttl": "1h"}, "within and ttl, which are different kinds"),
        ({"within": {"upper": "1h", "until": "since"}}, "upper and until, which are two ends"),
        ({"within": {"until": "zz"}}, "names column 'zz'"),
        ({"as_of": "backward", "how": "full"}, "as_of joins are left or inner, not full"),
        ({"as_of": "forward"}, "a forward version may come at any time"),
        ({"as_of": "backward", "where": "price > 1"}, "takes one version by its time"),
        ({"event_time": "x"}, "only a join with within has an event time"),
        ({"within": "1h", "on": {"zz": "id"}}, "names column 'zz'"),
        ({"within": "1h", "right_prefix": ""}, "both sides have 'price'"),
        ({"how": "left"}, "sink 'iceberg-local.ns.out' appends, and 'j' gives a changelog"),
        ({"left": "none"}, "no source or step named 'none'"),
        ({"within": "-1h"}, "is no duration"),
        ({"window": {"hopping": "1h", "every": "2h"}}, "begin further apart than they are long"),
        ({"window": {"tumbling": "90m", "time_zone": "Europe/Paris"}}, "not a whole number of days"),
        ({"how": "outer"}, "must be inner or left or right or full or semi or anti"),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, join: dict, message: str) -> None:
    steps = job_of(folder)
    wanted = {"left": "bids", "right": "items", **BOTH, **join}
    job = steps._with(_steps=[], _sinks=[])._step({"join": wanted}, "j", None).sink_iceberg("local.ns.out", create=True)
    with pytest.raises(SpecError, match=message):
        compiled(job, folder)


@pytest.mark.parametrize(
    ("join", "message"),
    [
        ({"how": "full", "within": "1h"}, "needs an event time, and the rows of 'j' have none"),
        ({}, "needs an event time, and the rows of 'j' have none"),
        ({"how": "left"}, "needs an event time, and the rows of 'j' have none"),
    ],
)
def test_windows_behind_joins_without_event_time_are_refused(folder: Path, join: dict, message: str) -> None:
    job = job_of(folder)._with(_steps=[], _sinks=[]).join("bids", "items", **BOTH, **join, id="j")
    job = job.window("1h", aggregate={"n": "count(*)"}).sink_iceberg("local.ns.out", create=True)
    with pytest.raises(SpecError, match=message):
        compiled(job, folder)


def test_a_timed_join_refuses_a_changelog_without_event_time(folder: Path) -> None:
    job = job_of(folder)._with(_steps=[], _sinks=[]).aggregate({"n": "count(*)"}, by="item", id="agg", from_="bids")
    job = job.join("agg", "items", on={"item": "id"}, within="1h").sink_iceberg("local.ns.out", create=True)
    with pytest.raises(SpecError, match="needs an event time"):
        compiled(job, folder)


def test_versions_that_are_taken_back_later_are_refused(folder: Path) -> None:
    job = job_of(folder)._with(_steps=[], _sinks=[])
    job = job.running_top(1, order_by="id", by="id", id="newest", from_="items")
    job = job.join("bids", "newest", on={"item": "id"}, as_of="backward").sink_iceberg("local.ns.out", create=True)
    with pytest.raises(SpecError, match="versions that may be taken back") as caught:
        compiled(job, folder)
    assert "give: versions" in caught.value.hint
