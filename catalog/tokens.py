"""What a sink of a job has committed to a table, as the table itself tells it.

A sink is known by (job uid, sink id, branch). Its commits leave

* a **token** in the snapshot's summary (``headrace.job``, ``sink``, ``branch``, ``lineage``, ``epoch``, ``attempt``),
* one table **property** ``headrace.sink.<digest>``: whose turn it is (the lineage), and the last commit with the
  snapshot it belongs to,
* a **tag** ``headrace-sink-<digest>-<lineage digest>`` at the last commit, which every commit asserts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from catalog.ancestry import Ancestry

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

JOB: Final = "headrace.job"
SINK: Final = "headrace.sink"
BRANCH: Final = "headrace.branch"
LINEAGE: Final = "headrace.lineage"
EPOCH: Final = "headrace.epoch"
ATTEMPT: Final = "headrace.attempt"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SinkKey:
    """Names a sink of a job on one branch of a table, for all time."""

    job_uid: str
    sink_id: str
    branch: str = "main"

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits, the same in every process."""
        return _digest(json.dumps([self.job_uid, self.sink_id, self.branch]))

    @property
    def property_name(self) -> str:
        """The table property that holds the sink's state."""
        return f"headrace.sink.{self.digest}"

    def tag(self, lineage: str) -> str:
        """The tag that fences commits of ``lineage``."""
        return f"headrace-sink-{self.digest}-{_digest(lineage)[:8]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Committed:
    """An epoch that a sink has committed. ``sequence`` is the snapshot's sequence number."""

    lineage: str
    epoch: int
    attempt: str
    snapshot_id: int
    sequence: int | None

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "lineage": self.lineage,
            "epoch": self.epoch,
            "attempt": self.attempt,
            "snapshot": self.snapshot_id,
            "sequence": self.sequence,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Committed:
        """Read what :meth:`to_json` gave."""
        return cls(
            value["lineage"], int(value["epoch"]), value["attempt"], int(value["snapshot"]), value.get("sequence")
        )


@dataclass(frozen=True, slots=True)
class SinkState:
    """What a table says about a sink.

    Attributes:
        lineage: Whose turn it is; None when the sink has never been here. Never void: a rollback of the table does not
            give a fenced lineage its turn back.
        committed: The last commit that the branch still stands on.
        where: How that was found.
        rolled_back: The last commit that the property or a tag names is no longer an ancestor of the branch.
        at_ms: When the property was last written, milliseconds since the epoch.
    """

    lineage: str | None = None
    committed: Committed | None = None
    where: Literal["property", "summary", "tag"] | None = None
    rolled_back: bool = False
    at_ms: int | None = None


def token(key: SinkKey, lineage: str, epoch: int | None, attempt: str) -> dict[str, str]:
    """The summary properties of a commit; without ``epoch`` those of a fence, which is no commit."""
    facts = {JOB: key.job_uid, SINK: key.sink_id, BRANCH: key.branch, LINEAGE: lineage, ATTEMPT: attempt}
    return facts if epoch is None else {**facts, EPOCH: str(epoch)}


def state_property(key: SinkKey, lineage: str, committed: Committed | None, at_ms: int) -> dict[str, str]:
    """The table property that records a sink's state."""
    value = {
        "version": _VERSION,
        "job": key.job_uid,
        "sink": key.sink_id,
        "branch": key.branch,
        "lineage": lineage,
        "committed": committed.to_json() if committed else None,
        "at": at_ms,
    }
    return {key.property_name: json.dumps(value, separators=(",", ":"))}


def find_state(metadata: TableMetadata, key: SinkKey) -> SinkState:
    """Look a sink up: its property, then the ancestors of the branch, then its tags.

    A commit that the property names counts while the branch stands on it, or while expiry has cut the line above it.
    """
    line = Ancestry.of_ref(metadata, key.branch)
    lineage, noted, at_ms = _read_property(metadata, key)
    if noted is not None and _stands(line, noted):
        return SinkState(lineage, noted, "property", at_ms=at_ms)
    rolled_back = noted is not None
    for snapshot in line.snapshots:
        if (found := _read_token(snapshot, key)) is not None:
            return SinkState(lineage or found.lineage, found, "summary", rolled_back, at_ms or snapshot.timestamp_ms)
    for found in _tagged(metadata, key):
        if _stands(line, found):
            return SinkState(lineage or found.lineage, found, "tag", rolled_back, at_ms)
        rolled_back = True
    return SinkState(lineage, None, None, rolled_back, at_ms)


def _stands(line: Ancestry, commit: Committed) -> bool:
    return commit.snapshot_id in line or line.may_precede(commit.snapshot_id, commit.sequence)


def _read_property(metadata: TableMetadata, key: SinkKey) -> tuple[str | None, Committed | None, int | None]:
    text = metadata.properties.get(key.property_name)
    if text is None:
        return None, None, None
    value = json.loads(text)
    noted = value.get("committed")
    return value["lineage"], Committed.from_json(noted) if noted else None, value.get("at")


def _read_token(snapshot: Snapshot, key: SinkKey) -> Committed | None:
    facts = snapshot.summary.additional_properties if snapshot.summary else {}
    if (facts.get(JOB), facts.get(SINK), facts.get(BRANCH)) != (key.job_uid, key.sink_id, key.branch):
        return None
    if EPOCH not in facts:
        return None
    return Committed(
        facts[LINEAGE], int(facts[EPOCH]), facts.get(ATTEMPT, ""), snapshot.snapshot_id, snapshot.sequence_number
    )


def _tagged(metadata: TableMetadata, key: SinkKey) -> list[Committed]:
    prefix = f"headrace-sink-{key.digest}-"
    found = []
    for name, ref in metadata.refs.items():
        snapshot = metadata.snapshot_by_id(ref.snapshot_id) if name.startswith(prefix) else None
        if snapshot is not None and (commit := _read_token(snapshot, key)) is not None:
            found.append(commit)
    return sorted(found, key=lambda commit: commit.sequence or 0, reverse=True)
