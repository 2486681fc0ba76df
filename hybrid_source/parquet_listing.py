"""A frozen listing of Parquet files: what stands for a snapshot where there is no table."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem, S3FileSystem

from headrace.kernel.errors import NotFoundError, SnapshotGoneError, UnavailableError
from headrace.kernel.protocols import Json

_WILD: Final = re.compile(r"[*?\[]")
_S3: Final = "s3://"
_NAMED_FILES: Final = 200
"""Up to so many files a pin holds the listing itself; beyond, its digest and the time of the newest file."""


@dataclass(frozen=True, slots=True, order=True)
class ListedFile:
    """A file as it was when it was listed: path, size in bytes, time of change in microseconds."""

    path: str
    size: int
    changed_us: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Files of a pattern, sorted by path."""

    pattern: str
    files: tuple[ListedFile, ...]

    @property
    def pin(self) -> Json:
        """Enough to find the same files again, or to say which one is no longer the same."""
        pin: dict[str, Any] = {
            "parquet": self.pattern,
            "digest": self.digest,
            "files": len(self.files),
            "newest": max((file.changed_us for file in self.files), default=0),
        }
        if len(self.files) <= _NAMED_FILES:
            pin["listing"] = [[file.path, file.size, file.changed_us] for file in self.files]
        return pin

    @property
    def digest(self) -> str:
        """SHA-256 over paths, sizes and times of change."""
        text = json.dumps([[file.path, file.size, file.changed_us] for file in self.files])
        return hashlib.sha256(text.encode()).hexdigest()


class ParquetStore:
    """The file system that a pattern lives on.

    Args:
        pattern: A file, a folder (all ``*.parquet`` below it) or a glob (``*``, ``?``, ``[..]``, ``**``), on the local
            disk or under ``s3://``.
        storage: boto3 client options for ``s3://``.
    """

    def __init__(self, pattern: str, storage: Mapping[str, Any]) -> None:
        self.pattern = pattern
        self._remote = pattern.startswith(_S3)
        self.system: FileSystem = _s3(storage) if self._remote else LocalFileSystem()
        self._inner = pattern.removeprefix(_S3) if self._remote else str(Path(pattern).resolve())

    def inner(self, path: str) -> str:
        """A listed path as the file system wants it."""
        return path.removeprefix(_S3)

    def list(self) -> Listing:
        """The files as they are now. Hidden ones (a name with ``.`` or ``_`` in front) are left out.

        Raises:
            NotFoundError: ``FILES_NOT_FOUND``: nothing matches.
            UnavailableError: The store does not answer.
        """
        try:
            found = [info for info in self._matches() if info.is_file and not _hidden(info)]
        except OSError as error:
            raise UnavailableError(
                f"cannot list {self.pattern}",
                detail=str(error),
                hint="check that the storage can be reached from here",
            ) from error
        files = sorted(self._listed(info) for info in found)
        if not files:
            raise NotFoundError(
                f"no Parquet files match {self.pattern}",
                hint="check the path; a folder is searched for *.parquet at any depth",
                code="FILES_NOT_FOUND",
            )
        return Listing(self.pattern, tuple(files))

    def check(self, files: Iterable[ListedFile]) -> None:
        """See that files are as they were listed.

        Raises:
            SnapshotGoneError: One is gone or has changed; the message names it.
        """
        listed = list(files)
        for file, info in zip(listed, self.system.get_file_info([self.inner(f.path) for f in listed]), strict=True):
            if info.type == FileType.NotFound:
                raise gone(self.pattern, file.path, "is gone")
            if self._listed(info) != file:
                raise gone(self.pattern, file.path, "has changed")

    def beside(self, name: str) -> tuple[ListedFile, bytes] | None:
        """A file of that name in the folder of the pattern (what stands before the first wildcard), with its content.

        Raises:
            UnavailableError: The store does not answer.
        """
        try:
            info = self.system.get_file_info(f"{self._folder()}/{name}")
            if not info.is_file:
                return None
            with self.system.open_input_stream(info.path) as stream:
                return self._listed(info), stream.read()
        except OSError as error:
            raise UnavailableError(f"cannot read {name} beside {self.pattern}", detail=str(error)) from error

    def _folder(self) -> str:
        if _WILD.search(self._inner):
            return self._inner[: _first_wild(self._inner)].rpartition("/")[0]
        only = self.system.get_file_info(self._inner.rstrip("/"))
        return str(only.path) if only.type == FileType.Directory else str(only.path).rpartition("/")[0]

    def _matches(self) -> Sequence[FileInfo]:
        if not _WILD.search(self._inner):
            only = self.system.get_file_info(self._inner.rstrip("/"))
            if only.type != FileType.Directory:
                return [only]
            return [
                info
                for info in self.system.get_file_info(FileSelector(only.path, recursive=True))
                if info.path.endswith(".parquet")
            ]
        fixed = self._inner[: _first_wild(self._inner)]
        base = fixed.rpartition("/")[0] or "/"
        pattern = re.compile(_regex(self._inner))
        selector = FileSelector(base, recursive=True, allow_not_found=True)
        return [info for info in self.system.get_file_info(selector) if pattern.fullmatch(info.path)]

    def _listed(self, info: FileInfo) -> ListedFile:
        return ListedFile(_S3 + info.path if self._remote else info.path, info.size, info.mtime_ns // 1000)


def restore(found: Listing, pin: Json) -> Listing:
    """The pinned files among those found now; files that came since are left out.

    Raises:
        SnapshotGoneError: A pinned file is gone or has changed.
    """
    if "listing" in pin:
        return Listing(found.pattern, tuple(_pinned(found, pin["listing"])))
    kept = Listing(found.pattern, tuple(file for file in found.files if file.changed_us <= pin["newest"]))
    if kept.digest != pin["digest"]:
        newer = [file.path for file in found.files if file.changed_us > pin["newest"]]
        raise gone(
            found.pattern,
            "",
            f"no longer holds the {pin['files']} files that were pinned: {len(kept.files)} are left; "
            f"new or changed since: {', '.join(newer[:5]) or 'none'}",
        )
    return kept


def gone(pattern: str, path: str, what: str) -> SnapshotGoneError:
    """The error for a frozen listing that no longer holds."""
    return SnapshotGoneError(
        f"the files of {pattern} are no longer those this job began with",
        detail=f"{path} {what}".strip(),
        hint="put the files back as they were, or start the job afresh; never rewrite files that a job is reading",
        context={"parquet": pattern, "file": path},
    )


def _pinned(found: Listing, listing: Json) -> Iterable[ListedFile]:
    now = {file.path: file for file in found.files}
    for path, size, changed_us in listing:
        file = now.get(path)
        if file is None:
            raise gone(found.pattern, path, "is gone")
        if (file.size, file.changed_us) != (size, changed_us):
            raise gone(found.pattern, path, "has changed")
        yield file


def _hidden(info: FileInfo) -> bool:
    return str(info.base_name).startswith((".", "_"))


def _first_wild(pattern: str) -> int:
    found = _WILD.search(pattern)
    return found.start() if found else len(pattern)


def _regex(pattern: str) -> str:
    """A glob as a regular expression over whole paths: ``*`` stays within a folder, ``**/`` does not."""
    out = ""
    rest = pattern
    while rest:
        if rest.startswith("**/"):
            out, rest = out + "(?:.*/)?", rest[3:]
        elif rest.startswith("**"):
            out, rest = out + ".*", rest[2:]
        elif rest[0] == "[" and "]" in rest:
            group, _, rest = rest[1:].partition("]")
            out += "[" + group.replace("!", "^", 1) + "]" if group.startswith("!") else f"[{group}]"
        else:
            out, rest = out + {"*": "[^/]*", "?": "[^/]"}.get(rest[0], re.escape(rest[0])), rest[1:]
    return out


def _s3(storage: Mapping[str, Any]) -> S3FileSystem:
    return S3FileSystem(
        endpoint_override=storage.get("endpoint_url"),
        access_key=storage.get("aws_access_key_id"),
        secret_key=storage.get("aws_secret_access_key"),
        session_token=storage.get("aws_session_token"),
        region=storage.get("region_name") or "us-east-1",
    )
