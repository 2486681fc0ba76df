"""Keyed state: rows by key, changed by whole batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from headrace.kernel.errors import GraphChangedError
from headrace.kernel.keyed import KeyedLayout, KeyedRun, KeyedSnapshot, KeyGroups, hash_probe, key_groups, key_hash
from headrace.kernel.layouts import check_layout
from headrace.state.run_columns import decoded, encoded
from headrace.state.runs import RunFolder, mapped_rows

HASH: Final = "__hash"


@dataclass(slots=True)
class MemoryBudget:
    """Bytes that all keyed state of a job may take."""

    limit: int


class KeyedStore:
    """Implements :class:`headrace.kernel.keyed.KeyedState`.

    Args:
        layout: What is kept.
        runs: Where it lies on disk.
        budget: Memory, shared with others.
        where: Names the operator in error messages.
        snapshot: Where to resume.
        groups: The keys that are kept here.

    Raises:
        GraphChangedError: The snapshot has another version, key or columns.
    """

    def __init__(
        self,
        layout: KeyedLayout,
        runs: RunFolder,
        budget: MemoryBudget,
        where: str,
        snapshot: KeyedSnapshot | None = None,
        groups: KeyGroups | None = None,
    ) -> None:
        self._layout = layout
        self._runs = runs
        self._budget = budget
        self._now: int | None = None
        self._rows = pl.DataFrame(schema=layout.schema)
        if snapshot is not None:
            _check(snapshot, layout, where)
            groups = groups or KeyGroups()
            for part in snapshot.parts:
                for run in part:
                    rows = decoded(mapped_rows(run.file.path)[run.start : run.stop], layout.schema)
                    found = key_groups(rows, layout.key)
                    self.put(rows.filter(pl.Series((found >= groups.first) & (found < groups.end))))

    @property
    def height(self) -> int:
        """See :attr:`headrace.kernel.keyed.KeyedState.height`."""
        return self._rows.height

    def find(self, keys: pl.DataFrame) -> pl.DataFrame:
        """See :meth:`headrace.kernel.keyed.KeyedState.find`."""
        key = list(self._layout.key)
        return self._live(self._rows.join(keys.select(key), on=key, how="semi", nulls_equal=True))

    def put(self, rows: pl.DataFrame) -> None:
        """See :meth:`headrace.kernel.keyed.KeyedState.put`."""
        self.remove(rows)
        self._rows = self._rows.vstack(rows.select(self._rows.columns))

    def remove(self, rows: pl.DataFrame) -> None:
        """See :meth:`headrace.kernel.keyed.KeyedState.remove`."""
        identity = self._layout.identity
        if self._rows.height:
            self._rows = self._rows.join(rows.select(identity), on=identity, how="anti", nulls_equal=True)

    def expire(self, now_us: int) -> None:
        """See :meth:`headrace.kernel.keyed.KeyedState.expire`."""
        self._now = now_us

    def rows(self) -> Iterator[pl.DataFrame]:
        """See :meth:`headrace.kernel.keyed.KeyedState.rows`."""
        yield self._live(self._rows)

    def snapshot(self) -> KeyedSnapshot:
        """See :meth:`headrace.kernel.keyed.KeyedState.snapshot`."""
        layout = self._layout
        self._rows = self._live(self._rows)
        hashes = key_hash(self._rows, layout.key)
        order = np.argsort(hashes)
        file = self._runs.write(encoded(self._rows[order]).with_columns(pl.Series(HASH, hashes[order])))
        runs = [KeyedRun(file, 0, file.rows)] if file.rows else []
        return KeyedSnapshot(
            layout.version, layout.schema, layout.key, layout.within, hash_probe(), [runs], self._rows.height
        )

    def _live(self, rows: pl.DataFrame) -> pl.DataFrame:
        time, ttl = self._layout.time, self._layout.ttl_us
        if time is None or ttl is None or self._now is None:
            return rows
        return rows.filter((pl.col(time) + ttl > self._now).fill_null(value=True))


def _check(snapshot: KeyedSnapshot, layout: KeyedLayout, where: str) -> None:
    check_layout(snapshot.version, snapshot.schema, layout.version, layout.schema, where)
    then, now = [*snapshot.key, "/", *snapshot.within], [*layout.key, "/", *layout.within]
    if then != now:
        raise GraphChangedError(
            f"{where}: its state does not fit the job",
            detail=f"its rows were held by {' '.join(then)}, now by {' '.join(now)}",
            hint=f"undo the change, or give the {where.partition(' ')[0]} a new id to begin it with empty state",
        )
