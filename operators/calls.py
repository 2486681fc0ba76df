"""Functions of one row that Polars' SQL does not have: calls in a text, put into the expression that Polars reads.

The text goes to Polars with a column in place of each call; the column is then replaced in the expression's tree. The
JSON form of that tree is not a public format of Polars: tests/contract/test_rowwise_contract.py holds what is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import polars as pl

from headrace.kernel.durations import parse_duration_us
from operators.expression_trees import expr_of, tree_of

Parse = Callable[[str], pl.Expr]
Call = Callable[[Sequence[str], Parse], pl.Expr]

_LITERAL: Final = re.compile(r"'((?:[^']|'')*)'")
_PIECES: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\w+|.""", re.DOTALL)
_UNITS: Final = {
    "microsecond": "1us",
    "millisecond": "1ms",
    "second": "1s",
    "minute": "1m",
    "hour": "1h",
    "day": "1d",
    "week": "1w",
    "month": "1mo",
    "quarter": "1q",
    "year": "1y",
}
_MOST_GROUP: Final = 99
_PATTERN_ARGUMENTS: Final = (2, 3)
_TRUNCATE_ARGUMENTS: Final = 2
_ROUND_ARGUMENTS: Final = 2
_ARGUMENT: Final = "argument "
_EPOCH: Final = "epoch"
_REPLACE_ARGUMENTS: Final = 3
_TWO_ARGUMENTS: Final = 2


def regexp_extract(arguments: Sequence[str], parse: Parse) -> pl.Expr:
    """``regexp_extract(text, 'pattern', group)``: a group of the first match; 0, the default, is the whole match.

    Null where nothing matches, and where the group takes no part in the match.

    Raises:
        ValueError: The arguments are others.
    """
    if len(arguments) not in _PATTERN_ARGUMENTS:
        raise ValueError("regexp_extract takes a text, a pattern and the number of a group")
    group = arguments[2] if len(arguments) == max(_PATTERN_ARGUMENTS) else "0"
    if not group.isdigit() or int(group) > _MOST_GROUP:
        raise ValueError(f"the group of regexp_extract must be a number from 0 to {_MOST_GROUP}, not {group}")
    pattern = _literal(arguments[1], "the pattern of regexp_extract")
    try:
        pl.Series([""]).str.extract(pattern, int(group))
    except pl.exceptions.ComputeError as error:
        raise ValueError(f"the pattern of regexp_extract cannot be read: {error}") from error
    return parse(arguments[0]).str.extract(pattern, int(group))


def date_trunc(arguments: Sequence[str], parse: Parse) -> pl.Expr:
    """``date_trunc('hour', time)``: the beginning of the hour, day, week (Monday) and so on. Keeps the type.

    Raises:
        ValueError: The arguments are others.
    """
    if len(arguments) != _TRUNCATE_ARGUMENTS:
        raise ValueError("date_trunc takes a unit and a time")
    unit = _literal(arguments[0], "the unit of date_trunc").lower()
    if unit not in _UNITS:
        raise ValueError(f"date_trunc has no unit {unit!r}; there are {', '.join(_UNITS)}")
    return parse(arguments[1]).dt.truncate(_UNITS[unit])


def date_bin(arguments: Sequence[str], parse: Parse) -> pl.Expr:
    """``date_bin('10m', time)``: the beginning of the ten minutes, counted from the Unix epoch. Keeps the type.

    The bin of a row is its tumbling window of that length. As PostgreSQL's function of this name, without an origin.

    Raises:
        ValueError: The arguments are others.
    """
    if len(arguments) != _TRUNCATE_ARGUMENTS:
        raise ValueError("date_bin takes a duration and a time")
    size_us = parse_duration_us(_literal(arguments[0], "the duration of date_bin"))
    if not size_us:
        raise ValueError("the duration of date_bin must be positive")
    return parse(arguments[1]).dt.truncate(f"{size_us}us")


def rounded(arguments: Sequence[str], parse: Parse) -> pl.Expr:
    """``round(x, digits)``: half away from zero, as in SQL's standard and most dialects; Polars rounds half to even.

    Raises:
        ValueError: The arguments are others.
    """
    digits = arguments[1] if arguments[1:] else "0"
    if not 1 <= len(arguments) <= _ROUND_ARGUMENTS or not digits.isdigit():
        raise ValueError("round takes a number and how many digits stay behind the point, from 0 on")
    return parse(arguments[0]).round(int(digits), mode="half_away_from_zero")


def left(arguments: Sequence[str], parse: Parse) -> pl.Expr:
    """``left(text, n)``: the first characters, or all but the last ones where n is negative; null of null.

    Raises:
        ValueError: The arguments are others.
    """
    text, count = _two(arguments, "left")
    return parse(text).cast(pl.String).str.head(parse(count))


def right(arguments: Sequence[str], parse: Parse) -> pl.Expr:
    """``right(text, n)``: as :func:`left`, from the other end.

    Raises:
        ValueError: The arguments are others.
    """
    text, count = _two(arguments, "right")
    return parse(text).cast(pl.String).str.tail(parse(count))


def replaced(arguments: Sequence[str], parse: Parse) -> pl.Expr:
    """``replace(text, 'part', by)``: every occurrence of a part by another text; null where either text is null.

    Raises:
        ValueError: The arguments are others.
    """
    if len(arguments) != _REPLACE_ARGUMENTS:
        raise ValueError("replace takes a text, the part to look for, and what comes in its place")
    part = _literal(arguments[1], "the part that replace looks for")
    text, by = parse(arguments[0]), parse(arguments[2])
    if not text.meta.root_names():
        text = pl.concat_str(text, by.str.head(0))  # as many as there are rows
    made = text.str.replace_all(part, by.fill_null(""), literal=True) if part else text
    return made if _LITERAL.fullmatch(arguments[2].strip()) else pl.when(by.is_not_null()).then(made)


def substring(arguments: Sequence[str], parse: Parse) -> pl.Expr:
    """``substring(text, start, length)`` or ``substring(text from start for length)``: from the ``start``-th character.

    0 is the place before the first one; a negative ``start`` counts from the end.

    Raises:
        ValueError: The arguments are others.
    """
    given = _apart(arguments[0], "from", "for") if len(arguments) == 1 else list(arguments)
    if not _TWO_ARGUMENTS <= len(given) <= _REPLACE_ARGUMENTS or not all(one.strip() for one in given):
        raise ValueError("substring takes a text, a first place and maybe a length")
    text, start = parse(given[0]), parse(given[1]).cast(pl.Int64)
    size = text.str.len_chars().cast(pl.Int64)
    begin = pl.when(start < 0).then(size + start).otherwise(start - 1)
    first = pl.max_horizontal(begin, 0)
    if len(given) == _TWO_ARGUMENTS:
        return pl.when(start.is_not_null()).then(text.str.slice(first))
    length = parse(given[2]).cast(pl.Int64)
    taken = pl.max_horizontal(begin + length - first, 0)
    return pl.when(start.is_not_null() & length.is_not_null()).then(text.str.slice(first, taken))


def trimmed(side: str) -> Call:
    """``trim(text, 'characters')``, or with ``[leading | trailing | both] 'characters' from text``.

    Spaces where no characters are named, as in SQL; Polars takes off all white space.

    Args:
        side: ``both``, ``leading`` or ``trailing``.
    """

    def made(arguments: Sequence[str], parse: Parse) -> pl.Expr:
        given, end = list(arguments), side
        if len(given) == 1 and len(apart := _apart(given[0], "from")) > 1:
            word, _, rest = apart[0].strip().partition(" ")
            end, characters = (word.lower(), rest) if word.lower() in _STRIPS else (side, apart[0])
            given = [apart[1], characters.strip() or "' '"]
        if not 1 <= len(given) <= _TWO_ARGUMENTS or not all(one.strip() for one in given):
            raise ValueError("trim takes a text, and maybe the characters to take off")
        return _STRIPS[end](parse(given[0]), parse(given[1]) if given[1:] else pl.lit(" "))

    return made


def position(arguments: Sequence[str], parse: Parse) -> pl.Expr:
    """``position(part in text)``: as ``strpos(text, part)``.

    Raises:
        ValueError: The arguments are others.
    """
    given = _apart(arguments[0], "in") if len(arguments) == 1 else []
    part, text = _two(given, "position")
    return _whole("strpos", [text, part], parse)


def extract(arguments: Sequence[str], parse: Parse) -> pl.Expr:
    """``extract(part from time)``.

    Raises:
        ValueError: The arguments are others.
    """
    given = _apart(arguments[0], "from") if len(arguments) == 1 else []
    part, time = _two(given, "extract")
    made = put(pl.sql_expr(f'extract({part} from "{_ARGUMENT}")'), {_ARGUMENT: parse(time)})
    return made if part.strip().lower() == _EPOCH else made.cast(pl.Int64)


def date_part(arguments: Sequence[str], parse: Parse) -> pl.Expr:
    """``date_part('part', time)``: as :func:`extract`.

    Raises:
        ValueError: The arguments are others.
    """
    part, time = _two(arguments, "date_part")
    return extract([f"{_literal(part, 'the part of date_part')} from {time}"], parse)


def whole(name: str) -> Call:
    """A function whose result Polars gives as a short or unsigned number: as an Int64, which can be computed with."""
    return lambda arguments, parse: _whole(name, arguments, parse)


def _whole(name: str, arguments: Sequence[str], parse: Parse) -> pl.Expr:
    columns = [f"{_ARGUMENT}{index}" for index in range(len(arguments))]
    called = ", ".join(f'"{column}"' for column in columns)
    given = dict(zip(columns, map(parse, arguments), strict=True))
    return put(pl.sql_expr(f"{name}({called})"), given).cast(pl.Int64)


def _apart(text: str, *words: str) -> list[str]:
    """What stands between words of the language, which come one after the other, outside of parentheses."""
    depth, found, wanted = 0, [""], list(words)
    for piece in _PIECES.findall(text):
        depth += (piece in "([") - (piece in ")]") if len(piece) == 1 else 0
        if not depth and wanted and piece.lower() in wanted:
            wanted = wanted[wanted.index(piece.lower()) + 1 :]
            found.append("")
        else:
            found[-1] += piece
    return found


def _two(arguments: Sequence[str], name: str) -> Sequence[str]:
    if len(arguments) != _TWO_ARGUMENTS or not all(arguments):
        raise ValueError(f"{name} takes a text and a number of characters")
    return arguments


_WHOLE: Final = (
    "array_length",
    "bit_count",
    "bit_length",
    "char_length",
    "character_length",
    "length",
    "octet_length",
    "strpos",
)
_STRIPS: Final[Mapping[str, Callable[[pl.Expr, pl.Expr], pl.Expr]]] = {
    "both": lambda text, characters: text.str.strip_chars(characters),
    "leading": lambda text, characters: text.str.strip_chars_start(characters),
    "trailing": lambda text, characters: text.str.strip_chars_end(characters),
}
CALLS: Final[Mapping[str, Call]] = {
    "ltrim": trimmed("leading"),
    "rtrim": trimmed("trailing"),
    "trim": trimmed("both"),
    **{name: whole(name) for name in _WHOLE},
    "date_bin": date_bin,
    "date_part": date_part,
    "date_trunc": date_trunc,
    "extract": extract,
    "left": left,
    "position": position,
    "regexp_extract": regexp_extract,
    "replace": replaced,
    "right": right,
    "round": rounded,
    "substr": substring,
    "substring": substring,
}
"""By name in lower case: the expression of a call, of its arguments as texts."""


def put(expr: pl.Expr, calls: Mapping[str, pl.Expr]) -> pl.Expr:
    """The expression with the columns of these names replaced by expressions."""
    if not calls:
        return expr
    return expr_of(_put(tree_of(expr), {name: tree_of(call) for name, call in calls.items()}))


def _put(node: Any, trees: Mapping[str, Any]) -> Any:
    if isinstance(node, dict):
        name = node.get("Column") if len(node) == 1 else None
        if isinstance(name, str) and name in trees:
            return trees[name]
        return {key: _put(value, trees) for key, value in node.items()}
    return [_put(item, trees) for item in node] if isinstance(node, list) else node


def _literal(text: str, what: str) -> str:
    match = _LITERAL.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{what} must be a text in quotes, not {text}")
    return match[1].replace("''", "'")
