"""The two sides of a join as one stream: tagged rows, and the names that columns have in the output.

A join is a keyed stateful operator over a *tagged union*: each input passes a :class:`JoinInput`, which gives its rows
the columns of both sides (its own under their output names, null for the other side's), the side, the key, and the
event time where the join needs one. So nothing else of the engine knows that there are two inputs.

Columns that are equal by name on both sides of the condition are given out once; everything else keeps its name, with a
prefix where one is given. Null keys never match.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

import polars as pl

from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import Determinism
from operators import event_time as times
from operators.errors import column_not_found, planning
from operators.expressions import Expression, RowExpression, row_expression
from operators.partials import one_zero
from operators.passage import Passage, is_exact
from operators.selection import selected
from operators.widening import common_type

How: TypeAlias = Literal["inner", "left", "right", "full", "semi", "anti"]
Side: TypeAlias = Literal["left", "right"]

SIDE: Final = "_side"
"""Which side a row is of: true for the right one."""

TIME: Final = "_time"
"""The row's event time, microseconds."""

UNTIL: Final = "_until"
"""The last event time of left rows that a right row may match, microseconds; only where the right side says so."""

_KEY: Final = "_key:"
_LATER: Final = pl.Datetime("us", "UTC")


@dataclass(frozen=True, slots=True, eq=False)
class JoinSide:
    """One input of a join.

    Attributes:
        schema: Its columns.
        on: Its key columns, in the order of the other side's.
        time: Its event-time column; None: the join needs none.
        prefix: Put before the names of its columns, but those of shared keys.
        instead: A column that gives the event time of rows that have none.
        until: A column of the right side: the last event time of left rows that a row may match.
        fed_by: What its rows come from, in words: state of another input does not serve it.
    """

    schema: pl.Schema
    on: Sequence[str]
    time: str | None = None
    prefix: str = ""
    instead: str | None = None
    until: str | None = None
    fed_by: str = ""

    def microseconds(self, where: str) -> pl.Expr | None:
        """The event time of its rows; None: the join needs none."""
        if self.time is None:
            return None
        time = times.microseconds(self.time, self.schema[self.time], where)
        if self.instead is None:
            return time
        return pl.coalesce(time, times.microseconds(self.instead, self.schema[self.instead], where))


@dataclass(frozen=True, slots=True, eq=False)
class JoinSides:
    """Both sides, checked against each other.

    Args:
        id: The join's id.
        how: The kind of join. ``semi`` and ``anti`` give the left side's columns only.
        left: The left side.
        right: The right side.
        where: A condition over the columns of both sides, by their output names; part of what makes rows match.
        later: Name of a column to add: the later of both rows' event times.

    Raises:
        SpecError: A column is not there (``COLUMN_NOT_FOUND``), two have one name (``COLUMN_CLASH``), keys have types
            that no type holds the values of, or the condition does not fit.
    """

    id: str
    how: How
    left: JoinSide
    right: JoinSide
    where: Expression | None = None
    later: str | None = None
    names: Mapping[Side, Mapping[str, str]] = field(init=False, repr=False)
    shared: Sequence[str] = field(init=False, repr=False)
    key_types: Sequence[pl.DataType] = field(init=False, repr=False)
    condition: RowExpression | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_types", self._checked_keys())
        shared = [a for a, b in zip(self.left.on, self.right.on, strict=True) if a == b]
        condition = None if self.where is None else row_expression(self.where, f"{self.label}, where")
        object.__setattr__(self, "shared", shared)
        object.__setattr__(self, "condition", condition)
        object.__setattr__(self, "names", {"left": self._named(self.left), "right": self._named(self.right)})
        if self.half:
            used = set() if condition is None else set(condition.expr.meta.root_names())
            kept = {name: out for name, out in self.names["right"].items() if out in used or name in shared}
            object.__setattr__(self, "names", {"left": self.names["left"], "right": kept})
        self._check_names()
        if condition is not None:
            both = pl.Schema({**self.own("left"), **self.own("right")})
            with planning(f"{self.label}, where", both.names()):
                rows = pl.LazyFrame(schema=both)
                rows.filter(condition.over(rows)).collect()

    @property
    def label(self) -> str:
        """Names the join in error messages."""
        return f"join {self.id!r}"

    @property
    def determinism(self) -> Determinism:
        """What the condition promises."""
        return Determinism.EXACT if self.condition is None else self.condition.determinism

    @property
    def half(self) -> bool:
        """Whether only rows of the left side are given out."""
        return self.how in {"semi", "anti"}

    @property
    def keys(self) -> list[str]:
        """The key columns of tagged rows."""
        return [f"{_KEY}{index}" for index in range(len(self.left.on))]

    @property
    def weighted(self) -> bool:
        """Whether a side is a changelog."""
        return any(columns.WEIGHT in side.schema for side in (self.left, self.right))

    @property
    def timed(self) -> bool:
        """Whether rows are tagged with their event time."""
        return self.left.time is not None

    def passages(self) -> Sequence[Passage]:
        """See :class:`operators.passage.PassesPredicates`.

        * A predicate on a side's columns passes into that side, unless its rows are also what others are kept without.
        * Keys are equal where rows match, so a predicate on the key of a side that passes into it holds for the other
          side's key, too: what fails it there matches only rows that are given out in no case.
        * Of a full join only predicates on keys that are given out once pass, into both sides.
        """
        into: dict[Side, dict[str, str]] = {"left": {}, "right": {}}
        passing: dict[Side, set[How]] = {"left": {"left", "inner", "semi", "anti"}, "right": {"right", "inner"}}
        for side, kinds in passing.items():
            if self.how in kinds:
                into[side] |= {out: name for name, out in self.names[side].items() if name not in self.shared}
        for a, b in zip(self.left.on, self.right.on, strict=True):
            if not is_exact(self.left.schema[a]) or self.left.schema[a] != self.right.schema[b]:
                continue
            if self.how != "right" and (a == b or self.how != "full"):
                into["left"][self.names["left"][a]] = a
                into["right"][self.names["left"][a]] = b
            if self.how in {"inner", "right"}:
                into["left"][self.names["right"][b]] = a
                into["right"][self.names["right"][b]] = b
        return [Passage(names, side) for side, names in into.items()]

    def narrowed(self, wanted: Collection[str], held: Collection[str] = ()) -> JoinSides:
        """The sides without columns that nobody needs; keys that are given out once stay.

        Args:
            wanted: Columns of the output.
            held: Columns of the right side that the operator needs itself, by their own names.
        """
        used = set() if self.condition is None else set(self.condition.expr.meta.root_names())
        kept = {*wanted, *used, *self.shared}
        names: dict[Side, Mapping[str, str]] = {
            "left": {name: out for name, out in self.names["left"].items() if out in kept},
            "right": {name: out for name, out in self.names["right"].items() if out in kept or name in held},
        }
        sides = replace(self)
        object.__setattr__(sides, "names", names)
        return sides

    def keeps(self, side: Side) -> bool:
        """Whether rows of a side without a match are given out."""
        return self.how in {"full", side} or (self.how == "anti" and side == "left")

    def own(self, side: Side) -> pl.Schema:
        """The columns of a side under their output names."""
        given = self.left if side == "left" else self.right
        once = {name: kind for name, kind in zip(given.on, self.key_types, strict=True) if name in self.shared}
        return pl.Schema({out: once.get(name, given.schema[name]) for name, out in self.names[side].items()})

    def output(self) -> pl.Schema:
        """The columns that the join gives out, without ``_weight``."""
        right = {} if self.half else self.own("right")
        later = {} if self.later is None else {self.later: _LATER}
        return pl.Schema({**self.own("left"), **right, **later})

    def outputs(self, left: str | None, right: str | None) -> list[pl.Expr]:
        """The columns that the join gives out, over rows that may have both sides' columns.

        Args:
            left: The column with the left row's event time; None: these rows have no left side.
            right: The same of the right one.
        """
        mine, other = self.own("left"), {} if self.half else self.own("right")
        out = [
            pl.col(name) if left is not None or name in self.shared else pl.lit(None, dtype).alias(name)
            for name, dtype in mine.items()
        ]
        out += [
            pl.col(name) if right is not None else pl.lit(None, dtype).alias(name)
            for name, dtype in other.items()
            if name not in self.shared
        ]
        if self.later is not None:
            times = [name for name in (left, right) if name is not None]
            out.append(pl.max_horizontal(times).cast(_LATER).alias(self.later))
        return out

    def matching(self, pairs: pl.LazyFrame) -> pl.LazyFrame:
        """The pairs for which the condition is true."""
        return pairs if self.condition is None else pairs.filter(self.condition.over(pairs))

    def without_null_keys(self, tagged: pl.LazyFrame) -> pl.LazyFrame:
        """Tagged rows but those that can never be given out: null keys match nothing."""
        is_key = pl.all_horizontal(pl.col(self.keys).is_not_null())
        if self.keeps("left") and self.keeps("right"):
            return tagged
        if self.keeps("left"):
            return tagged.filter(is_key | ~pl.col(SIDE))
        return tagged.filter(is_key | pl.col(SIDE) if self.keeps("right") else is_key)

    def describe(self) -> str:
        """The condition in words; part of a fingerprint."""
        on = ", ".join(a if a == b else f"{a} = {b}" for a, b in zip(self.left.on, self.right.on, strict=True))
        where = "" if self.condition is None else f", where {self.condition.source}"
        over = f", over {self.left.time} and {self.right.time}" if self.timed else ""
        of = f" of {self.left.fed_by} with {self.right.fed_by}" if self.left.fed_by else ""
        return f"{self.how}{of} on {on}{over}{where}"

    def late(self, tagged: pl.LazyFrame) -> pl.LazyFrame:
        """Tagged rows as they leave through the port ``late``: the side in words, both sides' columns, weights."""
        word = pl.when(pl.col(SIDE)).then(pl.lit("right")).otherwise(pl.lit("left")).alias(SIDE)
        weight = [columns.WEIGHT] if self.weighted else []
        return tagged.select(word, *self._both(), *weight)

    def tagged(self, side: Side, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Rows of one side with the columns of both."""
        given = self.left if side == "left" else self.right
        names, schema = self.names[side], rows.collect_schema()
        mine = {out: name for name, out in names.items()}
        both = [
            (_cast(mine[out], given.schema, dtype) if out in mine else pl.lit(None, dtype)).alias(out)
            for out, dtype in self._both().items()
        ]
        tags = [pl.lit(side == "right").alias(SIDE)]
        time = given.microseconds(self.label)
        if time is not None:
            tags.append(time.alias(TIME))
        if self.right.until is not None:
            tags.append(self._until(side).alias(UNTIL))
        tags += [
            one_zero(_cast(name, given.schema, kind), kind).alias(key)
            for key, name, kind in zip(self.keys, given.on, self.key_types, strict=True)
        ]
        if self.weighted:
            one = pl.lit(1, columns.WEIGHT_TYPE)
            tags.append(pl.col(columns.WEIGHT) if columns.WEIGHT in schema else one.alias(columns.WEIGHT))
        return selected(rows, [*tags, *both], (columns.ROW_WATERMARK,))

    def _until(self, side: Side) -> pl.Expr:
        column = self.right.until
        if side == "left" or column is None:
            return pl.lit(None, pl.Int64)
        return times.microseconds(column, self.right.schema[column], self.label).fill_null(times.EARLIEST)

    def _both(self) -> pl.Schema:
        return pl.Schema({**self.own("left"), **self.own("right")})

    def _named(self, side: JoinSide) -> dict[str, str]:
        shared = {a for a, b in zip(self.left.on, self.right.on, strict=True) if a == b}
        own = [name for name in side.schema if name not in {columns.ROW_WATERMARK, columns.WEIGHT}]
        return {name: name if name in shared else side.prefix + name for name in own}

    def _checked_keys(self) -> list[pl.DataType]:
        if not self.left.on:
            raise SpecError(f"{self.label} has no key", hint="name the columns that are equal on both sides in `on`")
        for word, side in (("left", self.left), ("right", self.right)):
            wanted = [*side.on, *(name for name in (side.time, side.until) if name)]
            for name in wanted:
                if name not in side.schema:
                    raise column_not_found(name, side.schema.names(), f"{self.label}, {word} side,")
        types = []
        for a, b in zip(self.left.on, self.right.on, strict=True):
            mine, other = self.left.schema[a], self.right.schema[b]
            common = common_type([mine, other])
            if common is None:
                raise SpecError(
                    f"{self.label}: key {a!r} is {mine} on the left and {b!r} is {other} on the right",
                    hint="cast one of them in a with_columns step before the join",
                )
            types.append(common)
        return types

    def _check_names(self) -> None:
        taken = list(self.names["left"].values())
        added = [out for out in self.names["right"].values() if out not in self.shared]
        added += [] if self.later is None else [self.later]
        clash = [name for at, name in enumerate(added) if name in taken or name in added[:at]]
        if clash:
            raise SpecError(
                f"{self.label}: both sides have {', '.join(map(repr, clash))}",
                hint="set left_prefix or right_prefix, or select before the join only what is needed; columns of the "
                "same name in `on` are given once",
                code="COLUMN_CLASH",
                context={"columns": clash},
            )


def _cast(name: str, schema: pl.Schema, wanted: pl.DataType) -> pl.Expr:
    return pl.col(name) if schema[name] == wanted else pl.col(name).cast(wanted)


@dataclass(frozen=True, slots=True, eq=False)
class JoinInput:
    """Tags the rows of one side; implements :class:`headrace.kernel.protocols.Transform`.

    Args:
        id: Stable id.
        sides: The join's sides.
        side: Which one.
    """

    id: str
    sides: JoinSides
    side: Side

    @property
    def determinism(self) -> Determinism:
        """Exact."""
        return Determinism.EXACT

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows with the columns of both sides."""
        return self.sides.tagged(self.side, rows)


@dataclass(frozen=True, slots=True)
class Together:
    """The tagged rows of both sides as they are: where the graph brings them together."""

    id: str

    @property
    def determinism(self) -> Determinism:
        """Exact."""
        return Determinism.EXACT

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows."""
        return rows
