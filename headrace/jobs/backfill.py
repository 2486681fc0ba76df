"""Backfills: a job's own logic over a part of its history, into a table of its own, run once to its end.

A backfill is derived from a job: the history of the one source that feeds the chosen sink, never its tail; the steps
between the two; an Iceberg table in place of the sink. The wanted part is a *restriction*: comparisons as values. They
become Polars literals, never text, so a value cannot change the predicate.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, TypeAlias

import polars as pl
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from headrace.jobs.graph import JobGraph, SinkNode, StepNode, build_graph
from headrace.jobs.names import JobName, TableName, suggest
from headrace.jobs.parse import parse_job
from headrace.jobs.spec import IcebergSink, JobSpec
from headrace.jobs.spec_joins import JoinStep
from headrace.jobs.spec_sources import History, TableHistory
from headrace.jobs.spec_steps import LookupStep, UnionStep, WindowStep
from headrace.kernel.durations import format_duration_us
from headrace.kernel.errors import SpecError
from headrace.kernel.protocols import MAIN, Json
from hybrid_source.predicates import all_of
from operators.expressions import row_expression

MAX_LIST: Final = 10_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_US: Final = 86_400_000_000

Scalar: TypeAlias = str | int | float | bool


class Comparison(BaseModel):
    """A condition on one column of the source. The value is compared as it stands; nothing in it is SQL."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    column: str = Field(description="A column of the source.")
    op: Literal["=", "!=", "<", "<=", ">", ">=", "in"] = Field(default="=", description="How they are compared.")
    value: Scalar | Annotated[list[Scalar], Field(min_length=1, max_length=MAX_LIST)] = Field(
        description="A literal of the column's type; for `in` a list of them."
    )


class BackfillRequest(BaseModel):
    """What is to be filled, from where, and into which table."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    job: str | dict[str, Any] = Field(description="The id of a job, or a job spec.")
    name: JobName | None = Field(default=None, description="For people; made from the job's name if not given.")
    sink: str | None = Field(default=None, description="Which sink's rows are wanted; needed when the job has several.")
    from_: AwareDatetime | None = Field(default=None, alias="from", description="Event time, inclusive.")
    to: AwareDatetime | None = Field(default=None, description="Event time, exclusive.")
    snapshot: int | None = Field(default=None, description="Snapshot of the history's table; a string is fine too.")
    filter: tuple[Comparison, ...] = Field(default=(), description="Further conditions on the source's rows.")
    target: TableName = Field(description="CATALOG.NAMESPACE.TABLE that the rows are appended to.")
    create: bool = Field(default=False, description="Create the target when it is not there.")
    mode: Literal["append"] = Field(default="append", description="Rows are appended to the target.")

    @property
    def from_us(self) -> int | None:
        """Microseconds, inclusive."""
        return None if self.from_ is None else _to_us(self.from_)

    @property
    def to_us(self) -> int | None:
        """Microseconds, exclusive."""
        return None if self.to is None else _to_us(self.to)


@dataclass(frozen=True, slots=True)
class Derived:
    """A backfill's job before its restriction.

    Attributes:
        spec: The job: one source with history only, one Iceberg sink.
        source: The name of that source.
        event_time: Its event-time column, or None.
        windows: Microseconds at whose multiples the windows on the way can be cut, by step id; None: nowhere.
        writers: Sinks of the job itself that write the target.
    """

    spec: JobSpec
    source: str
    event_time: str | None
    windows: Mapping[str, int | None]
    writers: Sequence[str]


def derive(spec: JobSpec, request: BackfillRequest) -> Derived:
    """The job of a backfill, over the whole history.

    Raises:
        SpecError: The request does not fit the job; ``context["path"]`` points into the request.
    """
    _check_range(request)
    graph = build_graph(spec)
    sink = _chosen_sink(graph, request.sink)
    name = graph.source_of(sink.input)
    source = spec.sources[name]
    if source.history is None:
        raise _problem("job", f"source {name!r} has no history to fill from", hint="a backfill reads history only")
    if (request.from_ or request.to) and source.event_time is None:
        raise _problem(
            "from" if request.from_ else "to",
            f"source {name!r} has no event time",
            hint="add event_time: {column: ...} to the source, or give a snapshot and a filter",
        )
    steps = _steps_before(graph, sink)
    several = next((node for node in steps if isinstance(node.step, UnionStep | JoinStep)), None)
    if several is not None:
        raise _problem(
            "sink", f"sink {sink.id!r} takes a {several.kind} of streams, and a backfill reads one", hint="name another"
        )
    side = next((ref for ref in (sink.input, *(step.input for step in steps)) if ref.port != MAIN), None)
    if side is not None:
        raise _problem("sink", f"sink {sink.id!r} takes {side}, which a history leaves empty", hint="name another sink")
    derived = parse_job(_derived_json(spec, request, name, sink, steps))
    windows = {node.id: node.step.window.period for node in steps if isinstance(node.step, WindowStep)}
    writers = [
        one.id for one in graph.sinks if isinstance(one.sink, IcebergSink) and one.sink.iceberg.table == request.target
    ]
    return Derived(derived, name, source.event_time.column if source.event_time else None, windows, writers)


def _check_range(request: BackfillRequest) -> None:
    if request.from_ is None and request.to is None and request.snapshot is None:
        raise _problem(
            "from", "backfill needs an event-time range or a snapshot", hint="give from, to or snapshot (or several)"
        )
    if request.from_ is not None and request.to is not None and request.from_ >= request.to:
        raise _problem("to", f"range is empty: {request.to.isoformat()} is not after {request.from_.isoformat()}")


def _chosen_sink(graph: JobGraph, wanted: str | None) -> SinkNode:
    by_id = {sink.id: sink for sink in graph.sinks}
    if wanted is None and len(by_id) == 1:
        return graph.sinks[0]
    if wanted is None:
        raise _problem("sink", "job has several sinks", hint=f"say whose rows are wanted: {' or '.join(by_id)}")
    if wanted not in by_id:
        raise _problem("sink", f"job has no sink {wanted!r}", hint=suggest(wanted, by_id))
    return by_id[wanted]


def _steps_before(graph: JobGraph, sink: SinkNode) -> Sequence[StepNode]:
    """The steps on the way to a sink, in the job's order."""
    by_id = {node.id: node for node in graph.steps}
    wanted: set[str] = set()
    ref = sink.input
    while ref.node in by_id:
        wanted.add(ref.node)
        ref = by_id[ref.node].input
    return [node for node in graph.steps if node.id in wanted]


def _derived_json(
    spec: JobSpec, request: BackfillRequest, source: str, sink: SinkNode, steps: Sequence[StepNode]
) -> dict[str, Json]:
    base = spec.to_json()
    kept = {key: value for key, value in base["sources"][source].items() if key in ("history", "event_time", "late")}
    if request.snapshot is not None:
        if not isinstance(spec.sources[source].history, TableHistory):
            raise _problem("snapshot", f"history of source {source!r} is no table: it has no snapshots")
        kept["history"] = {**kept["history"], "snapshot": request.snapshot}
    lookups = {node.step.lookup.table for node in steps if isinstance(node.step, LookupStep)}
    target: dict[str, Json] = {"table": request.target}
    if request.create:
        target["create"] = True
    if isinstance(sink.sink, IcebergSink) and sink.sink.iceberg.partition_by:
        target["partition_by"] = list(sink.sink.iceberg.partition_by)
    return {
        "name": request.name or f"{spec.name}-backfill",
        "sources": {source: kept},
        "tables": {name: table for name, table in base.get("tables", {}).items() if name in lookups},
        "steps": [{**base["steps"][node.path[1]], "id": node.id, "from": str(node.input)} for node in steps],
        "sinks": [{"iceberg": target, "from": str(sink.input)}],
        "checkpoint": {key: value for key, value in base.get("checkpoint", {}).items() if key != "store"},
        "state": base.get("state", {}),
    }


# ----------------------------------------------------------------------------------------------------- restriction


def restriction(derived: Derived, request: BackfillRequest, columns: Mapping[str, pl.DataType]) -> dict[str, Json]:
    """The wanted part of the history as JSON, checked against the history's columns.

    Args:
        derived: The backfill's job.
        request: The request.
        columns: The history's columns and types.

    Raises:
        SpecError: An unknown column, or a value that does not fit its column's type.
    """
    conditions: list[dict[str, Json]] = []
    column = derived.event_time
    if column is not None:
        for op, bound, at in ((">=", request.from_us, "from"), ("<", request.to_us, "to")):
            if bound is not None:
                kind = _kind(columns, column, (at,))
                if kind not in _TIMES and kind != "int":
                    raise _problem(at, f"event time column {column!r} has type {columns[column]}, no point in time")
                conditions.append({"column": column, "op": op, "kind": kind, "value": bound})
    for index, wanted in enumerate(request.filter):
        kind = _kind(columns, wanted.column, ("filter", index, "column"))
        value = _fitting(wanted.value, kind, ("filter", index, "value"))
        if isinstance(value, list) != (wanted.op == "in"):
            raise _problem(("filter", index, "value"), "a list goes with 'in', a single value with the other operators")
        conditions.append({"column": wanted.column, "op": wanted.op, "kind": kind, "value": value})
    return {"source": derived.source, "conditions": conditions}


def restrict(spec: JobSpec, part: Mapping[str, Json]) -> JobSpec:
    """The job over the wanted part of its history only.

    Args:
        spec: The derived job.
        part: What :func:`restriction` gave.
    """
    source = spec.sources[part["source"]]
    if source.history is None or not part["conditions"]:
        return spec
    conditions = [_expression(condition) for condition in part["conditions"]]
    narrowed = tuple(_narrowed(stage, part["source"], conditions) for stage in source.stages)
    history = narrowed if isinstance(source.history, tuple) else narrowed[0]
    changed = {**spec.sources, part["source"]: source.model_copy(update={"history": history})}
    return spec.model_copy(update={"sources": changed})


def _narrowed(stage: History, source: str, conditions: Sequence[pl.Expr]) -> History:
    before = None if stage.where is None else row_expression(stage.where, f"sources.{source}.history.where").expr
    return stage.model_copy(update={"where": all_of(before, *conditions)})


_OPERATORS: Final[Mapping[str, Callable[[pl.Expr, pl.Expr], pl.Expr]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TIMES: Final = ("datetime", "datetime-utc", "date")
_FITS: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "datetime": (str,),
    "datetime-utc": (str,),
    "date": (str,),
}


def _kind(columns: Mapping[str, pl.DataType], column: str, at: tuple[str | int, ...]) -> str:
    if column not in columns:
        raise _problem(at, f"history has no column {column!r}", hint=suggest(column, columns), code="COLUMN_NOT_FOUND")
    dtype = columns[column]
    if isinstance(dtype, pl.Datetime):
        return "datetime" if dtype.time_zone is None else "datetime-utc"
    if isinstance(dtype, pl.Date):
        return "date"
    if dtype.is_integer():
        return "int"
    if dtype.is_float():
        return "float"
    named = {pl.String: "string", pl.Boolean: "bool"}.get(type(dtype))
    if named is None:
        raise _problem(at, f"column {column!r} has type {dtype}, which cannot be compared here")
    return named


def _fitting(value: Scalar | list[Scalar], kind: str, at: tuple[str | int, ...]) -> Json:
    if isinstance(value, list):
        return [_fitting(item, kind, (*at, index)) for index, item in enumerate(value)]
    allowed = _FITS[kind]
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind != "bool"):
        raise _problem(at, f"{value!r} does not fit a column of type {kind}")
    if kind not in _TIMES:
        return value
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError as error:
        raise _problem(at, f"{value!r} is no point in time", hint="write for example 2026-01-01T00:00:00Z") from error
    us = _to_us(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    if kind == "date" and us % _DAY_US:
        raise _problem(at, f"{value!r} is no date", hint="write for example 2026-01-01")
    return us


def _expression(condition: Mapping[str, Json]) -> pl.Expr:
    """A condition as a Polars expression in which values are literals."""
    column = pl.col(condition["column"])
    kind, value, op = condition["kind"], condition["value"], condition["op"]
    if op == "in":
        return column.is_in([_python(kind, item, op) for item in value])
    return _OPERATORS[op](column, pl.lit(_python(kind, value, op)))


def _python(kind: str, value: Json, op: str) -> Any:
    """A stored value as what Polars compares with a column of that kind."""
    if kind == "datetime-utc":
        return _from_us(value)
    if kind == "datetime":
        return _from_us(value).replace(tzinfo=None)
    if kind == "date":
        # A date is its midnight: from a later moment of the day on, and up to it, the next day is the bound.
        days = -(-value // _DAY_US) if op in (">=", "<") else value // _DAY_US
        return _from_us(days * _DAY_US).date()
    return value


def _to_us(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _from_us(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def warnings(derived: Derived, request: BackfillRequest) -> Iterator[str]:
    """What the user should know before it runs."""
    for sink in derived.writers:
        yield (
            f"sink {sink!r} of the job itself writes {request.target}, too: the backfill's rows are appended beside "
            "those that it has written of this range, or will write"
        )
    for name, size in derived.windows.items():
        for word, bound in (("from", request.from_us), ("to", request.to_us)):
            if bound is not None and size is None:
                yield f"{word} cuts windows of {name!r} that lie across it: those hold only part of their rows"
            elif bound is not None and size is not None and bound % size:
                yield (
                    f"{word} is not a multiple of the {format_duration_us(size)} of window {name!r}: "
                    "the window it cuts holds only part of its rows"
                )


def _problem(
    at: str | tuple[str | int, ...], message: str, *, hint: str = "", code: str = "BACKFILL_INVALID"
) -> SpecError:
    path = [at] if isinstance(at, str) else list(at)
    return SpecError(message, hint=hint, code=code, context={"path": path})
