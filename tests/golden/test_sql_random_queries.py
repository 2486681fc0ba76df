"""Random whole queries, nested up to three deep: as DuckDB has them, and the same however they are run."""

from __future__ import annotations

import random
import re
from pathlib import Path

import polars as pl
import pytest

from headrace.jobs.compile import compile_job
from headrace.jobs.config import load_config
from headrace.jobs.parse import parse_job
from headrace.kernel.errors import SpecError
from tests.compiled_worlds import STREAM, both_ways
from tests.sql_jobs import compared, duck, headrace
from tests.sql_queries import Query, random_query, tables

SEEDS = 20
"""Queries that one test asks."""

STREAMS = [
    Query(f'SELECT k, v, v > 1 AS ok, ts AS "at" FROM {name}', "", {"k": "text", "v": "int", "ok": "bool"}, timed=True)
    for name in "ab"
]
NAMES = pl.DataFrame({"carrier": ["a", "b"], "name": ["Anna", None], "rank": [1, 2]})
SHORTER = {
    "INTERVAL '1' HOUR, INTERVAL '2' HOUR": "INTERVAL '10' SECOND, INTERVAL '20' SECOND",
    "INTERVAL '1' HOUR, INTERVAL '3' HOUR": "INTERVAL '10' SECOND, INTERVAL '30' SECOND",
    "INTERVAL '2' HOUR": "INTERVAL '40' SECOND",
    "INTERVAL '1' HOUR": "INTERVAL '20' SECOND",
    "INTERVAL '30' MINUTE": "INTERVAL '15' SECOND",
    "INTERVAL '20' MINUTE": "INTERVAL '7' SECOND",
    "INTERVAL '10' MINUTE": "INTERVAL '5' SECOND",
}
"""The scripted streams are some minutes long."""


def ask(seed: int, folder: Path) -> bool:
    """Check one query against DuckDB; False where Headrace refuses it, and says where."""
    ties = seed % 2 == 0
    query, given = random_query(seed, ties=ties), tables(seed, ties=ties)
    wanted = duck(query.duck, given)
    folder.mkdir()
    try:
        found = headrace(query.sql, given, folder)
    except SpecError as refused:
        return _is_refused(refused, query.sql)
    if wanted.height or found.height:
        assert sorted(found.columns) == sorted(wanted.columns), f"seed {seed}: {query.sql}"
        assert compared(found.select(wanted.columns)) == compared(wanted), f"seed {seed}: {query.sql}"
    return True


def run_both_ways(seed: int, folder: Path) -> bool:
    """Check that a query gives the same however it is run; False as above."""
    sql = random_query(seed, STREAMS).sql
    for interval, shorter in SHORTER.items():
        sql = sql.replace(interval, shorter)
    pl.DataFrame({"carrier": ["a", "b"], "name": ["Anna", None], "rank": [1, 2]}).write_parquet(
        folder / "names.parquet"
    )
    spec = {
        "name": "random",
        "sources": {name: STREAM for name in "ab" if re.search(rf"FROM {name}\b", sql)},
        "tables": {"airlines": {"parquet": str(folder / "names.parquet")}},
        "sql": sql,
        "sinks": [{"id": "out", "iceberg": {"table": "local.golden.out", "create": True, "changes": "append"}}],
    }
    config = load_config(state_path=folder / "state", cwd=folder, environ={"HEADRACE_KAFKA_BOOTSTRAP": "nowhere:1"})
    try:
        plain, wild = both_ways(compile_job(parse_job(spec), config), random.Random(seed))
    except SpecError as refused:
        return _is_refused(refused, sql)
    assert wild == plain, f"seed {seed}: {sql}"
    return True


def _is_refused(refused: SpecError, sql: str) -> bool:
    if not refused.message.startswith("sql line"):
        pytest.fail(f"{refused} for {sql}")
    return False


@pytest.mark.parametrize("start", range(0, 4 * SEEDS, SEEDS))
def test_random_queries_give_what_duckdb_gives(start: int, tmp_path: Path) -> None:
    answered = [ask(seed, tmp_path / f"{seed}") for seed in range(start, start + SEEDS)]
    assert sum(answered) >= SEEDS * 0.9


@pytest.mark.parametrize("start", range(0, 2 * SEEDS, SEEDS))
def test_random_queries_give_the_same_however_they_are_run(start: int, tmp_path: Path) -> None:
    answered = [run_both_ways(seed, tmp_path) for seed in range(start, start + SEEDS)]
    assert sum(answered) >= SEEDS * 0.9


@pytest.mark.full
@pytest.mark.timeout(4000)
def test_many_random_queries(tmp_path: Path) -> None:
    answered = [ask(seed, tmp_path / f"{seed}") for seed in range(1_000, 3_000)]
    answered += [run_both_ways(seed, tmp_path) for seed in range(1_000, 3_000)]
    assert sum(answered) >= 3_900
