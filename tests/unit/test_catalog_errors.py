"""Third-party errors of the lakehouse side become Headrace errors in one place."""

from __future__ import annotations

import inspect
import pickle

import botocore.exceptions
import pytest
import requests
import sqlalchemy.exc
from pyiceberg import exceptions as iceberg

from catalog.errors import PYICEBERG, mapped, mapping
from headrace.kernel import errors

CLASSES = [kind for _, kind in inspect.getmembers(iceberg, inspect.isclass) if issubclass(kind, Exception)]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_exception_class_of_pyiceberg_has_its_own_mapping(kind: type[Exception]) -> None:
    assert kind in PYICEBERG
    error = mapped(kind("words"), "load table lake.ns.t")
    assert type(error) is PYICEBERG[kind].kind
    assert error.message == "cannot load table lake.ns.t"
    assert "words" in error.detail
    assert error.to_dict() == pickle.loads(pickle.dumps(error)).to_dict()


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (iceberg.CommitFailedException("x"), errors.CommitFailedError, "COMMIT_FAILED"),
        (iceberg.CommitStateUnknownException("x"), errors.CommitUnknownError, "COMMIT_UNKNOWN"),
        (iceberg.ValidationException("x"), errors.CommitFailedError, "COMMIT_CONFLICT"),
        (iceberg.ForbiddenError("x"), errors.AccessDeniedError, "ACCESS_DENIED"),
        (iceberg.ServiceUnavailableError("x"), errors.UnavailableError, "UNAVAILABLE"),
        (requests.ConnectionError("refused"), errors.UnavailableError, "UNAVAILABLE"),
        (requests.Timeout("slow"), errors.UnavailableError, "UNAVAILABLE"),
        (requests.exceptions.MissingSchema("x"), errors.ConfigError, "CATALOG_ADDRESS_INVALID"),
        (botocore.exceptions.NoCredentialsError(), errors.AccessDeniedError, "ACCESS_DENIED"),
        (
            botocore.exceptions.ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "PutObject"),
            errors.AccessDeniedError,
            "ACCESS_DENIED",
        ),
        (
            botocore.exceptions.ClientError({"Error": {"Code": "NoSuchBucket", "Message": "no"}}, "PutObject"),
            errors.NotFoundError,
            "BUCKET_NOT_FOUND",
        ),
        (botocore.exceptions.EndpointConnectionError(endpoint_url="x"), errors.UnavailableError, "UNAVAILABLE"),
        (OSError("When reading: AWS Error ACCESS_DENIED during GetObject"), errors.AccessDeniedError, "ACCESS_DENIED"),
        (OSError("AWS Error NETWORK_CONNECTION"), errors.UnavailableError, "UNAVAILABLE"),
        (FileNotFoundError("gone.parquet"), errors.NotFoundError, "FILE_NOT_FOUND"),
        (PermissionError("no"), errors.AccessDeniedError, "ACCESS_DENIED"),
        (
            sqlalchemy.exc.OperationalError("select", {}, Exception("password authentication failed for user x")),
            errors.AccessDeniedError,
            "ACCESS_DENIED",
        ),
        (
            sqlalchemy.exc.OperationalError("select", {}, Exception("database is locked")),
            errors.UnavailableError,
            "UNAVAILABLE",
        ),
        (sqlalchemy.exc.ArgumentError("x"), errors.ConfigError, "CATALOG_ADDRESS_INVALID"),
        (KeyError("a fault of ours"), errors.InternalError, "INTERNAL"),
    ],
)
def test_errors_of_other_libraries(error: Exception, kind: type[errors.HeadraceError], code: str) -> None:
    found = mapped(error, "do it")
    assert (type(found), found.code) == (kind, code)


def test_a_headrace_error_passes_through_unchanged() -> None:
    ours = errors.GapError("offsets are gone")
    with pytest.raises(errors.GapError) as caught, mapping("read"):
        raise ours
    assert caught.value is ours
