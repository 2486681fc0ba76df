"""Conditions of joins: which sides they look at, equal columns, and bounds on how far apart event times are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp

from headrace.jobs.sql.errors import SqlError
from headrace.jobs.sql.intervals import duration
from headrace.kernel.durations import parse_duration_us

_MIRRORED: Final[Mapping[type[exp.Expr], type[exp.Expr]]] = {
    exp.GT: exp.LT,
    exp.LT: exp.GT,
    exp.GTE: exp.LTE,
    exp.LTE: exp.GTE,
}
_WITH_ALIAS: Final = 2
Where = Callable[[exp.Column], str | None]
"""Which side a column belongs to."""


@dataclass(slots=True)
class Conditions:
    """The conditions of a join of two sides, sorted.

    Attributes:
        left: Those on the left side alone.
        right: Those on the right side alone.
        keys: Pairs of expressions, the left's and the right's, that are equal.
        bounds: Those that bound how far apart event times are.
        rest: All others.
        lower: The left's event time is at least the right's plus this, in microseconds; None: no such bound.
        upper: ... and at most the right's plus this.
        until: In the place of ``upper``, a column that says until when its row matches.
        turned: The column is the left side's, and ``lower`` is how far the right's event time is behind the left's.
    """

    left: list[exp.Expr] = field(default_factory=list)
    right: list[exp.Expr] = field(default_factory=list)
    keys: list[tuple[exp.Expr, exp.Expr]] = field(default_factory=list)
    bounds: list[exp.Expr] = field(default_factory=list)
    rest: list[exp.Expr] = field(default_factory=list)
    lower: int | None = None
    upper: int | None = None
    until: exp.Column | None = None
    turned: bool = False


@dataclass(frozen=True, slots=True)
class Clocks:
    """The columns of each side that are its event time plus so many microseconds, as expressions name them."""

    left: Mapping[tuple[str, str], int]
    right: Mapping[tuple[str, str], int]


def sides_of(node: exp.Expr, where: Where) -> set[str | None]:
    """The sides that an expression looks at."""
    return {where(column) for column in node.find_all(exp.Column)}


def sort(conditions: Iterable[exp.Expr], left: set[str], right: str, where: Where, clocks: Clocks) -> Conditions:
    """Sort the conditions of a join.

    Args:
        conditions: Conditions that look at nothing but both sides.
        left: The members of FROM on the left.
        right: That on the right.
        where: Which member a column belongs to.
        clocks: Event times.
    """
    found = Conditions()
    for condition in conditions:
        sides = sides_of(condition, where)
        if sides <= left:
            found.left.append(condition)
        elif sides == {right}:
            found.right.append(condition)
        else:
            _both(condition, found, right, where, clocks)
    if found.lower is None or found.upper is None:
        _find_until(found, where, clocks)
    if found.until is None and (found.lower is None or found.upper is None):
        found.rest += [bound for bound in found.bounds if not _is_key(bound, found)]
        found.bounds, found.lower, found.upper = [], None, None
    return found


def _both(condition: exp.Expr, found: Conditions, right: str, where: Where, clocks: Clocks) -> None:
    bounds = _bounds(condition, clocks, where)
    if bounds is not None:
        found.bounds.append(condition)
        for lower, upper in bounds:
            found.lower = (
                lower if found.lower is None else max(found.lower, lower if lower is not None else found.lower)
            )
            found.upper = (
                upper if found.upper is None else min(found.upper, upper if upper is not None else found.upper)
            )
    if isinstance(condition, exp.EQ):
        sides = [sides_of(part, where) for part in (condition.left, condition.right)]
        if {right} in sides and not any(side >= {right} for side in sides if side != {right}):
            pair = (condition.left, condition.right)
            found.keys.append(pair if sides[1] == {right} else pair[::-1])
            return
    if bounds is None:
        found.rest.append(condition)


def _find_until(found: Conditions, where: Where, clocks: Clocks) -> None:
    """``a.at >= b.at AND a.at <= b.expires``: bounds of which the upper one is a column."""
    named = {key[0]: side for side, known in (("left", clocks.left), ("right", clocks.right)) for key in known}
    for turned in (False, True):
        mine, other = ("right", "left") if turned else ("left", "right")
        lower: list[int] = []
        until: list[exp.Column] = []
        used: list[exp.Expr] = []
        for condition in [*found.bounds, *found.rest]:
            parts = [_end(part, mine, other, named, where, clocks) for part in _comparisons(condition)]
            if parts and all(part is not None for part in parts):
                lower += [part for part in parts if isinstance(part, int)]
                until += [part for part in parts if isinstance(part, exp.Column)]
                used.append(condition)
        if lower and len(until) == 1:
            found.lower, found.upper, found.until, found.turned = max(lower), None, until[0], turned
            found.rest = [one for one in [*found.bounds, *found.rest] if not any(one is part for part in used)]
            found.bounds = used
            return


def _comparisons(condition: exp.Expr) -> list[exp.Expr]:
    if isinstance(condition, exp.Between):
        low, high = condition.args["low"], condition.args["high"]
        return [exp.GTE(this=condition.this, expression=low), exp.LTE(this=condition.this, expression=high)]
    return [condition]


def _end(
    condition: exp.Expr, mine: str, other: str, named: Mapping[str, str], where: Where, clocks: Clocks
) -> int | exp.Column | None:
    """How far ``mine`` is behind ``other`` at least, or a column of ``other`` that it is not behind; None: neither."""
    bound = apart(condition, clocks, where)
    if bound is not None:
        lower, upper = bound if mine == "left" else tuple(None if end is None else -end for end in reversed(bound))
        return lower if upper is None else None
    if isinstance(condition, exp.GTE):
        condition = exp.LTE(this=condition.expression, expression=condition.this)
    if not isinstance(condition, exp.LTE) or not isinstance(condition.expression, exp.Column):
        return None
    moment, column = _moment(condition.this, clocks, where), condition.expression
    plain = len(column.parts) <= _WITH_ALIAS and named.get(where(column) or "") == other
    return column if moment == (mine, 0) and plain else None


def _is_key(condition: exp.Expr, found: Conditions) -> bool:
    return any(
        {id(condition.args.get("this")), id(condition.args.get("expression"))} == {id(a), id(b)} for a, b in found.keys
    )


def _bounds(condition: exp.Expr, clocks: Clocks, where: Where) -> Sequence[tuple[int | None, int | None]] | None:
    """What a condition says of left minus right, at least and at most; None: nothing of event times."""
    if isinstance(condition, exp.Between):
        low = exp.GTE(this=condition.this, expression=condition.args["low"])
        high = exp.LTE(this=condition.this, expression=condition.args["high"])
        found = [apart(part, clocks, where) for part in (low, high)]
    else:
        found = [apart(condition, clocks, where)]
    return None if any(one is None for one in found) else [one for one in found if one is not None]


def apart(condition: exp.Expr, clocks: Clocks, where: Where) -> tuple[int | None, int | None] | None:
    """How far a condition puts the left's event time behind the right's, microseconds: at least, and at most.

    None: it compares something else.
    """
    if not isinstance(condition, exp.EQ | exp.GT | exp.GTE | exp.LT | exp.LTE):
        return None
    first, second = (_moment(part, clocks, where) for part in (condition.left, condition.right))
    if first is None or second is None or first[0] == second[0]:
        return None
    kind: type[exp.Expr] = type(condition)
    if first[0] == "right":
        first, second = second, first
        kind = _MIRRORED.get(kind, kind)
    us = second[1] - first[1]
    if kind is exp.EQ:
        return us, us
    if kind in (exp.GT, exp.GTE):
        return us + (kind is exp.GT), None
    return None, us - (kind is exp.LT)


def _moment(node: exp.Expr, clocks: Clocks, where: Where) -> tuple[str, int] | None:
    """An expression as the event time of a side plus so many microseconds."""
    if isinstance(node, exp.Paren):
        return _moment(node.this, clocks, where)
    if isinstance(node, exp.Column):
        key = (where(node) or "", node.name)
        for side, known in (("left", clocks.left), ("right", clocks.right)):
            if key in known:
                return side, known[key]
        return None
    if isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval):
        moment = _moment(node.this, clocks, where)
        try:
            shift = parse_duration_us(duration(node.expression))
        except SqlError:
            return None
        return None if moment is None else (moment[0], moment[1] + (shift if isinstance(node, exp.Add) else -shift))
    return None
