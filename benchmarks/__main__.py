"""``python -m benchmarks``: measure, print, write benchmarks/results/latest.json; exit 1 when a target is missed."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl

from benchmarks import cases, lake, topic
from benchmarks.compare import Result
from infra import dev

GROUPS: Final = ("history", "tail", "memory", "checkpoint", "boundary")
LATEST: Final = Path(__file__).parent / "results" / "latest.json"


def main() -> int:
    """Measure what was asked for."""
    asked = _arguments()
    plan = cases.QUICK if asked.quick else cases.FULL
    if asked.pairs:
        plan = replace(plan, pairs=asked.pairs)
    results: list[Result] = []
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; median, 95 % interval of the median")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=asked.work) as folder:
        for result in _measure(plan, Path(folder), asked.only):
            print(f"{result}{' (not to be judged: tiny data)' if asked.quick else ''}", flush=True)
            results.append(result)
    _write(asked.output, results)
    print(f"written to {asked.output}")
    return 0 if asked.quick or all(result.ok for result in results) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--quick", action="store_true", help="tiny data: shows that it runs, its figures mean nothing")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS, help="which groups to measure")
    parser.add_argument("--pairs", type=int, help="pairs for each ratio of costs")
    parser.add_argument(
        "--work", type=Path, help="folder for data (about 1 GB); the system's temporary folder if not given"
    )
    parser.add_argument("--output", type=Path, default=LATEST, help="where the results go")
    return parser.parse_args()


def _measure(plan: cases.Plan, folder: Path, only: tuple[str, ...]) -> Iterator[Result]:
    data = folder / "lake"
    data.mkdir()
    if "boundary" in only:
        yield from cases.boundary(plan, _made(folder / "manifests"))
    if set(only) == {"boundary"}:
        return
    table = lake.build(data, plan.files if "memory" in only else plan.history, plan.rows_per_file)
    if "history" in only:
        yield from cases.history(plan, table)
        try:
            store = dev.up(folder / "store", ["lake"]).s3
            yield from cases.slow_store(plan, _made(folder / "slow"), store)
        finally:
            dev.down(folder / "store", delete=True)
    if "tail" in only:
        try:
            bootstrap = dev.up(folder / "dev", ["kafka"]).kafka_bootstrap or ""
            yield from cases.tail(plan, table, bootstrap, topic.produce(bootstrap, plan.records))
        finally:
            dev.down(folder / "dev", delete=True)
    if "memory" in only:
        yield from cases.memory(plan, table)
    if "checkpoint" in only:
        yield from cases.checkpoint(plan, table)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _write(output: Path, results: list[Result]) -> None:
    machine = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "polars": pl.__version__,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    found = [{**result.to_json(), "machine": machine} for result in results]
    output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
