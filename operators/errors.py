"""The one place where errors of Polars become errors of Headrace."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import polars as pl

from headrace.kernel.columns import listed
from headrace.kernel.errors import SchemaError, SpecError

COLUMN_NOT_FOUND: Final = "COLUMN_NOT_FOUND"
EXPRESSION_INVALID: Final = "EXPRESSION_INVALID"
EXPRESSION_NOT_ALLOWED: Final = "EXPRESSION_NOT_ALLOWED"
VALUE_INVALID: Final = "VALUE_INVALID"
SUM_OVERFLOW: Final = "SUM_OVERFLOW"

_ZONES: Final = re.compile(r"comparison between series .* of dtype: Datetime\(.* of dtype: Datetime\(", re.DOTALL)
_SUM: Final = re.compile(r"from `i128` to `i64` failed in column 'sum:(?P<argument>.*?)' for .*: \[(?P<value>-?\d+)")
_MISSING: Final = re.compile(r'(?:unable to find column )?"(?P<name>.*?)"(?:; valid columns| not found$)', re.DOTALL)


def column_not_found(name: str, known: Sequence[str], where: str) -> SpecError:
    """A column that is not there, with the names that come close to it."""
    known = listed(known)
    close = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "name one of the columns that are there"
    return SpecError(
        f"{where} names column {name!r}, which its input does not have",
        detail=f"columns: {', '.join(known)}" if known else "the input has no columns",
        hint=hint,
        code=COLUMN_NOT_FOUND,
        context={"column": name, "columns": known, "close": close},
    )


def check_names(names: Iterable[str], where: str) -> None:
    """Refuse names of columns that Polars would take for a pattern of names wherever they are named.

    Raises:
        SpecError: ``COLUMN_NAME_UNSUPPORTED``.
    """
    for name in names:
        if name == "*" or (name.startswith("^") and name.endswith("$")):
            raise SpecError(
                f"{where} has a column {name!r}, which stands for other columns wherever it is named",
                hint="rename it: a name is neither * nor begins with ^ and ends with $",
                code="COLUMN_NAME_UNSUPPORTED",
                context={"column": name},
            )


def check_added(added: Sequence[str], schema: pl.Schema, where: str) -> None:
    """Refuse columns that a join would add and the stream has already.

    Raises:
        SpecError: ``COLUMN_CLASH``.
    """
    clash = [name for name in added if name in schema]
    if clash:
        raise SpecError(
            f"{where} would add {', '.join(map(repr, clash))}, which the stream already has",
            hint="set `prefix`, or list in `columns` only what is needed",
            code="COLUMN_CLASH",
            context={"columns": clash},
        )


def summary(error: BaseException) -> str:
    """The first paragraph of a Polars message: what it says before it prints its plan."""
    return str(error).split("\n\n", 1)[0].strip()


def plan_error(error: pl.exceptions.PolarsError, where: str, known: Sequence[str]) -> SpecError:
    """A plan that Polars refuses, as an error of the job spec.

    Args:
        error: What Polars said while it resolved the plan.
        where: What the plan belongs to, e.g. ``step 'delays'``.
        known: The columns of the input.
    """
    if isinstance(error, pl.exceptions.ColumnNotFoundError) and (found := _MISSING.match(summary(error))):
        return column_not_found(found["name"], known, where)
    zones = _ZONES.search(str(error)) is not None
    return SpecError(
        f"{where} does not fit its input",
        detail=summary(error),
        hint="only one of these times has a zone: write timestamptz '2026-01-01 00:00:00', or cast(... as timestamptz)"
        if zones
        else "check the types of the columns; cast(... as ...) converts them",
        code=EXPRESSION_INVALID,
    )


@contextmanager
def planning(where: str, known: Sequence[str]) -> Iterator[None]:
    """Turn what Polars says while a plan is resolved into a :class:`SpecError`."""
    try:
        yield
    except pl.exceptions.PolarsError as error:
        raise plan_error(error, where, known) from error


def is_damage(error: BaseException) -> bool:
    """Whether a Parquet reader below the plan met something else than Parquet: no fault of any expression."""
    return isinstance(error, pl.exceptions.ComputeError) and str(error).startswith("parquet: ")


def is_other_type(error: BaseException) -> bool:
    """Whether a Parquet reader below the plan met a column of a type that does not become the wanted one."""
    return isinstance(error, pl.exceptions.SchemaError) and "data type mismatch for column" in str(error)


@contextmanager
def computing(where: str) -> Iterator[None]:
    """Turn what Polars says about *values* while a plan runs into a :class:`SchemaError`.

    Casts in SQL expressions are strict: a value that does not fit ends the job rather than turning into null.
    What :func:`is_damage` and :func:`is_other_type` know is of the files, and passes unchanged.
    """
    try:
        yield
    except (
        pl.exceptions.InvalidOperationError,
        pl.exceptions.ComputeError,
        pl.exceptions.SchemaError,
        pl.exceptions.ShapeError,
        pl.exceptions.OutOfBoundsError,
    ) as error:
        if is_damage(error) or is_other_type(error):
            raise
        if found := _SUM.search(str(error)):
            raise SchemaError(
                f"{where}: a sum of {found['argument']} is beyond 64 bits",
                detail=f"it is {found['value']}",
                hint=f"sum it as a decimal: sum(cast({found['argument']} as decimal(38, 0)))",
                code=SUM_OVERFLOW,
            ) from error
        raise SchemaError(
            f"{where} met a value that it cannot compute with",
            detail=summary(error),
            hint="use try_cast(... as ...) to get null for such values, or filter them out first",
            code=VALUE_INVALID,
        ) from error
