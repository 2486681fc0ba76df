"""Held rows that are larger than memory: segments on disk, sorted by time, and what has come since in memory.

Rows leave from the front of segments, which costs nothing but a number. A segment is written when the memory budget
says so, or at a snapshot, together with earlier ones where that is due: small ones at once, others when there are
several of about one size (each row is written a logarithmic number of times), and those of which most has gone. Where
rows of several segments belong together, that merges them, too. What is small stays in memory, and is written whole.

Files are mapped, so what is read again and again stays in the page cache, and none of it on the heap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.kernel.errors import GraphChangedError
from headrace.kernel.held import HeldLayout, HeldPart, HeldSnapshot
from headrace.kernel.keyed import KeyedRun, KeyGroups, RunFile, hash_probe, key_groups
from headrace.kernel.layouts import check_layout
from headrace.kernel.merged import Merged
from headrace.state.keyed import MemoryBudget, Sizes, tier
from headrace.state.run_columns import decoded, encoded, has_wide
from headrace.state.runs import RunFolder, mapped_rows

_DEAD: Final = 4
"""A segment is written anew with the next one when no more than one of so many rows is held."""

_Times: TypeAlias = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class _Segment:
    """A file; the rows from ``start`` on are held."""

    file: RunFile
    rows: pl.DataFrame
    times: _Times
    start: int = 0

    @property
    def height(self) -> int:
        return self.file.rows - self.start

    @property
    def earliest(self) -> int:
        return int(self.times[self.start])

    @property
    def latest(self) -> int:
        return int(self.times[-1])

    @property
    def run(self) -> KeyedRun:
        return KeyedRun(self.file, self.start, self.file.rows)

    def until(self, before: int) -> int:
        """Where the rows end whose time lies before ``before``."""
        return int(np.searchsorted(self.times, before)) if self.earliest < before else self.start


class HeldStore:
    """Implements :class:`headrace.kernel.held.HeldState`.

    Args:
        layout: The layout.
        groups: The keys that come to it.
        runs: Where files lie.
        budget: Memory, shared with others.
        sizes: When what is merged.
    """

    def __init__(
        self, layout: HeldLayout, groups: KeyGroups, runs: RunFolder, budget: MemoryBudget, sizes: Sizes | None = None
    ) -> None:
        self._layout = layout
        self._groups = groups
        self._runs = runs
        self._budget = budget
        self._sizes = sizes or Sizes()
        self._stored = encoded(pl.DataFrame(schema=layout.schema)).schema
        self._wide = any(map(has_wide, layout.schema.dtypes()))
        self._time = pl.col(layout.time).to_physical()
        self._segments: list[_Segment] = []
        """Oldest first, none of them empty."""
        self._fresh = Merged(layout.schema, layout.merge)
        self._nbytes = 0
        """About what the fresh rows take."""
        self._whole: _Segment | None = None
        """Where the fresh rows lie, too; there are no others then."""
        budget.stores += 1

    # ----------------------------------------------------------------------------------------------- what operators see

    @property
    def schema(self) -> pl.Schema:
        """See :attr:`headrace.kernel.held.HeldState.schema`."""
        return self._layout.schema

    @property
    def height(self) -> int:
        """See :attr:`headrace.kernel.held.HeldState.height`."""
        return self._fresh.height + sum(segment.height for segment in self._segments)

    @property
    def earliest(self) -> int | None:
        """See :attr:`headrace.kernel.held.HeldState.earliest`."""
        fresh = [self._times(frame).min() for frame in self._fresh.frames()]
        stored = [segment.earliest for segment in self._segments]
        return min([*(time for time in fresh if isinstance(time, int)), *stored], default=None)

    @property
    def latest(self) -> int | None:
        """See :attr:`headrace.kernel.held.HeldState.latest`."""
        fresh = [self._times(frame).max() for frame in self._fresh.frames()]
        stored = [segment.latest for segment in self._segments]
        return max([*(time for time in fresh if isinstance(time, int)), *stored], default=None)

    def add(self, rows: pl.DataFrame) -> None:
        """See :meth:`headrace.kernel.held.HeldState.add`."""
        if not rows.height:
            return
        self._whole = None
        self._fresh.add(rows)
        self._nbytes += int(rows.estimated_size())
        if self._nbytes > self._budget.share:
            self._nbytes = int(self._fresh.merged().estimated_size())
            if self._nbytes * 2 > self._budget.share:
                self._spill()

    def take(self, before: int) -> pl.DataFrame:
        """See :meth:`headrace.kernel.held.HeldState.take`."""
        taken, height = self.peek(before), self._fresh.height
        for segment in self._segments:
            segment.start = segment.until(before)
        self._segments = [segment for segment in self._segments if segment.height]
        self._fresh.drop(self._time < before)
        if self._fresh.height < height:
            self._whole = None
        return taken

    def peek(self, before: int) -> pl.DataFrame:
        """See :meth:`headrace.kernel.held.HeldState.peek`."""
        stored, fresh = self._stored_before(before), self._fresh_before(before)
        if not stored and len(fresh) == 1:
            return fresh[0]
        return self._fresh.merge([*stored, *fresh])

    def settle(self) -> bool:
        """See :meth:`headrace.kernel.held.HeldState.settle`."""
        if not self._segments:
            self._fresh.merged()
        return not self._segments

    def frames(self) -> list[pl.DataFrame]:
        """See :meth:`headrace.kernel.held.HeldState.frames`."""
        return [*map(self._all_of, self._segments), *self._fresh.frames()]

    def merged(self) -> pl.DataFrame:
        """See :meth:`headrace.kernel.held.HeldState.merged`."""
        return self._fresh.merge(self.frames()) if self._segments else self._fresh.merged()

    def snapshot(self) -> HeldSnapshot:
        """See :meth:`headrace.kernel.held.HeldState.snapshot`."""
        if self._whole is None:
            self._spill(keep=True)
        layout, whole = self._layout, [] if self._whole is None else [self._whole]
        part = HeldPart(self._groups, [segment.run for segment in (*self._segments, *whole)])
        return HeldSnapshot(layout.version, layout.schema, layout.key, layout.time, hash_probe(), [part], self.height)

    # -------------------------------------------------------------------------------------------------------- restoring

    def restore(self, snapshot: HeldSnapshot, where: str) -> None:
        """Begin with the rows of a snapshot that are of this instance's key groups.

        Raises:
            GraphChangedError: The snapshot has another version, key, time or columns.
        """
        layout, groups = self._layout, self._groups
        check_layout(snapshot.version, snapshot.schema, layout.version, layout.schema, where)
        then, now = [*snapshot.key, "/", snapshot.time], [*layout.key, "/", layout.time]
        if then != now:
            raise GraphChangedError(
                f"{where}: its state does not fit the job",
                detail=f"its rows were held by {' '.join(then)}, now by {' '.join(now)}",
                hint=f"undo the change, or give the {where.partition(' ')[0]} a new id to begin it with empty state",
            )
        known = snapshot.probe == hash_probe()
        for part in snapshot.parts:
            theirs = part.groups
            if not layout.key or (known and groups.first <= theirs.first and theirs.end <= groups.end):
                self._segments += [self._mapped(run.file, run.start) for run in part.segments]
            elif not known or (theirs.first < groups.end and groups.first < theirs.end):
                for run in part.segments:
                    self._add_own(self._mapped(run.file, run.start))
        if self.height <= self._sizes.whole and len(self._segments) == 1 and not self._fresh.height:
            self._whole = self._segments.pop()
            self._fresh.put(self._all_of(self._whole))

    def _add_own(self, segment: _Segment) -> None:
        """Add the rows of a segment that others hold, too."""
        rows = self._all_of(segment)
        group = key_groups(rows, self._layout.key)
        self.add(rows.filter(pl.Series((group >= self._groups.first) & (group < self._groups.end))))

    # ----------------------------------------------------------------------------------------------------------- inside

    def _times(self, frame: pl.DataFrame) -> pl.Series:
        return frame[self._layout.time].to_physical()

    def _read(self, segment: _Segment, start: int, stop: int) -> pl.DataFrame:
        rows = segment.rows.slice(start, stop - start)
        return decoded(rows, self._layout.schema) if self._wide else rows

    def _all_of(self, segment: _Segment) -> pl.DataFrame:
        return self._read(segment, segment.start, segment.file.rows)

    def _stored_before(self, before: int) -> list[pl.DataFrame]:
        cuts = [(segment, segment.until(before)) for segment in self._segments]
        return [self._read(segment, segment.start, stop) for segment, stop in cuts if stop > segment.start]

    def _fresh_before(self, before: int) -> list[pl.DataFrame]:
        return [frame.filter(self._time < before) for frame in self._fresh.frames()]

    # ---------------------------------------------------------------------------------------------------------- writing

    def _spill(self, *, keep: bool = False) -> None:
        """Write the fresh rows, with the segments that are due to be written anew.

        Args:
            keep: Rows that are all there is stay in memory, too, if they are few.
        """
        fresh = self._fresh.merged()
        due = self._due(fresh.height)
        if not fresh.height and not due:
            return
        rows = self._fresh.merge([*map(self._all_of, due), fresh]) if due else fresh
        self._segments = [segment for segment in self._segments if segment not in due]
        written, nbytes = self._written(rows), int(rows.estimated_size())
        if keep and not self._segments and rows.height <= self._sizes.whole and nbytes <= self._budget.share // 2:
            self._whole, self._nbytes = written, nbytes
            self._fresh.put(rows)
        else:
            self._segments.append(written)
            self._nbytes = 0
            self._fresh.put(fresh.clear())

    def _due(self, fresh: int) -> list[_Segment]:
        """Segments to be written anew together with so many fresh rows."""
        sizes = self._sizes
        if self.height <= sizes.whole:
            return list(self._segments) if fresh or len(self._segments) > 1 else []
        due = [segment for segment in self._segments if segment.height * _DEAD <= segment.file.rows]
        rest = sorted((segment for segment in self._segments if segment not in due), key=lambda each: each.height)
        total = fresh + sum(segment.height for segment in due)
        while total and rest and rest[0].height + total <= sizes.small:
            total += rest[0].height
            due.append(rest.pop(0))
        while total:
            near = [segment for segment in rest if tier(segment.height, sizes.fan) <= tier(total, sizes.fan)]
            more = sum(segment.height for segment in near)
            if len(near) + 1 < sizes.fan or not self._may_merge(total + more):
                break
            total += more
            due += near
            rest = rest[len(near) :]
        return due

    def _may_merge(self, rows: int) -> bool:
        """Where rows do not become fewer, large segments may as well stay apart."""
        return self._layout.merge is not None or rows <= self._sizes.segment

    def _written(self, rows: pl.DataFrame) -> _Segment:
        return self._mapped(self._runs.write(encoded(rows.sort(self._time))), 0)

    def _mapped(self, file: RunFile, start: int) -> _Segment:
        rows = mapped_rows(file.path, self._stored)
        return _Segment(file, rows, self._times(rows).to_numpy(), start)
