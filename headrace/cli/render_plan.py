"""The plan for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headrace.cli.draw_plan import tree
from headrace.cli.words import bytes_text, count_text, lost_text, seconds_text
from headrace.jobs.plan import (
    BoundaryPlan,
    HandoverPlan,
    HistoryPlan,
    OperatorPlan,
    Plan,
    SinkPlan,
    SourcePlan,
    TableTailPlan,
    TailPlan,
)
from headrace.jobs.plan_graph import Segment
from headrace.runtime.observer import LostOffsets

_SHOWN_SNAPSHOTS: Final = 5


def print_plan(plan: Plan, console: Console) -> None:
    """Write the plan to a console."""
    console.print(render_plan(plan))


def render_plan(plan: Plan) -> RenderableType:
    """The plan as rich renderables: job, sources, steps, sinks, warnings."""
    parts: list[RenderableType] = [
        _facts(
            ("job", plan.job if plan.uid == plan.job else f"{plan.job} (uid {plan.uid})"),
            ("determinism", plan.determinism.value),
            ("fingerprint", plan.fingerprint),
            ("checkpoints", plan.checkpoint_store),
            ("parallelism", str(plan.parallelism)),
        )
    ]
    for source in plan.sources:
        parts += [Text(f"\nsource {source.name}", style="bold"), *_source(source)]
    if plan.tables:
        parts += [Text("\ntables", style="bold"), _indented(_facts(*plan.tables.items()))]
    parts += [Text("\ngraph", style="bold"), *map(_indented, tree(plan.graph))]
    fused = [("as one plan", _segment(segment)) for segment in plan.graph.segments]
    parts.append(_indented(_facts(*fused)))
    if plan.operators:
        parts += [Text("\nsteps", style="bold"), _indented(_operators(plan.operators))]
    parts += [Text("\nsinks", style="bold"), _indented(_sinks(plan.sinks))]
    parts += [Text(f"\nwarning: {warning}", style="yellow") for warning in plan.warnings]
    return Group(*parts)


def _segment(segment: Segment) -> str:
    parts = [*segment.steps, *(f"the stateless part of {step}" for step in segment.partials)]
    return f"{segment.start}: {', '.join([*parts, *(f'to {sink}' for sink in segment.sinks)])}"


def _source(source: SourcePlan) -> Iterator[RenderableType]:
    for stage in source.earlier:
        yield _indented(_history(stage))
    if source.history:
        yield _indented(_history(source.history))
    if source.boundary:
        yield _indented(_boundary(source.boundary))
    for note in source.notes:
        yield _indented(_facts(("stages", note)))
    if source.tail:
        yield _indented(_tail(source.tail))
    if source.handover:
        yield _indented(_handover(source.handover))
    if source.table_tail:
        yield _indented(_table_tail(source.table_tail))
    if source.event_time:
        yield _indented(_facts(("event time", source.event_time)))


def _handover(handover: HandoverPlan) -> Table:
    back = [f"{count_text(handover.lag)} records behind"] if handover.lag is not None else []
    back += ["offsets are gone"] if handover.on_truncation else []
    never = f"never: {handover.refused}" if handover.refused else "never"
    return _facts(
        ("handover", "partition by partition" if handover.per_partition else "all partitions at once"),
        ("chase", "newer snapshots first" if handover.chase else "off"),
        ("switch back", never if handover.refused or not back else f"when {', or '.join(back)}"),
        ("late", "history rows as in the topic" if handover.late == "as_live" else "history rows never"),
        ("reads", handover.reads),
        *((("live", ", ".join(handover.live)),) if handover.live else ()),
    )


def _boundary(boundary: BoundaryPlan) -> Table:
    rule, guarantee = boundary.rule, boundary.guarantee
    tried = [verdict for verdict in boundary.tried if verdict.outcome in {"not there", "not usable"}]
    return _facts(
        ("boundary", f"{rule} ({guarantee})" if guarantee != "exactly-once" else rule),
        ("evidence", boundary.evidence),
        *((("trimmed by", boundary.columns),) if boundary.columns else ()),
        *((("not there", ", ".join(v.rule for v in tried if v.outcome == "not there")),) if tried else ()),
        *(("not usable", f"{verdict.rule}: {verdict.detail}") for verdict in tried if verdict.outcome == "not usable"),
    )


def _history(history: HistoryPlan) -> Table:
    snapshot = f" @ snapshot {history.snapshot}" if history.snapshot is not None else ""
    return _facts(
        ("history", f"{history.location}{snapshot}"),
        *((("lease", history.lease),) if history.lease else ()),
        ("columns", _columns(history.columns, history.columns_total)),
        ("files by", history.files_predicate or "everything"),
        ("rows by", history.rows_predicate or "everything"),
        *((("not pruning", "; ".join(history.residual)),) if history.residual else ()),
        ("files", _of(count_text(history.files), history.files_total and count_text(history.files_total))),
        ("bytes", _of(bytes_text(history.nbytes), history.nbytes_total and bytes_text(history.nbytes_total))),
        ("rows", _of(count_text(history.records), history.records_total and count_text(history.records_total))),
    )


def _tail(tail: TailPlan) -> Group:
    named = f"{'topic' if len(tail.topics) == 1 else 'topics'} {', '.join(tail.topics)}"
    facts = _facts(
        ("tail", f"{named} on cluster {tail.cluster}"),
        ("columns", _columns(tail.columns, tail.columns_total)),
        ("rows by", tail.rows_predicate or "everything"),
    )
    tiered = any(at.local_start is not None for at in tail.partitions)
    local = ("local start",) if tiered else ()
    titles = ("topic", "partition", "log start", *local, "log end", "starts at", "lag", "kept for")
    table = Table(*titles, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for at in sorted(tail.partitions, key=lambda at: (at.topic, at.partition)):
        start = "-" if at.start is None else count_text(at.start)
        lag = "-" if at.lag is None else count_text(at.lag)
        kept = "-" if at.kept_s is None else seconds_text(at.kept_s)
        begins = (count_text(at.local_start) if at.local_start is not None else "-",) if tiered else ()
        offsets = (count_text(at.log_start), *begins, count_text(at.log_end), start, lag, kept)
        table.add_row(at.topic, str(at.partition), *offsets, style="red" if at.gap else None)
    gaps = [f"{at.topic}[{at.partition}]" for at in tail.partitions if at.gap]
    notes = [Text(f"gap: wanted offsets are gone in {', '.join(gaps)}", style="red")] if gaps else []
    lost = [LostOffsets(at.topic, at.partition, *gap) for at in tail.partitions for gap in at.lost]
    notes += [Text(f"lost: {lost_text(lost)}", style="red")] if lost else []
    notes += [Text(note) for note in tail.notes]
    return Group(facts, *((Padding(table, (0, 0, 0, 2)),) if tail.partitions else ()), *notes)


def _table_tail(tail: TableTailPlan) -> Group:
    after = f" after snapshot {tail.since}" if tail.since is not None else ""
    facts = _facts(
        ("tail", f"snapshots of {tail.table}{after}, looked for every {tail.interval_s:g} s"),
        ("columns", _columns(tail.columns, tail.columns_total)),
        ("rows by", tail.rows_predicate or "everything"),
        ("changes", f"{tail.on_change} at snapshots that overwrite or delete rows"),
    )
    if not tail.waiting:
        return Group(facts)
    table = Table("waiting snapshot", "operation", "rows", box=None, pad_edge=False)
    for at in tail.waiting[:_SHOWN_SNAPSHOTS]:
        rows = "-" if at.records is None else count_text(at.records)
        table.add_row(str(at.snapshot), at.operation, rows, style="red" if at.refused else None)
    more = len(tail.waiting) - _SHOWN_SNAPSHOTS
    notes = [Text(f"and {more} more", style="dim")] if more > 0 else []
    refused = [str(at.snapshot) for at in tail.waiting if at.refused]
    if refused:
        notes.append(Text(f"refused: snapshot {', '.join(refused)} changes rows (on_change: fail)", style="red"))
    return Group(facts, Padding(table, (0, 0, 0, 2)), *notes)


def _operators(operators: Sequence[OperatorPlan]) -> Group:
    table = Table("id", "kind", "reads", "determinism", box=None, pad_edge=False)
    for operator in operators:
        cells = (operator.id, operator.kind, operator.input, operator.determinism.value)
        table.add_row(*map(Text, cells))
    states = [(operator.id, operator.fingerprint) for operator in operators if operator.fingerprint]
    kept: list[RenderableType] = [Text("state kept for", style="dim"), _indented(_facts(*states))] if states else []
    return Group(table, *kept)


def _sinks(sinks: Sequence[SinkPlan]) -> Group:
    return Group(
        *(
            _facts(
                (sink.kind, f"{sink.target} (will be created)" if sink.exists is False else sink.target),
                ("id", sink.id),
                ("reads", sink.input),
                ("delivery", sink.delivery),
                ("columns", ", ".join(sink.columns)),
            )
            for sink in sinks
        )
    )


def _facts(*facts: tuple[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=11, style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(Text(name), Text(value))
    return table


def _indented(inner: RenderableType) -> Padding:
    return Padding(inner, (0, 0, 0, 2))


def _columns(columns: Sequence[str], total: int) -> str:
    return f"{', '.join(columns) or 'none'} ({len(columns)} of {total})"


def _of(part: str, total: str | int | None) -> str:
    return f"{part} of {total}" if total else part
