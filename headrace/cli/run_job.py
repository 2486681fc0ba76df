"""``headrace run``: a job in this process, with progress, logs and signals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rich.console import Console

from headrace.cli.logs import LogObserver, json_line, key_value_line, set_up_logging
from headrace.cli.settings import Settings
from headrace.cli.signals import graceful_stop
from headrace.cli.words import count_text
from headrace.jobs.loading import load_job
from headrace.jobs.run import run_job
from headrace.kernel.clock import SystemClock
from headrace.kernel.until import check_until, parse_until
from headrace.runtime.job import OnEnd, RunOptions, RunResult
from headrace.runtime.observer import Event, Level, Observer, StopSignal

if TYPE_CHECKING:
    from headrace.jobs.config import Config
    from headrace.jobs.spec import JobSpec


def run_file(
    path: Path,
    settings: Settings,
    until: str | None,
    on_end: str,
    on_stop: str,
    drop_state: Sequence[str] = (),
    parallelism: int | None = None,
) -> None:
    """Run the job in a file.

    Raises:
        HeadraceError: Of any kind; the job goes on from its last checkpoint when it is run again.
    """
    run_spec(load_job(path), settings.load(), settings, until, on_end, on_stop, drop_state, parallelism)


def run_spec(
    spec: JobSpec,
    config: Config,
    settings: Settings,
    until: str | None,
    on_end: str,
    on_stop: str = "suspend",
    drop_state: Sequence[str] = (),
    parallelism: int | None = None,
) -> None:
    """Run a job.

    Raises:
        HeadraceError: As :func:`run_file`.
    """
    set_up_logging(as_json=settings.json_logs)
    end = parse_until(until)
    check_until(end, SystemClock().now_us())
    options = RunOptions(end, cast("OnEnd", on_end), parallelism)
    stop = StopSignal()
    with _observed(spec.name, settings) as (observer, told), graceful_stop(stop, told, drain=on_stop == "drain"):
        result = run_job(spec, config, options, observer, stop, drop_state=drop_state)
    observer.on_event(Event(Level.INFO, result.status, _summary(result), {"job": spec.name, "epoch": result.epoch}))


@contextmanager
def _observed(job: str, settings: Settings) -> Iterator[tuple[Observer, Callable[[], None]]]:
    console = Console(stderr=True)
    if settings.json_logs or not console.is_terminal:
        yield LogObserver(json_line if settings.json_logs else key_value_line), lambda: None
        return
    from headrace.cli.live import LiveObserver

    live = LiveObserver(job, console)
    with live.shown():
        yield live, live.stopping


def _summary(result: RunResult) -> str:
    written = ", ".join(f"{count_text(rows)} to {sink}" for sink, rows in result.rows_out.items())
    parts = [f"{count_text(result.records)} records read", f"{written or 'nothing'} written"]
    if result.late_rows:
        parts.append(f"{count_text(result.late_rows)} late rows")
    if result.error_rows:
        parts.append(f"{count_text(result.error_rows)} records not decoded")
    if result.restarts:
        parts.append(f"{result.restarts} restarts")
    return "; ".join(parts)
