"""Random whole queries, nested up to three deep: as DuckDB has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.kernel.errors import SpecError
from tests.sql_jobs import compared, duck, headrace
from tests.sql_queries import random_query, tables

SEEDS = 20
"""Queries that one test asks."""


def ask(seed: int, folder: Path) -> bool:
    """Whether both give the same; False where Headrace refuses the query, and says where."""
    query, given = random_query(seed), tables(seed)
    wanted = duck(query.duck, given)
    folder.mkdir()
    try:
        found = headrace(query.sql, given, folder)
    except SpecError as refused:
        said = refused.message
    else:
        said = ""
    if said:
        assert said.startswith("sql line"), f"seed {seed}: {query.sql}"
        return False
    if wanted.height or found.height:
        assert sorted(found.columns) == sorted(wanted.columns), f"seed {seed}: {query.sql}"
        assert compared(found.select(wanted.columns)) == compared(wanted), f"seed {seed}: {query.sql}"
    return True


@pytest.mark.parametrize("start", range(0, 6 * SEEDS, SEEDS))
def test_random_queries_give_what_duckdb_gives(start: int, tmp_path: Path) -> None:
    answered = [ask(seed, tmp_path / f"{seed}") for seed in range(start, start + SEEDS)]
    assert sum(answered) >= SEEDS * 0.9


@pytest.mark.full
@pytest.mark.timeout(2000)
def test_many_random_queries_give_what_duckdb_gives(tmp_path: Path) -> None:
    answered = [ask(seed, tmp_path / f"{seed}") for seed in range(1_000, 3_000)]
    assert sum(answered) >= 1_950
