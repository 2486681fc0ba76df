"""Joins of streams: by an interval of event time, in windows, as of a time, or without bounds (a step ``join``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlglot import exp

from headrace.jobs.sql.conditions import Clocks, Conditions, apart, sort
from headrace.jobs.sql.errors import refuse
from headrace.jobs.sql.expressions import joined, quoted, row_text, text
from headrace.jobs.sql.lowering import Lowering
from headrace.jobs.sql.relations import Relation, Scope, Side
from headrace.jobs.sql.uses import Uses
from headrace.jobs.sql.windows import BOUNDS, LAST, WindowCall, is_clock
from headrace.kernel.durations import format_duration_us

_KEEPS_LEFT: Final = frozenset({"inner", "left", "semi", "anti"})
_ONE_SIDED: Final = frozenset({"semi", "anti"})
_LEFT_PREFIX: Final = "left."
_ONE: Final = "_one"
_COMPUTED: Final = "_on_"
"""Columns that are computed to be keys."""


@dataclass(frozen=True, slots=True)
class Join:
    """A join as it is written.

    Attributes:
        node: Where.
        alias: What the query calls the right side.
        member: The right side in FROM.
        how: inner, left, right, full, semi or anti.
        on: Its conditions.
    """

    node: exp.Expr
    alias: str
    member: exp.Expr
    how: str
    on: Sequence[exp.Expr]

    @property
    def as_of(self) -> bool:
        """Whether it takes one version of the right side."""
        return isinstance(self.node, exp.Join) and (self.node.method or "").upper() == "ASOF"

    @property
    def version(self) -> exp.Expr | None:
        """The time behind ``FOR SYSTEM_TIME AS OF``."""
        version = self.member.args.get("version")
        return version.expression if version is not None else None


@dataclass(slots=True)
class _Sides:
    """Both sides of a join on their way into it."""

    left: Scope
    right: Scope
    pairs: dict[str, str] = field(default_factory=dict)


def join_rows(
    to: Lowering,
    owner: str,
    left: Scope,
    join: Join,
    right: Relation,
    windows: tuple[WindowCall | None, WindowCall | None],
    uses: Uses,
) -> Scope:
    """Join the rows so far with another stream.

    Args:
        to: Where the steps go.
        owner: What ids of steps begin with.
        left: The rows so far.
        join: How.
        right: The other rows.
        windows: The windows of each side that nothing has grouped yet.
        uses: What the query names.

    Raises:
        SqlError: The join is not supported.
    """
    sides = _Sides(left, Scope(right, {join.alias: Side(right.columns)}))
    clocks = Clocks(_clocks(left), _clocks(sides.right))
    found = sort(join.on, set(left.sides), join.alias, uses.where, clocks)
    window = _window(join, windows, found)
    if left.rows.changes or right.changes or join.as_of or join.version is not None or window:
        found.rest += [bound for bound in found.bounds if not isinstance(bound, exp.EQ)]
        found.lower = found.upper = found.until = None
    elif found.turned and join.how != "inner":
        found.rest += found.bounds
        found.lower = found.until = None
    as_of = _as_of(join, sides, found, uses)
    _push(to, owner, sides, join, found)
    _keys(to, owner, sides, join, found)
    return _joined(to, owner, sides, join, found, {**window, **as_of}, uses)


def _clocks(scope: Scope) -> dict[tuple[str, str], int]:
    """The event time of a scope's rows, by member and column."""
    found = {}
    for alias, side in scope.sides.items():
        for column in {*scope.rows.clocks, *side.names, *_unprefixed(side, scope.rows.clocks)}:
            offset = scope.rows.clocks.get(side.physical(column))
            if offset is not None and (side.columns is None or column in side.columns):
                found[alias, column] = offset
    return found


def _unprefixed(side: Side, names: Mapping[str, int]) -> list[str]:
    return [name.removeprefix(side.prefix) for name in names if name.startswith(side.prefix)]


def _window(join: Join, windows: tuple[WindowCall | None, WindowCall | None], found: Conditions) -> dict[str, Any]:
    """The windows that both sides are in; their bounds are no keys then."""
    first, second = windows
    if first is None and second is None:
        return {}
    if first is None or second is None or first.spec != second.spec or not set(first.spec) & {"tumbling", "hopping"}:
        raise refuse(
            join.node,
            "only rows of the same windows can be joined, TUMBLE or HOP on both sides",
            "join without windows, or windows of the same kind and length",
        )
    bounds = [pair for pair in found.keys if all(isinstance(part, exp.Column) and part.name in BOUNDS for part in pair)]
    if not bounds:
        raise refuse(
            join.node, "the windows of both sides are not compared", "add ON a.window_start = b.window_start AND ..."
        )
    found.keys = [pair for pair in found.keys if pair not in bounds]
    return {"window": dict(first.spec)}


def _as_of(join: Join, sides: _Sides, found: Conditions, uses: Uses) -> dict[str, Any]:
    version = join.version
    if version is None and not join.as_of:
        return {}
    if version is not None and is_clock(version):
        raise refuse(
            join.node,
            "the version of a stream as of PROCTIME() depends on when rows are read",
            "use the event time: FOR SYSTEM_TIME AS OF rows.time",
        )
    left, right = _clocks(sides.left), _clocks(sides.right)
    if version is not None:
        is_time = isinstance(version, exp.Column) and left.get((uses.where(version) or "", version.name)) == 0
        if not is_time:
            raise refuse(version, f"{text(version)} is not the event time of the rows", "name the event-time column")
    else:
        clocks = Clocks(left, right)
        condition = next((one for one in found.rest if apart(one, clocks, uses.where) == (0, None)), None)
        if condition is None:
            raise refuse(
                join.node,
                "an ASOF JOIN takes the latest version that is not later than the row",
                "compare event times as they are: add ON ... AND rows.time >= versions.time",
            )
        found.rest = [one for one in found.rest if one is not condition]
    if version is not None and found.right:
        raise refuse(found.right[0], "a join as of a time has equal columns only", "ask for it in WHERE")
    if found.rest:
        raise refuse(found.rest[0], "a join as of a time has equal columns only", "filter in a query around it")
    return {"as_of": "backward"}


def _push(to: Lowering, owner: str, sides: _Sides, join: Join, found: Conditions) -> None:
    """Conditions on one side go below the join where that changes nothing; else they stay in it."""
    if join.how in {"inner", "right", "semi"}:
        texts = [row_text(one, sides.left) for one in found.left]
        sides.left = sides.left.on(to.filter(owner, texts, sides.left.rows, found.left[0] if found.left else join.node))
    else:
        found.rest += found.left
    if join.how in {"inner", "left", "semi", "anti"}:
        texts = [row_text(one, sides.right) for one in found.right]
        near = found.right[0] if found.right else join.node
        sides.right = sides.right.on(to.filter(f"{owner}-{join.alias}", texts, sides.right.rows, near))
    else:
        found.rest += found.right


def _keys(to: Lowering, owner: str, sides: _Sides, join: Join, found: Conditions) -> None:
    added: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for first, second in found.keys:
        names: list[str] = []
        for number, (part, scope) in enumerate(((first, sides.left), (second, sides.right))):
            written = row_text(part, scope)
            name = _column_name(part, scope)
            outer = join.how not in _ONE_SIDED and join.how != "inner"
            if name is None or (number and outer and name == names[0]):
                name = f"{_COMPUTED}{len(sides.pairs) + 1}"
                added[number][name] = written
            names.append(name)
        sides.pairs[names[0]] = names[1]
    if not sides.pairs:
        crossed = found.lower is not None or (isinstance(join.node, exp.Join) and join.node.kind == "CROSS")
        if not crossed and join.how not in _ONE_SIDED:
            raise refuse(
                join.node, "a join needs equal columns", f"write ON rows.k = {join.alias}.k AND ..., or CROSS JOIN"
            )
        added[0][_ONE] = added[1][_ONE] = "1"
        sides.pairs[_ONE] = _ONE
    sides.left = sides.left.on(to.with_columns(owner, added[0], sides.left.rows, join.node))
    sides.right = sides.right.on(to.with_columns(f"{owner}-{join.alias}", added[1], sides.right.rows, join.node))


def _column_name(part: exp.Expr, scope: Scope) -> str | None:
    if not isinstance(part, exp.Column):
        return None
    bound = scope.bound(part)
    return bound.name if isinstance(bound, exp.Column) else None


def _joined(
    to: Lowering, owner: str, sides: _Sides, join: Join, found: Conditions, kind: Mapping[str, Any], uses: Uses
) -> Scope:
    left, right = sides.left, sides.right
    starred = join.alias in uses.stars
    asked = join.how not in _ONE_SIDED or found.rest
    right_prefix = f"{join.alias}." if asked and not starred else ""
    left_prefix = _LEFT_PREFIX if starred and not uses.stars & set(left.sides) else ""
    until = None if found.until is None else _column_name(found.until, left if found.turned else right)
    left = _narrowed(to, owner, left, [*sides.pairs], uses, kind, join)
    right = _narrowed(to, f"{owner}-{join.alias}", right, [*sides.pairs.values()], uses, kind, join)
    body: dict[str, Any] = {"left": left.rows.node, "right": right.rows.node, "on": dict(sides.pairs), "how": join.how}
    body |= {"left_prefix": left_prefix} if left_prefix else {}
    body |= {"right_prefix": right_prefix} if right_prefix else {}
    body |= kind
    if found.lower is not None and found.upper is not None:
        body["within"] = {"lower": _signed(found.lower), "upper": _signed(found.upper)}
    if found.lower is not None and until is not None:
        body["within"] = {"lower": _signed(found.lower), "until": until}
    if found.turned and "within" in body:
        body |= {"left": body["right"], "right": body["left"], "on": {b: a for a, b in sides.pairs.items()}}
        body = {key: value for key, value in body.items() if key not in {"left_prefix", "right_prefix"}}
        body |= {"left_prefix": right_prefix} if right_prefix else {}
        body |= {"right_prefix": left_prefix} if left_prefix else {}
    same = {name for name, other in sides.pairs.items() if name == other}
    scope = _scope(left, right, join, left_prefix, right_prefix, same)
    if "window" in kind:
        scope = replace(scope, sides={alias: _with_bounds(side) for alias, side in scope.sides.items()})
    if found.rest:
        body["where"] = joined([row_text(one, _seeing(scope, right, join, right_prefix, same)) for one in found.rest])
    inputs = (right.rows, left.rows) if found.turned and "within" in body else (left.rows, right.rows)
    rows = _result(*inputs, join, body, body.get("left_prefix", ""), body.get("right_prefix", ""), same)
    return replace(scope, rows=rows.at(to.steps.add(owner, {"join": body}, join.node)))


def _narrowed(
    to: Lowering, owner: str, scope: Scope, keys: Sequence[str], uses: Uses, kind: Mapping[str, Any], join: Join
) -> Scope:
    """Only what the query needs of a side goes into the join, and so into its state."""
    if uses.stars & set(scope.sides):
        return replace(scope, extra=tuple(dict.fromkeys([*scope.extra, *(key for key in keys if _is_hidden(key))])))
    wanted = {side.physical(name): None for alias, side in scope.sides.items() for name in uses.columns.get(alias, ())}
    if "window" in kind:
        wanted = {name: None for name in wanted if name not in BOUNDS}
    wanted |= dict.fromkeys([*keys, *([scope.rows.time] if scope.rows.time else [])])
    known = scope.rows.columns
    extra = tuple(wanted)
    if known is not None and set(known) <= set(wanted):
        return replace(scope, extra=extra)
    rows = to.select(owner, {name: quoted(name) for name in sorted(wanted)}, scope.rows, join.node)
    return replace(scope, rows=replace(rows, columns=known), extra=extra)


def _is_hidden(key: str) -> bool:
    return key == _ONE or key.startswith(_COMPUTED)


def _with_bounds(side: Side) -> Side:
    """A side of a window join: the bounds are those of both."""
    columns = None if side.columns is None else tuple(name for name in side.columns if name != LAST)
    return replace(side, columns=columns, names={**side.names, **{bound: bound for bound in BOUNDS}})


def _scope(left: Scope, right: Scope, join: Join, left_prefix: str, right_prefix: str, same: set[str]) -> Scope:
    sides = {alias: _moved(side, left_prefix, same) for alias, side in left.sides.items()}
    if join.how not in _ONE_SIDED:
        sides[join.alias] = _moved(right.sides[join.alias], right_prefix, same)
    extra = [name if name in same else f"{left_prefix}{name}" for name in left.extra]
    if join.how not in _ONE_SIDED:
        extra += [name if name in same else f"{right_prefix}{name}" for name in right.extra]
    return replace(left, sides=sides, extra=tuple(dict.fromkeys(extra)))


def _seeing(scope: Scope, right: Scope, join: Join, right_prefix: str, same: set[str]) -> Scope:
    """What the join's own conditions see: also the right side of a semi join."""
    return replace(scope, sides={**scope.sides, join.alias: _moved(right.sides[join.alias], right_prefix, same)})


def _moved(side: Side, prefix: str, same: set[str]) -> Side:
    """A side whose columns have a prefix now, but for keys that both sides have under one name."""
    names = {column: name if name in same else f"{prefix}{name}" for column, name in side.names.items()}
    if prefix:
        names |= {name.removeprefix(side.prefix): name for name in same if name.startswith(side.prefix)}
    shared = {name if name in same else f"{prefix}{name}" for name in side.shared}
    own = {name for name in same if name.startswith(side.prefix)}
    return Side(side.columns, names, f"{prefix}{side.prefix}", frozenset(shared | own))


def _result(
    left: Relation, right: Relation, join: Join, body: Mapping[str, Any], prefix: str, other: str, same: set[str]
) -> Relation:
    """What is known of the output's event time (docs/job-spec.md, "Joins of streams")."""

    def named(column: str, put: str) -> str:
        return column if column in same else f"{put}{column}"

    changes = left.changes or right.changes or ("within" not in body and "window" not in body and "as_of" not in body)
    if "window" in body:
        return Relation("", BOUNDS[0], clocks={BOUNDS[0]: 0}, windowed=False)
    if "within" not in body and "as_of" not in body:
        plain = join.how in {"inner", "semi"} and not (left.changes or right.changes)
        return Relation("", changes=not plain)
    if join.how == "full":
        return Relation("", changes=changes)
    rows, put = (right, other) if join.how == "right" else (left, prefix)
    clocks = {named(column, put): offset for column, offset in rows.clocks.items()}
    if body.get("within") == {"lower": "0s", "upper": "0s"} and join.how == "inner":
        clocks |= {named(column, other): offset for column, offset in right.clocks.items()}
    time = named(rows.time, put) if rows.time else None
    windowed = left.windowed and right.windowed and body.get("within") == {"lower": "0s", "upper": "0s"}
    return Relation("", time, changes=False, clocks=clocks, windowed=windowed)


def _signed(us: int) -> str:
    return format_duration_us(us) if us >= 0 else f"-{format_duration_us(-us)}"
