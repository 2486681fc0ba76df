"""What is checked of each source of a job, beyond what single keys can show; and what kind of rows it gives."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from headrace.jobs.column_types import parse_schema
from headrace.jobs.names import suggest
from headrace.jobs.spec import JobSpec
from headrace.jobs.spec_sources import ChangelogSpec, SourceSpec, TailSpec
from headrace.jobs.table_tail import check_table_tail


def gives_changes(source: SourceSpec) -> bool:
    """Whether a source is read as a changelog, and gives its rows with ``_weight``."""
    return gives_versions(source) or (source.table_tail is not None and source.table_tail.on_change == "changelog")


def gives_versions(source: SourceSpec) -> bool:
    """Whether what makes it a changelog are versions by key, which are still to be turned into changes."""
    return isinstance(source.changelog, ChangelogSpec) and source.changelog.give == "changes"


def check_source(spec: JobSpec, name: str, source: SourceSpec) -> None:
    """Check one source.

    Raises:
        SpecError: It makes no sense; the message names file and line where they are known.
    """
    path = ("sources", name)
    history, tail = source.history, source.topic_tail
    if source.table_tail is not None:
        check_table_tail(spec, name, source, source.table_tail)
        return
    if history is None and tail is None:
        raise spec.problem(*path, message=f"source {name!r} has neither history nor tail", hint="give it one of them")
    if not (history and tail) and source.boundary != "auto":
        raise spec.problem(
            *path, "boundary", message=f"source {name!r} has a boundary, but not both a history and a tail"
        )
    if tail and history is None and tail.row_schema is None:
        raise spec.problem(
            *path,
            "tail",
            message=f"the tail of source {name!r} needs a schema, as there is no history to take it from",
            hint="add schema: {column: type, ...}",
        )
    if tail and history and "start" in tail.model_fields_set:
        raise spec.problem(
            *path,
            "tail",
            "start",
            message=f"the tail of source {name!r} starts at the boundary of its history, not at a start of its own",
            hint="remove start; to state where the tail starts write boundary: {offsets: {...}}",
        )
    _check_handover(spec, name, source)
    if isinstance(source.changelog, ChangelogSpec):
        _check_changelog(spec, name, source, source.changelog)
    if source.topic_tail:
        _check_topics(spec, name, source, source.topic_tail)
    if tail and tail.row_schema:
        _check_event_column(spec, name, source, tail.row_schema)


def _check_handover(spec: JobSpec, name: str, source: SourceSpec) -> None:
    path = ("sources", name)
    both = source.history is not None and source.topic_tail is not None
    if not both and "handover" in source.model_fields_set:
        raise spec.problem(
            *path, "handover", message=f"source {name!r} has a handover, but not both a history and a tail"
        )
    as_live = source.late.history == "as_live"
    if as_live and (not both or source.event_time is None or len(source.stages) != 1):
        raise spec.problem(
            *path,
            "late",
            "history",
            message="as_live needs one history, a tail in Kafka and an event time",
            hint="leave late out: rows of the history are then never late",
        )
    wanted = source.handover
    back = wanted.switch_back
    if source.stages and source.stages[-1].where is not None:
        for stated, at in (
            (wanted.chase == "auto" and "chase" in wanted.model_fields_set, ("chase",)),
            (back.lag != "off", ("switch_back", "lag")),
            (back.on_truncation and "on_truncation" in back.model_fields_set, ("switch_back", "on_truncation")),
        ):
            if stated:
                raise spec.problem(
                    *path,
                    "handover",
                    *at,
                    message="the table's where restricts the rows that are read of it, and not those of the topic",
                    hint="move the condition into a filter step: it is pushed down into the history just as well",
                )


def _check_changelog(spec: JobSpec, name: str, source: SourceSpec, wanted: ChangelogSpec) -> None:
    path = ("sources", name)
    if wanted.key_format == "text" and len(wanted.key) > 1:
        raise spec.problem(
            *path,
            "changelog",
            "key_format",
            message="a key of several columns has no plain text",
            hint="write key_format: json, or leave it out",
        )
    if any(stage.where is not None for stage in source.stages):
        raise spec.problem(
            *path,
            "history",
            "where",
            message=f"the history of source {name!r} is a changelog: a part of its versions would bring old rows back",
            hint="move the condition into a filter step",
        )
    known = source.topic_tail.row_schema if source.topic_tail else None
    for column in wanted.key:
        if known is not None and column not in known:
            raise spec.problem(
                *path,
                "changelog",
                "key",
                message=f"key column {column!r} is not in the schema of source {name!r}",
                hint=suggest(column, known),
                code="COLUMN_NOT_FOUND",
            )


def _check_topics(spec: JobSpec, name: str, source: SourceSpec, tail: TailSpec) -> None:
    path = ("sources", name, "tail")
    if bool(tail.topic) == (tail.topic_pattern is not None):
        raise spec.problem(*path, message="a tail needs topic or topic_pattern, one of them")
    twice = next((topic for topic in tail.topic if tail.topic.count(topic) > 1), None)
    if twice is not None:
        raise spec.problem(*path, "topic", message=f"topic {twice!r} is named twice")
    for place, value in (((*path, "start"), tail.start), ((*path[:2], "boundary"), source.boundary)):
        for key, offsets in getattr(value, "offsets", {}).items():
            if isinstance(offsets, int) and len(tail.topic) != 1:
                raise spec.problem(
                    *place,
                    "offsets",
                    message="a source of several topics needs offsets by topic",
                    hint='write offsets: {TOPIC: {"0": 120}}',
                )
            if not isinstance(offsets, int) and tail.topic and key not in tail.topic:
                raise spec.problem(
                    *place, "offsets", message=f"the tail does not read topic {key!r}", hint=suggest(key, tail.topic)
                )


def _check_event_column(spec: JobSpec, name: str, source: SourceSpec, columns: Mapping[str, str]) -> None:
    if source.event_time is None:
        return
    column = source.event_time.column
    if column not in columns:
        raise spec.problem(
            "sources",
            name,
            "event_time",
            "column",
            message=f"event time column {column!r} is not in the schema of source {name!r}",
            hint=suggest(column, columns),
        )
    dtype = parse_schema({column: columns[column]})[column]
    if not isinstance(dtype, pl.Datetime | pl.Date):
        raise spec.problem(
            "sources",
            name,
            "event_time",
            "column",
            message=f"event time column {column!r} has type {columns[column]}, which is no point in time",
            hint="use timestamp, timestamptz or date",
        )
