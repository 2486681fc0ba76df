"""Functions of SQL dialects as those that row expressions have; what these do not have is refused where it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from sqlglot import exp

from headrace.jobs.sql.errors import refuse
from headrace.jobs.sql.intervals import duration

_PARTS: Final[Mapping[type[exp.Expr], str]] = {
    exp.Year: "YEAR",
    exp.Quarter: "QUARTER",
    exp.Month: "MONTH",
    exp.Week: "WEEK",
    exp.WeekOfYear: "WEEK",
    exp.Day: "DAY",
    exp.DayOfMonth: "DAY",
    exp.DayOfYear: "DOY",
    exp.Hour: "HOUR",
    exp.Minute: "MINUTE",
    exp.Second: "SECOND",
}
_FORMATS: Final = {
    "yyyy": "%Y",
    "yy": "%y",
    "MMMM": "%B",
    "MMM": "%b",
    "MM": "%m",
    "dd": "%d",
    "DDD": "%j",
    "EEEE": "%A",
    "EEE": "%a",
    "HH": "%H",
    "hh": "%I",
    "mm": "%M",
    "ss": "%S",
    "SSSSSS": "%6f",
    "SSS": "%3f",
    "a": "%p",
}
_FORMAT: Final = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|.", re.DOTALL)
_WILD: Final = {"%": ".*", "_": "."}
_SPECIAL: Final = frozenset(r".^$*+?()[]{}|\/-&~#")
_EPOCH: Final = "EPOCH"


def lowered(node: exp.Expr) -> exp.Expr:
    """A node whose arguments are lowered already, as row expressions write it.

    Raises:
        SqlError: Nothing here means it.
    """
    if isinstance(node, exp.Anonymous):
        made = _BY_NAME.get(node.name.upper())
        return made(node) if made else node
    kind = type(node)
    if kind in _PARTS:
        return exp.Extract(this=exp.var(_PARTS[kind]), expression=node.this)
    made = _BY_TYPE.get(kind)
    return made(node) if made else node


def _call(name: str, *arguments: exp.Expr | None) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=[argument for argument in arguments if argument is not None])


def _arguments(node: exp.Expr, *counts: int) -> list[exp.Expr]:
    given = list(node.expressions)
    if len(given) not in counts:
        wanted = " or ".join(map(str, counts))
        raise refuse(node, f"{node.name.upper()} takes {wanted} arguments, not {len(given)}")
    return given


def _date_format(node: exp.Expr) -> exp.Expr:
    time, pattern = _arguments(node, 2)
    return _call("STRFTIME", time, _strftime(pattern))


def _strftime(pattern: exp.Expr) -> exp.Expr:
    """A pattern of Java's DateTimeFormatter as one of strftime; a pattern with % is one already."""
    if not isinstance(pattern, exp.Literal) or not pattern.is_string:
        raise refuse(pattern, "the pattern of a date must be a text in quotes", "e.g. 'yyyy-MM-dd HH:mm:ss'")
    text = str(pattern.this)
    return pattern if "%" in text else exp.Literal.string("".join(_pieces(pattern, text)))


def _pieces(node: exp.Expr, text: str) -> list[str]:
    made = []
    for match in _FORMAT.finditer(text):
        if match[1] is not None:
            made.append(match[1].replace("''", "'") or "'")
        elif match[2] is None:
            made.append(match[0])
        elif match[0] in _FORMATS:
            made.append(_FORMATS[match[0]])
        else:
            raise refuse(
                node, f"a pattern cannot hold {match[0]!r}", f"it can hold {', '.join(_FORMATS)}, and '…' texts"
            )
    return made


def _split_index(node: exp.Expr) -> exp.Expr:
    text, separator, index = _arguments(node, 3)
    if isinstance(index, exp.Literal) and index.is_int:
        return _call("SPLIT_PART", text, separator, exp.Literal.number(int(index.name) + 1))
    return _call("SPLIT_PART", text, separator, exp.Add(this=exp.Paren(this=index), expression=exp.Literal.number(1)))


def _day_of_week(node: exp.Expr) -> exp.Expr:
    """1 is Sunday, as in SQL's dialects with this function."""
    day = exp.Extract(this=exp.var("DOW"), expression=node.this)
    return exp.Paren(this=exp.Add(this=day, expression=exp.Literal.number(1)))


def _floor(node: exp.Expr) -> exp.Expr:
    unit = node.args.get("to")
    return _call("DATE_TRUNC", exp.Literal.string(unit.name.lower()), node.this) if unit else node


def _date_trunc(node: exp.Expr) -> exp.Expr:
    return _call("DATE_TRUNC", exp.Literal.string(str(node.args["unit"].name).lower()), node.this)


def _date_bin(node: exp.Expr) -> exp.Expr:
    if node.args.get("origin") or node.args.get("zone"):
        raise refuse(node, "DATE_BIN counts from 1970-01-01 in UTC", "leave the origin out")
    size = exp.Literal.string(duration(node.this)) if isinstance(node.this, exp.Interval) else node.this
    return _call("DATE_BIN", size, node.expression)


def _strpos(node: exp.Expr) -> exp.Expr:
    if node.args.get("position") or node.args.get("occurrence"):
        raise refuse(node, "a search that begins further on is not supported", "search in SUBSTRING(...)")
    return _found(node.this, node.args["substr"])


def _trim(node: exp.Expr) -> exp.Expr:
    name = {"LEADING": "LTRIM", "TRAILING": "RTRIM"}.get(str(node.args.get("position") or "").upper(), "TRIM")
    characters = node.expression
    if name == "TRIM" and characters is not None:
        return _call("LTRIM", _call("RTRIM", node.this, characters), characters)
    return _call(name, node.this, characters)


def _contains(node: exp.Expr) -> exp.Expr:
    return exp.Paren(this=exp.GT(this=_found(node.this, node.expression), expression=exp.Literal.number(0)))


def _found(text: exp.Expr, part: exp.Expr) -> exp.Expr:
    """Null in null, where Polars' ``strpos`` says 0."""
    return exp.Case(
        ifs=[
            exp.If(this=exp.Is(this=text.copy(), expression=exp.Not(this=exp.Null())), true=_call("STRPOS", text, part))
        ]
    )


def _extract(node: exp.Expr) -> exp.Expr:
    named = str(node.name).upper()
    return node if named != "DAYOFWEEK" else _day_of_week(exp.DayOfWeek(this=node.expression))


def _regexp_extract(node: exp.Expr) -> exp.Expr:
    group = node.args.get("group") or node.args.get("position")  # the parser takes the third argument for a position
    return _call("REGEXP_EXTRACT", node.this, node.expression, group)


def _unix(node: exp.Expr) -> exp.Expr:
    (time,) = _arguments(node, 1)
    seconds = exp.Extract(this=exp.var(_EPOCH), expression=time)
    return exp.cast(_call("FLOOR", seconds), "BIGINT")


def _to_date(node: exp.Expr) -> exp.Expr:
    given = _arguments(node, 1, 2)
    if len(given) == 1:
        return exp.cast(given[0], "DATE")
    return exp.cast(_call("STRPTIME", given[0], _strftime(given[1])), "DATE")


def _to_timestamp(node: exp.Expr) -> exp.Expr:
    given = _arguments(node, 1, 2)
    return _call("STRPTIME", given[0], _strftime(given[1])) if len(given) > 1 else exp.cast(given[0], "TIMESTAMP")


def _escape(node: exp.Expr) -> exp.Expr:
    """``LIKE 'pattern' ESCAPE 'c'`` as a regular expression."""
    like, mark = node.this, node.expression
    pattern = like.expression
    literal = all(isinstance(one, exp.Literal) and one.is_string for one in (pattern, mark))
    if not literal or len(str(mark.this)) != 1:
        raise refuse(
            node, "LIKE with ESCAPE takes a pattern and one character, in quotes", "e.g. LIKE '10$%' ESCAPE '$'"
        )
    made, escaped = [], False
    for character in str(pattern.this):
        if character == mark.this and not escaped:
            escaped = True
            continue
        wild = "" if escaped else _WILD.get(character, "")
        made.append(wild or (f"\\{character}" if character in _SPECIAL else character))
        escaped = False
    if escaped:
        raise refuse(node, "the pattern ends with its escape character", "write the character twice for itself")
    flags = "(?si)" if isinstance(like, exp.ILike) else "(?s)"
    found = _call("REGEXP_LIKE", like.this, exp.Literal.string(f"{flags}^{''.join(made)}$"))
    return exp.Not(this=found) if like.args.get("negate") else found


def _renamed(name: str) -> Callable[[exp.Expr], exp.Expr]:
    return lambda node: _call(name, *node.expressions)


def _cast(node: exp.Expr) -> exp.Expr:
    """``TIMESTAMP(3)`` and ``TIMESTAMP_LTZ(3)`` are microseconds here, whatever precision is asked for."""
    target = node.args["to"]
    if target.this in (exp.DType.TIMESTAMP, exp.DType.TIMESTAMPNTZ):
        target.replace(exp.DataType.build("TIMESTAMP"))
    elif target.this in (exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ):
        target.replace(exp.DataType.build("TIMESTAMPTZ"))
    return node


_BY_NAME: Final[Mapping[str, Callable[[exp.Expr], exp.Expr]]] = {
    "DATE_FORMAT": _date_format,
    "SPLIT_INDEX": _split_index,
    "UNIX_TIMESTAMP": _unix,
    "TO_DATE": _to_date,
    "TO_TIMESTAMP": _to_timestamp,
    "REGEXP": _renamed("REGEXP_LIKE"),
    "STRING_SPLIT": _renamed("STRING_TO_ARRAY"),
    "CARDINALITY": _renamed("ARRAY_LENGTH"),
}
_BY_TYPE: Final[Mapping[type[exp.Expr], Callable[[exp.Expr], exp.Expr]]] = {
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Contains: _contains,
    exp.DateBin: _date_bin,
    exp.DateTrunc: _date_trunc,
    exp.Escape: _escape,
    exp.TimestampTrunc: _date_trunc,
    exp.DayOfWeek: _day_of_week,
    exp.Extract: _extract,
    exp.Floor: _floor,
    exp.RegexpExtract: _regexp_extract,
    exp.Split: lambda node: _call("STRING_TO_ARRAY", node.this, node.expression),
    exp.StrPosition: _strpos,
    exp.Trim: _trim,
}
