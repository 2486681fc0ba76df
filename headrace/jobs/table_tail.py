"""Sources whose tail is a table: what their specs must hold to."""

from __future__ import annotations

from headrace.jobs.spec import IcebergSink, JobSpec
from headrace.jobs.spec_sources import SourceSpec, TableHistory, TableTailSpec


def check_table_tail(spec: JobSpec, name: str, source: SourceSpec, tail: TableTailSpec) -> None:
    """Check what the models of a source with a table's tail cannot see.

    Raises:
        SpecError: It makes no sense; the message names file and line where they are known.
    """
    path, history = ("sources", name), source.history
    if history is not None and not (isinstance(history, TableHistory) and history.table == tail.table):
        raise spec.problem(
            *path,
            "tail",
            "table",
            message=f"the tail of source {name!r} goes on from a snapshot of {tail.table}, which is not its history",
            hint=f"write history: {{table: {tail.table}}}, or leave the history out",
        )
    if history is not None and tail.since is not None:
        raise spec.problem(
            *path,
            "tail",
            "since",
            message=f"the tail of source {name!r} begins after the snapshot of its history, not after one of its own",
            hint="remove since; history.snapshot names the snapshot",
        )
    if tail.on_change == "changelog" and history is not None and history.where is not None:
        raise spec.problem(
            *path,
            "history",
            "where",
            message=f"source {name!r} reads changes of rows, and leaves some out of its history",
            detail="a row that it has not given would be taken back when it changes",
            hint="use a step filter, which holds for all rows",
        )
    if source.changelog:
        raise spec.problem(
            *path,
            "changelog",
            message=f"source {name!r} follows what is appended to a table: its rows are no changes by key",
            hint="remove changelog; a step aggregate or a window reads appended rows as they are",
        )
    if source.boundary != "auto":
        raise spec.problem(*path, "boundary", message=f"source {name!r} has a boundary, but no tail in Kafka")
    if source.event_time is not None and source.event_time.idle is not None:
        raise spec.problem(
            *path,
            "event_time",
            "idle",
            message=f"the tail of source {name!r} is a table, which is never idle: its snapshots alone move event time",
            hint="remove idle",
        )
    for index, sink in enumerate(spec.sinks):
        if isinstance(sink, IcebergSink) and sink.iceberg.table == tail.table:
            raise spec.problem(
                "sinks",
                index,
                "iceberg",
                "table",
                message=f"the job would read its own output: source {name!r} follows {tail.table}",
                hint="write to another table",
            )
