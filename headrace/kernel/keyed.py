"""State by key: what an operator says of it, what it gets, and how keys are spread over instances.

Keys are hashed to 64 bits; the first :data:`GROUP_BITS` of these are the *key group*. An instance of an operator owns a
range of groups, and everything that is kept by key is sorted by hash, so that a range of groups is a slice.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

Hashes: TypeAlias = npt.NDArray[np.uint64]

GROUP_BITS: Final = 8
GROUPS: Final = 1 << GROUP_BITS
"""Number of key groups, and so the most instances of one operator."""

_SPREAD: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_SEED: Final = 0x243F_6A88


def key_hash(rows: pl.DataFrame, key: Sequence[str]) -> Hashes:
    """The hash of each row's key. Null is a value; equal keys of equal types have equal hashes.

    It is the same in every process with the same release of Polars on the same kind of machine, and not beyond: what is
    stored by hash is stored with :func:`hash_probe`.
    """
    named = [pl.col(name) for name in key]
    exprs = [
        column.cast(pl.String) if isinstance(rows.schema[name], pl.Categorical) else column
        for name, column in zip(key, named, strict=True)
    ]
    hashed: Hashes = rows.select(exprs).hash_rows(_SEED).to_numpy()
    spread: Hashes = hashed * _SPREAD
    return spread


def hash_probe() -> str:
    """Changes when :func:`key_hash` gives other hashes than it did."""
    return _probe(_SEED)


@functools.cache
def _probe(seed: int) -> str:  # noqa: ARG001 - what it depends on
    sample = pl.DataFrame({"i": [0, 1, -1, None], "s": ["", "a", "headrace" * 9, None], "f": [0.0, 1.5, -1e300, None]})
    hashed = np.concatenate([key_hash(sample, [name]) for name in sample.columns] + [key_hash(sample, ["i", "s"])])
    return f"{int(np.bitwise_xor.reduce(hashed * np.arange(1, 2 * hashed.size, 2, dtype=np.uint64))):016x}"


def key_groups(rows: pl.DataFrame, key: Sequence[str]) -> npt.NDArray[np.int64]:
    """The key group of each row, 0 up to (not including) :data:`GROUPS`."""
    return (key_hash(rows, key) >> np.uint64(64 - GROUP_BITS)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class KeyGroups:
    """A range of key groups.

    Attributes:
        first: The first one.
        end: The one behind the last one.
    """

    first: int = 0
    end: int = GROUPS

    @classmethod
    def of(cls, instance: int, instances: int) -> KeyGroups:
        """What one of several instances owns; together they own all groups, each once."""
        return cls(instance * GROUPS // instances, (instance + 1) * GROUPS // instances)

    def slice(self, hashes: Hashes) -> slice:
        """Where the hashes of these groups stand in sorted ones."""
        shift = 64 - GROUP_BITS
        start = 0 if self.first == 0 else int(np.searchsorted(hashes, np.uint64(self.first << shift)))
        stop = hashes.size if self.end == GROUPS else int(np.searchsorted(hashes, np.uint64(self.end << shift)))
        return slice(start, stop)


@dataclass(frozen=True, slots=True)
class KeyedLayout:
    """What an operator keeps by key.

    Attributes:
        name: Unique within the operator.
        schema: Columns of a row. Names that begin with ``__`` are taken.
        key: The columns by which rows are found, at least one: the operator's ``key_columns``, in their order.
        within: Further columns that tell rows of one key apart; none: a key has one row.
        version: Of the meaning of the columns; an operator that changes it cannot read what is there.
        time: An Int64 column with event time in microseconds; a row lives until ``time + ttl_us``. Null: for ever.
        ttl_us: How long; None: for ever. Not part of what is stored: another value holds for old rows, too.
    """

    name: str
    schema: pl.Schema
    key: Sequence[str]
    within: Sequence[str] = ()
    version: int = 1
    time: str | None = None
    ttl_us: int | None = None

    @property
    def identity(self) -> list[str]:
        """The columns that name one row."""
        return [*self.key, *self.within]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RunFile:
    """An immutable file of rows, sorted by hash. Whoever makes it may remove it when nothing refers to it any more.

    Attributes:
        id: Its name, used once for all time.
        path: Where it lies on this machine.
        rows: How many rows.
        nbytes: Its length.
    """

    id: str
    path: Path
    rows: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class KeyedRun:
    """The rows of a file from ``start`` up to (not including) ``stop``."""

    file: RunFile
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class KeyedPart:
    """What one instance has written.

    Attributes:
        base: Runs of which no two share a hash.
        changes: Runs whose rows replace or remove those of the base and of earlier changes.
    """

    base: Sequence[KeyedRun]
    changes: Sequence[KeyedRun]


@dataclass(frozen=True, slots=True)
class KeyedSnapshot:
    """Keyed state at a barrier, opaque to operators: immutable, valid however the state goes on.

    Attributes:
        version: As in the layout.
        schema: As in the layout.
        key: As in the layout.
        within: As in the layout.
        probe: :func:`hash_probe` of the process that wrote it.
        parts: What different instances wrote, of which no two hold one key.
        rows: Rows in it, those that wait to be merged counted more than once.
    """

    version: int
    schema: pl.Schema
    key: Sequence[str]
    within: Sequence[str]
    probe: str
    parts: Sequence[KeyedPart]
    rows: int


def united(snapshots: Sequence[KeyedSnapshot]) -> KeyedSnapshot:
    """What several instances of one operator hold of one layout, as one snapshot. At least one."""
    first = snapshots[0]
    parts = [part for snapshot in snapshots for part in snapshot.parts]
    rows = sum(snapshot.rows for snapshot in snapshots)
    return KeyedSnapshot(first.version, first.schema, first.key, first.within, first.probe, parts, rows)


class KeyedState(Protocol):
    """Rows by key, larger than memory. Used by one thread.

    Null is a key value like others. Floats that are keys have one zero and one NaN (``partials.one_zero``).
    """

    @property
    def height(self) -> int:
        """Rows held; some may be counted more than once, or not any more, until they are merged."""

    def find(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The rows held for the keys of a frame, in any order, each once however often its key is asked for.

        Args:
            keys: Has at least the columns of the key.
        """

    def put(self, rows: pl.DataFrame) -> None:
        """Insert rows, or replace those of the same key and ``within``; each at most once in the frame."""

    def remove(self, rows: pl.DataFrame) -> None:
        """Remove rows, where they are held.

        Args:
            rows: Has at least the columns of the key and ``within``.
        """

    def expire(self, now_us: int) -> None:
        """Rows whose ``time + ttl_us`` is not above ``now_us`` are not held any more. Time never goes back."""

    def rows(self) -> Iterator[pl.DataFrame]:
        """All rows, in pieces that fit into memory, in no order. The state must not change meanwhile."""

    def snapshot(self) -> KeyedSnapshot:
        """The rows at this barrier; costs what has changed since the last one."""
