"""A lookup table that is loaded again now and then, for every thread that asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import polars as pl

from headrace.kernel.clock import Clock
from headrace.kernel.errors import SchemaError, UnavailableError

_TRY_AGAIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Loaded:
    rows: pl.DataFrame
    at: float


class RefreshedTable:
    """The rows of a table, at most ``refresh_us`` old; twice that while the server does not answer.

    Args:
        load: Reads the rows as they are now.
        refresh_us: How old rows may be before they are loaded again, microseconds; None: they are loaded once.
        clock: Tells how old they are.
    """

    def __init__(self, load: Callable[[], pl.DataFrame], refresh_us: int | None, clock: Clock) -> None:
        self._load = load
        self._refresh_s = None if refresh_us is None else refresh_us / 1e6
        self._clock = clock
        self._lock = threading.Lock()
        self._loaded: _Loaded | None = None
        self._next = 0.0

    def rows(self) -> pl.DataFrame:
        """The rows; the same frame until they have been loaded again.

        Raises:
            HeadraceError: They cannot be loaded, and what was loaded last is too old, or was never there.
        """
        with self._lock:
            now = self._clock.monotonic()
            loaded = self._loaded
            if loaded is not None and (self._refresh_s is None or now < self._next):
                return loaded.rows
            try:
                loaded = _Loaded(self._load(), now)
            except UnavailableError:
                if loaded is None or self._refresh_s is None or now - loaded.at > 2 * self._refresh_s:
                    raise
                self._next = now + min(self._refresh_s, _TRY_AGAIN_S)
                return loaded.rows
            self._loaded = loaded
            self._next = now + (self._refresh_s or 0.0)
            return loaded.rows


def as_before(name: str, rows: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """Rows with the columns that the table had when the job started.

    Raises:
        SchemaError: One of them is gone, or has another type.
    """
    found = rows.schema
    wrong = [f"{of} was {dtype}, is {found.get(of, 'gone')}" for of, dtype in schema.items() if found.get(of) != dtype]
    if wrong:
        raise SchemaError(
            f"lookup table {name} has changed while the job ran",
            detail="; ".join(wrong),
            hint="restart the job to take the table as it is now",
            code="LOOKUP_TABLE_CHANGED",
        )
    return rows.select(schema.names())
