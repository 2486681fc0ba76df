"""Blobs and the head of a job on S3, by conditional writes. Needs the extra ``s3`` (boto3).

A lost reply that a client library retries comes back as "precondition failed" although the first try has worked.
Every write therefore carries a nonce (blobs in their metadata, the head in its body), and such an answer is resolved
by reading the nonce back.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ParamValidationError

from headrace.kernel.errors import (
    AccessDeniedError,
    CommitUnknownError,
    ConfigError,
    FencedError,
    HeadraceError,
    NotFoundError,
    UnavailableError,
)
from headrace.kernel.protocols import Head
from headrace.state.stores import check_name, damaged_head, fenced, head_from_json, head_to_json

_NONCE: Final = "headrace-nonce"
_TRIES: Final = 4
_ABSENT: Final = {"NoSuchKey", "NotFound", "404"}
_REFUSED: Final = {"PreconditionFailed", "412"}
_CONFLICT: Final = {"ConditionalRequestConflict", "OperationAborted", "409"}
_LATER: Final = {"RequestTimeout", "RequestTimeTooSkewed", "Throttling", "SlowDown", "TooManyRequests"}
_DENIED: Final = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}


class _AbsentError(Exception):
    """The object is not there."""


class _RefusedError(Exception):
    """The condition of a write does not hold; also the answer to a retry of a write that has worked."""


class _ConflictError(Exception):
    """Two conditional writes met, and neither need have won."""


def open_bucket(bucket: str, prefix: str, options: Mapping[str, Any]) -> tuple[S3BlobStore, S3HeadStore]:
    """Open a job's prefix in a bucket and probe that conditional writes work there.

    Args:
        bucket: An existing bucket.
        prefix: Where the job's objects lie, without slashes at the ends; may be empty.
        options: Options of ``boto3.client("s3", ...)``: ``endpoint_url``, ``aws_access_key_id``, ...

    Raises:
        HeadraceError: As :func:`headrace.state.stores.open_store` says.
    """
    config = Config(connect_timeout=5, read_timeout=30, retries={"mode": "standard", "max_attempts": 4})
    try:
        client = boto3.client("s3", **{"config": config, **options})
    except (BotoCoreError, ValueError, TypeError) as error:
        raise ConfigError(
            "the options under [object_stores.s3] are not accepted",
            detail=str(error),
            hint="they are those of boto3.client: endpoint_url, region_name, aws_access_key_id, aws_secret_access_key",
        ) from error
    probe_conditional_writes(client, bucket, f"{prefix}/" if prefix else "")
    return S3BlobStore(client, bucket, prefix), S3HeadStore(client, bucket, prefix)


class S3BlobStore:
    """A :class:`~headrace.kernel.protocols.BlobStore` below ``s3://bucket/prefix/blobs``."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._root = f"{prefix}/blobs/" if prefix else "blobs/"

    def put(self, name: str, data: bytes) -> None:
        """See :meth:`BlobStore.put`."""
        target, where = self._locate(check_name(name))
        nonce = uuid.uuid4().hex
        for last in _tries():
            try:
                with mapped_errors("write", where):
                    self._client.put_object(**target, Body=data, IfNoneMatch="*", Metadata={_NONCE: nonce})
            except _RefusedError as error:
                if self._nonce_of(name) != nonce:
                    raise FencedError(f"the blob {name} exists already", detail=where) from error
            except _ConflictError as error:
                if last:
                    raise UnavailableError(f"cannot write {where}", detail="conflicting writes go on") from error
                continue
            return

    def get(self, name: str) -> bytes:
        """See :meth:`BlobStore.get`."""
        target, where = self._locate(check_name(name))
        try:
            with mapped_errors("read", where):
                return bytes(self._client.get_object(**target)["Body"].read())
        except _AbsentError as error:
            raise NotFoundError(f"the blob {name} is not there", detail=where, code="BLOB_NOT_FOUND") from error

    def delete(self, name: str) -> None:
        """See :meth:`BlobStore.delete`."""
        target, where = self._locate(check_name(name))
        try:
            with mapped_errors("delete", where):
                self._client.delete_object(**target)
        except _AbsentError:
            return

    def list(self, prefix: str) -> Sequence[str]:
        """See :meth:`BlobStore.list`."""
        _, where = self._locate(prefix)
        with mapped_errors("list", where):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._root + prefix
            )
            return sorted(item["Key"][len(self._root) :] for page in pages for item in page.get("Contents", ()))

    def _locate(self, name: str) -> tuple[dict[str, str], str]:
        key = self._root + name
        return {"Bucket": self._bucket, "Key": key}, f"s3://{self._bucket}/{key}"

    def _nonce_of(self, name: str) -> str | None:
        target, where = self._locate(name)
        try:
            with mapped_errors("read", where):
                found: str | None = self._client.head_object(**target)["Metadata"].get(_NONCE)
        except _AbsentError:
            return None
        return found


class S3HeadStore:
    """A :class:`~headrace.kernel.protocols.HeadStore` in ``s3://bucket/prefix/head.json``."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client = client
        key = f"{prefix}/head.json" if prefix else "head.json"
        self._target = {"Bucket": bucket, "Key": key}
        self._where = f"s3://{bucket}/{key}"

    def read(self) -> Head | None:
        """See :meth:`HeadStore.read`."""
        return self._read()[0]

    def swap(self, expected: Head | None, new: Head) -> None:
        """See :meth:`HeadStore.swap`. Tried again, with the same nonce, when an answer is lost.

        Raises:
            CommitUnknownError: A write got no answer, nor did the tries after it: read the head later.
        """
        unclear: UnavailableError | None = None
        for last in _tries():
            try:
                self._swap_once(expected, new)
            except (_RefusedError, _ConflictError) as error:
                if last and unclear is None:
                    raise UnavailableError(f"cannot write {self._where}", detail="conflicting writes go on") from error
            except UnavailableError as error:
                unclear = error
            else:
                return
        raise CommitUnknownError(
            f"it is not known whether the job's head {self._where} was changed",
            detail=unclear.detail if unclear else "",
            hint="the store did not answer; start the job again: it reads the head first",
        ) from unclear

    def _swap_once(self, expected: Head | None, new: Head) -> None:
        current, etag = self._read()
        if current is not None and current.nonce == new.nonce:
            return
        if current != expected:
            raise fenced(current, expected)
        condition = {"IfMatch": etag} if etag is not None else {"IfNoneMatch": "*"}
        with mapped_errors("write", self._where):
            self._client.put_object(**self._target, Body=json.dumps(head_to_json(new)).encode(), **condition)

    def _read(self) -> tuple[Head | None, str | None]:
        try:
            with mapped_errors("read", self._where):
                found = self._client.get_object(**self._target)
                data = found["Body"].read()
        except _AbsentError:
            return None, None
        try:
            value = json.loads(data)
        except ValueError as error:
            raise damaged_head(self._where, str(error)) from error
        return head_from_json(value, self._where), str(found["ETag"])


def probe_conditional_writes(client: Any, bucket: str, prefix: str) -> None:
    """Try on an object of its own that the store refuses the writes which must not happen.

    Raises:
        ConfigError: It lets one through: two instances of a job could both commit.
        HeadraceError: The bucket is absent, denied or does not answer.
    """
    target = {"Bucket": bucket, "Key": f"{prefix}probe-{uuid.uuid4().hex}"}
    where = f"s3://{bucket}/{prefix}"
    try:
        with mapped_errors("write", where):
            etag = client.put_object(**target, Body=b"1", IfNoneMatch="*")["ETag"]
        if not _is_refused(client, where, **target, Body=b"2", IfNoneMatch="*"):
            raise _unsafe_store(where, "a put with If-None-Match: * replaced an object")
        with mapped_errors("write", where):
            client.put_object(**target, Body=b"3", IfMatch=etag)
        if not _is_refused(client, where, **target, Body=b"4", IfMatch=etag):
            raise _unsafe_store(where, "a put with If-Match and an old ETag replaced an object")
    except (_RefusedError, _ConflictError, _AbsentError) as error:
        raise _unsafe_store(where, f"a conditional put that had to work was refused: {error}") from error
    finally:
        with suppress(_AbsentError), mapped_errors("delete", where):
            client.delete_object(**target)


def _is_refused(client: Any, where: str, **put: Any) -> bool:
    try:
        with mapped_errors("write", where):
            client.put_object(**put)
    except (_RefusedError, _ConflictError):
        return True
    return False


def _unsafe_store(where: str, detail: str) -> ConfigError:
    return ConfigError(
        f"the object store under {where} does not keep conditional writes",
        detail=detail,
        hint="use a store with If-None-Match and If-Match on PutObject (Amazon S3, MinIO, SeaweedFS), or a folder",
        code="STORE_UNSAFE",
    )


def _tries() -> Iterator[bool]:
    """True in the last round."""
    return (number == _TRIES for number in range(1, _TRIES + 1))


@contextmanager
def mapped_errors(action: str, where: str) -> Iterator[None]:
    """The one place where errors of boto3 become Headrace's, or the three that its caller resolves."""
    try:
        yield
    except ClientError as error:
        raise _map_answer(error, action, where) from error
    except NoCredentialsError as error:
        raise ConfigError(
            f"there are no credentials to {action} {where}",
            detail=str(error),
            hint="set aws_access_key_id and aws_secret_access_key under [object_stores.s3]",
        ) from error
    except ParamValidationError as error:
        raise ConfigError(f"cannot {action} {where}", detail=str(error)) from error
    except BotoCoreError as error:
        raise UnavailableError(
            f"cannot {action} {where}", detail=str(error), hint="check endpoint_url under [object_stores.s3]"
        ) from error


def _map_answer(error: ClientError, action: str, where: str) -> Exception:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    for codes, kind in ((_ABSENT, _AbsentError), (_REFUSED, _RefusedError), (_CONFLICT, _ConflictError)):
        if code in codes:
            return kind(str(error))
    found: type[HeadraceError]
    if code == "NoSuchBucket":
        return NotFoundError(
            f"the bucket of {where} is not there", detail=str(error), hint="create it first", code="BUCKET_NOT_FOUND"
        )
    if code in _DENIED or status in {401, 403}:
        hint = "check the credentials under [object_stores.s3] and the bucket's policy"
        return AccessDeniedError(f"the store refuses to {action} {where}", detail=str(error), hint=hint)
    found = UnavailableError if code in _LATER or status >= 500 else ConfigError  # noqa: PLR2004 - HTTP: server errors
    return found(f"cannot {action} {where}", detail=str(error))
