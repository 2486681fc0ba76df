"""Progress as lines on standard error, for when nobody watches: ``key=value`` or JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from headrace.cli.words import time_text
from headrace.jobs.redact import redact
from headrace.kernel.clock import Clock, SystemClock
from headrace.runtime.observer import EpochReport, Event, Level, Progress

Writer = Callable[[Mapping[str, Any]], str]
PROGRESS_EVERY_S = 10.0


def json_line(record: Mapping[str, Any]) -> str:
    """One JSON object on one line."""
    return json.dumps(record, separators=(",", ":"), default=str)


def key_value_line(record: Mapping[str, Any]) -> str:
    """``key=value`` pairs; values with blanks or quotes are JSON strings, nested ones JSON."""
    return " ".join(f"{key}={_value(value)}" for key, value in record.items() if value is not None)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value) if not value or any(char in value for char in ' "=\n') else value
    return json.dumps(value, separators=(",", ":"), default=str)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = {
            "level": record.levelname.lower(),
            "event": "log",
            "logger": record.name,
            "message": record.getMessage(),
        }
        return json_line({"time": time_text(int(record.created * 1e6)), **facts})


def set_up_logging(*, as_json: bool) -> None:
    """Send warnings of Headrace and its libraries to standard error, in the form of the other lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if as_json else logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


class LogObserver:
    """Writes events and epochs as they come, progress every ten seconds and when the phase changes."""

    def __init__(self, write_line: Writer, stream: TextIO | None = None, clock: Clock | None = None) -> None:
        self._write_line = write_line
        self._stream = stream or sys.stderr
        self._clock = clock or SystemClock()
        self._shown_at = float("-inf")
        self._phase = ""

    def on_progress(self, progress: Progress) -> None:
        """See :meth:`Observer.on_progress`."""
        now = self._clock.monotonic()
        if progress.phase == self._phase and now - self._shown_at < PROGRESS_EVERY_S:
            return
        self._shown_at, self._phase = now, progress.phase
        facts = progress.to_json()
        total: dict[str, int] = {}
        for at in progress.lag:
            total[at.topic] = total.get(at.topic, 0) + at.lag
        self._line(Level.INFO, "progress", facts | {"lag": total, "watermark": time_text(progress.watermark)})

    def on_epoch(self, report: EpochReport) -> None:
        """See :meth:`Observer.on_epoch`."""
        self._line(Level.INFO, "epoch", report.to_json() | {"watermark": time_text(report.watermark)})

    def on_event(self, event: Event) -> None:
        """See :meth:`Observer.on_event`."""
        facts = {"code": event.code, "message": event.message, **redact(event.context)}
        self._line(event.level, "note", facts)

    def _line(self, level: Level, event: str, facts: Mapping[str, Any]) -> None:
        record = {"time": time_text(self._clock.now_us()), "level": level.value, "event": event, **facts}
        # A closed pipe must not stop the job that is being watched.
        try:
            self._stream.write(self._write_line(record) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return
