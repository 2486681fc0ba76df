"""Progress on a terminal: a few lines that stay in place, events above them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.cli.words import bytes_text, count_text, lost_text, seconds_text, time_text
from headrace.kernel.boundary import TopicPartition, places_text
from headrace.runtime.observer import EpochReport, Event, Level, Phase, Progress

_STYLES: Final = {Level.INFO: "", Level.WARNING: "yellow", Level.ERROR: "bold red"}
_SHOWN_TOPICS: Final = 5
_BAR_WIDTH: Final = 30


class LiveObserver:
    """Keeps the newest progress and epoch for a display that another thread draws."""

    def __init__(self, job: str, console: Console) -> None:
        self._job = job
        self._console = console
        self._lock = threading.Lock()
        self._progress = Progress(Phase.STARTING)
        self._epoch: EpochReport | None = None
        self._stopping = False

    def on_progress(self, progress: Progress) -> None:
        """See :meth:`Observer.on_progress`."""
        with self._lock:
            self._progress = progress

    def on_epoch(self, report: EpochReport) -> None:
        """See :meth:`Observer.on_epoch`."""
        with self._lock:
            self._epoch = report

    def on_event(self, event: Event) -> None:
        """See :meth:`Observer.on_event`."""
        self._console.print(Text(f"{event.code}: {event.message}", style=_STYLES[event.level]))

    def stopping(self) -> None:
        """A stop has been asked for: say so until it has come."""
        self._stopping = True

    def __rich__(self) -> RenderableType:
        with self._lock:
            progress, epoch = self._progress, self._epoch
        return render_progress(self._job, progress, epoch, stopping=self._stopping)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw while the block runs."""
        with Live(self, console=self._console, refresh_per_second=4, transient=False):
            yield


def render_progress(
    job: str, progress: Progress, epoch: EpochReport | None, *, stopping: bool = False
) -> RenderableType:
    """The display of one moment: phase, rate, history, lag by topic, watermark, epoch."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=10, style="dim", no_wrap=True)
    grid.add_column()
    note = "  stopping at the end of this epoch; Ctrl-C again ends at once" if stopping else ""
    grid.add_row(Text(job, style="bold"), Text(progress.phase.value + note))
    rate = f"{count_text(round(progress.records_per_second))} rows/s"
    grid.add_row("read", f"{count_text(progress.records)} rows, {bytes_text(progress.nbytes)}, {rate}")
    if progress.history_fraction is not None and progress.phase in (Phase.STARTING, Phase.HISTORY):
        grid.add_row("history", _history(progress.history_fraction, progress.history_eta_s))
    if progress.lag:
        grid.add_row("lag", _lag(progress))
    if progress.lost:
        grid.add_row("lost", Text(lost_text(progress.lost), style="red"))
    grid.add_row("watermark", time_text(progress.watermark))
    if progress.silent:
        waits = places_text([TopicPartition(at.topic, at.partition) for at in progress.silent])
        grid.add_row("", Text(f"waits for {waits}: silent (event_time.idle passes it over)", style="yellow"))
    written = ", ".join(f"{sink} {count_text(rows)}" for sink, rows in progress.rows_out.items())
    if written:
        grid.add_row("written", written)
    held = [(progress.late_rows, "late"), (progress.error_rows, "undecodable"), (progress.state_rows, "in state")]
    grid.add_row("rows", ", ".join(f"{count_text(rows)} {what}" for rows, what in held))
    last = f", last one {epoch.run_s + epoch.checkpoint_s + epoch.commit_s:.1f}s" if epoch else ""
    grid.add_row("epoch", f"{progress.epoch}{last}")
    return grid


def _history(fraction: float, eta_s: float | None) -> RenderableType:
    eta = f", {seconds_text(eta_s)} to go" if eta_s is not None else ""
    line = Table.grid(padding=(0, 1))
    line.add_row(
        ProgressBar(total=1.0, completed=min(1.0, max(0.0, fraction)), width=_BAR_WIDTH), f"{fraction:.1%}{eta}"
    )
    return Group(line)


def _lag(progress: Progress) -> str:
    topics: dict[str, int] = {}
    for at in progress.lag:
        topics[at.topic] = topics.get(at.topic, 0) + at.lag
    shown = [f"{topic} {count_text(lag)}" for topic, lag in sorted(topics.items(), key=lambda item: -item[1])]
    more = f" and {len(shown) - _SHOWN_TOPICS} more topics" if len(shown) > _SHOWN_TOPICS else ""
    return ", ".join(shown[:_SHOWN_TOPICS]) + more
