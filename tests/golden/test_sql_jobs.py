"""Whole jobs in SQL over files, against the same questions asked of DuckDB."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl

from catalog.catalogs import Catalogs
from headrace.jobs.config import load_config
from headrace.jobs.parse import parse_job
from headrace.jobs.run import run_job
from headrace.kernel import columns
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal

SQL = """
CREATE VIEW named AS
SELECT f.carrier, f.at, f.delay, a.name FROM flights f LEFT JOIN airlines a ON f.carrier = a.carrier
WHERE f.delay IS NOT NULL;

INSERT INTO hours
SELECT name, window_start, count(*) AS n, count(*) FILTER (WHERE delay > 15) AS late,
       sum(delay) + count(*) AS odd, max(CASE WHEN delay > 0 THEN delay ELSE 0 END) AS top
FROM TUMBLE(TABLE named, DESCRIPTOR(at), INTERVAL '1' HOUR)
GROUP BY name, window_start, window_end
HAVING count(*) > 2;

INSERT INTO totals
SELECT carrier || '!' AS who, count(*) AS n, sum(delay) AS total
FROM named GROUP BY carrier || '!' HAVING sum(delay) > 0;
"""

HOURS = """
select a.name, time_bucket(interval '1 hour', f.at) as window_start, count(*) as n,
       count(*) filter (where delay > 15) as late, (sum(delay) + count(*))::bigint as odd,
       max(case when delay > 0 then delay else 0 end) as top
from flights f left join airlines a on f.carrier = a.carrier where f.delay is not null
group by all having count(*) > 2
"""

TOTALS = """
select carrier || '!' as who, count(*) as n, sum(delay)::bigint as total from flights where delay is not null
group by all having sum(delay) > 0
"""


def test_a_job_in_sql_gives_what_duckdb_gives(tmp_path: Path) -> None:
    dice = random.Random(7)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    flights = pl.DataFrame(
        [
            (dice.choice("ABCD"), start + timedelta(minutes=dice.randrange(3000)), dice.choice([None, *range(-20, 40)]))
            for _ in range(3000)
        ],
        schema={"carrier": pl.String, "at": pl.Datetime("us", "UTC"), "delay": pl.Int64},
        orient="row",
    )
    airlines = pl.DataFrame({"carrier": ["A", "B", "C"], "name": ["Alpha", "Beta", "Gamma"]})
    flights.write_parquet(tmp_path / "flights.parquet", row_group_size=500)
    airlines.write_parquet(tmp_path / "airlines.parquet")
    config = load_config(state_path=tmp_path / "state", cwd=tmp_path)
    spec = parse_job(
        {
            "name": "sql",
            "sources": {
                "flights": {
                    "history": {"parquet": str(tmp_path / "flights.parquet"), "split_rows": 700},
                    "event_time": {"column": "at"},
                }
            },
            "tables": {"airlines": {"parquet": str(tmp_path / "airlines.parquet")}},
            "sql": SQL,
            "sinks": [
                {"id": "hours", "iceberg": {"table": "local.ns.hours", "create": True}},
                {"id": "totals", "iceberg": {"table": "local.ns.totals", "create": True, "changes": "append"}},
            ],
        }
    )
    run_job(spec, config, RunOptions("caught-up"), SilentObserver(), StopSignal())

    catalogs = Catalogs(config.catalogs)
    hours, changes = (pl.DataFrame(catalogs.load(f"local.ns.{name}").scan().to_arrow()) for name in ("hours", "totals"))
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("flights", flights.to_arrow())
        connection.register("airlines", airlines.to_arrow())
        wanted_hours = pl.DataFrame(connection.sql(HOURS).to_arrow_table())
        wanted_totals = pl.DataFrame(connection.sql(TOTALS).to_arrow_table())
    assert sorted(hours.rows(), key=repr) == sorted(wanted_hours.select(hours.columns).rows(), key=repr)
    names = [name for name in changes.columns if name != columns.WEIGHT]
    totals = changes.group_by(names).agg(pl.col(columns.WEIGHT).sum()).filter(pl.col(columns.WEIGHT) != 0)
    assert sorted(totals.select(names).rows()) == sorted(wanted_totals.select(names).rows())
    assert hours.height > 20
    assert totals.height > 0


def test_columns_on_the_way_that_nothing_needs_are_not_read(tmp_path: Path) -> None:
    """A select that keeps what a later one leaves out: rows come without it, and operators still find it."""
    pl.DataFrame({"carrier": ["A", "B"], "delay": [1, 2], "more": [3, 4]}).write_parquet(tmp_path / "flights.parquet")
    job = {
        "name": "narrow",
        "sources": {"flights": {"history": {"parquet": str(tmp_path / "flights.parquet")}}},
        "steps": [
            {"select": ["carrier", "more"]},
            {"select": ["carrier"]},
            {"aggregate": {"by": "carrier", "aggregate": {"n": "count(*)"}}},
        ],
        "sinks": [{"iceberg": {"table": "local.ns.out", "create": True, "changes": "append"}}],
    }
    config = load_config(state_path=tmp_path / "state", cwd=tmp_path)
    result = run_job(parse_job(job), config, RunOptions("caught-up"), SilentObserver(), StopSignal())
    assert result.records == 2
