"""The pre-commit of an Iceberg sink: what another process needs to finish the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from catalog.catalogs import TableName
from catalog.commit import EpochCommit
from catalog.staging import StagedManifest
from catalog.tokens import SinkKey
from headrace.kernel.boundary import Boundary
from headrace.kernel.errors import GraphChangedError
from headrace.kernel.protocols import Json, PreCommit

KIND: Final = "iceberg"
VERSION: Final = 1


def to_json(commit: EpochCommit) -> dict[str, Json]:
    """JSON values of an epoch's commit, with its rows and bytes for people."""
    return {
        "kind": KIND,
        "version": VERSION,
        "table": str(commit.table),
        "table_uuid": commit.table_uuid,
        "job": commit.key.job_uid,
        "sink": commit.key.sink_id,
        "branch": commit.key.branch,
        "lineage": commit.lineage,
        "epoch": commit.epoch,
        "attempt": commit.attempt,
        "previous": commit.previous,
        "staged": [manifest.to_json() for manifest in commit.staged],
        "rows": sum(manifest.rows for manifest in commit.staged),
        "bytes": sum(manifest.nbytes for manifest in commit.staged),
        "coverage": commit.coverage.to_json() if commit.coverage else None,
    }


def from_json(value: PreCommit) -> EpochCommit:
    """Read what :func:`to_json` gave.

    Raises:
        GraphChangedError: It is another sink's, or of a version that this release does not read.
    """
    if value.get("kind") != KIND or value.get("version") != VERSION:
        raise GraphChangedError(
            f"a pending commit of kind {value.get('kind')!r}, version {value.get('version')!r} is no Iceberg commit",
            hint="start the job with the sinks (and the release) it had, let it commit, then change it",
            code="PRECOMMIT_UNREADABLE",
        )
    coverage: Mapping[str, Any] | None = value["coverage"]
    return EpochCommit(
        table=TableName.parse(value["table"]),
        table_uuid=value["table_uuid"],
        key=SinkKey(value["job"], value["sink"], value["branch"]),
        lineage=value["lineage"],
        epoch=int(value["epoch"]),
        attempt=value["attempt"],
        staged=tuple(StagedManifest.from_json(manifest) for manifest in value["staged"]),
        coverage=Boundary.from_json(coverage) if coverage is not None else None,
        previous=value["previous"],
    )
