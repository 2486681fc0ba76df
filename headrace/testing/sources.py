"""A source that plays a script: frames, watermarks, failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl

from headrace.kernel.boundary import Boundary
from headrace.kernel.errors import InternalError
from headrace.kernel.protocols import Batch, Json, Position, ReadRequest


@dataclass(frozen=True, slots=True)
class Tick:
    """One step of a script.

    Attributes:
        rows: Rows to give out, with all columns of the source.
        watermark: The watermark after them, microseconds, or None.
        origin: Where they pretend to come from.
        maybe_late: Whether rows may be late.
        errors: Dead letters.
        fail: Raise this instead, once per opening.
    """

    rows: pl.DataFrame
    watermark: int | None = None
    origin: Literal["history", "tail"] = "tail"
    maybe_late: bool = False
    errors: pl.DataFrame | None = None
    fail: BaseException | None = None


@dataclass(frozen=True, slots=True)
class ScriptedSource:
    """Plays ``ticks`` in order; its position is the index of the next tick. Always bounded."""

    name: str
    schema: pl.Schema
    ticks: Sequence[Tick]

    def begin(self) -> Position:
        """See :meth:`Source.begin`."""
        return {"version": 1, "next": 0}

    def open(self, request: ReadRequest, position: Position | None) -> ScriptedReader:
        """See :meth:`Source.open`."""
        if position is not None and position.get("version") != 1:
            raise InternalError(f"position of {self.name} has version {position.get('version')!r}")
        return ScriptedReader(self, request, int(position["next"]) if position else 0)


class ScriptedReader:
    """See :class:`SourceReader`."""

    def __init__(self, source: ScriptedSource, request: ReadRequest, start: int) -> None:
        self._source = source
        self._request = request
        self._next = start

    def poll(self, timeout: float) -> Batch | None:  # noqa: ARG002 - the protocol's signature
        """See :meth:`SourceReader.poll`."""
        if self.finished:
            return None
        tick = self._source.ticks[self._next]
        if tick.fail is not None:
            raise tick.fail
        rows = tick.rows.lazy()
        if self._request.predicate is not None:
            rows = rows.filter(self._request.predicate)
        if self._request.columns is not None:
            rows = rows.select(self._request.columns)
        self._next += 1
        return Batch(
            rows,
            self.position,
            tick.watermark,
            tick.origin,
            tick.maybe_late,
            tick.errors,
            tick.rows.height + (tick.errors.height if tick.errors is not None else 0),
        )

    @property
    def finished(self) -> bool:
        """See :attr:`SourceReader.finished`."""
        return self._next >= len(self._source.ticks)

    @property
    def position(self) -> Position:
        """See :attr:`SourceReader.position`."""
        return {"version": 1, "next": self._next}

    def coverage(self, position: Position) -> Boundary | None:  # noqa: ARG002 - the protocol's signature
        """See :meth:`SourceReader.coverage`: a script has no topic."""
        return None

    def progress(self) -> Mapping[str, Json]:
        """See :meth:`SourceReader.progress`. The lag is in ticks."""
        lag = {"topic": self._source.name, "partition": 0, "next": self._next, "end": len(self._source.ticks)}
        return {"phase": "tail", "lag": [lag]}

    def close(self) -> None:
        """See :meth:`SourceReader.close`."""
