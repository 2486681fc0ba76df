"""The instance of :mod:`operators.over`: rows that wait for the watermark, and what is held of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from headrace.kernel.held import HeldLayout
from headrace.kernel.keyed import KeyedLayout, KeyedState
from headrace.kernel.protocols import MAIN, Emission, OperatorContext, OperatorState
from operators.closed_time import ClosedTime
from operators.errors import computing
from operators.join_sides import TIME
from operators.over_sections import CODE, KEPT, LAST, NEW, PLACE, Contributing, Section, kept_rows, totals
from operators.ranked_order import by_row
from operators.row_order import ORDER

VERSION: Final = 2
ALL: Final = "_all"
"""The key where there is none: one for all rows."""
ROW: Final = "_row"
"""The row, behind what it is ordered by."""
_WAITING: Final = "waiting"


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A section, how rows contribute to it, and how what it holds is kept."""

    section: Section
    contributing: Contributing
    held: KeyedLayout

    def contributions(self, rows: pl.DataFrame) -> pl.DataFrame:
        """What rows contribute."""
        return self.contributing.plan(rows.lazy()).collect()


@dataclass(frozen=True, slots=True, eq=False)
class OverLayout:
    """What an instance needs to know of its operator.

    Attributes:
        where: Names the operator in error messages.
        schema: Types of the partials.
        keys: Key columns of the partials, at least one.
        parts: What is computed.
        names: The computed columns, in the order of the output.
        ttl: When a key is forgotten, microseconds; None: never.
        lateness: How much later than the watermark rows are given out, microseconds.
    """

    where: str
    schema: pl.Schema
    keys: Sequence[str]
    parts: Sequence[Part]
    names: Sequence[str]
    ttl: int | None
    lateness: int

    def output(self) -> pl.Schema:
        """The columns of the main port."""
        rows = rows_of(pl.DataFrame(schema=self.schema))
        given = {name: dtype for name, dtype in rows.schema.items() if not name.startswith(ORDER)}
        made: dict[str, pl.DataType] = {}
        for part in self.parts:
            due = pl.DataFrame(schema={CODE: pl.UInt32, TIME: pl.Int64}).hstack(part.contributions(rows))
            held = pl.DataFrame(schema={CODE: pl.UInt32, **part.held.schema}).drop(self.keys)
            made |= part.section.results(*part.section.joined(held, due, self.ttl))[0].schema
        return pl.Schema({**given, **{name: made[name] for name in self.names}})


def parts_of(
    sections: Sequence[Section], schema: pl.Schema, keys: Sequence[str], ttl: int | None, where: str
) -> list[Part]:
    """Sections over partials of a schema.

    Raises:
        SpecError: An expression does not fit the columns.
    """
    rows = rows_of(pl.DataFrame(schema=schema))
    order = [pl.col(name) for name in rows.columns if name.startswith(ORDER)]
    parts = []
    for section in sections:
        contributing = section.contributing(rows.schema, where, order)
        contributed = contributing.plan(rows.lazy()).collect_schema()
        forgotten = (section.frame.preceding or 0) + 1 if section.kind == "range" else ttl
        last = {} if forgotten is None else {LAST: pl.Int64()}
        columns = pl.Schema({**{name: schema[name] for name in keys}, **section.held(contributed), **last})
        time = None if forgotten is None else LAST
        held = KeyedLayout(section.kind, columns, list(keys), [PLACE], VERSION, time, forgotten)
        parts.append(Part(section, contributing, held))
    return parts


def rows_of(partials: pl.DataFrame) -> pl.DataFrame:
    """The rows as they were, behind what they are ordered by."""
    return partials.select(ROW).unnest(ROW)


class OverInstance:
    """Implements :class:`headrace.kernel.protocols.OperatorInstance`.

    State: the rows that wait, and by key what each section holds.

    Args:
        layout: The operator's definition.
        context: Where to resume, and keyed state.

    Raises:
        GraphChangedError: The state was made by another definition, over other types, or by a newer release.
    """

    def __init__(self, layout: OverLayout, context: OperatorContext) -> None:
        self._layout = layout
        self._waiting = context.held(HeldLayout(_WAITING, layout.schema, layout.keys, TIME, VERSION))
        self._held = [context.keyed(part.held) for part in layout.parts]
        self._time = ClosedTime(layout.lateness, None, context.state)

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows since the job began that came for closed time (after a drain), and those without event time."""
        return self._time.counts

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in rows; they are only given out by :meth:`advance` and :meth:`drain`."""
        closed = self._time.at
        self._waiting.add(self._time.accepted(partials, TIME, None if closed is None else pl.col(TIME) < closed))
        return {}

    def advance(self, watermark: int) -> Emission:
        """Give out the rows that ``watermark`` has passed."""
        closed = self._time.close(watermark)
        due = self._waiting.take(closed)
        with computing(self._layout.where):
            given = self._given(due, closed) if due.height else None
        for held in self._held:
            held.expire(closed)
        return {} if given is None else {MAIN: given}

    def drain(self) -> Emission:
        """Give out all rows. Time up to then is closed."""
        last = self._waiting.latest
        return {} if last is None else self.advance(last + self._layout.lateness + 1)

    def outgoing_watermark(self, watermark: int) -> int:
        """The earliest event time of the rows that wait."""
        waiting, closed = self._waiting.earliest, self._time.reached(watermark)
        return closed if waiting is None else min(closed, waiting)

    def rows_held(self) -> int:
        """Rows that wait, and what is held of keys."""
        return self._waiting.height + sum(held.height for held in self._held)

    def snapshot(self) -> OperatorState:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        keyed = {part.held.name: held.snapshot() for part, held in zip(self._layout.parts, self._held, strict=True)}
        held = {_WAITING: self._waiting.snapshot()}
        return OperatorState(VERSION, self._time.values, keyed=keyed, held=held)

    # ------------------------------------------------------------------------------------------------------ inside

    def _given(self, due: pl.DataFrame, closed: int) -> pl.DataFrame:
        """Due rows with what is computed of their frames."""
        names = list(self._layout.keys)
        keys = due.select(names).unique().sort(names).with_row_index(CODE)
        due = due.join(keys, on=names, nulls_equal=True)
        due = due[by_row(due, [CODE], ROW).rows]
        rows = rows_of(due)
        made: dict[str, pl.Series] = {}
        for part, held in zip(self._layout.parts, self._held, strict=True):
            contributed = due.select(CODE, TIME).hstack(part.contributions(rows))
            found = held.find(keys).join(keys, on=names, nulls_equal=True).sort(CODE, PLACE).drop(names)
            every, placed = part.section.joined(found, contributed, self._layout.ttl)
            results, state = part.section.results(every, placed)
            made |= {column.name: column for column in results}
            if part.section.kind == "totals":
                last = pl.Series(placed.times[placed.last_of_keys()])
                now = totals(state, placed).with_columns(last.alias(TIME), last.alias(LAST), pl.lit(0).alias(PLACE))
                _put(held, part, keys.hstack(now))
            else:
                self._put_rows(held, part, kept_rows(part.section, every, placed, closed).join(keys, on=CODE))
        given = [column for column in rows if not column.name.startswith(ORDER)]
        order = due.select(TIME).with_row_index().sort(TIME, "index")["index"]
        return pl.DataFrame([*given, *(made[name] for name in self._layout.names)])[order]

    def _put_rows(self, held: KeyedState, part: Part, rows: pl.DataFrame) -> None:
        held.remove(rows.filter(~pl.col(KEPT), ~pl.col(NEW)))
        changed = pl.col(NEW) if self._layout.ttl is None else pl.lit(value=True)
        _put(held, part, rows.filter(KEPT, changed))


def _put(held: KeyedState, part: Part, rows: pl.DataFrame) -> None:
    held.put(rows.select(part.held.schema.names()).cast(part.held.schema))
