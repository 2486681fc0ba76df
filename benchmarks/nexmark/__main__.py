"""``python -m benchmarks.nexmark``: every query checked against DuckDB, then measured; exit 1 when one is wrong.

Rows per second and core are input rows by CPU seconds of the whole process (compiling and planning included, making the
events not); memory is the peak of the process. The result goes into memory, as usual with Nexmark.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.measure import Cost
from benchmarks.nexmark import jobs
from benchmarks.nexmark.events import Nexmark
from headrace.kernel.errors import HeadraceError

_TIMEOUT_S: Final = 900
_SECONDS_OF_DISORDER: Final = 2


def main() -> int:
    """Check and measure what was asked for."""
    asked = _arguments()
    with tempfile.TemporaryDirectory(prefix="headrace-nexmark-", dir=asked.work) as name:
        folder = Path(name)
        wrong = _check(folder / "check", asked.check, asked.queries) if asked.check else []
        if asked.events:
            _measure(folder / "measure", asked.events, [query for query in asked.queries if query not in wrong])
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark")
    parser.add_argument("queries", nargs="*", default=jobs.QUERIES, help="q0 to q22; all if none is given")
    parser.add_argument("--events", type=int, default=2_000_000, help="how many events are measured; 0: none")
    parser.add_argument("--check", type=int, default=100_000, help="how many events are compared with DuckDB; 0: none")
    parser.add_argument("--work", type=Path, help="folder for data; the system's temporary folder if not given")
    asked = parser.parse_args()
    unknown = sorted(set(asked.queries) - set(jobs.QUERIES))
    if unknown:
        parser.error(f"there is no query {unknown[0]}; there are {', '.join(jobs.QUERIES)}")
    return asked


def _check(folder: Path, count: int, queries: Sequence[str]) -> list[str]:
    """Compare with DuckDB; gives the queries that are wrong."""
    data = folder / "data"
    # Slow enough for many windows, and out of order.
    jobs.write(data, count, Nexmark(step_us=2_000, disorder_us=_SECONDS_OF_DISORDER * 1_000_000))
    wrong = []
    for query in queries:
        work = folder / query
        work.mkdir()
        expected = jobs.wanted(query, data)
        try:
            found = jobs.run(query, data, work)[1]
        except HeadraceError as error:
            difference: str | None = f"refused: {error.message}"
        else:
            difference = jobs.difference(query, found, expected)
        if difference:
            wrong.append(query)
        print(f"{query:>4}  {difference or f'as DuckDB says: {expected.height:,} rows'}", flush=True)
    return wrong


def _measure(folder: Path, count: int, queries: Sequence[str]) -> None:
    data = folder / "data"
    started = time.process_time()
    jobs.write(data, count, Nexmark())
    print(f"{count:,} events, made and written in {time.process_time() - started:.1f} CPU s")
    print("query   rows/s per core   rows/s   peak MiB      rows")
    for query in queries:
        work = folder / query
        work.mkdir()
        cost = _in_process(query, data, work)
        print(
            f"{query:>5}   {cost.rows / cost.cpu_s:15,.0f} {cost.rows / cost.wall_s:8,.0f}   {cost.peak_mib:8,.0f} "
            f"{cost.rows:9,}",
            flush=True,
        )


def _in_process(query: str, data: Path, work: Path) -> Cost:
    command = [sys.executable, "-m", "benchmarks.nexmark.child", query, str(data), str(work)]
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, cwd=root, check=False)
    if ended.returncode:
        raise RuntimeError(f"{query} failed with {ended.returncode}:\n{ended.stderr[-4000:]}")
    return Cost(**json.loads(ended.stdout.splitlines()[-1]))


if __name__ == "__main__":
    sys.exit(main())
