"""The one place where errors of Polars' readers become Headrace errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import polars as pl

from headrace.kernel.errors import (
    AccessDeniedError,
    DataError,
    HeadraceError,
    InternalError,
    SchemaError,
    SnapshotGoneError,
    UnavailableError,
    UserError,
)
from operators.errors import is_damage, is_other_type, summary

_SHOWN: Final = 3
_FIELD_ID: Final = "PARQUET:field_id"


@contextmanager
def reading(what: str, files: Sequence[str] = ()) -> Iterator[None]:
    """Around the collection of a split's rows.

    ``HistoryPlan.splits_from`` sees that the files are there; this is for those that vanish, or a store that fails,
    between then and the end of the reading, and for files whose content is damaged. Errors of the plan's own
    expressions pass unchanged.

    Args:
        what: For messages: ``history of source flights``.
        files: What is read, likewise.
    """
    try:
        yield
    except OSError as error:
        raise _of_storage(error, what) from error
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        found = _of_files(error, what, files)
        if found is None:
            raise
        raise found from error


def _of_storage(error: OSError, what: str) -> HeadraceError:
    if isinstance(error, FileNotFoundError):
        return SnapshotGoneError(
            f"a file of the {what} is no longer available",
            detail=str(error),
            hint="keep snapshots at least as long as a job needs them (a tag), then start the job afresh",
        )
    if isinstance(error, PermissionError):
        return AccessDeniedError(
            f"reading the {what} is not allowed",
            detail=str(error),
            hint="check the credentials in headrace.toml and their rights",
        )
    return UnavailableError(
        f"cannot read the {what}", detail=str(error), hint="check that the storage can be reached from here"
    )


def _of_files(error: BaseException, what: str, files: Sequence[str]) -> HeadraceError | None:
    """What is wrong with the files; None: nothing that is known, so it is of the plan."""
    detail, context = f"{summary(error).splitlines()[0]}; read were {_named(files)}", {"files": list(files)}
    if isinstance(error, pl.exceptions.PanicException):
        return InternalError(f"Polars gave up while it read the {what}", detail=detail, context=context)
    if is_damage(error):
        return DataError(
            f"a file of the {what} is damaged",
            detail=detail,
            hint="restore the file, or read another snapshot",
            code="FILE_DAMAGED",
            context=context,
        )
    if is_other_type(error):
        return SchemaError(
            f"a file of the {what} has a column of another type, which does not become the wanted one without loss",
            detail=detail,
            hint="rewrite the files with the type that the column has now",
            context=context,
        )
    if isinstance(error, pl.exceptions.SchemaFieldNotFoundError) and _FIELD_ID in str(error):
        return UserError(
            f"a file of the {what} has columns without field ids, and its table says nothing of their names",
            detail=detail,
            hint="set the table's property schema.name-mapping.default, or rewrite its files",
            code="TABLE_UNSUPPORTED",
            context=context,
        )
    return None


def _named(files: Sequence[str]) -> str:
    more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
    return ", ".join(files[:_SHOWN]) + more
