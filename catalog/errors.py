"""The one place where errors of pyiceberg and of the libraries below it become Headrace errors.

"Not allowed", "not there", "not now", "certainly not committed" and "maybe committed" stay five different things:
what may be retried, and what must never be, hangs on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyiceberg import exceptions as iceberg
from requests import exceptions as http

from headrace.kernel import errors


@dataclass(frozen=True, slots=True)
class _Target:
    kind: type[errors.HeadraceError]
    code: str = ""
    hint: str = ""


_DENIED: Final = _Target(
    errors.AccessDeniedError, hint="check the credentials and the rights of the catalog's entry in headrace.toml"
)
_DOWN: Final = _Target(errors.UnavailableError, hint="check that the service runs and that its address is right")
_GONE: Final = "see what exists with the catalog's own listing; names are catalog.namespace.table"

PYICEBERG: Final[Mapping[type[Exception], _Target]] = {
    iceberg.TableAlreadyExistsError: _Target(errors.UserError, "TABLE_EXISTS", "choose another name or drop it first"),
    iceberg.ViewAlreadyExistsError: _Target(errors.UserError, "VIEW_EXISTS", "choose another name or drop it first"),
    iceberg.NamespaceNotEmptyError: _Target(errors.UserError, "NAMESPACE_NOT_EMPTY", "drop its tables first"),
    iceberg.NamespaceAlreadyExistsError: _Target(errors.UserError, "NAMESPACE_EXISTS", "choose another name"),
    iceberg.ValidationError: _Target(errors.SchemaError, "TABLE_METADATA_INVALID"),
    iceberg.NoSuchTableError: _Target(errors.NotFoundError, "TABLE_NOT_FOUND", _GONE),
    iceberg.NoSuchIcebergTableError: _Target(errors.NotFoundError, "TABLE_NOT_FOUND", "it is no Iceberg table"),
    iceberg.NoSuchViewError: _Target(errors.NotFoundError, "VIEW_NOT_FOUND", _GONE),
    iceberg.NoSuchIdentifierError: _Target(errors.NotFoundError, "TABLE_NOT_FOUND", _GONE),
    iceberg.NoSuchNamespaceError: _Target(errors.NotFoundError, "NAMESPACE_NOT_FOUND", _GONE),
    iceberg.NoSuchPlanTaskError: _Target(errors.UnavailableError, "CATALOG_PLAN_GONE", "plan again"),
    iceberg.RESTError: _Target(errors.ExternalError, "CATALOG_ANSWER"),
    iceberg.BadRequestError: _Target(errors.UserError, "CATALOG_REFUSED", "the catalog does not take this request"),
    iceberg.UnauthorizedError: _DENIED,
    iceberg.ForbiddenError: _DENIED,
    iceberg.AuthorizationExpiredError: _DENIED,
    iceberg.OAuthError: _DENIED,
    iceberg.ServiceUnavailableError: _DOWN,
    iceberg.ServerError: _DOWN,
    iceberg.TooManyRequestsError: _Target(errors.UnavailableError, "THROTTLED", "the catalog asks for fewer requests"),
    iceberg.NoSuchPropertyException: _Target(errors.ConfigError, "CATALOG_OPTION_MISSING"),
    iceberg.NotInstalledError: _Target(errors.DependencyError, hint="install the extra that the message names"),
    iceberg.SignError: _Target(errors.UnavailableError, "SIGNER_FAILED", "check the catalog's request signer"),
    iceberg.ResolveError: _Target(errors.SchemaError, "FILE_SCHEMA_UNREADABLE"),
    iceberg.DynamoDbError: _DOWN,
    iceberg.GenericDynamoDbError: _DOWN,
    iceberg.ConditionalCheckFailedException: _Target(errors.CommitFailedError, hint="another writer was faster; retry"),
    iceberg.CommitFailedException: _Target(errors.CommitFailedError, hint="another writer was faster; retry"),
    iceberg.CommitStateUnknownException: _Target(
        errors.CommitUnknownError, hint="look at the table before anything is written again; keep the files"
    ),
    iceberg.WaitingForLockException: _Target(errors.UnavailableError, "CATALOG_LOCKED", "another writer holds it"),
    iceberg.ValidationException: _Target(
        errors.CommitFailedError, "COMMIT_CONFLICT", "another writer changed the same files: plan the change again"
    ),
}
"""Every exception class of ``pyiceberg.exceptions`` (tests/unit/test_catalog_errors.py holds it complete)."""

_HTTP: Final[Mapping[type[Exception], _Target]] = {
    http.InvalidURL: _Target(errors.ConfigError, "CATALOG_ADDRESS_INVALID", "write it as http://host:port/path"),
    http.InvalidSchema: _Target(errors.ConfigError, "CATALOG_ADDRESS_INVALID", "write it as http://host:port/path"),
    http.MissingSchema: _Target(errors.ConfigError, "CATALOG_ADDRESS_INVALID", "write it as http://host:port/path"),
    http.SSLError: _Target(errors.UnavailableError, "TLS_FAILED", "check the certificate and the ssl options"),
    http.RequestException: _DOWN,
}

_BY_NAME: Final[Mapping[str, _Target]] = {
    "botocore.exceptions.NoCredentialsError": _DENIED,
    "botocore.exceptions.PartialCredentialsError": _DENIED,
    "botocore.exceptions.ClientError": _Target(errors.ExternalError, "OBJECT_STORE_ANSWER"),
    "botocore.exceptions.BotoCoreError": _DOWN,
    "sqlalchemy.exc.ArgumentError": _Target(errors.ConfigError, "CATALOG_ADDRESS_INVALID", "check the catalog's uri"),
    "sqlalchemy.exc.NoSuchModuleError": _Target(
        errors.ConfigError, "CATALOG_ADDRESS_INVALID", "uri begins with sqlite:/// or postgresql+psycopg2://"
    ),
    "sqlalchemy.exc.OperationalError": _DOWN,
    "sqlalchemy.exc.InterfaceError": _DOWN,
    "sqlalchemy.exc.TimeoutError": _DOWN,
    "sqlalchemy.exc.SQLAlchemyError": _Target(errors.ExternalError, "CATALOG_DATABASE"),
    "pydantic_core._pydantic_core.ValidationError": _Target(
        errors.ExternalError, "CATALOG_ANSWER", "the catalog or the metadata file answered something else than Iceberg"
    ),
}
"""Libraries that need not be installed are matched by the qualified names of the error's classes."""

_DENIED_WORDS: Final = (
    "access_denied",
    "accessdenied",
    "access denied",
    "permission denied",
    "invalidaccesskeyid",
    "invalid_access_key_id",
    "signaturedoesnotmatch",
    "signature_does_not_match",
    "http response code: 403",
    "authentication failed",
    "forbidden",
)
_MISSING_BUCKET_WORDS: Final = ("no_such_bucket", "nosuchbucket", "bucket does not exist")


def _by_text(error: Exception) -> _Target | None:
    text = str(error).lower()
    if any(word in text for word in _DENIED_WORDS):
        return _DENIED
    if any(word in text for word in _MISSING_BUCKET_WORDS):
        return _Target(errors.NotFoundError, "BUCKET_NOT_FOUND", "create the bucket or mend the warehouse option")
    return None


def _target(error: Exception) -> _Target:
    for kind in type(error).__mro__:
        if found := PYICEBERG.get(kind):
            return found
        if found := _HTTP.get(kind):
            return found
        if found := _BY_NAME.get(f"{kind.__module__}.{kind.__qualname__}"):
            return _by_text(error) or found
    return _builtin(error)


def _builtin(error: Exception) -> _Target:
    match error:
        case ModuleNotFoundError():
            return _Target(errors.DependencyError, hint=f"install the package that brings {error.name}")
        case FileNotFoundError():
            return _Target(errors.NotFoundError, "FILE_NOT_FOUND", "the file was removed, or the location is wrong")
        case PermissionError():
            return _DENIED
        case OSError():
            return _by_text(error) or _DOWN
        case NotImplementedError():
            return _Target(errors.UserError, "CATALOG_UNSUPPORTED", "this catalog does not offer the operation")
        case _:
            return _Target(errors.InternalError)


def mapped(error: Exception, doing: str) -> errors.HeadraceError:
    """The Headrace error for ``error``, which came up while ``doing`` (``load table lake.ns.t``).

    A Headrace error is given back as it is.
    """
    if isinstance(error, errors.HeadraceError):
        return error
    target = _target(error)
    words = str(error).strip().splitlines()
    detail = f"{type(error).__name__}: {words[0] if words else ''}".rstrip(": ")
    return target.kind(f"cannot {doing}", detail=detail, hint=target.hint, code=target.code)


@contextmanager
def mapping(doing: str) -> Iterator[None]:
    """Raise whatever the body raises as a Headrace error.

    Args:
        doing: What the body does, in the infinitive and with the name of the thing: ``load table lake.ns.t``.
    """
    try:
        yield
    except Exception as error:
        raise mapped(error, doing) from error
