"""The one place where errors of Polars' readers become Headrace errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.kernel.errors import AccessDeniedError, SnapshotGoneError, UnavailableError


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Around the collection of a split's rows.

    ``HistoryPlan.splits_from`` sees that the files are there; this is for those that vanish, or a store that fails,
    between then and the end of the reading. Errors of the plan's own expressions pass unchanged.

    Args:
        what: For messages: ``history of source flights``.
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
        raise AccessDeniedError(f"reading the {what} is not allowed", detail=str(error)) from error
    except OSError as error:
        raise UnavailableError(f"cannot read the {what}", detail=str(error)) from error
