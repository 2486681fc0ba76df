"""The durable store of one job: blobs and the head, opened by location."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from headrace.kernel.errors import ConfigError, DependencyError, FencedError, InternalError
from headrace.kernel.protocols import BlobStore, Head, HeadStore

_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]+://")


@dataclass(frozen=True, slots=True)
class JobStore:
    """What a job keeps for good: blobs under names that are used once, and the head that decides."""

    blobs: BlobStore
    head: HeadStore


def open_store(location: str, object_stores: Mapping[str, Mapping[str, Any]] | None = None) -> JobStore:
    """Open (and probe) the store of one job; two jobs never share a location.

    Args:
        location: A folder, ``file:///folder`` or ``s3://bucket/prefix``. Folders are created.
        object_stores: Client options by scheme, the ``[object_stores]`` of headrace.toml: ``{"s3": {...}}`` takes
            the options of a boto3 client.

    Raises:
        ConfigError: An unknown scheme, or a store without the guarantees that the head needs.
        DependencyError: ``s3://`` without the extra ``s3``.
        NotFoundError: No such bucket.
        AccessDeniedError: The store refuses these credentials, or the folder cannot be written.
        UnavailableError: The store does not answer.
    """
    if not _SCHEME.match(location):
        return _open_folder(Path(location))
    url = urlsplit(location)
    if url.scheme == "file" and url.netloc in {"", "localhost"}:
        return _open_folder(Path(unquote(url.path)))
    if url.scheme == "s3" and url.netloc:
        return _open_bucket(url.netloc, url.path.strip("/"), (object_stores or {}).get("s3", {}))
    raise ConfigError(
        f"cannot open the checkpoint store {location!r}",
        detail="the scheme is not known" if url.scheme not in {"file", "s3"} else "the location is not complete",
        hint="give a folder, file:///folder or s3://bucket/prefix",
    )


def _open_folder(folder: Path) -> JobStore:
    from headrace.state.local import open_folder

    return JobStore(*open_folder(folder))


def _open_bucket(bucket: str, prefix: str, options: Mapping[str, Any]) -> JobStore:
    try:
        from headrace.state.s3 import open_bucket
    except ModuleNotFoundError as error:
        if error.name not in {"boto3", "botocore"}:
            raise
        raise DependencyError(
            "a checkpoint store on s3:// needs boto3", hint="install the extra: pip install 'headrace[s3]'"
        ) from error
    return JobStore(*open_bucket(bucket, prefix, options))


def check_name(name: str) -> str:
    """A blob name that means the same on every store: relative, ``/``-separated, no empty or dot segments.

    Raises:
        InternalError: It does not; names are made by Headrace, never by users.
    """
    if not name or any(part in {"", ".", ".."} for part in name.split("/")) or "\0" in name or "\\" in name:
        raise InternalError(f"{name!r} is no name of a blob")
    return name


def head_to_json(head: Head) -> dict[str, Any]:
    """The stored form of a head, version 1."""
    return {
        "version": 1,
        "sequence": head.sequence,
        "owner": head.owner,
        "nonce": head.nonce,
        "lineage": head.lineage,
        "record": head.record,
    }


def head_from_json(value: Any, where: str) -> Head:
    """Read the stored form of a head.

    Args:
        value: Decoded JSON.
        where: The file or object it came from, for the message.

    Raises:
        InternalError: Not a head, or one of a later release.
    """
    if isinstance(value, dict) and value.get("version") == 1:
        try:
            return Head(
                int(value["sequence"]), str(value["owner"]), str(value["nonce"]), str(value["lineage"]), value["record"]
            )
        except (KeyError, TypeError, ValueError) as error:
            raise damaged_head(where, repr(error)) from error
    version = value.get("version") if isinstance(value, dict) else None
    raise damaged_head(where, f"version {version!r}; this release reads version 1")


def damaged_head(where: str, detail: str) -> InternalError:
    """The error for a head that cannot be read."""
    return InternalError(
        f"the job's head {where} cannot be read",
        detail=detail,
        hint="do not delete it: it decides which epoch is the last one. Restore it from a backup, or use the release "
        "that wrote it",
        code="HEAD_UNREADABLE",
    )


def fenced(current: Head | None, expected: Head | None) -> FencedError:
    """The error for a head that is no longer what this instance wrote last."""
    return FencedError(
        "another instance has taken over this job",
        detail=f"the head is {_describe(current)}, expected {_describe(expected)}",
        hint="only one instance of a job runs at a time; stop one of them",
        context={"owner": current.owner if current else None, "sequence": current.sequence if current else None},
    )


def _describe(head: Head | None) -> str:
    return "absent" if head is None else f"number {head.sequence} of {head.owner}"
