"""What an operator over frames computes together, since it holds the same of a key: sums of all, or some rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import numpy as np
import polars as pl

from headrace.kernel.errors import SpecError
from operators import partials
from operators.aggregate_set import build_all, state_of
from operators.aggregates import Aggregate
from operators.errors import EXPRESSION_INVALID, planning
from operators.join_sides import TIME
from operators.over_frames import FIRST_VALUE, LAST_VALUE, Frame, Placed, reduced
from operators.over_functions import Edge, Lag, Number, Numbered, OverFunction, text_of
from operators.partials import ROWS

CODE: Final = "_code"
"""The number of a row's key."""
PLACE: Final = "_place"
"""The place of a held row in its key; they have no gaps."""
LAST: Final = "_last"
"""The event time by which a held row is forgotten."""
NEW: Final = "_new"
"""Whether a row is given out now."""
KEPT: Final = "_kept"
_TIMES: Final = "count:_times"
"""Contributes 1 for the first row of an event time."""
_LAG: Final = "lag:"
_DEFAULT: Final = "default:"

Kind: TypeAlias = Literal["totals", "rows", "range"]


@dataclass(frozen=True, slots=True, eq=False)
class Contributing:
    """How what rows contribute to a section is computed: ``rows`` of each row, ``made`` of these."""

    rows: Mapping[str, pl.Expr]
    made: Mapping[str, pl.Expr]

    def plan(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """What rows contribute."""
        # Not select alone: over literals it would lose the number of rows.
        return rows.with_columns(**self.rows).with_columns(**self.made).select(*self.made)


@dataclass(frozen=True, slots=True)
class Section:
    """Columns that are computed of the same held state.

    Attributes:
        kind: What is held of a key: ``totals``, one row that sums up all of its rows; ``rows``, its last ones;
            ``range``, those not longer ago than the frame reaches.
        frame: The frame of aggregates and edges.
        columns: What is computed, by output name.
    """

    kind: Kind
    frame: Frame
    columns: Mapping[str, OverFunction] = field(default_factory=dict)

    def __str__(self) -> str:
        others = [text_of(one) for one in self.columns.values() if not isinstance(one, Aggregate)]
        return f"{self.kind} {', '.join(sorted([state_of(self.aggregates), *others]))}"

    @property
    def aggregates(self) -> Mapping[str, Aggregate]:
        """The aggregates among the columns."""
        return {name: one for name, one in self.columns.items() if isinstance(one, Aggregate)}

    @property
    def back(self) -> int:
        """How many rows before a row are looked at, for ``rows``."""
        lags = [one.back for one in self.columns.values() if isinstance(one, Lag)]
        return max([self.frame.preceding or 0, *lags] if self.aggregates or self._edges else lags)

    @property
    def _edges(self) -> Mapping[str, Edge]:
        return {name: one for name, one in self.columns.items() if isinstance(one, Edge)}

    def contributing(self, schema: pl.Schema, where: str, order: Sequence[pl.Expr]) -> Contributing:
        """How what each row contributes to the section's columns is computed of rows of a schema.

        Args:
            schema: The rows.
            where: For error messages.
            order: What rows are ordered by (:mod:`operators.row_order`).

        Raises:
            SpecError: An argument does not fit the columns, or its type does not go with the aggregate.
        """
        build = build_all(self.aggregates, schema, where, order)
        made = {name: partials.contribution(name, built) for name, built in build.state.items()}
        for name, edge in self._edges.items():
            made[_edge(name, edge)] = edge.argument.expr
        for name, lag in self.columns.items():
            if isinstance(lag, Lag):
                made[f"{_LAG}{name}"] = value = lag.argument.expr
                if lag.default is not None:
                    made[f"{_DEFAULT}{name}"] = pl.when(pl.lit(value=False)).then(value).otherwise(lag.default.expr)
        contributing = Contributing(build.rows, made)
        with planning(where, schema.names()):
            types = contributing.plan(pl.LazyFrame(schema=schema)).collect_schema()
        for name in self.columns:
            _check_default(f"{where}, {name!r}", types.get(f"{_LAG}{name}"), types.get(f"{_DEFAULT}{name}"))
        return contributing

    def held(self, contributed: pl.Schema) -> pl.Schema:
        """The columns that are held of a key, but for its own, of those that rows contribute."""
        times = {_TIMES: pl.Int64()} if self.kind == "totals" else {}
        kept = {name: dtype for name, dtype in contributed.items() if not name.startswith(_DEFAULT)}
        return pl.Schema({PLACE: pl.Int64(), TIME: pl.Int64(), **kept, **times})

    def joined(self, found: pl.DataFrame, due: pl.DataFrame, ttl_us: int | None) -> tuple[pl.DataFrame, Placed]:
        """Held rows, and behind them new ones, in order, with :data:`NEW`.

        Args:
            found: Held rows of the keys, with :data:`CODE`, sorted by it and by :data:`PLACE`.
            due: New rows with their contributions, sorted by :data:`CODE` and in order.
            ttl_us: When a key is forgotten.
        """
        marked = [found.with_columns(pl.lit(value=False).alias(NEW)), due.with_columns(pl.lit(value=True).alias(NEW))]
        rows = pl.concat(marked, how="diagonal").sort(CODE, maintain_order=True)
        placed = Placed.of(rows[CODE], rows[TIME], rows[NEW], ttl_us)
        if self.kind != "totals":
            return rows, placed
        here = np.arange(rows.height)
        first = pl.Series((placed.starts == here) | (placed.times != placed.times[here - 1]), dtype=pl.Boolean)
        return rows.with_columns(pl.when(NEW).then(first.cast(pl.Int64)).otherwise(_TIMES).alias(_TIMES)), placed

    def results(self, rows: pl.DataFrame, placed: Placed) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The section's columns of the new rows, and the state columns that they are computed of."""
        begins, ends = placed.frames(self.frame)
        state = reduced(rows, [name for name in rows.columns if _is_state(name)], begins, ends)
        made = state.select(
            *(partials.final(one, name, state.schema) for name, one in self.aggregates.items()),
            *(pl.col(_edge(name, one)).alias(name) for name, one in self._edges.items()),
        ).get_columns()
        for name, one in self.columns.items():
            if isinstance(one, Numbered):
                made.append(_number(one.number, rows, placed).alias(name))
            elif isinstance(one, Lag):
                made.append(_lag(name, one, rows, placed))
        return pl.DataFrame(made), state


def totals(state: pl.DataFrame, placed: Placed) -> pl.DataFrame:
    """The state columns of the last row of each key, by its number: what is held of the key."""
    return state[np.searchsorted(placed.new, placed.last_of_keys())]


def kept_rows(section: Section, rows: pl.DataFrame, placed: Placed, closed: int) -> pl.DataFrame:
    """Rows with :data:`PLACE` and :data:`LAST`, and with :data:`KEPT`: whether later rows may look at them.

    Args:
        section: It holds rows.
        rows: Rows, of the keys that have new ones.
        placed: Their places.
        closed: No later row has an earlier event time.
    """
    last = placed.last_of_keys()
    counts = np.diff(last, prepend=-1)
    ends, firsts = np.repeat(last, counts), np.repeat(last - counts + 1, counts)
    here = np.arange(rows.height)
    if section.kind == "range":
        kept, reached = placed.times >= closed - (section.frame.preceding or 0), placed.times
    else:
        kept = (here > ends - section.back) & (placed.starts == placed.starts[ends])
        reached = placed.times[ends]
    base = rows[PLACE].fill_null(0).gather(firsts).to_numpy()
    return rows.with_columns(
        pl.Series(PLACE, base + here - firsts, dtype=pl.Int64),
        pl.Series(LAST, reached, dtype=pl.Int64),
        pl.Series(KEPT, kept, dtype=pl.Boolean),
    )


def _check_default(where: str, value: pl.DataType | None, default: pl.DataType | None) -> None:
    if value is None or default is None or value == default or value.is_(pl.Null):
        return
    if not (value.is_numeric() and default.is_numeric()):
        raise SpecError(
            f"{where}: lag gives {value}, and its default is of another type",
            hint="cast(... as ...) one of them",
            code=EXPRESSION_INVALID,
        )


def _is_state(name: str) -> bool:
    return ":" in name and not name.startswith((_LAG, _DEFAULT))


def _edge(name: str, edge: Edge) -> str:
    return f"{LAST_VALUE if edge.last else FIRST_VALUE}{name}"


def _number(number: Number, rows: pl.DataFrame, placed: Placed) -> pl.Series:
    starts, here = placed.starts[placed.new], placed.new
    match number:
        case Number.ROW:
            return reduced(rows, [ROWS], starts, here + 1).to_series()
        case Number.RANK:
            return reduced(rows, [ROWS], starts, placed.peers() + 1).to_series()
        case Number.DENSE:
            return reduced(rows, [_TIMES], starts, here + 1).to_series()


def _lag(name: str, lag: Lag, rows: pl.DataFrame, placed: Placed) -> pl.Series:
    there = placed.new - lag.back
    known = there >= placed.starts[placed.new]
    value = rows[f"{_LAG}{name}"].gather(np.where(known, there, placed.new))
    default = pl.lit(None) if lag.default is None else rows[f"{_DEFAULT}{name}"].gather(placed.new)
    chosen = pl.when(pl.Series(known, dtype=pl.Boolean)).then(value).otherwise(default)
    return pl.select(chosen.alias(name)).to_series()


def sections_of(columns: Mapping[str, OverFunction], frame: Frame) -> list[Section]:
    """Columns by what must be held for them."""
    found: dict[Kind, dict[str, OverFunction]] = {"totals": {}, "rows": {}, "range": {}}
    for name, one in columns.items():
        kind: Kind = "totals" if frame.preceding is None else frame.unit
        if isinstance(one, Numbered | Lag):
            kind = "totals" if isinstance(one, Numbered) else "rows"
        found[kind][name] = one
    return [Section(kind, _frame(kind, frame), some) for kind, some in found.items() if some]


def _frame(kind: Kind, frame: Frame) -> Frame:
    """The frame, or one that nothing looks at where the section has no aggregate."""
    if kind == "totals":
        return frame if frame.preceding is None else Frame("rows")
    return frame if frame.preceding is not None and frame.unit == kind else Frame("rows", 0)
