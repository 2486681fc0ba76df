"""What jobs push down into their readers: history and tail are opened with the same request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from headrace.jobs.compile import compile_job
from headrace.jobs.config import load_config
from headrace.jobs.parse import parse_job
from headrace.kernel import columns
from headrace.kernel.protocols import ReadRequest
from headrace.runtime.pushdown import requests

SCHEMA = {"t": pl.Datetime("us"), "k": pl.String(), "v": pl.Int64(), "w": pl.Int64(), "unread": pl.String()}
FILTER = {"filter": "v > 2 and k = 'a'"}
COUNT = {"by": "k", "aggregate": {"n": "count(*)", "s": "sum(w)"}}


def pushed(folder: Path, sources: Sequence[str], **job: Any) -> dict[str, ReadRequest]:
    pl.DataFrame(schema=SCHEMA).write_parquet(folder / "in.parquet")
    source = {"history": {"parquet": str(folder / "in.parquet")}, "event_time": {"column": "t"}}
    sink = {"id": "out", "iceberg": {"table": "local.ns.out", "create": True, "changes": "append"}}
    spec = parse_job({"name": "j", "sources": dict.fromkeys(sources, source), "sinks": [sink], **job})
    return requests(compile_job(spec, load_config(state_path=folder / "state", cwd=folder)).sketch(), None)


def read(request: ReadRequest) -> set[str]:
    assert request.columns is not None
    return set(request.columns) - {columns.ROW_WATERMARK}


def kept(request: ReadRequest) -> list[dict[str, Any]]:
    """Which of some rows the request's predicate keeps."""
    rows = pl.DataFrame(
        {"t": [None] * 4, "k": ["a", "a", "b", None], "v": [9, 1, 9, 9], "w": [1] * 4, "unread": ["x"] * 4},
        schema=SCHEMA,
    )
    return rows.filter(True if request.predicate is None else request.predicate).select("k", "v").to_dicts()


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        ({"window": {"tumbling": "1h", **COUNT}}, {"t", "k", "v", "w"}),
        ({"window": {"hopping": "1h", "every": "5m", **COUNT}}, {"t", "k", "v", "w"}),
        ({"window": {"session": "1h", **COUNT}}, {"t", "k", "v", "w"}),
        ({"aggregate": COUNT}, {"k", "v", "w"}),
        ({"dedup": {"by": "k"}}, {"t", "k", "v", "w"}),
        ({"top": {"n": 1, "order_by": ["w"], "by": "k", "tumbling": "1h"}}, {"t", "k", "v", "w"}),
        ({"select": ["k", "w"]}, {"k", "v", "w"}),
    ],
)
def test_opt_01_columns_and_filters_go_through_steps_with_state_to_the_readers(
    tmp_path: Path, step: dict[str, Any], wanted: set[str]
) -> None:
    slim = [] if {"window", "aggregate", "select"} & set(step) else [{"select": ["t", "k", "w", "v"]}]
    request = pushed(tmp_path, ["s"], steps=[{"with_columns": {"x": "length(unread)"}}, FILTER, *slim, step])["s"]
    assert read(request) == wanted
    assert kept(request) == [{"k": "a", "v": 9}]


def test_opt_02_each_side_of_a_join_gets_its_own_filter_and_columns_and_null_keys_are_not_read(tmp_path: Path) -> None:
    steps = [
        {"id": "left", "from": "a", "filter": "v > 2"},
        {"id": "slim", "select": ["t", "k", "v"]},
        {"id": "right", "from": "b", "select": {"t": "t", "k": "k", "other": "w"}},
        {"join": {"left": "slim", "right": "right", "on": "k", "right_prefix": "r_", "within": "10m"}},
    ]
    both = pushed(tmp_path, ["a", "b"], steps=steps)
    assert (read(both["a"]), read(both["b"])) == ({"t", "k", "v"}, {"t", "k", "w"})
    assert kept(both["a"]) == [{"k": "a", "v": 9}, {"k": "b", "v": 9}]
    assert [row["k"] for row in kept(both["b"])] == ["a", "a", "b"]


def test_opt_03_two_readers_of_one_source_read_what_either_needs(tmp_path: Path) -> None:
    steps = [
        {"id": "one", "from": "s", "filter": "k = 'a' and v > 2"},
        {"id": "two", "from": "s", "filter": "k = 'b'"},
        {"union": ["one", "two"]},
        {"select": ["v"]},
    ]
    request = pushed(tmp_path, ["s"], steps=steps)["s"]
    assert read(request) == {"k", "v"}
    assert kept(request) == [{"k": "a", "v": 9}, {"k": "b", "v": 9}]


WINDOWS = """
CREATE VIEW some AS SELECT *, v * 2 AS twice FROM s WHERE v > 2;
INSERT INTO out
SELECT k, window_start, sum(w) AS n FROM TUMBLE(TABLE some, DESCRIPTOR(t), INTERVAL '1' HOUR)
WHERE k = 'a' GROUP BY k, window_start, window_end HAVING sum(w) > 1
"""
RUNNING = """
CREATE VIEW some AS SELECT * FROM s WHERE k = 'a';
CREATE VIEW fewer AS SELECT k, v, w FROM some WHERE v > 2;
INSERT INTO out SELECT k, count(*) AS n FROM fewer GROUP BY k
"""


@pytest.mark.parametrize(("sql", "wanted"), [(WINDOWS, {"t", "k", "v", "w"}), (RUNNING, {"k", "v"})])
def test_opt_04_views_are_seen_through(tmp_path: Path, sql: str, wanted: set[str]) -> None:
    request = pushed(tmp_path, ["s"], sql=sql)["s"]
    assert read(request) == wanted
    assert kept(request) == [{"k": "a", "v": 9}]
