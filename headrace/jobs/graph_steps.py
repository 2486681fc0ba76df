"""What is checked of each step in a job's graph: tables, event times, changelogs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.jobs.names import suggest
from headrace.jobs.spec import JobSpec
from headrace.jobs.spec_custom import CustomStep
from headrace.jobs.spec_joins import JoinHoppingSpec, JoinSpec, JoinStep, JoinTumblingSpec
from headrace.jobs.spec_steps import LookupSpec, LookupStep, SessionSpec, TimedStep, TopStep, WindowStep
from operators.windowed import WINDOW_START

if TYPE_CHECKING:
    from headrace.jobs.graph import JobGraph, StepNode
    from headrace.runtime.graph import Stream


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
        _check_changes(spec, graph, node)
        if isinstance(node.step, WindowStep) and node.step.window.time == "processing":
            _check_by_clock(spec, node, node.step)
            _check_early(spec, node, node.step)
        else:
            _check_event_time(spec, graph, node)
    if isinstance(node.step, CustomStep):
        _check_custom(spec, graph, node, node.step)
    if isinstance(node.step, JoinStep):
        _check_join(spec, graph, node, node.step.join)
    if isinstance(node.step, TopStep) and node.step.top.tumbling is None:
        _check_windowed(spec, graph, node)


def _check_changes(spec: JobSpec, graph: JobGraph, node: StepNode) -> None:
    """Refuse changelogs where what has been given out by the clock, or early, could not be taken back."""
    step = node.step
    if not graph.is_changelog(node.input) or not isinstance(step, WindowStep):
        return
    if step.window.time == "event" and not (isinstance(step.window, SessionSpec) and step.window.early):
        return
    raise spec.problem(
        *node.path,
        node.kind,
        message=f"{node.kind} {node.id!r} reads a changelog, whose rows may be taken back after it has given them out",
        hint="use a tumbling or hopping window by event time, or a step aggregate, which follows its input",
        code="CHANGELOG_UNSUPPORTED",
    )


def _check_early(spec: JobSpec, node: StepNode, step: WindowStep) -> None:
    if step.window.early is not None:
        raise spec.problem(
            *node.path,
            "window",
            "early",
            message=f"window {node.id!r} has early results, which go by event time, and goes by processing time itself",
            hint="leave early out, and make windows as short as results are wanted, or use cumulating windows",
        )


def _check_by_clock(spec: JobSpec, node: StepNode, step: WindowStep) -> None:
    if "allowed_lateness" in step.window.model_fields_set:
        raise spec.problem(
            *node.path,
            "window",
            "allowed_lateness",
            message=f"window {node.id!r} goes by the clock when rows are read, and no row is late then",
            hint="remove allowed_lateness, or time: processing",
        )


def _check_custom(spec: JobSpec, graph: JobGraph, node: StepNode, step: CustomStep) -> None:
    path, wanted = (*node.path, "custom"), step.custom
    if graph.is_changelog(node.input):
        raise spec.problem(
            *path,
            message=f"custom {node.id!r} reads a changelog, whose rows may be taken back after it has seen them",
            hint="put it before the step that gives the changelog",
            code="CHANGELOG_UNSUPPORTED",
        )
    if wanted.order_by is None:
        for name in ("event_time", "allowed_lateness"):
            if name in wanted.model_fields_set:
                raise spec.problem(
                    *path,
                    name,
                    message=f"custom {node.id!r} takes rows as they come, in no order of time",
                    hint=f"add order_by, or leave {name} out",
                )
        return
    _check_event_time(spec, graph, node)
    (time,) = graph.event_times(node.input)
    if wanted.order_by != time:
        raise spec.problem(
            *path,
            "order_by",
            message=f"custom {node.id!r} orders by {wanted.order_by!r}, and the event time of its rows is {time!r}",
            hint=f"write order_by: {time}, or leave it out to take rows as they come",
        )


def _check_join(spec: JobSpec, graph: JobGraph, node: StepNode, join: JoinSpec) -> None:
    path = (*node.path, "join")
    stated = [kind for kind in ("within", "window", "as_of", "ttl") if getattr(join, kind) is not None]
    if len(stated) > 1:
        raise spec.problem(
            *path,
            stated[1],
            message=f"join {node.id!r} has {' and '.join(stated)}, which are different kinds of join",
            hint="keep one of them",
        )
    if join.within is not None and join.within.until is not None and "upper" in join.within.model_fields_set:
        raise spec.problem(*path, "within", message="within has upper and until, which are two ends", hint="keep one")
    if join.kind == "as_of":
        _check_versions(spec, node, join)
    if join.event_time is not None and join.kind != "within":
        raise spec.problem(*path, "event_time", message="only a join with within has an event time of its own")
    if not join.timed:
        return
    if join.as_of is not None and graph.is_revised(node.inputs[1]):
        raise spec.problem(
            *path,
            message=f"join {node.id!r} reads versions that may be taken back after their time has passed",
            hint="of a changelog source take give: versions and metadata: true; or leave as_of out: a join without it "
            "follows its inputs, and gives a changelog",
            code="CHANGELOG_UNSUPPORTED",
        )
    for above in node.inputs:
        if join.window is not None and not _is_plain(join.window) and graph.is_changelog(above):
            raise spec.problem(
                *path,
                message=f"join {node.id!r} reads a changelog, which goes into windows side by side alone",
                hint="use tumbling windows without offset and time_zone; or leave window out: a join without it "
                "follows its inputs, and gives a changelog",
                code="CHANGELOG_UNSUPPORTED",
            )
        _check_event_time(spec, graph, node, above)


def _is_plain(window: JoinTumblingSpec | JoinHoppingSpec) -> bool:
    return isinstance(window, JoinTumblingSpec) and not window.offset and window.time_zone is None


def _check_versions(spec: JobSpec, node: StepNode, join: JoinSpec) -> None:
    path = (*node.path, "join")
    if join.how not in {"inner", "left"}:
        raise spec.problem(*path, "how", message=f"as_of joins are left or inner, not {join.how}")
    if join.where is not None:
        raise spec.problem(
            *path,
            "where",
            message="an as_of join takes one version by its time, and then has no choice",
            hint="put the condition into a filter step behind the join, or before it",
        )
    if join.as_of is not None and join.as_of.direction != "backward" and join.as_of.within is None:
        raise spec.problem(
            *path,
            "as_of",
            message=f"without within, a {join.as_of.direction} version may come at any time",
            hint="add within: 1h (or another duration)",
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


def _check_event_time(spec: JobSpec, graph: JobGraph, node: StepNode, above: Stream | None = None) -> None:
    read = node.input if above is None else above
    times = graph.event_times(read)
    if None in times:
        source = next((name for name in graph.sources_of(read) if graph.sources[name].event_time is None), None)
        if source is None:
            raise spec.problem(
                *node.path,
                node.kind,
                message=f"{node.kind} {node.id!r} needs an event time, and the rows of {str(read)!r} have none",
                hint="an aggregate has one if it stands in by. A join without within, window and as_of has none, "
                "nor have late rows of a join; to one that is full add event_time: NAME",
            )
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
