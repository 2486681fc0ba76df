"""Casts of texts to dates and times, which Polars 2 refuses once rows come: they are parsed instead, by one format.

A text is an ISO 8601 date, maybe with a time behind ``T`` or a space: ``2026-01-02``, ``2026-01-02 03:04``,
``2026-01-02T03:04:05.123456Z``. An offset (``Z``, ``+02``, ``+0200``, ``+02:00``) is taken into account; without one it
is UTC. Digits behind microseconds are dropped. Which format a text has is decided text by text, not by the first one of
a batch.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

import polars as pl

from operators.expression_trees import Tree, columns_in, expr_of, tree_of

_FORMAT: Final = "%Y-%m-%d %H:%M:%S%.f%:z"
_INTO_FORMAT: Final = [
    (r"^(\d{4}-\d{2}-\d{2})$", "${1} 00:00:00"),
    (r"^(\d{4}-\d{2}-\d{2})T", "${1} "),
    (r"^(.{10} \d{2}:\d{2})($|[Z+-])", "${1}:00${2}"),
    (r"Z$", "+00:00"),
    (r"^(.{11}.*[+-]\d{2})$", "${1}:00"),
    (r"^(.{11}.*[+-]\d{2})(\d{2})$", "${1}:${2}"),
    (r"^(.{10} \d{2}:\d{2}:\d{2}(\.\d*)?)$", "${1}+00:00"),
]


def casts_to_times(expr: pl.Expr) -> bool:
    """Whether something that is read from rows is cast to a date or time; then :func:`parsed` must see the schema."""
    return _casts(tree_of(expr))


def parsed(expr: pl.Expr, schema: pl.Schema) -> pl.Expr:
    """The expression for rows of a schema, in which texts are parsed and not cast."""
    return expr_of(_parsed(tree_of(expr), schema))


def _casts(tree: Tree) -> bool:
    if isinstance(tree, list):
        return any(map(_casts, tree))
    if not isinstance(tree, dict) or "Literal" in tree:
        return False
    return _is_cast(tree) or any(map(_casts, tree.values()))


def _is_cast(tree: Tree) -> bool:
    match tree:
        case {"Cast": {"expr": inner, "dtype": {"Literal": "Date" | "Time" | {"Datetime": _}}}}:
            return any(columns_in(inner))
    return False


def _parsed(tree: Tree, schema: pl.Schema) -> Tree:
    if isinstance(tree, list):
        return [_parsed(part, schema) for part in tree]
    if not isinstance(tree, dict) or "Literal" in tree:
        return tree
    made = {key: _parsed(value, schema) for key, value in tree.items()}
    if not _is_cast(made):
        return made
    rows, body = pl.LazyFrame(schema=schema), made["Cast"]
    types = rows.select(given=expr_of(body["expr"]), wanted=expr_of(made)).collect_schema()
    if not isinstance(types["given"], pl.String):
        return made
    return tree_of(_read(expr_of(body["expr"]), types["wanted"], strict=body["options"] == "Strict"))


def _read(text: pl.Expr, wanted: pl.DataType, *, strict: bool) -> pl.Expr:
    text = text.str.strip_chars()
    if isinstance(wanted, pl.Time):
        return text.str.to_time("%H:%M:%S%.f", strict=strict)
    plain = reduce(lambda made, form: made.str.replace(*form), _INTO_FORMAT, text)
    instant = plain.str.to_datetime(_FORMAT, time_unit="us", strict=strict)
    if isinstance(wanted, pl.Date):
        return instant.dt.date()
    zone = wanted.time_zone if isinstance(wanted, pl.Datetime) else None
    return instant.dt.replace_time_zone(None) if zone is None else instant.dt.convert_time_zone(zone)
