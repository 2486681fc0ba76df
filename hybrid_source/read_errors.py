"""The one place where errors of Polars' readers become Headrace errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import polars as pl

from headrace.kernel.errors import AccessDeniedError, DataError, SnapshotGoneError, UnavailableError, UserError
from operators.errors import is_damage

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
    except FileNotFoundError as error:
        raise SnapshotGoneError(
            f"a file of the {what} is no longer available",
            detail=str(error),
            hint="keep snapshots at least as long as a job needs them (a tag), then start the job afresh",
        ) from error
    except PermissionError as error:
        raise AccessDeniedError(
            f"reading the {what} is not allowed",
            detail=str(error),
            hint="check the credentials in headrace.toml and their rights",
        ) from error
    except OSError as error:
        raise UnavailableError(
            f"cannot read the {what}", detail=str(error), hint="check that the storage can be reached from here"
        ) from error
    except pl.exceptions.SchemaFieldNotFoundError as error:
        if _FIELD_ID not in str(error):
            raise
        raise UserError(
            f"a file of the {what} has columns without field ids, and its table says nothing of their names",
            detail=f"{str(error).splitlines()[0]}; read were {_named(files)}",
            hint="set the table's property schema.name-mapping.default, or rewrite its files",
            code="TABLE_UNSUPPORTED",
            context={"files": list(files)},
        ) from error
    except pl.exceptions.ComputeError as error:
        if not is_damage(error):
            raise
        raise DataError(
            f"a file of the {what} is damaged",
            detail=f"{str(error).splitlines()[0]}; read were {_named(files)}",
            hint="restore the file, or read another snapshot",
            code="FILE_DAMAGED",
            context={"files": list(files)},
        ) from error


def _named(files: Sequence[str]) -> str:
    more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
    return ", ".join(files[:_SHOWN]) + more
