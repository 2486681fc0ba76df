"""The one place where errors of psycopg2 become Headrace errors.

The server's own errors are told apart by SQLSTATE (PostgreSQL, Appendix A); a connection that fails has only text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from headrace.kernel import errors


@dataclass(frozen=True, slots=True)
class _Target:
    kind: type[errors.HeadraceError]
    code: str = ""
    hint: str = ""


_DENIED: Final = _Target(errors.AccessDeniedError, hint="check the user and password in the url, and the user's rights")
_DOWN: Final = _Target(errors.UnavailableError, hint="check that the server runs, and host and port in the url")
_QUERY: Final = _Target(errors.SpecError, "LOOKUP_QUERY_INVALID", "try the query with psql")
_NO_DATABASE: Final = _Target(errors.NotFoundError, "DATABASE_NOT_FOUND", "check the name behind the last / of the url")

_STATES: Final = {
    "25006": _Target(errors.SpecError, "LOOKUP_QUERY_INVALID", "a lookup reads: write a query without side effects"),
    "28": _DENIED,
    "3D": _NO_DATABASE,
    "42501": _DENIED,
    "42P01": _Target(errors.NotFoundError, "TABLE_NOT_FOUND", "write it with its schema: SCHEMA.TABLE"),
    "3F": _Target(errors.NotFoundError, "TABLE_NOT_FOUND", "there is no such schema"),
    "42": _QUERY,
    "22": _Target(errors.DataError, "LOOKUP_QUERY_FAILED", "the query meets a value that it cannot compute with"),
    "08": _DOWN,
    "40": _DOWN,
    "53": _DOWN,
    "57": _DOWN,
}
"""By SQLSTATE or its class (the first two characters)."""

_WORDS: Final = (
    ("authentication failed", _DENIED),
    ("no password supplied", _DENIED),
    ("pg_hba.conf", _DENIED),
    ("role ", _DENIED),
    ("database ", _NO_DATABASE),
)


def mapped(error: Any, what: str) -> errors.HeadraceError:
    """An error of psycopg2 as one of ours.

    Args:
        error: A ``psycopg2.Error``.
        what: What was read, for the message.
    """
    text = str(error).strip()
    target = _target(error, text)
    return target.kind(f"{what}: PostgreSQL says no", detail=text, hint=target.hint, code=target.code)


def _target(error: Any, text: str) -> _Target:
    state = error.pgcode
    if state is not None:
        found = _STATES.get(state) or _STATES.get(state[:2])
        return found or _Target(errors.ExternalError, "POSTGRES_ANSWER")
    if "does not exist" in text or "FATAL" in text:
        for words, target in _WORDS:
            if words in text:
                return target
    return _DOWN


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Turn errors of psycopg2 into ours.

    Raises:
        DependencyError: psycopg2 is not installed.
    """
    try:
        import psycopg2
    except ImportError as error:
        raise errors.DependencyError(
            f"{what} needs psycopg2", hint='install the extra: pip install "headrace[postgres]"'
        ) from error
    try:
        yield
    except psycopg2.Error as error:
        raise mapped(error, what) from error
