"""Aggregates as SQL text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from headrace.kernel.errors import SpecError
from operators.aggregates import PAIRS, Aggregate, Kind, fraction_of
from operators.errors import EXPRESSION_INVALID
from operators.expressions import row_expression, split_arguments, tokens

_CALL: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*", re.DOTALL)
_FILTER: Final = re.compile(r"\s*filter\s*\(\s*where\b(.*)\)\s*", re.DOTALL | re.IGNORECASE)
_TEXT: Final = re.compile(r"'((?:[^']|'')*)'")
_NAMES: Final[Mapping[str, Kind]] = {
    **{kind.value: kind for kind in Kind if kind not in {Kind.DISTINCT, Kind.COMBINED}},
    "mean": Kind.MEAN,
    "array_agg": Kind.LIST,
    "median": Kind.QUANTILE,
    "variance": Kind.VAR_SAMP,
    "stddev": Kind.STDDEV_SAMP,
    "every": Kind.ALL,
    "any_value": Kind.MIN,
    "listagg": Kind.JOINED,
}
_SUPPORTED: Final = (
    "count(*), count(x), count(distinct x), approx_count_distinct(x), sum(x), min(x), max(x), avg(x), median(x), "
    "quantile(x, 0.9), first(x), last(x), any_value(x), list(x), string_agg(x, ','), bool_and(x), bool_or(x), "
    "arg_min(x, y), arg_max(x, y), var_samp(x), var_pop(x), stddev_samp(x), stddev_pop(x), covar_samp(x, y), "
    "covar_pop(x, y), corr(x, y)"
)


def aggregate(written: str | Aggregate, where: str) -> Aggregate:
    """Read an aggregate from SQL text; the arguments are any row expressions.

    Behind it may stand ``FILTER (WHERE condition)``.

    Raises:
        SpecError: It is none of the supported ones, or its argument is no row expression.
    """
    if isinstance(written, Aggregate):
        return written
    call, condition = _filtered(written)
    found = _called(written, call, where)
    if condition is None:
        return found
    row_expression(condition, where)
    return found.where(condition)


def _called(written: str, call: str, where: str) -> Aggregate:
    match = _CALL.fullmatch(call)
    name = match[1].lower() if match else ""
    kind = _NAMES.get(name)
    given = split_arguments(match[2]) if match else None
    if kind is None or not given:
        raise _unsupported(written, where)
    if kind is Kind.COUNT and given in (["*"], [""]):
        return Aggregate(Kind.COUNT)
    word, _, rest = given[0].partition(" ")
    if kind is Kind.COUNT and word.lower() == "distinct":
        kind, given, word = Kind.DISTINCT, [rest.strip(), *given[1:]], ""
    if len(given) not in _wanted(kind, name) or not all(given) or word.lower() in {"distinct", "all"}:
        raise _unsupported(written, where)
    argument = row_expression(given[0], where)
    if kind is Kind.QUANTILE:
        return Aggregate(kind, argument, fraction=0.5 if name == "median" else fraction_of(given[1], where))
    if kind is Kind.JOINED:
        return Aggregate(kind, argument, separator=_separator(given[1], written, where) if given[1:] else ",")
    return Aggregate(kind, argument, row_expression(given[1], where) if kind in PAIRS else None)


def _wanted(kind: Kind, name: str) -> tuple[int, ...]:
    """How many arguments there may be."""
    if kind is Kind.JOINED:
        return (1, 2)
    return (2,) if kind in PAIRS or name == "quantile" else (1,)


def _separator(text: str, written: str, where: str) -> str:
    match = _TEXT.fullmatch(text)
    if match is None:
        raise _unsupported(written, where)
    return match[1].replace("''", "'")


def _filtered(written: str) -> tuple[str, str | None]:
    """The call, and the condition of its FILTER."""
    depth = 0
    for token in tokens(written):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0 and token.kind == "word" and token.text == "filter" and token.start:
            match = _FILTER.fullmatch(written[token.start :])
            return (written[: token.start], match[1]) if match else (written, None)
    return written, None


def _unsupported(written: str, where: str) -> SpecError:
    return SpecError(
        f"{where}: {written!r} is not an aggregate that is supported",
        detail=f"supported: {_SUPPORTED}; x is any expression over one row",
        hint="compute with results in a with_columns step behind the window",
        code=EXPRESSION_INVALID,
    )
