"""Sources of a spec as hybrid sources: history stage, tail stage, boundary rules, schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import polars as pl

from catalog.catalogs import Catalogs
from headrace.jobs.column_types import parse_schema, type_name
from headrace.jobs.compile_boundary import boundary_rules, by_topic, tail_cluster
from headrace.jobs.config import Config
from headrace.jobs.graph import JobGraph
from headrace.jobs.graph_sources import gives_changes
from headrace.jobs.names import suggest
from headrace.jobs.spec import JobSpec
from headrace.jobs.spec_base import Path
from headrace.jobs.spec_sources import (
    DEFAULT_CONCURRENCY,
    ChangelogSpec,
    SourceSpec,
    StartAtOffsets,
    StartAtTimestamp,
    TableHistory,
    TableTailSpec,
    TailSpec,
)
from headrace.jobs.spec_sources import History as HistorySpec
from headrace.jobs.values import Expression
from headrace.kernel import columns as system
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import ERRORS, Json
from headrace.runtime.graph import Stream
from hybrid_source.decode import Decoder, JsonDecoder
from hybrid_source.history import History
from hybrid_source.history_sequence import HistorySequence
from hybrid_source.history_stage import LakeHistory
from hybrid_source.hybrid import EventTime, HandoverPolicy, HybridSource
from hybrid_source.iceberg_history import open_iceberg
from hybrid_source.iceberg_versions import changed_between, newer_pin
from hybrid_source.parquet_history import open_parquet
from hybrid_source.splits import SplitTarget
from hybrid_source.table_source import TableSource
from hybrid_source.tail import AtOffsets, AtTime, KafkaTail, Start
from hybrid_source.tail_compaction import UpsertKey
from hybrid_source.tail_topics import TopicList, TopicPattern
from operators.errors import check_names, planning
from operators.expressions import row_expression
from operators.segment import resolved

JobSource: TypeAlias = HybridSource | TableSource


def build_source(spec: JobSpec, nodes: JobGraph, name: str, config: Config, catalogs: Catalogs) -> JobSource:
    """One source. Loads the schema of its history.

    Raises:
        SpecError: The tail's schema contradicts the history's, or the event-time column is not there.
        NotFoundError: The history is not there.
    """
    source = spec.sources[name]
    if source.table_tail is not None:
        return _table_source(spec, name, source, source.table_tail, catalogs)
    openers = [_opener(stage, config, catalogs) for stage in source.stages]
    payload = _payload(spec, name, source, openers)
    check_names(payload, f"source {name!r}")
    time = _event_time(spec, name, source, payload)
    _check_key(spec, name, source, payload)
    wanted = source.topic_tail
    tail = _tail(source, wanted, config, payload, time) if wanted else None
    stages = [
        LakeHistory(
            opener,
            rules=boundary_rules(source, config),
            where=_where(spec, _stage_path(source, name, number), stage.where, opener(None).schema),
            event_time=time.column if time else None,
            target=_target(stage),
            state=isinstance(source.changelog, ChangelogSpec) and system.DELETED not in opener(None).stored,
            payload=payload,
            open_newest=_newest(stage, catalogs),
            newer_pin=_newer(stage, catalogs),
            topic_pattern=wanted.topic_pattern if wanted else None,
            changes=_changes(stage, catalogs),
        )
        for number, (stage, opener) in enumerate(zip(source.stages, openers, strict=True))
    ]
    history = None if not stages else stages[0] if len(stages) == 1 else HistorySequence(stages)
    routed = bool(nodes.readers(Stream(name, ERRORS)))
    return HybridSource(
        name,
        _visible(source, payload),
        history,
        tail,
        time,
        fail_on_error=source.on_error == "fail" and not routed,
        policy=_policy(source),
        concurrency=max((stage.concurrency for stage in source.stages), default=0),
    )


def _policy(source: SourceSpec) -> HandoverPolicy:
    wanted, back = source.handover, source.handover.switch_back
    return HandoverPolicy(
        per_partition=wanted.per_partition,
        chase=wanted.chase == "auto",
        lag=None if back.lag == "off" else back.lag,
        on_truncation=back.on_truncation,
        as_live=source.late.history == "as_live",
    )


def _table_source(spec: JobSpec, name: str, source: SourceSpec, tail: TableTailSpec, catalogs: Catalogs) -> TableSource:
    table = catalogs.load(tail.table)
    if tail.on_change == "changelog" and system.WEIGHT in table.schema().column_names:
        raise spec.problem(
            "sources",
            name,
            "tail",
            "on_change",
            message=f"table {tail.table} has a column {system.WEIGHT} of its own, and cannot be read as a changelog",
            hint="read what is appended to it (on_change: fail), or rename the column",
            code="COLUMN_CLASH",
        )
    found = open_iceberg(table, tail.table, on_change=tail.on_change)
    payload = pl.Schema({column: dtype for column, dtype in found.stored.items() if column not in system.SYSTEM})
    history = source.history if isinstance(source.history, TableHistory) else None
    return TableSource(
        name,
        tail.table,
        lambda: catalogs.load(tail.table),
        _visible(source, payload),
        history=history is not None,
        snapshot_id=history.snapshot if history else tail.since,
        where=_where(spec, _stage_path(source, name, 0), history.where, found.schema) if history else None,
        event_time=_event_time(spec, name, source, payload),
        on_change=tail.on_change,
        interval_s=tail.interval / 1e6,
        target=_target(history),
        concurrency=history.concurrency if history else DEFAULT_CONCURRENCY,
    )


def _target(stage: HistorySpec | None) -> SplitTarget:
    rows = stage.split_rows if stage else None
    return SplitTarget(rows) if rows else SplitTarget()


def _opener(wanted: HistorySpec, config: Config, catalogs: Catalogs) -> Callable[[Json], History]:
    if isinstance(wanted, TableHistory):
        table, snapshot = wanted.table, wanted.snapshot
        return lambda pin: open_iceberg(catalogs.load(table), table, snapshot_id=snapshot, pin=pin)
    pattern, storage = wanted.parquet, config.object_store()
    return lambda pin: open_parquet(pattern, storage=storage, pin=pin)


def _newest(wanted: HistorySpec, catalogs: Catalogs) -> Callable[[], History] | None:
    """How the newest version of a table is opened, whichever the job asks for."""
    if not isinstance(wanted, TableHistory):
        return None
    table = wanted.table
    return lambda: open_iceberg(catalogs.load(table), table)


def _newer(wanted: HistorySpec, catalogs: Catalogs) -> Callable[[Json], Json] | None:
    if not isinstance(wanted, TableHistory):
        return None
    table = wanted.table
    return lambda pin: newer_pin(catalogs.load(table), table, pin)


def _changes(wanted: HistorySpec, catalogs: Catalogs) -> Callable[[Json, Json], str] | None:
    if not isinstance(wanted, TableHistory):
        return None
    table = wanted.table
    return lambda pin, newest: changed_between(catalogs.load(table), table, pin, newest)


def _payload(spec: JobSpec, name: str, source: SourceSpec, openers: Sequence[Callable[[Json], History]]) -> pl.Schema:
    """The columns of the last stage of the history; the tail and earlier stages may lack some, and have no others."""
    tail = source.topic_tail
    stated = parse_schema(tail.row_schema) if tail and tail.row_schema else pl.Schema()
    if not openers:
        return stated
    stored = _columns(openers[-1])
    for column, dtype in stated.items():
        _check_column(
            spec,
            ("sources", name, "tail", "schema"),
            (column, dtype, "the tail"),
            stored,
            hint="history and tail have one schema, the history's; leave the tail's schema out",
        )
    for number, opener in enumerate(openers[:-1]):
        for column, dtype in _columns(opener).items():
            _check_column(
                spec,
                _stage_path(source, name, number),
                (column, dtype, "this stage"),
                stored,
                hint="all stages have the last one's columns and types; rewrite the files, or make them another source",
            )
    return stored


def _columns(opener: Callable[[Json], History]) -> pl.Schema:
    return pl.Schema({name: dtype for name, dtype in opener(None).stored.items() if name not in system.SYSTEM})


def _check_column(
    spec: JobSpec, path: Path, found: tuple[str, pl.DataType, str], stored: pl.Schema, *, hint: str
) -> None:
    column, dtype, where = found
    if stored.get(column) != dtype:
        other = type_name(stored[column]) if column in stored else "not there"
        raise spec.problem(
            *path, message=f"column {column!r} is {type_name(dtype)} in {where} and {other} in the history", hint=hint
        )


def _stage_path(source: SourceSpec, name: str, number: int) -> Path:
    path: Path = ("sources", name, "history")
    return (*path, number) if isinstance(source.history, tuple) else path


def _where(spec: JobSpec, path: Path, text: Expression | None, schema: pl.Schema) -> pl.Expr | None:
    if text is None:
        return None
    try:
        condition = row_expression(text, "history.where").expr
        with planning("history.where", schema.names()):
            resolved(pl.LazyFrame(schema=schema).filter(condition))
    except SpecError as error:
        raise spec.problem(
            *path, "where", message=error.message, detail=error.detail, hint=error.hint, code=error.code
        ) from error
    return condition


def _check_key(spec: JobSpec, name: str, source: SourceSpec, payload: pl.Schema) -> None:
    for column in source.changelog.key if isinstance(source.changelog, ChangelogSpec) else ():
        dtype = payload.get(column)
        if dtype is None or dtype.is_nested():
            raise spec.problem(
                "sources",
                name,
                "changelog",
                "key",
                message=f"key column {column!r} of source {name!r} is {'not there' if dtype is None else 'nested'}",
                hint=suggest(column, payload) if dtype is None else "name a column inside it",
                code="COLUMN_NOT_FOUND" if dtype is None else "",
            )


def hidden_columns(source: SourceSpec) -> frozenset[str]:
    """Columns that a source gives for the changelog that is made of its rows, and the user does not see."""
    if not isinstance(source.changelog, ChangelogSpec) or source.changelog.give == "versions":
        return frozenset()
    return frozenset({system.DELETED} if source.metadata else {system.OFFSET, system.DELETED})


def _visible(source: SourceSpec, payload: pl.Schema) -> pl.Schema:
    columns = dict(payload)
    if source.metadata:
        columns |= dict(system.METADATA)
    if isinstance(source.changelog, ChangelogSpec):
        columns |= {name: system.SYSTEM[name] for name in (system.DELETED, *sorted(hidden_columns(source)))}
    if source.event_time and not gives_changes(source):
        columns[system.ROW_WATERMARK] = system.SYSTEM[system.ROW_WATERMARK]
    return pl.Schema(columns)


def _event_time(spec: JobSpec, name: str, source: SourceSpec, payload: pl.Schema) -> EventTime | None:
    wanted = source.event_time
    if wanted is None:
        return None
    dtype = payload.get(wanted.column)
    if dtype is None or not isinstance(dtype, pl.Datetime | pl.Date):
        raise spec.problem(
            "sources",
            name,
            "event_time",
            "column",
            message=f"source {name!r} has no column {wanted.column!r} that is a time"
            if dtype is None
            else f"event-time column {wanted.column!r} of source {name!r} is {type_name(dtype)}, not a time",
            detail=f"columns: {', '.join(f'{column} {type_name(kind)}' for column, kind in payload.items())}",
            hint="name a column of type timestamptz, timestamp or date, or leave event_time out",
            code="COLUMN_NOT_FOUND" if dtype is None else "",
        )
    return EventTime(wanted.column, wanted.out_of_orderness, wanted.idle, wanted.max_drift)


def _tail(source: SourceSpec, tail: TailSpec, config: Config, payload: pl.Schema, time: EventTime | None) -> KafkaTail:
    return KafkaTail(
        cluster=tail_cluster(tail, config),
        topics=TopicPattern(tail.topic_pattern) if tail.topic_pattern else TopicList(tail.topic),
        schema=payload,
        event_time=time,
        start_at=_start(tail),
        on_gap=tail.on_gap,
        rate_limit=tail.rate_limit,
        discovery_s=tail.discovery_interval / 1e6,
        transaction_wait_s=tail.transaction_wait / 1e6,
        decoder=_decoder(tail),
        upserts=_upserts(source),
        compacted=source.changelog is False,
    )


def _decoder(tail: TailSpec) -> Callable[[pl.Schema], Decoder]:
    match tail.format:
        case "json":
            return JsonDecoder


def _upserts(source: SourceSpec) -> UpsertKey | None:
    wanted = source.changelog
    if not isinstance(wanted, ChangelogSpec):
        return None
    return UpsertKey(wanted.key, wanted.key_format or ("text" if len(wanted.key) == 1 else "json"))


def _start(tail: TailSpec) -> Start:
    if isinstance(tail.start, StartAtOffsets):
        return AtOffsets(by_topic(tail.start.offsets, tail.topic))
    if isinstance(tail.start, StartAtTimestamp):
        return AtTime(int(tail.start.timestamp.timestamp() * 1000))
    return tail.start
