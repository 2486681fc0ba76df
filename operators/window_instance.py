"""A tumbling window at work: partials in, finished windows out.

State is one frame of merged partials plus a few unmerged ones; merging is put off until it pays, so that a small batch
costs little however large the state is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from headrace.kernel.errors import GraphChangedError
from headrace.kernel.protocols import MAIN, Emission, OperatorState
from operators import partials
from operators.errors import computing
from operators.event_time import FixedWindows

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"

VERSION: Final = 1
_FRAME: Final = "windows"
_MAX_PENDING: Final = 16
_MANY_ROWS: Final = 20_000
"""From here on the streaming engine merges faster than the in-memory one."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What an instance needs to know of its operator.

    Attributes:
        where: Names the operator in error messages.
        by: Key columns.
        windows: Where windows begin and end.
        finish: Rows of the main port, computed of merged partials.
    """

    where: str
    by: Sequence[str]
    windows: FixedWindows
    finish: Callable[[pl.LazyFrame], pl.LazyFrame]


class WindowInstance:
    """Implements :class:`headrace.kernel.protocols.OperatorInstance`.

    Args:
        layout: The operator's definition.
        schema: Types of the partials.
        state: Where to resume.

    Raises:
        GraphChangedError: The state was made by another definition, over other types, or by a newer release.
    """

    def __init__(self, layout: Layout, schema: pl.Schema, state: OperatorState | None) -> None:
        self._layout = layout
        self._held = pl.DataFrame(schema=schema)
        self._pending: list[pl.DataFrame] = []
        self._pending_rows = 0
        self._closed: int | None = None
        self._counts = {"dropped_late": 0, "null_event_time": 0}
        if state is not None:
            self._restore(state)
        self._first_end = self._earliest_end(self._held)

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows since the job began: ``dropped_late`` and ``null_event_time`` (see :mod:`operators.window`)."""
        return dict(self._counts)

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in partials; windows are only given out by :meth:`advance` and :meth:`drain`."""
        accepted = self._accept(partials)
        if accepted.height:
            self._pending.append(accepted)
            self._pending_rows += accepted.height
            end = self._earliest_end(accepted)
            self._first_end = end if self._first_end is None or end is None else min(self._first_end, end)
            self._merge_if_it_pays()
        return {}

    def advance(self, watermark: int) -> Emission:
        """Give out the windows with end <= ``watermark``."""
        self._closed = watermark if self._closed is None else max(self._closed, watermark)
        if self._first_end is None or self._first_end > self._closed:
            return {}
        return self._give_out(self._closed)

    def drain(self) -> Emission:
        """Give out all windows. Those up to the last one are closed then: nothing is given out for them again."""
        if self._first_end is None:
            return {}
        ends = [end for frame in self._frames() if (end := self._latest_end(frame)) is not None]
        return self.advance(max(ends))

    def outgoing_watermark(self, watermark: int) -> int:
        """Start of the window that the watermark lies in: windows given out later do not start before it."""
        reached = watermark if self._closed is None else max(self._closed, watermark)
        return self._layout.windows.start_at(reached)

    def rows_held(self) -> int:
        """Groups in the state; counted more than once while they wait to be merged."""
        return self._held.height + self._pending_rows

    def snapshot(self) -> OperatorState:
        """The merged groups, up to where windows are closed, and the counts."""
        self._merge()
        return OperatorState(VERSION, {"closed": self._closed, **self._counts}, {_FRAME: self._held})

    # ------------------------------------------------------------------------------------------------------ inside

    def _restore(self, state: OperatorState) -> None:
        if state.version != VERSION:
            raise GraphChangedError(
                f"{self._layout.where}: its state has version {state.version}, this release reads version {VERSION}",
                hint="resume with the release that made the checkpoint, or a newer one",
            )
        windows = state.frames[_FRAME]
        if dict(windows.schema) != dict(self._held.schema):
            raise GraphChangedError(
                f"{self._layout.where}: its state does not fit the job",
                detail=_difference(windows.schema, self._held.schema),
                hint="undo the change, or give the window a new id to begin it with empty state",
            )
        self._held = windows.select(self._held.columns)
        self._closed = state.values["closed"]
        self._counts = {name: int(state.values[name]) for name in self._counts}

    def _accept(self, partials: pl.DataFrame) -> pl.DataFrame:
        if partials[WINDOW_START].null_count():
            self._count("null_event_time", partials.filter(pl.col(WINDOW_START).is_null()))
            partials = partials.filter(pl.col(WINDOW_START).is_not_null())
        if self._closed is not None and partials.height:
            first = self._earliest_end(partials)
            if first is not None and first <= self._closed:
                self._count("dropped_late", partials.filter(self._ends_by(self._closed)))
                partials = partials.filter(self._ends_by(self._closed).not_())
        return partials

    def _count(self, name: str, frame: pl.DataFrame) -> None:
        self._counts[name] += int(frame[partials.ROWS].sum())

    def _give_out(self, closed: int) -> Emission:
        due = [frame.filter(self._ends_by(closed)) for frame in self._frames()]
        merged = self._merged(due)
        self._held = self._held.filter(self._ends_by(closed).not_())
        self._pending = [kept for frame in self._pending if (kept := frame.filter(self._ends_by(closed).not_())).height]
        self._pending_rows = sum(frame.height for frame in self._pending)
        ends = [end for frame in self._frames() if (end := self._earliest_end(frame)) is not None]
        self._first_end = min(ends, default=None)
        with computing(self._layout.where):
            finished = self._layout.finish(merged.lazy()).collect()
        return {MAIN: finished.sort(WINDOW_START, *self._layout.by, nulls_last=False)} if finished.height else {}

    def _frames(self) -> list[pl.DataFrame]:
        return [self._held, *self._pending]

    def _merge_if_it_pays(self) -> None:
        if len(self._pending) < _MAX_PENDING:
            return
        if self._pending_rows * 2 >= self._held.height:
            self._merge()
        else:
            self._pending = [self._merged(self._pending)]
            self._pending_rows = self._pending[0].height

    def _merge(self) -> None:
        if self._pending:
            self._held = self._merged(self._frames())
            self._pending, self._pending_rows = [], 0

    def _merged(self, frames: list[pl.DataFrame]) -> pl.DataFrame:
        keys = [*self._layout.by, WINDOW_START]
        state = [name for name in self._held.columns if name not in keys]
        rows = sum(frame.height for frame in frames)
        merged = pl.concat(frames).lazy().group_by(keys).agg(partials.reductions(state))
        return merged.collect(engine="streaming" if rows > _MANY_ROWS else "in-memory")

    def _ends_by(self, closed: int) -> pl.Expr:
        return self._layout.windows.end(pl.col(WINDOW_START).to_physical()) <= closed

    def _earliest_end(self, frame: pl.DataFrame) -> int | None:
        return self._end_of(frame.select(pl.col(WINDOW_START).to_physical().min()))

    def _latest_end(self, frame: pl.DataFrame) -> int | None:
        return self._end_of(frame.select(pl.col(WINDOW_START).to_physical().max()))

    def _end_of(self, start: pl.DataFrame) -> int | None:
        value: int | None = start.item()
        return None if value is None else self._layout.windows.end_at(value)


def _difference(old: pl.Schema, new: pl.Schema) -> str:
    """What differs between two layouts of the state, in words."""
    gone = [f"{name} ({dtype}) is no longer there" for name, dtype in old.items() if name not in new]
    added = [f"{name} ({dtype}) is new" for name, dtype in new.items() if name not in old]
    changed = [f"{name} was {old[name]}, is {new[name]}" for name in new if name in old and old[name] != new[name]]
    return "; ".join([*gone, *added, *changed])
