"""Rules: a table that Apache Fluss tiers; a bucket of Fluss is a partition of the topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg.io import FileIO

from catalog.errors import mapping
from catalog.summaries import newest_note
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary
from headrace.kernel.errors import BoundaryError, NotFoundError
from hybrid_source.boundary import layouts
from hybrid_source.boundary.coverage import from_columns
from hybrid_source.boundary.rule import BoundaryContext, Unusable
from hybrid_source.iceberg_history import IcebergHistory
from hybrid_source.resolution import Resolution

SUMMARY: Final = "fluss-offsets"
_VERSION: Final = 1
_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class FlussOffsets:
    """``fluss-offsets`` in the summary of the pinned snapshot or of an ancestor: log end offsets, exclusive.

    Fluss 0.9 and later: the path of a file ``{"version": 1, "table_id": ..., "bucket_offsets": [..]}``, in which -1
    stands for an unknown bucket. Fluss 0.8: ``[{"bucket": 0, "offset": 1234}, ...]`` in the property itself. Source:
    ``TableBucketOffsetsJsonSerde`` of Apache Fluss.
    """

    name: str = "offsets of Apache Fluss"
    looks_for: str = f"{SUMMARY} in the snapshot summary"

    def resolve(self, context: BoundaryContext) -> Resolution | Unusable | None:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`.

        Raises:
            BoundaryError: The property or its file cannot be read.
        """
        history = context.history
        if not isinstance(history, IcebergHistory):
            return None
        noted = newest_note(history.table, history.snapshot_id, lambda facts: facts.get(SUMMARY))
        if noted is None:
            return None
        value, where = _read(history.table.io, noted.value.strip())
        try:
            if _partitioned(value):
                return Unusable(f"{where} is of a partitioned Fluss table, whose buckets are no partitions of a topic")
            ranges = {bucket: PartitionRange(0, offset) for bucket, offset in sorted(_nexts(value))}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unreadable(where, repr(error)) from error
        said = ", ".join(f"{bucket}: {covered.next}" for bucket, covered in ranges.items())
        return Resolution(
            Boundary({context.topic: TopicBoundary(ranges)}),
            self.name,
            "; ".join(
                [
                    f"{where} of snapshot {noted.snapshot_id}: next offset by bucket {{{said}}}",
                    *map(str, noted.foreign_changes),
                ]
            ),
            "exactly-once" + (" if rows that others added since carry offsets" if noted.foreign_changes else ""),
            columns=layouts.fluss(history.stored),
        )


@dataclass(frozen=True, slots=True)
class FlussColumns:
    """The columns ``__bucket`` and ``__offset`` of every row, where the summary's offsets are gone."""

    name: str = "columns of Apache Fluss"
    looks_for: str = "columns __bucket and __offset"

    def resolve(self, context: BoundaryContext) -> Resolution | Unusable | None:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`."""
        names = layouts.fluss(context.history.stored)
        return None if names is None else from_columns(context, self.name, names)


def _read(file_io: FileIO, text: str) -> tuple[Any, str]:
    """The offsets as JSON values, and where they stood."""
    where = SUMMARY
    content: str | bytes = text
    if not text.startswith(("{", "[")):
        where = f"{SUMMARY} file {text}"
        try:
            with mapping(f"read {where}"), file_io.new_input(text).open() as stream:
                content = stream.read()
        except NotFoundError as error:
            raise _unreadable(where, error.detail) from error
    try:
        return json.loads(content), where
    except ValueError as error:
        raise _unreadable(where, str(error)) from error


def _partitioned(value: Any) -> bool:
    if isinstance(value, list):
        return any("partition_id" in entry or "partition_name" in entry for entry in value)
    return bool(value.get("partition_offsets"))


def _nexts(value: Any) -> Iterator[tuple[int, int]]:
    """Next offset by bucket; unknown ones (-1) are left out."""
    if isinstance(value, list):
        found = [(int(entry["bucket"]), int(entry["offset"])) for entry in value]
    elif value.get("version") == _VERSION:
        found = [(bucket, int(offset)) for bucket, offset in enumerate(value.get("bucket_offsets", ()))]
    else:
        raise ValueError(f"version {value.get('version')!r} is not known")
    yield from ((bucket, offset) for bucket, offset in found if offset != _UNKNOWN)


def _unreadable(where: str, why: str) -> BoundaryError:
    return BoundaryError(
        f"{where} cannot be read",
        detail=why,
        hint="restore the file, or state the boundary in the job (boundary: {offsets: ...} or {columns: {partition: "
        "__bucket, offset: __offset}})",
        code="BOUNDARY_UNREADABLE",
    )
