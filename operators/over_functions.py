"""What can be computed of the rows before a row: aggregates, numbers, and values of single rows, read from SQL text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import Determinism
from operators.aggregate_text import aggregate
from operators.aggregates import Aggregate, Kind
from operators.determinism import weakest
from operators.errors import EXPRESSION_INVALID
from operators.expressions import RowExpression, row_expression, split_arguments

_CALL: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*", re.DOTALL)
_MOST_BACK: Final = 100_000
_LAG_ARGUMENTS: Final = 3
_LATER: Final = frozenset({"lead", "ntile", "percent_rank", "cume_dist"})
_OF_ALL: Final = frozenset({Kind.DISTINCT, Kind.QUANTILE, Kind.LIST, Kind.JOINED, Kind.APPROXIMATE})
"""Aggregates that hold every value, or much of each row."""


class Number(StrEnum):
    """Which number a row gets, from 1."""

    ROW = "row_number"
    RANK = "rank"
    DENSE = "dense_rank"


@dataclass(frozen=True, slots=True)
class Numbered:
    """The place of a row among those of its key; whatever the frame. Int64."""

    number: Number


@dataclass(frozen=True, slots=True, eq=False)
class Lag:
    """The value of an earlier row of the key; whatever the frame.

    Attributes:
        argument: Which value.
        back: How many rows before, from 1.
        default: What takes its place where there are not so many rows, of the row itself; None: null.
    """

    argument: RowExpression
    back: int
    default: RowExpression | None


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """The value of the frame's first or last row, also where it is null."""

    argument: RowExpression
    last: bool


OverFunction: TypeAlias = Aggregate | Numbered | Lag | Edge


def over_function(written: str | Aggregate, where: str) -> OverFunction:
    """Read what is computed; aggregates are those of :func:`operators.aggregate_text.aggregate`.

    Raises:
        SpecError: It cannot be read, or needs rows that come later.
    """
    match = None if isinstance(written, Aggregate) else _CALL.fullmatch(written)
    name, given = (match[1].lower(), split_arguments(match[2])) if match else ("", [])
    if name in _LATER:
        raise SpecError(
            f"{where}: {name} needs rows that come later",
            hint="lag(x) looks back instead: give out the earlier row with what the later one says",
            code=EXPRESSION_INVALID,
        )
    if name in set(Number):
        if given not in ([], [""]):
            raise SpecError(f"{where}: {name}() takes no argument", code=EXPRESSION_INVALID)
        return Numbered(Number(name))
    if name == "lag":
        return _lag(given or [""], where)
    if name in {"first_value", "last_value"}:
        if not given or len(given) != 1 or not given[0]:
            raise SpecError(f"{where}: {name}(x) takes one argument", code=EXPRESSION_INVALID)
        return Edge(row_expression(given[0], where), name == "last_value")
    return aggregate(written, where)


def _lag(given: Sequence[str], where: str) -> Lag:
    if not given[0] or len(given) > _LAG_ARGUMENTS:
        raise SpecError(
            f"{where}: lag takes a value, how many rows it looks back, and what it gives where there are none",
            hint="write lag(x), lag(x, 2) or lag(x, 1, 0)",
            code=EXPRESSION_INVALID,
        )
    back = given[1].strip() if given[1:] else "1"
    if not back.isdigit() or not 1 <= int(back) <= _MOST_BACK:
        raise SpecError(
            f"{where}: lag looks back {back} rows",
            hint=f"write a whole number from 1 to {_MOST_BACK:,}",
            code=EXPRESSION_INVALID,
        )
    default = row_expression(given[2], where) if given[2:] else None
    return Lag(row_expression(given[0], where), int(back), default)


def holds_all(wanted: OverFunction) -> bool:
    """Whether it needs every value of its frame, not a summary of them."""
    return isinstance(wanted, Aggregate) and any(one.kind in _OF_ALL for _, one in wanted.leaves(""))


def determinism_of(wanted: OverFunction) -> Determinism:
    """What it promises."""
    match wanted:
        case Aggregate():
            return wanted.determinism
        case Edge():
            return wanted.argument.determinism
        case Lag(default=None):
            return wanted.argument.determinism
        case Lag(default=RowExpression() as default):
            return weakest([wanted.argument.determinism, default.determinism])
        case _:
            return Determinism.EXACT


def text_of(wanted: OverFunction) -> str:
    """Its canonical text, for fingerprints."""
    match wanted:
        case Aggregate():
            return wanted.text
        case Numbered():
            return f"{wanted.number}()"
        case Edge():
            return f"{'last' if wanted.last else 'first'}_value({wanted.argument.source.strip()})"
        case Lag():
            return f"lag({wanted.argument.source.strip()}, {wanted.back})"
