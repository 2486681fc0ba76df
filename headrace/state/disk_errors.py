"""The one place where errors of the local file system become Headrace's."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headrace.kernel.errors import AccessDeniedError, HeadraceError, UnavailableError

_NUMBER: Final = re.compile(r"\(os error (\d+)\)")


@contextmanager
def mapped(message: str, *, denied: str, full: str) -> Iterator[None]:
    """Map what is raised within.

    Args:
        message: What could not be done, naming the place.
        denied: The cure where the place cannot be used.
        full: The cure where the disk is full.

    Raises:
        AccessDeniedError: The place belongs to somebody else, or is no folder.
        UnavailableError: Anything else; ``DISK_FULL`` where that is it.
    """
    try:
        yield
    except HeadraceError:
        raise
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise AccessDeniedError(message, detail=str(error), hint=denied) from error
    except OSError as error:
        is_full = _number(error) in {errno.ENOSPC, errno.EDQUOT}
        raise UnavailableError(
            message, detail=str(error), hint=full if is_full else "", code="DISK_FULL" if is_full else ""
        ) from error


def _number(error: OSError) -> int | None:
    """The system's number of an error; Polars only says it in words."""
    said = _NUMBER.search(str(error))
    return int(said[1]) if error.errno is None and said else error.errno
