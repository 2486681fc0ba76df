"""What jobs push below operators with state: what is read, what is held, what the fingerprint says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import headrace
from headrace.jobs.compile import CompiledJob, compile_job
from headrace.jobs.config import load_config
from headrace.jobs.parse import parse_job
from headrace.jobs.planning import plan_job
from headrace.jobs.run import run_job
from headrace.kernel import columns
from headrace.kernel.errors import GraphChangedError
from headrace.kernel.protocols import ReadRequest
from headrace.runtime.graph import TransformNode
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.runtime.pushdown import requests
from headrace.runtime.restarts import run
from headrace.state.stores import open_store

WHOLE, TEXT = pl.Int64(), pl.String()
SCHEMA = {"t": pl.Datetime("us"), "k": TEXT, "v": WHOLE, "w": WHOLE, "x": pl.Float64(), "u": TEXT}
COUNT = {"by": ["k", "x"], "aggregate": {"n": "count(*)", "s": "sum(w)"}}
OVER = {"over": {"by": "k", "compute": {"n": "count(*)"}}}
TOP = {"top": {"n": 1, "order_by": ["w"], "by": "k", "tumbling": "1h"}}
WINDOW = {"window": {"tumbling": "1h", **COUNT}}
ROWS = [{"k": k, "v": v} for k in ("a", "b", None) for v in (1, 9)]
A_9, B_9 = {"k": "a", "v": 9}, {"k": "b", "v": 9}
ALL_A = [{"k": "a", "v": 1}, A_9]


def compiled(folder: Path, sources: Sequence[str] = ("s",), **job: Any) -> CompiledJob:
    pl.DataFrame(schema=SCHEMA).write_parquet(folder / "in.parquet")
    source = {"history": {"parquet": str(folder / "in.parquet")}, "event_time": {"column": "t"}}
    sink = {"id": "out", "iceberg": {"table": "local.ns.out", "create": True, "changes": "append"}}
    spec = parse_job({"name": "j", "sources": dict.fromkeys(sources, source), "sinks": [sink], **job})
    return compile_job(spec, load_config(state_path=folder / "state", cwd=folder))


def pushed(folder: Path, sources: Sequence[str] = ("s",), **job: Any) -> Mapping[str, ReadRequest]:
    return requests(compiled(folder, sources, **job).sketch(), None)


def read(request: ReadRequest) -> str:
    assert request.columns is not None
    return "".join(sorted({*request.columns} - {columns.ROW_WATERMARK}))


def kept(request: ReadRequest) -> list[dict[str, Any]]:
    """Which of some rows the request's predicate keeps."""
    rows = pl.DataFrame([{"t": None, "w": 1, "x": 1.0, "u": "", **row} for row in ROWS], schema=SCHEMA)
    return rows.filter(True if request.predicate is None else request.predicate).select("k", "v").to_dicts()


KEYED: list[tuple[dict[str, Any], str]] = [
    (WINDOW, "ktx"),
    ({"window": {"hopping": "1h", "every": "5m", **COUNT}}, "ktx"),
    ({"window": {"cumulating": "1h", "every": "5m", **COUNT}}, "ktx"),
    ({"window": {"session": "1h", **COUNT}}, "ktx"),
    ({"window": {"tumbling": "1h", "early": "5m", **COUNT}}, "ktx"),
    ({"window": {"tumbling": "1h", "time": "processing", **COUNT}}, "kx"),
    ({"aggregate": COUNT}, "kx"),
    (OVER, "ktuvwx"),
]


@pytest.mark.parametrize(("step", "wanted"), KEYED)
def test_opt_06_a_filter_on_the_key_passes_and_one_on_results_or_floats_stays(
    tmp_path: Path, step: dict[str, Any], wanted: str
) -> None:
    behind = [{"select": {"key": "k", "x": "x", "n": "n"}}, {"filter": "key = 'a' and n > 1 and x > 2"}]
    request = pushed(tmp_path, steps=[step, *behind])["s"]
    assert (read(request), kept(request)) == (wanted, ALL_A)


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        ({"dedup": {"by": "k"}}, "ktv"),
        ({"dedup": {"by": ["k"], "keep": "last", "ttl": "1h"}}, "ktv"),
        (TOP, "ktvw"),
        ({"running_top": {"n": 1, "order_by": ["w"], "by": "k", "rank": "place"}}, "ktvw"),
    ],
)
def test_opt_07_rows_are_held_without_what_nobody_needs(tmp_path: Path, step: dict[str, Any], wanted: str) -> None:
    behind = [{"filter": "k = 'a' and v > 3"}, {"select": ["k", "u", "x"]}, {"select": {"key": "k"}}]
    job = compiled(tmp_path, steps=[step, *behind])
    request = requests(job.sketch(), None)["s"]
    assert (read(request), kept(request)) == (wanted, ALL_A)
    (state,) = job.sketch().stateful()
    assert "".join(sorted(set(state.columns or ()) - {"place", columns.WEIGHT})) == wanted


@pytest.mark.parametrize("step", [{"dedup": {"by": "k"}}, {"window": {"session": "1h", **COUNT}}, OVER, TOP])
def test_opt_07_a_filter_on_the_key_passes_what_waits_for_a_changelog(tmp_path: Path, step: dict[str, Any]) -> None:
    running = {"aggregate": {"by": ["t", "k", "x", "v", "w"], "aggregate": {"m": "count(*)"}}}
    job = compiled(tmp_path, steps=[running, step, {"filter": "k = 'a'"}, {"select": ["k"]}])
    assert kept(requests(job.sketch(), None)["s"]) == ALL_A


JOINS: list[tuple[str, dict[str, Any], list[Any], list[Any]]] = [
    ("inner", {"within": "1h"}, [A_9], [A_9]),
    ("inner", {"window": {"tumbling": "1h"}}, [A_9], [A_9]),
    ("inner", {}, [A_9], [A_9]),
    ("inner", {"as_of": "backward"}, [A_9], ALL_A),
    ("left", {"within": "1h"}, [A_9], ALL_A),
    ("left", {"as_of": "backward"}, [A_9], ALL_A),
    ("right", {}, ROWS, [row for row in ROWS if row["v"] == 9]),
    ("full", {}, ROWS, ROWS),
    ("semi", {"within": "1h"}, [A_9], ALL_A),
    ("anti", {}, [A_9], ALL_A),
]


@pytest.mark.parametrize(("how", "kind", "left", "right"), JOINS)
def test_opt_08_what_holds_for_the_key_of_one_side_of_a_join_holds_for_the_other(
    tmp_path: Path, how: str, kind: dict[str, Any], left: list[Any], right: list[Any]
) -> None:
    half = how in {"semi", "anti"}
    steps = [
        {"id": "other", "from": "b", "select": {"t": "t", "j": "k", "y": "v", "z": "w", "o": "u"}},
        {"join": {"left": "a", "right": "other", "on": {"k": "j"}, "how": how, "right_prefix": "r_", **kind}},
        {"filter": "k = 'a' and v > 3" if half else "k = 'a' and v > 3 and r_y > 3"},
        {"select": ["x"] if half else ["x", "r_z"]},
    ]
    both = pushed(tmp_path, ["a", "b"], steps=steps)
    assert (kept(both["a"]), kept(both["b"])) == (left, right)
    time = "t" if kind else ""
    assert read(both["a"]) == "".join(sorted(f"k{time}vx"))
    assert read(both["b"]) == "".join(sorted(f"k{time}" + ("" if half else "vw")))


@pytest.mark.parametrize(("how", "wanted"), [("full", ALL_A), ("right", ALL_A), ("left", ALL_A), ("inner", ALL_A)])
def test_opt_09_a_key_that_is_given_out_once_passes_into_both_sides(tmp_path: Path, how: str, wanted: Any) -> None:
    steps = [
        {"join": {"left": "a", "right": "b", "on": "k", "how": how, "right_prefix": "r_"}},
        {"filter": "k = 'a'"},
        {"select": ["k"]},
    ]
    both = pushed(tmp_path, ["a", "b"], steps=steps)
    assert (kept(both["a"]), kept(both["b"])) == (wanted, wanted)


def test_opt_10_a_filter_passes_several_operators_and_into_all_branches_of_a_union(tmp_path: Path) -> None:
    steps = [
        {"id": "some", "from": "b", "filter": "v > 3"},
        {"union": ["a", "some"]},
        {"dedup": {"by": ["k", "v"]}},
        {"window": {"tumbling": "1h", "by": ["k", "v"], "aggregate": {"n": "count(*)"}}},
        {"aggregate": {"by": "k", "aggregate": {"m": "max(n)"}}},
        {"filter": "(k = 'a' and m > 2) or (k = 'b' and m > 3)"},
    ]
    both = pushed(tmp_path, ["a", "b"], steps=steps)
    assert kept(both["a"]) == [row for row in ROWS if row["k"]]
    assert kept(both["b"]) == [A_9, B_9]
    assert read(both["a"]) == "ktv"


def test_opt_11_two_readers_push_what_either_needs(tmp_path: Path) -> None:
    steps = [
        {"id": "w", "window": {"tumbling": "1h", "by": ["k", "v"], "aggregate": {"n": "count(*)"}}},
        {"id": "one", "from": "w", "filter": "k = 'a' and n > 1"},
        {"id": "two", "from": "w", "filter": "k = 'b' and v > 3"},
        {"union": ["one", "two"]},
    ]
    assert kept(pushed(tmp_path, steps=steps)["s"]) == [*ALL_A, B_9]
    every = [*steps[:2], {"id": "two", "from": "w", "filter": "n > 1"}, steps[3]]
    assert kept(pushed(tmp_path, steps=every)["s"]) == ROWS


def test_opt_12_nothing_passes_an_operator_whose_late_rows_are_read(tmp_path: Path) -> None:
    late = {"id": "late", "from": "w.late", "iceberg": {"table": "local.ns.late", "create": True}}
    sink = {"id": "out", "from": "f", "iceberg": {"table": "local.ns.out", "create": True}}
    steps = [{"id": "w", **WINDOW}, {"id": "f", "filter": "k = 'a'"}, {"select": ["k"]}]
    request = pushed(tmp_path, steps=steps[:2], sinks=[sink, late])["s"]
    assert (read(request), kept(request)) == ("ktuvwx", ROWS)


def test_opt_18_of_a_disjunction_passes_only_what_each_part_implies(tmp_path: Path) -> None:
    def left(test: str) -> list[dict[str, Any]]:
        return kept(pushed(tmp_path, steps=[WINDOW, {"filter": test}])["s"])

    assert left("k = 'a' or n > 1") == ROWS
    assert left("(k = 'a' and n > 1) or (k = 'a' and s > 1)") == ALL_A


def test_opt_19_rows_keep_their_watermarks_where_only_one_of_two_streams_has_them(tmp_path: Path) -> None:
    hourly = {"id": "hourly", "from": "a", "window": {"tumbling": "1h", "by": "k", "aggregate": {"n": "count(*)"}}}
    join = {"join": {"left": "hourly", "right": "b", "on": "k", "within": "1h"}}
    graph = compiled(tmp_path, ["a", "b"], steps=[hourly, join, {"select": ["n"]}]).sketch()
    needed = next(node for node in graph.nodes if node.id == "join.needed")
    assert isinstance(needed, TransformNode)
    rows = pl.LazyFrame(schema={columns.ROW_WATERMARK: pl.Int64(), "n": pl.Int64(), "unread": pl.Int64()})
    assert set(needed.transform.apply(rows).collect_schema()) == {columns.ROW_WATERMARK, "n"}


@pytest.mark.parametrize("how", ["inner", "left", "semi"])
def test_opt_20_what_passes_a_lookup_does_not_depend_on_the_rows_of_its_table(tmp_path: Path, how: str) -> None:
    pl.DataFrame({"k": ["a"], "z": [1]}).write_parquet(tmp_path / "dim.parquet")
    lookup = {"lookup": {"table": "dim", "on": ["k"], "how": how}}
    tables = {"dim": {"parquet": str(tmp_path / "dim.parquet")}}
    job = compiled(tmp_path, steps=[{"dedup": {"by": "k"}}, lookup, {"filter": "k = 'a'"}], tables=tables)
    found = [graph.stateful()[0] for graph in (job.sketch(), job.graph(job.pin({})))]
    assert found[0].fingerprint == found[1].fingerprint
    assert found[0].conditions == ("(k = 'a')",)


@pytest.mark.parametrize(
    "test", ["cast(k as int) = 1", "v // w = 1", "cast(v as decimal(3,1)) + 1 > 2", "k || 'x' = 'ax' and n > 0"]
)
def test_opt_13_what_could_fail_on_other_rows_stays(tmp_path: Path, test: str) -> None:
    step = {"aggregate": {"by": ["k", "v", "w"], "aggregate": {"n": "count(*)"}}}
    assert kept(pushed(tmp_path, steps=[step, {"filter": test}])["s"]) == ROWS


HAVING = """
INSERT INTO out SELECT k, max(w) AS m FROM s GROUP BY k, x HAVING k = 'a' AND count(*) > 1
"""
WINDOWED = """
CREATE VIEW hourly AS SELECT k, window_start, sum(w) AS n, count(v) AS c FROM TUMBLE(TABLE s, DESCRIPTOR(t),
  INTERVAL '1' HOUR) GROUP BY k, window_start, window_end;
INSERT INTO out SELECT window_start, n FROM hourly WHERE k = 'a' AND n > 1
"""
JOINED = """
CREATE VIEW j AS SELECT s.k, s.v, o.w FROM s JOIN o ON s.k = o.k AND s.t BETWEEN o.t - INTERVAL '1' HOUR AND o.t;
INSERT INTO out SELECT v, w FROM j WHERE k = 'a'
"""


@pytest.mark.parametrize(("sql", "wanted"), [(HAVING, "kwx"), (WINDOWED, "ktw"), (JOINED, "ktv")])
def test_opt_14_sql_is_pushed_down_alike(tmp_path: Path, sql: str, wanted: str) -> None:
    both = pushed(tmp_path, ["s", "o"] if sql is JOINED else ["s"], sql=sql)
    assert (read(both["s"]), kept(both["s"])) == (wanted, ALL_A)
    assert "o" not in both or (read(both["o"]), kept(both["o"])) == ("ktw", ALL_A)


def test_opt_15_a_filter_that_decides_what_state_holds_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    def shown(*behind: dict[str, Any]) -> str:
        return compiled(tmp_path, steps=[{"window": {"tumbling": "1h", **COUNT}}, *behind]).sketch().fingerprint()

    every = shown()
    assert shown({"filter": "n > 1"}) == shown({"filter": "n > 2"})
    values = [f"k in ({', '.join(repr(str(n)) for n in range(40))}, '{last}')" for last in "abc"]
    found = {every, shown({"filter": "k = 'a'"}), *(shown({"filter": value}) for value in values)}
    assert len(found) == 5
    assert shown({"filter": "k <> 'a'"}, {"filter": "k <> 'b'"}) == shown({"filter": "k <> 'b' and k <> 'a'"})


EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
LAKE = pl.DataFrame(
    {
        "t": [EPOCH + timedelta(minutes=7 * n) for n in range(80)],
        "k": ["abcd"[n % 4] for n in range(80)],
        "v": range(80),
        "w": [n % 7 for n in range(80)],
        "u": ["unread"] * 80,
    },
    schema_overrides={"t": pl.Datetime("us", "UTC")},
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a file for each key."""
    folder = tmp_path_factory.mktemp("lake")
    LAKE.write_parquet(folder / "in.parquet")
    job = headrace.Job("fill").source("s", history={"parquet": f"{folder}/in.parquet"})
    spec = job.sink_iceberg("local.ns.rows", create=True, partition_by="k").spec()
    run_job(spec, load_config(state_path=folder / "state", cwd=folder), CAUGHT_UP, SilentObserver(), StopSignal())
    return folder


CAUGHT_UP = RunOptions("caught-up", "drain")


def reading(name: str, *sources: str) -> headrace.Job:
    job = headrace.Job(name)
    for source in sources:
        job = job.source(source, history={"table": "local.ns.rows"}, event_time={"column": "t"})
    return job


def windowed(name: str) -> headrace.Job:
    windows = reading(name, "s").window("1h", by="k", aggregate={"n": "count(*)", "s": "sum(w)"})
    return windows.filter("k in ('b', 'd')").select({"k": "k", "n": "n", "w": "window_start"})


def joined(name: str) -> headrace.Job:
    both = reading(name, "s", "o").join("s", "o", on="k", within="20m", right_prefix="o_")
    return both.filter("k = 'a'").select(["v", "o_w"])


def asked(name: str) -> headrace.Job:
    return reading(name, "s").sql("SELECT k, max(v) AS m FROM s GROUP BY k HAVING k = 'c' AND count(*) > 1")


THROUGH = [
    (windowed, {"s": (2, "kt")}),
    (joined, {"s": (1, "ktv"), "o": (1, "ktw")}),
    (asked, {"s": (1, "kv")}),
]


def given(job: headrace.Job, folder: Path, wanted: Mapping[str, tuple[int, str]], *, optimise: bool) -> pl.DataFrame:
    """What a job gives, all changes taken together; its histories are checked on the way."""
    table = f"local.ns.{job.name}"
    spec = job.sink_iceberg(table, create=True, changes="append").spec()
    done = replace(compile_job(spec, load_config(state_path=folder / "state", cwd=folder)), optimise=optimise)
    for source in plan_job(done).sources:
        if source.name in wanted:
            assert source.history is not None
            found = (source.history.files, "".join(sorted({*source.history.columns} - {columns.ROW_WATERMARK})))
            assert (found == wanted[source.name]) is optimise
    store = open_store(done.store, done.config.object_stores)
    assert run(done, store, done.policy, CAUGHT_UP, SilentObserver(), StopSignal()).status == "finished"
    rows = pl.from_arrow(done.catalogs.load(table).scan().to_arrow())
    assert isinstance(rows, pl.DataFrame)
    weight = pl.col(columns.WEIGHT).sum() if columns.WEIGHT in rows.columns else pl.len().alias(columns.WEIGHT)
    names = [name for name in rows.columns if name != columns.WEIGHT]
    return rows.group_by(names).agg(weight.cast(pl.Int64)).filter(pl.col(columns.WEIGHT) != 0).sort(names)


@pytest.mark.parametrize(("job", "wanted"), THROUGH)
def test_opt_16_fewer_files_and_columns_of_the_lake_are_read(
    lake: Path, job: Callable[[str], headrace.Job], wanted: Mapping[str, tuple[int, str]]
) -> None:
    with_it = given(job(f"{job.__name__}_with"), lake, wanted, optimise=True)
    without = given(job(f"{job.__name__}_without"), lake, wanted, optimise=False)
    assert with_it.height > 0
    assert_frame_equal(with_it, without)


def test_opt_17_state_that_lacks_rows_or_columns_is_refused(lake: Path) -> None:
    config = load_config(state_path=lake / "state", cwd=lake)

    def go(key: str, *select: str) -> None:
        job = reading("changed", "s").dedup("k", id="once").filter(f"k = '{key}'").select(select)
        spec = job.sink_iceberg(f"local.ns.changed_{len(select)}", create=True).spec()
        run_job(spec, config, RunOptions("caught-up", "suspend"), SilentObserver(), StopSignal())

    go("a", "k")
    with pytest.raises(GraphChangedError, match=r"once: changed from .*k = 'a'.* to .*k = 'b'"):
        go("b", "k")
    with pytest.raises(GraphChangedError, match="once: "):
        go("a", "k", "v")
    go("a", "k")
