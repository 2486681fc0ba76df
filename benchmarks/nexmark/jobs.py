"""The queries as Headrace jobs over files, and as questions asked of DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import duckdb
import polars as pl
import polars.selectors as cs
from polars.testing import assert_frame_equal

from benchmarks.nexmark.events import SCHEMAS, Nexmark
from benchmarks.with_headrace import IntoMemory, config_of
from headrace.jobs.compile import compile_job
from headrace.jobs.parse import parse_job
from headrace.jobs.spec import JobSpec
from headrace.kernel import columns
from headrace.runtime import restarts
from headrace.runtime.job import RunOptions, RunResult
from headrace.runtime.observer import SilentObserver, StopSignal
from headrace.state.stores import open_store
from headrace.testing import MemoryTable

HERE: Final = Path(__file__).parent
QUERIES: Final = tuple(f"q{number}" for number in range(23))
TOTALS_ONLY: Final = {"q12": ["bidder", "bid_count"]}
"""What can be compared of a query whose windows depend on the clock: sums by these columns but the last."""
READS: Final = {
    "q3": ("auction", "person"),
    "q4": ("auction", "bid"),
    "q6": ("auction", "bid"),
    "q8": ("auction", "person"),
    "q9": ("auction", "bid"),
    "q20": ("auction", "bid"),
}
"""What is read of the events; bids if nothing is said."""
SIDE_ROWS: Final = 10_000
_CHUNK: Final = 500_000


def write(folder: Path, count: int, events: Nexmark) -> None:
    """Write the first ``count`` events as Parquet, by kind, and the side input of q13."""
    for kind in SCHEMAS:
        (folder / kind).mkdir(parents=True)
    for first in range(0, count, _CHUNK):
        for kind, rows in events.events(first, min(first + _CHUNK, count)).items():
            rows.write_parquet(folder / kind / f"{first:012d}.parquet")
    keys = pl.int_range(SIDE_ROWS, eager=True)
    pl.DataFrame({"key": keys, "value": "v" + keys.cast(pl.String)}).write_parquet(folder / "side_input.parquet")


def text(query: str) -> str:
    """The query in the SQL of Headrace."""
    return (HERE / "queries" / f"{query}.sql").read_text(encoding="utf-8")


def spec(query: str, folder: Path) -> JobSpec:
    """The query as a job over the files below ``folder``."""
    return parse_job(
        {
            "name": f"nexmark-{query}",
            "sources": {
                kind: {"history": {"parquet": f"{folder}/{kind}/*.parquet"}, "event_time": {"column": "dateTime"}}
                for kind in READS.get(query, ("bid",))
            },
            "tables": {"side_input": {"parquet": f"{folder}/side_input.parquet"}} if query == "q13" else {},
            "sql": text(query),
            "sinks": [{"id": "out", "iceberg": {"table": "local.nexmark.out", "create": True, "changes": "append"}}],
        }
    )


def run(query: str, folder: Path, work: Path) -> tuple[RunResult, pl.DataFrame]:
    """Run a query to its end.

    Args:
        query: Which.
        folder: Where :func:`write` has written.
        work: A folder of its own, for the job's state.

    Returns:
        The result of the run; and the rows that hold at its end, in no order.
    """
    config = config_of(str(work))
    table = MemoryTable()
    program = IntoMemory(compile_job(spec(query, folder), config), table)
    store = open_store(program.job.store, config.object_stores)
    options = RunOptions(until="caught-up")
    result = restarts.run(program, store, program.job.policy, options, SilentObserver(), StopSignal())
    return result, consolidated(table.rows())


def consolidated(changes: pl.DataFrame) -> pl.DataFrame:
    """The rows that hold after all changes of a changelog; rows without weights as they are."""
    if columns.WEIGHT not in changes.columns:
        return changes
    weight = pl.col(columns.WEIGHT)
    left = changes.group_by(pl.exclude(columns.WEIGHT)).agg(weight.sum()).filter(weight != 0)
    return left.select(pl.exclude(columns.WEIGHT).repeat_by(columns.WEIGHT).explode(empty_as_null=False))


def wanted(query: str, folder: Path) -> pl.DataFrame:
    """What DuckDB says, of the same files."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for kind in SCHEMAS:
            connection.execute(f"CREATE VIEW {kind} AS FROM read_parquet('{folder}/{kind}/*.parquet')")
        connection.execute(f"CREATE VIEW side_input AS FROM read_parquet('{folder}/side_input.parquet')")
        asked = (HERE / "reference" / f"{query}.sql").read_text(encoding="utf-8")
        return pl.DataFrame(connection.sql(asked).to_arrow_table())


def difference(query: str, found: pl.DataFrame, expected: pl.DataFrame) -> str | None:
    """In what a result differs from what is wanted, as text; None when it does not. The order of rows is no matter."""
    if query in TOTALS_ONLY:
        *keys, total = TOTALS_ONLY[query]
        found = found.group_by(keys).agg(pl.col(total).sum())
    if sorted(found.columns) != sorted(expected.columns):
        return f"columns {found.columns}, wanted {expected.columns}"
    names = sorted(expected.columns)
    if found.height != expected.height:
        return f"{found.height} rows, wanted {expected.height}"
    try:
        assert_frame_equal(_sorted(found, names), _sorted(expected, names), check_dtypes=False, rel_tol=1e-9)
    except AssertionError as error:
        return str(error)
    return None


def _sorted(rows: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Decimals become floats: DuckDB multiplies in another precision."""
    rows = rows.select(names).cast({cs.decimal(): pl.Float64})
    exact = [name for name in names if not rows.schema[name].is_float()]
    return rows.sort(*exact, *(name for name in names if name not in exact))
