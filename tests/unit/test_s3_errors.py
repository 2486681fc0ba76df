"""The S3 stores' mapping of errors, and locations without the extra."""

from __future__ import annotations

import subprocess
import sys

import pytest
from botocore import exceptions
from botocore.exceptions import BotoCoreError, ClientError

from headrace.kernel.errors import (
    AccessDeniedError,
    ConfigError,
    HeadraceError,
    NotFoundError,
    UnavailableError,
)
from headrace.state.s3 import mapped_errors
from headrace.state.stores import open_store


def answer(code: str, status: int) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answer("NoSuchBucket", 404), NotFoundError),
        (answer("AccessDenied", 403), AccessDeniedError),
        (answer("SignatureDoesNotMatch", 403), AccessDeniedError),
        (answer("SomethingElse", 403), AccessDeniedError),
        (answer("InternalError", 500), UnavailableError),
        (answer("SlowDown", 503), UnavailableError),
        (answer("RequestTimeout", 400), UnavailableError),
        (answer("EntityTooLarge", 400), ConfigError),
        (exceptions.NoCredentialsError(), ConfigError),
        (exceptions.ParamValidationError(report="x"), ConfigError),
        (exceptions.EndpointConnectionError(endpoint_url="x"), UnavailableError),
        (exceptions.ReadTimeoutError(endpoint_url="x"), UnavailableError),
    ],
)
def test_errors_are_mapped(error: Exception, kind: type[HeadraceError]) -> None:
    with pytest.raises(kind, match="s3://b/k") as caught, mapped_errors("write", "s3://b/k"):
        raise error
    assert type(caught.value) is kind


def test_every_error_of_botocore_has_a_mapping() -> None:
    kinds = [kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    # Service models are read when a client is built, not when it is used.
    own = [
        kind
        for kind in kinds
        if kind.__module__ == exceptions.__name__
        and not issubclass(kind, Warning | exceptions.UndefinedModelAttributeError)
    ]
    assert len(own) > 50
    assert [kind.__name__ for kind in own if not issubclass(kind, BotoCoreError | ClientError)] == []


@pytest.mark.parametrize("options", [{"no_such_option": 1}, {"region_name": "r", "endpoint_url": "not a url"}])
def test_wrong_options_are_the_user_s(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"object_stores\.s3"):
        open_store("s3://bucket/x", {"s3": options})


def test_an_endpoint_that_does_not_answer() -> None:
    options = {
        "endpoint_url": "http://127.0.0.1:9",
        "aws_access_key_id": "a",
        "aws_secret_access_key": "b",
        "region_name": "r",
    }
    with pytest.raises(UnavailableError, match="s3://bucket/x"):
        open_store("s3://bucket/x", {"s3": options})


def test_without_boto3_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['boto3'] = None\n"
        "from headrace.kernel.errors import DependencyError\n"
        "from headrace.state.stores import open_store\n"
        "try:\n    open_store('s3://bucket/x')\n"
        "except DependencyError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "headrace[s3]" in done.stdout
