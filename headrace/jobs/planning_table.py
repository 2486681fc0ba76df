"""Plans what is read of the lake: histories, and the tails of tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import polars as pl

from catalog.leases import Lease
from headrace.jobs.compile import CompiledJob
from headrace.jobs.compile_sources import JobSource
from headrace.jobs.plan import HistoryPlan, SnapshotPlan, SourcePlan, TableTailPlan
from headrace.jobs.spec_sources import History, TableHistory
from headrace.kernel.columns import listed
from headrace.kernel.protocols import Json, ReadRequest
from hybrid_source.history import HistoryPlan as PlannedHistory
from hybrid_source.iceberg_increments import is_change, operation
from hybrid_source.iceberg_versions import newer_snapshots
from hybrid_source.table_position import TablePosition
from hybrid_source.table_source import TableSource

_SIDE: Final = r"((?:[^()\[\]<>=!&|]|\([^()\[\]<>=!&|]*\))+)"
_COMPARED: Final = re.compile(rf"\[\({_SIDE}\) (==|!=|<=|>=|<|>) \({_SIDE}\)\](?!\.)")
_PART: Final = r"((?:[^()\[\]]|\([^()\[\]]*\))+)"
_QUOTED: Final = re.compile(r'"[^"]*"')
_JOINED: Final = re.compile(rf"\[\({_PART}\) ([&|]) \({_PART}\)\](?!\.)")


def plan_table_source(job: CompiledJob, source: TableSource, request: ReadRequest, position: Json) -> SourcePlan:
    """Plan a source that follows a table, from where it stands.

    Raises:
        HeadraceError: What a run would fail with: a snapshot that is gone, or one that is refused.
    """
    at = source.plan() if position is None else TablePosition.from_json(position)
    history = None
    if at.phase == "history" and not at.is_read:
        planned = source.open_version(at.pin).plan(source.query(request, at))
        wanted = next(iter(job.spec.sources[source.name].stages), None)
        history = history_plan(job, source, wanted, at.pin, request, planned)
    return SourcePlan(source.name, history, None, None, source.time_column, table_tail=_table_tail(source, request, at))


def _table_tail(source: TableSource, request: ReadRequest, at: TablePosition) -> TableTailPlan:
    table = source.load_table()
    waiting = []
    for pin in newer_snapshots(table, source.table, at.pin):
        snapshot = table.metadata.snapshot_by_id(pin["snapshot_id"])
        if snapshot is None:
            continue
        added = snapshot.summary.additional_properties.get("added-records") if snapshot.summary else None
        waiting.append(
            SnapshotPlan(
                snapshot.snapshot_id,
                operation(snapshot),
                None if added is None else int(added),
                refused=is_change(snapshot) and source.on_change == "fail",
            )
        )
    return TableTailPlan(
        table=source.table,
        since=at.pin["snapshot_id"],
        columns=columns_read(source.schema, request),
        columns_total=len(listed(source.schema)),
        rows_predicate=text(request.predicate),
        interval_s=source.interval_s,
        on_change=source.on_change,
        waiting=waiting,
    )


def history_plan(
    job: CompiledJob,
    source: JobSource,
    wanted: History | None,
    pin: Json,
    request: ReadRequest,
    planned: PlannedHistory,
) -> HistoryPlan:
    """What is read of one pinned version, of one stage of a history."""
    report, schema, snapshot = planned.report, source.schema, pin.get("snapshot_id")
    leased = isinstance(wanted, TableHistory) and wanted.lease == "auto" and snapshot is not None
    return HistoryPlan(
        location="" if wanted is None else wanted.table if isinstance(wanted, TableHistory) else wanted.parquet,
        snapshot=snapshot,
        columns=columns_read(schema, request),
        columns_total=len(listed(schema)),
        files_predicate=planned.files_filter,
        rows_predicate=text(planned.predicate),
        residual=[str(condition) for condition in planned.residual],
        files=report.files,
        files_total=report.files_total,
        nbytes=report.nbytes,
        nbytes_total=report.nbytes_total,
        records=report.records,
        records_total=report.records_total,
        lease=Lease.of(job.uid, source.name, snapshot, 0).name if leased else None,
    )


def columns_read(schema: pl.Schema, request: ReadRequest) -> Sequence[str]:
    """The columns that a request wants of a source, as people know them."""
    return listed(schema if request.columns is None else request.columns)


def text(predicate: pl.Expr | None) -> str | None:
    """A predicate for people: as Polars writes it, without brackets around plain comparisons and what joins them."""
    if predicate is None:
        return None
    written, before = str(predicate), ""
    if any("[(" in quoted for quoted in _QUOTED.findall(written)):
        return written
    while written != before:
        before, written = written, _JOINED.sub(_joined, _COMPARED.sub(r"\1 \2 \3", written))
    return written


def _joined(found: re.Match[str]) -> str:
    left, operator, right = found.groups()
    word = {"&": "and", "|": "or"}[operator]
    other = " or " if word == "and" else " and "
    return f" {word} ".join(f"[{side}]" if other in side else side for side in (left, right))
