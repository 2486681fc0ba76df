"""Where a source that follows a table stands."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal

from headrace.kernel.errors import InternalError
from headrace.kernel.protocols import Json, Position
from hybrid_source.splits import END_CURSOR

POSITION_VERSION: Final = 1
KIND: Final = "table"


@dataclass(frozen=True, slots=True)
class TablePosition:
    """Where a table source stands. All event times are microseconds.

    Attributes:
        phase: ``history`` while the first version is read whole, ``tail`` from then on.
        pin: The version that is being read, or was read last: all rows of a snapshot, or what one snapshot appended.
        cursor: Next split in it; None: from its start. At its end ``END_CURSOR``.
        watermark: The source's watermark.
        before: The watermark that all versions before this one make: rows of this one below it are late. None: unknown,
            no row is late.
        after: The watermark once this version has been read.
        event_time: The column that orders the splits; a cursor means nothing in another order.
        bound: Of a bounded run: ``{"until", "snapshot_id"}``, what it was asked to read to, and the last snapshot.
    """

    phase: Literal["history", "tail"]
    pin: Json
    cursor: Json = None
    watermark: int | None = None
    before: int | None = None
    after: int | None = None
    event_time: str | None = None
    bound: Json = None

    @property
    def is_read(self) -> bool:
        """The pinned version has been read to its end."""
        return bool(self.cursor == END_CURSOR)

    def to_json(self) -> Position:
        """The versioned JSON form."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        kept = {name: value for name, value in values.items() if value is not None}
        return {"version": POSITION_VERSION, "kind": KIND, **kept}

    @classmethod
    def from_json(cls, value: Position) -> TablePosition:
        """Read the JSON form.

        Raises:
            InternalError: Written by a later release, or by a source of another kind.
        """
        if value.get("version") != POSITION_VERSION or value.get("kind") != KIND:
            raise InternalError(
                f"a position of a table source was expected, found kind {value.get('kind')!r}, "
                f"version {value.get('version')!r}",
                hint="run the release that wrote the checkpoint, restore the source's tail, or use another uid",
            )
        return cls(**{name: found for name, found in value.items() if name not in {"version", "kind"}})
