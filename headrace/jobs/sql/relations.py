"""What a name in FROM stands for, and which column of which rows a name in an expression means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from headrace.jobs.names import suggest
from headrace.jobs.sql.errors import refuse


@dataclass(frozen=True, slots=True)
class Relation:
    """Rows that a step or a source gives.

    Attributes:
        node: The source or step.
        time: The event-time column of its rows; None: unknown, or there is none. It may be one that queries do not see.
        columns: The columns that queries see, in order; None: not known before the job is planned.
        changes: The rows are a changelog.
        clocks: Columns that are the event time plus so many microseconds.
        windowed: The rows are results of windows: rows of one window have one event time.
        tumbling: The length of the windows that the rows lie in, and whose bounds they hold; empty: of none.
    """

    node: str
    time: str | None = None
    columns: tuple[str, ...] | None = None
    changes: bool = False
    clocks: Mapping[str, int] = field(default_factory=dict)
    windowed: bool = False
    tumbling: str = ""

    @property
    def hidden(self) -> bool:
        """Whether the rows hold a column that queries do not see."""
        return self.columns is not None and self.time is not None and self.time not in self.columns

    def at(self, node: str) -> Relation:
        """The same columns, given by another step."""
        return replace(self, node=node)


@dataclass(frozen=True, slots=True)
class Side:
    """A member of FROM.

    Attributes:
        columns: What it has; None: not known.
        names: What columns of it are called in the rows, where they are not called what they are.
        prefix: Stands before those that are not in ``names``.
        shared: What columns are called in the rows that are another member's, too: keys, which are there once.
    """

    columns: tuple[str, ...] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    shared: frozenset[str] = frozenset()

    def physical(self, column: str) -> str:
        """What a column is called in the rows."""
        return self.names.get(column, f"{self.prefix}{column}")


@dataclass(frozen=True, slots=True)
class Scope:
    """The rows that expressions of a query look at.

    Attributes:
        rows: Where they come from.
        sides: The members of FROM by alias.
        extra: Columns of the rows that belong to none of them.
        tables: Members that are static tables: a name that others may have, too, is not theirs.
    """

    rows: Relation
    sides: Mapping[str, Side]
    extra: Sequence[str] = ()
    tables: frozenset[str] = frozenset()

    def on(self, rows: Relation) -> Scope:
        """The same names over the rows of another step."""
        return replace(self, rows=rows)

    def side_of(self, column: exp.Column) -> str | None:
        """The member of FROM that a column belongs to; None where nobody has it.

        Raises:
            SqlError: Several may have it.
        """
        parts = [part.name for part in column.parts]
        if len(parts) > 1 and parts[0] in self.sides:
            return parts[0]
        found = self.candidates(parts[0])
        streams = [alias for alias in found if alias not in self.tables]
        if len(streams) == 1 or (found and not streams):
            return (streams or found)[0]
        if len(found) > 1:
            raise refuse(
                column,
                f"{parts[0]!r} may be a column of {' or '.join(found)}",
                f"say whose it is, e.g. {found[0]}.{parts[0]}",
            )
        return found[0] if found else None

    def candidates(self, name: str) -> list[str]:
        """The members that may have a column of this name: those that are known to, else those of unknown columns."""
        known = [alias for alias, side in self.sides.items() if side.columns is not None and name in side.columns]
        return known or [alias for alias, side in self.sides.items() if side.columns is None]

    def bound(self, column: exp.Column) -> exp.Expr:
        """The column as the rows have it; fields of structs stay behind it.

        Raises:
            SqlError: There is none.
        """
        alias = self.side_of(column)
        parts = list(column.parts)
        if alias is None:
            raise self._unknown(column, parts)
        if len(parts) > 1 and parts[0].name == alias and not self._is_struct(alias, parts):
            parts = parts[1:]
        side = self.sides[alias]
        if side.columns is not None and parts[0].name not in side.columns:
            raise self._unknown(column, parts)
        name = side.physical(parts[0].name)
        first = parts[0] if name == parts[0].name else exp.to_identifier(name, quoted=True)
        return exp.Dot.build([first, *parts[1:]]) if len(parts) > 1 else exp.column(first.copy())

    def _is_struct(self, alias: str, parts: Sequence[exp.Expr]) -> bool:
        """``a.b`` where the only member of FROM is ``a``, and has a struct ``a`` but no column ``b``."""
        columns = self.sides[alias].columns
        return columns is not None and alias in columns and parts[1].name not in columns

    def _unknown(self, column: exp.Column, parts: Sequence[exp.Expr]) -> Exception:
        name = parts[0].name
        columns = [found for side in self.sides.values() for found in side.columns or ()]
        written = ".".join(part.name for part in column.parts)
        if len(column.parts) > 1 and column.parts[0].name not in {*self.sides, *columns}:
            return refuse(
                column, f"{written}: FROM has no {column.parts[0].name!r}", f"FROM has {', '.join(self.sides)}"
            )
        return refuse(column, f"there is no column {name!r}", suggest(name, columns))
