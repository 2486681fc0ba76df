"""Queries asked of Headrace and of DuckDB, over the same random tables."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import duckdb
import polars as pl
import polars.selectors as cs

from benchmarks.with_headrace import IntoMemory
from headrace.jobs.compile import compile_job
from headrace.jobs.config import load_config
from headrace.jobs.parse import parse_job
from headrace.kernel import columns
from headrace.runtime import restarts
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.state.stores import open_store
from headrace.testing import MemoryTable

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
_ROWS: Final = 400


def tables(seed: int = 7) -> dict[str, pl.DataFrame]:
    """Two streams, ``flights`` and ``alerts``, with event time ``at``, and the static table ``airlines``."""
    dice = random.Random(seed)

    def moment() -> datetime:
        return START + timedelta(seconds=dice.randrange(6 * 3600))

    flights = pl.DataFrame(
        [
            (
                number,
                dice.choice("ABCD"),
                moment(),
                dice.choice([None, *range(-20, 40)]),
                dice.choice(["/a/b?id=7&x", "/c/d/e", "", "id=9", None]),
                {"code": dice.choice(["JFK", "LHR"]), "gate": dice.randrange(5)},
            )
            for number in range(_ROWS)
        ],
        schema={
            "id": pl.Int64,
            "carrier": pl.String,
            "at": pl.Datetime("us", "UTC"),
            "delay": pl.Int64,
            "url": pl.String,
            "origin": pl.Struct({"code": pl.String, "gate": pl.Int64}),
        },
        orient="row",
    )
    alerts = pl.DataFrame(
        [(number, dice.choice("ABCE"), moment(), dice.randrange(5)) for number in range(_ROWS // 4)],
        schema={"id": pl.Int64, "carrier": pl.String, "at": pl.Datetime("us", "UTC"), "level": pl.Int64},
        orient="row",
    )
    airlines = pl.DataFrame({"carrier": ["A", "B", "C"], "name": ["Alpha", "Beta", "Gamma"], "rank": [1, 2, 3]})
    return {"flights": flights, "alerts": alerts, "airlines": airlines}


def headrace(sql: str, given: dict[str, pl.DataFrame], folder: Path) -> pl.DataFrame:
    """The rows that hold at the end of a job with this SQL."""
    for name, rows in given.items():
        rows.write_parquet(folder / f"{name}.parquet", row_group_size=100)
    config = load_config(state_path=folder / "state", cwd=folder)
    used = [name for name in ("flights", "alerts") if name in sql]
    spec = parse_job(
        {
            "name": "sql",
            "sources": {
                name: {
                    "history": {"parquet": str(folder / f"{name}.parquet"), "split_rows": 150},
                    "event_time": {"column": "at"},
                }
                for name in used
            },
            "tables": {"airlines": {"parquet": str(folder / "airlines.parquet")}},
            "sql": sql,
            "sinks": [{"id": "out", "iceberg": {"table": "local.ns.out", "create": True, "changes": "append"}}],
        }
    )
    table = MemoryTable()
    program = IntoMemory(compile_job(spec, config), table)
    store = open_store(program.job.store, config.object_stores)
    restarts.run(program, store, program.job.policy, RunOptions("caught-up"), SilentObserver(), StopSignal())
    return _consolidated(table.rows())


def duck(sql: str, given: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """What DuckDB says."""
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        for name, rows in given.items():
            connection.register(name, rows.to_arrow())
        return pl.DataFrame(connection.sql(sql).to_arrow_table())


def check(sql: str, folder: Path, asked: str | None = None, fewest: int = 1) -> None:
    """Check that both say the same; ``asked`` is the question for DuckDB where it must be put in other words."""
    given = tables()
    wanted = duck(asked or sql, given)
    found = headrace(sql, given, folder)
    assert found.columns == wanted.columns
    assert compared(found) == compared(wanted)
    assert found.height >= fewest


def _consolidated(changes: pl.DataFrame) -> pl.DataFrame:
    if columns.WEIGHT not in changes.columns:
        return changes
    weight = pl.col(columns.WEIGHT)
    left = changes.group_by(pl.exclude(columns.WEIGHT)).agg(weight.sum()).filter(weight != 0)
    return left.select(pl.exclude(columns.WEIGHT).repeat_by(columns.WEIGHT).explode(empty_as_null=False))


def compared(frame: pl.DataFrame) -> list[str]:
    """Rows as text, in an order of their own; DuckDB sums whole numbers as decimals."""
    whole = frame.with_columns(cs.float().round(6), (cs.integer() | cs.decimal()).cast(pl.Int64))
    return sorted(map(repr, whole.rows()))
