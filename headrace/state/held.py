"""Held rows that are larger than memory: segments on disk, sorted by time, and what has come since in memory.

Rows leave from the front of segments, which costs nothing but a number. A segment is written when the memory budget
says so, or at a snapshot, together with earlier ones where that is due: small ones at once, others when there are
several of about one size (each row is written a logarithmic number of times), and those of which most has gone. Where
rows of several segments belong together, that merges them, too. What is small stays in memory, and is written whole.

Files are mapped, so what is read again and again stays in the page cache, and none of it on the heap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.kernel.errors import GraphChangedError
from headrace.kernel.held import HeldLayout, HeldPart, HeldSegment, HeldSnapshot
from headrace.kernel.keyed import Hashes, KeyedRun, KeyGroups, RunFile, hash_probe, key_groups, key_hash
from headrace.kernel.layouts import check_layout
from headrace.kernel.merged import Merged
from headrace.state.key_index import KeyIndex, Numbers
from headrace.state.keyed import MemoryBudget, Sizes, tier
from headrace.state.run_columns import decoded, encoded, has_wide
from headrace.state.runs import RunFolder, mapped_rows
from headrace.state.segments import Segment

_DEAD: Final = 4
"""A segment is written anew with the next one when no more than one of so many rows is held."""

_MARKS: Final = pl.Schema({"mark": pl.Boolean()})


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
        self._kept = [name for name in layout.schema if name != layout.flag]
        self._stored = encoded(pl.DataFrame(schema={name: layout.schema[name] for name in self._kept})).schema
        self._wide = any(map(has_wide, layout.schema.dtypes()))
        self._time = pl.col(layout.time).to_physical()
        self._segments: list[Segment] = []
        """Oldest first, none of them empty."""
        self._fresh = Merged(layout.schema, layout.merge)
        self._nbytes = 0
        """About what the fresh rows take."""
        self._scans = 0
        """How often they have been searched through for few keys."""
        self._whole: Segment | None = None
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
        return self._fresh.height + sum(self._rows_of(segment) for segment in self._segments)

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
        removes = self._layout.flag is None
        stored = [segment.last_unmarked if removes else int(segment.times[-1]) for segment in self._segments]
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
        if not self._has_before(before):
            return self._fresh.frames()[0].clear()
        taken, height = self.peek(before), self._fresh.height
        self._advance(before)
        self._fresh.drop(self._time < before)
        if self._fresh.height < height:
            self._whole = None
        return taken

    def drop(self, before: int) -> None:
        """See :meth:`headrace.kernel.held.HeldState.drop`."""
        if not self._has_before(before):
            return
        self._advance(before)
        gone = sum(int((self._times(frame) < before).sum()) for frame in self._fresh.frames())
        if gone and gone * _DEAD >= self._fresh.height:
            self._fresh.drop(self._time < before)
            self._whole = None

    def numbered(self, place: str, keys: pl.DataFrame | None = None) -> pl.LazyFrame:
        """See :meth:`headrace.kernel.held.HeldState.numbered`."""
        asked = None if keys is None or not self._layout.key else key_hash(keys, self._layout.key)
        if asked is not None and self._fresh.height >= self._sizes.searched and self._is_few(asked, self._fresh.height):
            self._scans += 1
            if self._scans > self._sizes.scans:
                self._spill()
                self._scans = 0
        frames, first = [], 0
        for segment in self._segments:
            index = None if asked is None or not self._is_few(asked, segment.height) else self._indexed(segment)
            if asked is not None and index is not None:
                rows = index.find(asked)
                rows = rows[rows >= segment.start]
                places = pl.Series(place, first + rows - segment.start, pl.Int64)
                frames.append(self._shown(segment, rows, [places]))
            else:
                places = pl.int_range(first, first + segment.height, eager=True).alias(place)
                frames.append(self._shown(segment, slice(segment.start, segment.file.rows), [places]))
            first += segment.height
        numbers = pl.int_range(first, first + self._fresh.height, eager=True).alias(place)
        return pl.concat([*frames, pl.concat(self._fresh.frames()).with_columns(numbers)]).lazy()

    def mark(self, places: pl.Series) -> None:
        """See :meth:`headrace.kernel.held.HeldState.mark`."""
        left = np.unique(places.to_numpy())
        for segment in self._segments:
            count, height = int(np.searchsorted(left, segment.height)), segment.height
            if count:
                segment.mark(left[:count])
            left = left[count:] - height
        if self._layout.flag is None:
            self._skip()
        if left.size:
            self._mark_fresh(left)

    def _mark_fresh(self, left: npt.NDArray[np.int64]) -> None:
        frames, flag = [], self._layout.flag
        for frame in self._fresh.frames():
            count = int(np.searchsorted(left, frame.height))
            marked = np.zeros(frame.height, np.bool_) if flag is None else frame[flag].to_numpy().copy()
            marked[left[:count]] = True
            if flag is None:
                frames.append(frame.filter(pl.Series(~marked)) if count else frame)
            else:
                frames.append(frame.with_columns(pl.Series(flag, marked)) if count else frame)
            left = left[count:] - frame.height
        self._fresh.replace(frames)
        self._whole = None

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
        part = HeldPart(self._groups, [self._noted(segment) for segment in (*self._segments, *whole)])
        return HeldSnapshot(
            layout.version, layout.schema, layout.key, layout.time, layout.flag, hash_probe(), [part], self.height
        )

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
                self._segments += map(self._opened, part.segments)
            elif not known or (theirs.first < groups.end and groups.first < theirs.end):
                for segment in part.segments:
                    self._add_own(self._opened(segment))
        if self.height <= self._sizes.whole and len(self._segments) == 1 and not self._fresh.height:
            self._whole = self._segments.pop()
            self._fresh.put(self._all_of(self._whole))

    def _opened(self, segment: HeldSegment) -> Segment:
        opened, marks = self._mapped(segment.run.file, segment.run.start), segment.marks
        if marks is not None:
            opened.marked = marks.file
            opened.marks = mapped_rows(marks.file.path, _MARKS)["mark"].to_numpy().copy()
        return opened

    def _add_own(self, segment: Segment) -> None:
        """Add the rows of a segment that others hold, too."""
        rows = self._all_of(segment)
        group = key_groups(rows, self._layout.key)
        self.add(rows.filter(pl.Series((group >= self._groups.first) & (group < self._groups.end))))

    # ----------------------------------------------------------------------------------------------------------- inside

    def _times(self, frame: pl.DataFrame) -> pl.Series:
        return frame[self._layout.time].to_physical()

    def _rows_of(self, segment: Segment) -> int:
        return segment.unmarked if self._layout.flag is None else segment.height

    def _has_before(self, before: int) -> bool:
        earliest = self.earliest
        return earliest is not None and earliest < before

    def _advance(self, before: int) -> None:
        for segment in self._segments:
            segment.start = segment.until(before)
        self._skip()

    def _skip(self) -> None:
        """Let go of segments, and of what is in front of them, that nothing is held of."""
        if self._layout.flag is None:
            for segment in self._segments:
                segment.skip()
        self._segments = [segment for segment in self._segments if segment.height]

    def _is_few(self, asked: Hashes, rows: int) -> bool:
        """Whether so many keys are looked up one by one among so many rows."""
        return rows > self._sizes.whole and asked.size * self._sizes.few <= rows

    def _indexed(self, segment: Segment) -> KeyIndex | None:
        """A segment's index, made if it has been searched through often enough."""
        segment.scans += 1
        if segment.index is None and segment.scans > self._sizes.scans:
            keys = self._decoded(segment.rows.select(self._layout.key))
            segment.index = KeyIndex.made(key_hash(keys, self._layout.key), self._runs)
        return segment.index

    def _decoded(self, stored: pl.DataFrame) -> pl.DataFrame:
        wanted = pl.Schema({name: self._layout.schema[name] for name in stored.columns})
        return decoded(stored, wanted) if self._wide else stored

    def _shown(self, segment: Segment, which: slice | Numbers, further: Sequence[pl.Series] = ()) -> pl.DataFrame:
        """Rows of a segment, with further columns."""
        flag, marks = self._layout.flag, segment.marks
        rows = self._decoded(segment.rows[which])
        if flag is not None:
            none = pl.repeat(value=False, n=rows.height, dtype=pl.Boolean(), eager=True)
            rows = rows.with_columns((none if marks is None else pl.Series(marks[which])).alias(flag))
        if further:
            rows = rows.with_columns(further)
        return rows.filter(pl.Series(~marks[which])) if flag is None and marks is not None else rows

    def _all_of(self, segment: Segment) -> pl.DataFrame:
        return self._shown(segment, slice(segment.start, segment.file.rows))

    def _stored_before(self, before: int) -> list[pl.DataFrame]:
        cuts = [(segment, segment.until(before)) for segment in self._segments]
        return [self._shown(segment, slice(segment.start, stop)) for segment, stop in cuts if stop > segment.start]

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
        if not rows.height:
            self._nbytes = 0
            self._fresh.put(rows)
            return
        written, nbytes = self._written(rows), int(rows.estimated_size())
        if keep and not self._segments and rows.height <= self._sizes.whole and nbytes <= self._budget.share // 2:
            self._whole, self._nbytes = written, nbytes
            self._fresh.put(rows)
        else:
            self._segments.append(written)
            self._nbytes = 0
            self._fresh.put(fresh.clear())

    def _due(self, fresh: int) -> list[Segment]:
        """Segments to be written anew together with so many fresh rows."""
        sizes = self._sizes
        if self.height <= sizes.whole:
            return list(self._segments) if fresh or len(self._segments) > 1 else []
        due = [segment for segment in self._segments if self._rows_of(segment) * _DEAD <= segment.file.rows]
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

    def _written(self, rows: pl.DataFrame) -> Segment:
        rows, flag = rows.sort(self._time), self._layout.flag
        if flag is None:
            return self._mapped(self._runs.write(encoded(rows)), 0)
        written = self._mapped(self._runs.write(encoded(rows.drop(flag))), 0)
        if rows[flag].any():
            written.marks = rows[flag].to_numpy().copy()
        return written

    def _noted(self, segment: Segment) -> HeldSegment:
        """A segment with its marks on disk."""
        run = KeyedRun(segment.file, segment.start, segment.file.rows)
        if segment.marks is None:
            return HeldSegment(run)
        if segment.marked is None:
            segment.marked = self._runs.write(pl.DataFrame({"mark": segment.marks}, schema=_MARKS))
        return HeldSegment(run, KeyedRun(segment.marked, 0, segment.marked.rows))

    def _mapped(self, file: RunFile, start: int) -> Segment:
        rows = mapped_rows(file.path, self._stored)
        return Segment(file, rows, self._times(rows).to_numpy(), start)
