"""What the scans of seam proofs have found, stored with the job: a pinned snapshot never changes, and may expire.

One blob for each version of the lake that a source has handed over from: ``seam/<source>/<epoch>-<digest>.json``, where
the digest names the version and its boundary. The newest ones of a source are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import HeadraceError
from headrace.kernel.protocols import BlobStore, Json
from hybrid_source.hybrid_position import KEPT_SWITCHES, HybridPosition

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class LakeSide:
    """What the lake holds of one partition below the boundary, by a scan.

    Attributes:
        rows: Rows below the boundary.
        first: Lowest offset; None without rows.
        last: Highest offset; None without rows.
        duplicates: Rows more than there are distinct offsets.
        holes: Ranges (start inclusive, next exclusive) between the first and the last offset that have no row; only the
            first few of them. Compaction, transaction markers and aborted records leave holes, too.
        trimmed: Rows at or above the boundary, which the job leaves to the tail.
    """

    rows: int
    first: int | None
    last: int | None
    duplicates: int
    holes: Sequence[tuple[int, int]]
    trimmed: int

    def once(self) -> LakeSide:
        """As a job sees it that reads each offset once."""
        return replace(self, rows=self.rows - self.duplicates, duplicates=0)


Sides = Mapping[TopicPartition, LakeSide]


@dataclass(frozen=True, slots=True)
class SeamStore:
    """The stored scans of one job."""

    blobs: BlobStore

    def find(self, source: str, at: HybridPosition) -> Sides | None:
        """What an earlier scan found of the version that a source has handed over from; None: there was none.

        Raises:
            HeadraceError: The store does not answer.
        """
        wanted = _digest(at)
        for name in self._names(source):
            if name.endswith(f"-{wanted}.json"):
                value: dict[str, Any] = json.loads(self.blobs.get(name))
                return {TopicPartition(*place): _side(side) for *place, side in value["lake"]}
        return None

    def keep(self, source: str, at: HybridPosition, epoch: int, sides: Sides) -> None:
        """Store what a scan has found. A store that refuses it is no fault of the proof: the next one scans again."""
        value = {
            "version": _VERSION,
            "pin": at.pin,
            "boundary": at.resolution.to_json() if at.resolution else None,
            "lake": [[*place, asdict(side)] for place, side in sides.items()],
        }
        with suppress(HeadraceError):
            self.blobs.put(f"{_folder(source)}{epoch:012d}-{_digest(at)}.json", json.dumps(value).encode())
            for name in self._names(source)[:-KEPT_SWITCHES]:
                self.blobs.delete(name)

    def _names(self, source: str) -> Sequence[str]:
        return self.blobs.list(_folder(source))


def _folder(source: str) -> str:
    return f"seam/{quote(source, safe='')}/"


def _digest(at: HybridPosition) -> str:
    version: Json = [at.pin, at.resolution.to_json() if at.resolution else None]
    return hashlib.sha256(json.dumps(version, sort_keys=True).encode()).hexdigest()[:16]


def _side(value: Mapping[str, Any]) -> LakeSide:
    return LakeSide(**{**value, "holes": [(start, following) for start, following in value["holes"]]})
