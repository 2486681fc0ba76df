"""Faults of SQL text, with line and column."""

from __future__ import annotations

from typing import TypeAlias

from sqlglot import exp

Place: TypeAlias = tuple[int, int]
"""Line and column in the SQL text, from 1."""

NOT_SUPPORTED = "SQL_NOT_SUPPORTED"


class SqlError(Exception):
    """SQL that cannot be translated; becomes a ``SpecError`` that knows file and line.

    Attributes:
        message: What is wrong.
        place: Where; None: not known.
        hint: The cure.
        code: ``SQL_INVALID`` or ``SQL_NOT_SUPPORTED``.
    """

    def __init__(self, message: str, place: Place | None = None, hint: str = "", code: str = NOT_SUPPORTED) -> None:
        super().__init__(message)
        self.message, self.place, self.hint, self.code = message, place, hint, code


def place_of(node: exp.Expr) -> Place | None:
    """Where a node begins, as far as its names tell."""
    places = [
        (int(found.meta["line"]), int(found.meta["col"]) - (found.meta["end"] - found.meta["start"]))
        for found in node.walk()
        if "line" in found.meta
    ]
    return min(places, default=None)


def refuse(node: exp.Expr, what: str, hint: str = "") -> SqlError:
    """The error for something that is SQL, but is not supported here."""
    return SqlError(what, place_of(node), hint)
