"""Calls into people's own operators: what they raise is told with its place, what they give is checked."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import polars as pl

from headrace.kernel.errors import HeadraceError, SpecError, UserError

OPERATOR_FAILED: Final = "OPERATOR_FAILED"
OPERATOR_INVALID: Final = "OPERATOR_INVALID"


@contextmanager
def defining(where: str, method: str) -> Iterator[None]:
    """Turn what an operator raises while it is asked for its definition into a :class:`SpecError`."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        raise SpecError(
            f"{where} fails in {method}",
            detail=told(error),
            hint="mend the operator, or the columns and arguments that it is given",
            code=OPERATOR_FAILED,
        ) from error


@contextmanager
def running(where: str, method: str, facts: Mapping[str, int]) -> Iterator[None]:
    """Turn what an operator raises over rows into a :class:`UserError` that says which call it was."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        said = ", ".join(f"{name} {value}" for name, value in facts.items())
        raise UserError(
            f"{where} fails in {method}",
            detail=f"{told(error)} ({said})",
            hint="mend the operator and start the job again: it goes on from its last checkpoint",
            code=OPERATOR_FAILED,
            context=dict(facts),
        ) from error


def told(error: Exception) -> str:
    """An error in one line, with the line of code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames[1:] if "site-packages" not in frame.filename]
    place = f" at {inside[-1].filename}:{inside[-1].lineno}" if inside else ""
    first = str(error).strip().split("\n\n", 1)[0]
    return f"{type(error).__name__}: {first}{place}" if first else f"{type(error).__name__}{place}"


def schema_of(given: Any, where: str, what: str) -> pl.Schema:
    """Column types as people write them, checked.

    Raises:
        SpecError: They are no mapping of names to Polars types.
    """
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise SpecError(
            f"{where} declares no columns as {what}",
            detail=f"it gives {type(given).__name__}",
            hint='give a pl.Schema, or a mapping such as {"visits": pl.Int64}',
            code=OPERATOR_INVALID,
        )
    try:
        return pl.DataFrame(schema=dict(given)).schema
    except Exception as error:
        raise SpecError(
            f"{where} declares {what} with a type that is none", detail=told(error), code=OPERATOR_INVALID
        ) from error


def checked(given: Any, schema: pl.Schema, where: str, method: str) -> pl.DataFrame:
    """What a call has given, as a frame of exactly the declared columns.

    Raises:
        UserError: It is no frame, or has other columns or types than were declared.
    """
    if given is None:
        return pl.DataFrame(schema=schema)
    if not isinstance(given, pl.DataFrame):
        hint = "call .collect() on it" if isinstance(given, pl.LazyFrame) else "give a pl.DataFrame, or None"
        raise UserError(f"{where}: {method} gives {type(given).__name__}, no frame", hint=hint, code=OPERATOR_INVALID)
    return fitted(given, schema, f"{where}: {method} gives rows")


def fitted(frame: pl.DataFrame, schema: pl.Schema, what: str) -> pl.DataFrame:
    """A frame with the columns of a schema, in its order.

    Args:
        frame: The frame.
        schema: The columns that it must have, and no others.
        what: What is wrong, in messages.

    Raises:
        UserError: It has other columns or types.
    """
    if dict(frame.schema) == dict(schema):
        return frame.select(schema.names())
    differences = [f"{name} is missing" for name in schema if name not in frame.schema]
    differences += [f"{name} is not declared" for name in frame.columns if name not in schema]
    differences += [
        f"{name} is {frame.schema[name]}, not {dtype}"
        for name, dtype in schema.items()
        if name in frame.schema and frame.schema[name] != dtype
    ]
    raise UserError(
        f"{what} that do not fit what it declares",
        detail="; ".join(differences),
        hint="cast the columns, or change the declaration",
        code=OPERATOR_INVALID,
        context={"differences": differences},
    )
