"""What is checked of each step in a job's graph: tables, event times, changelogs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.jobs.names import suggest
from headrace.jobs.spec import JobSpec
from headrace.jobs.spec_steps import LookupSpec, LookupStep, TimedStep, TopStep, UnionStep
from operators.windowed import WINDOW_START

if TYPE_CHECKING:
    from headrace.jobs.graph import JobGraph, StepNode


def check_step(spec: JobSpec, graph: JobGraph, node: StepNode) -> None:
    """Check one step against what reaches it.

    Raises:
        SpecError: It makes no sense there; the message names file and line where they are known.
    """
    if isinstance(node.step, LookupStep) and node.step.lookup.table not in spec.tables:
        table = node.step.lookup.table
        hint = suggest(table, spec.tables) or "declare it under tables"
        raise spec.problem(*node.path, "lookup", "table", message=f"there is no table named {table!r}", hint=hint)
    if isinstance(node.step, LookupStep) and node.step.lookup.as_of is not None:
        _check_as_of(spec, graph, node, node.step.lookup)
    if isinstance(node.step, TimedStep):
        if graph.is_changelog(node.input):
            raise spec.problem(
                *node.path,
                node.kind,
                message=f"{node.kind} {node.id!r} reads a changelog, whose rows may be taken back after it has closed",
                hint="use a step aggregate, which follows its input",
                code="CHANGELOG_UNSUPPORTED",
            )
        _check_event_time(spec, graph, node)
    if isinstance(node.step, TopStep) and node.step.top.tumbling is None:
        _check_windowed(spec, graph, node)
    if isinstance(node.step, UnionStep) and any(map(graph.is_changelog, node.inputs)):
        raise spec.problem(
            *node.path,
            "union",
            message=f"union {node.id!r} reads a changelog, whose rows may be taken back",
            hint="unite streams of rows first and aggregate them together",
            code="CHANGELOG_UNSUPPORTED",
        )


def _check_as_of(spec: JobSpec, graph: JobGraph, node: StepNode, lookup: LookupSpec) -> None:
    path = (*node.path, "lookup")
    if lookup.how in {"semi", "anti"}:
        raise spec.problem(*path, "how", message=f"as_of joins are left or inner, not {lookup.how}")
    if lookup.many:
        raise spec.problem(*path, "many", message="an as_of join takes one version of a row", hint="remove many")
    if lookup.as_of and lookup.as_of.time is None:
        _check_event_time(spec, graph, node)


def _check_windowed(spec: JobSpec, graph: JobGraph, node: StepNode) -> None:
    if graph.event_times(node.input) != {WINDOW_START}:
        raise spec.problem(
            *node.path,
            "top",
            message=f"top {node.id!r} reads rows without windows, so it must say over which time it ranks them",
            hint="add tumbling: 1h (or another length), or read a window step",
        )


def _check_event_time(spec: JobSpec, graph: JobGraph, node: StepNode) -> None:
    times = graph.event_times(node.input)
    if None in times:
        source = next(name for name in graph.sources_of(node.input) if graph.sources[name].event_time is None)
        raise spec.problem(
            *node.path,
            node.kind,
            message=f"{node.kind} {node.id!r} needs an event time, and source {source!r} has none",
            hint=f"add event_time: {{column: ...}} to sources.{source}",
        )
    if len(times) > 1:
        raise spec.problem(
            *node.path,
            node.kind,
            message=f"{node.kind} {node.id!r} reads a union of streams with different event times",
            detail=f"event-time columns: {', '.join(sorted(map(str, times)))}",
            hint="unite streams whose event time is the same column",
        )
