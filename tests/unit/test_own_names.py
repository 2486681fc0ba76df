"""Columns of rows that have the name of a step's own column are refused, not taken for it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

from headrace.jobs.compile import compile_job
from headrace.jobs.config import load_config
from headrace.jobs.own_names import OF_JOINS, OF_STEPS, PREFIXES
from headrace.jobs.parse import parse_job
from headrace.jobs.planning import plan_job
from headrace.kernel import columns
from headrace.kernel.errors import SpecError

OPERATORS = Path(__file__).parents[2] / "operators"
MADE_BY_STEPS = {"_processing_time"}
"""Columns that a step before gives on purpose."""
OF_RANKINGS = {"_key_"}
"""Of these only numbered ones are made, within one column that holds a row."""


def job(folder: Path, name: str, **steps: object) -> dict[str, object]:
    frame = pl.DataFrame({"at": [0], "k": ["a"], "v": [1], name: [2]}).cast({"at": pl.Datetime("us", "UTC")})
    for source in "ab":
        frame.write_parquet(folder / f"{source}.parquet")
    source = {"event_time": {"column": "at"}}
    sql = "b" in str(steps) if "sql" in steps else "join" in str(steps)
    return {
        "name": "j",
        "sources": {
            one: {"history": {"parquet": str(folder / f"{one}.parquet")}, **source} for one in ("ab" if sql else "a")
        },
        "sinks": [{"id": "out", "iceberg": {"table": "local.n.t", "create": True, "changes": "append"}}],
        **steps,
    }


STEPS = {
    "_row": [{"id": "s", "join": {"left": "a", "right": "b", "on": "k", "right_prefix": "r.", "within": "1h"}}],
    "_side": [{"id": "s", "join": {"left": "a", "right": "b", "on": "k", "right_prefix": "r."}}],
    "_code": [{"id": "s", "over": {"by": ["k"], "compute": {"n": "sum(v)"}}}],
    "_all": [{"id": "s", "aggregate": {"by": ["_all"], "aggregate": {"n": "count(*)"}}}],
    "value:x": [{"id": "s", "window": {"tumbling": "1h", "by": ["value:x"], "aggregate": {"n": "count(*)"}}}],
    "_weight": [{"id": "s", "aggregate": {"by": ["k"], "aggregate": {"n": "sum(v)"}}}],
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_refuses_rows_with_a_column_that_has_the_name_of_its_own(name: str, tmp_path: Path) -> None:
    config = load_config(state_path=tmp_path / "state", cwd=tmp_path)
    with pytest.raises(SpecError, match=re.escape(repr(name))) as caught:
        compile_job(parse_job(job(tmp_path, name, steps=STEPS[name])), config)
    assert caught.value.code == "COLUMN_NAME_UNSUPPORTED"


@pytest.mark.parametrize("name", ["_code", "_weight"])
def test_behind_steps_that_give_it_another_name_it_is_in_nobodys_way(name: str, tmp_path: Path) -> None:
    config = load_config(state_path=tmp_path / "state", cwd=tmp_path)
    before = [{"id": "x", "with_columns": {"x": name}}, {"id": "r", "drop": [name]}]
    compile_job(parse_job(job(tmp_path, name, steps=[*before, *STEPS[name]])), config)


@pytest.mark.parametrize("name", ["_one", "_in_0", "_value_1", "_over_2"])
def test_sql_refuses_sources_with_columns_that_it_would_write_over(name: str, tmp_path: Path) -> None:
    config = load_config(state_path=tmp_path / "state", cwd=tmp_path)
    sql = "SELECT k FROM a WHERE v > (SELECT max(v) FROM b)"
    with pytest.raises(SpecError, match=name) as caught:
        compile_job(parse_job(job(tmp_path, name, sql=sql)), config)
    assert caught.value.code == "COLUMN_NAME_UNSUPPORTED"


def test_the_names_are_those_that_operators_use() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in OPERATORS.glob("*.py"))
    used = set(re.findall(r'^_?[A-Z_]+(?:: Final(?:\[str\])?)? = "(_[a-z_:]+)"', text, re.MULTILINE))
    known = OF_STEPS | OF_JOINS | set(PREFIXES) | set(columns.SYSTEM) | MADE_BY_STEPS | OF_RANKINGS
    assert used - known == set()


UNKNOWN: list[dict[str, object]] = [
    {"filter": "nope > 1"},
    {"filter": "_row_watermrk > 1"},
    {"select": ["nope"]},
    {"drop": ["nope"]},
    {"with_columns": {"x": "nope + 1"}},
    {"explode": {"columns": ["nope"]}},
    {"dedup": {"by": ["nope"]}},
    {"top": {"n": 1, "order_by": ["nope"], "tumbling": "1h"}},
    {"over": {"by": ["nope"], "compute": {"n": "sum(v)"}}},
    {"window": {"tumbling": "1h", "by": ["nope"], "aggregate": {"n": "count(*)"}}},
    {"window": {"tumbling": "1h", "by": ["k"], "aggregate": {"n": "sum(nope)"}}},
]


@pytest.mark.parametrize("step", UNKNOWN, ids=str)
def test_an_unknown_column_is_named_beside_those_that_may_be(step: dict[str, object], tmp_path: Path) -> None:
    config = load_config(state_path=tmp_path / "state", cwd=tmp_path)
    with pytest.raises(
        SpecError, match=r"names column '(nope|_row_watermrk)', which its input does not have"
    ) as caught:
        compile_job(parse_job(job(tmp_path, "w", steps=[step])), config)
    assert caught.value.code == "COLUMN_NOT_FOUND"
    assert "columns: at, k, v, w" in caught.value.detail
    assert columns.ROW_WATERMARK not in str(caught.value)


def test_a_plan_lists_the_columns_that_a_job_may_name(tmp_path: Path) -> None:
    config = load_config(state_path=tmp_path / "state", cwd=tmp_path)
    windows = [{"window": {"tumbling": "1h", "by": ["k"], "aggregate": {"n": "count(*)"}}}]
    plan = plan_job(compile_job(parse_job(job(tmp_path, "w", steps=windows)), config))
    assert plan.sources[0].history is not None
    assert list(plan.sources[0].history.columns) == ["at", "k"]
    assert plan.sources[0].history.columns_total == 4
    assert columns.ROW_WATERMARK not in json.dumps(plan.to_json())
