"""The steps of a job spec: what stands between sources and sinks (docs/job-spec.md, "Steps")."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag

from headrace.jobs.spec_base import Node, SpecModel, by_key
from headrace.jobs.spec_custom import CustomStep
from headrace.jobs.spec_joins import JoinStep
from headrace.jobs.spec_over import OverStep
from headrace.jobs.values import (
    AggregateExpression,
    AnyNumber,
    Duration,
    Expression,
    KeyPairs,
    OneOrMany,
    PositiveDuration,
    lasting,
)

STEP_KINDS: Final = (
    "filter",
    "with_columns",
    "select",
    "drop",
    "explode",
    "unnest",
    "union",
    "lookup",
    "join",
    "dedup",
    "top",
    "window",
    "aggregate",
    "running_top",
    "over",
    "custom",
)
"""The keys that make a step."""


class FilterStep(Node):
    """Keeps the rows for which the expression is true."""

    filter: Expression


class WithColumnsStep(Node):
    """Adds or replaces columns."""

    with_columns: dict[str, Expression] = Field(min_length=1, description="Columns that are added or replaced.")


SelectList = Annotated[tuple[str, ...], Field(min_length=1)]
SelectMap = Annotated[dict[str, Expression], Field(min_length=1)]


def _list_or_map(value: Any) -> str | None:
    if isinstance(value, dict):
        return "@map"
    return "@list" if isinstance(value, list | tuple) else None


class SelectStep(Node):
    """Keeps columns (a list), or computes exactly these (a mapping)."""

    select: Annotated[
        Annotated[SelectList, Tag("@list")] | Annotated[SelectMap, Tag("@map")],
        Discriminator(
            _list_or_map,
            custom_error_type="message",
            custom_error_message="select takes a list of columns, or a mapping of names to expressions",
        ),
    ] = Field(description="Columns that are kept, or a mapping of names to what is computed.")


class DropStep(Node):
    """Leaves columns out."""

    drop: OneOrMany = Field(description="Columns that are left out.")


def _named(value: Any) -> Any:
    return {"columns": value} if isinstance(value, str | list | tuple) else value


class ExplodeSpec(SpecModel):
    """Lists taken apart."""

    columns: OneOrMany = Field(description="Lists; several are taken apart together.")
    keep_empty: bool = Field(default=False, description="Keep rows whose list is empty or null, with null.")


class ExplodeStep(Node):
    """Gives a row for each element of a list."""

    explode: Annotated[ExplodeSpec, BeforeValidator(_named)]


class UnnestSpec(SpecModel):
    """Structs taken apart."""

    columns: OneOrMany = Field(description="Structs.")
    prefix: str = Field(default="", description="Put before the names of the fields.")


class UnnestStep(Node):
    """Gives a column for each field of a struct."""

    unnest: Annotated[UnnestSpec, BeforeValidator(_named)]


class UnionStep(Node):
    """The rows of several streams as one."""

    union: Annotated[tuple[str, ...], Field(min_length=2)] = Field(
        description="NODE or NODE.PORT, two or more, with the same columns."
    )


class DedupSpec(SpecModel):
    """Of rows with the same key, one is kept."""

    by: OneOrMany = Field(description="Columns that make rows duplicates of each other.")
    keep: Literal["first", "last"] = Field(default="first", description="Which row, by event time.")
    ttl: PositiveDuration | None = Field(
        default=None,
        description="A key of which no row has come for this long (in event time) is forgotten; never if not given.",
    )
    allowed_lateness: Duration = lasting(
        "0s", description="Rows are decided, and are late, this much after the watermark has passed."
    )


class DedupStep(Node):
    """Keeps one row of each key; late rows leave through the port ``late``."""

    dedup: DedupSpec


class RunningTopSpec(SpecModel):
    """The first rows of each key in an order, so far."""

    n: Annotated[int, Field(ge=1)] = Field(description="How many rows.")
    order_by: OneOrMany = Field(description="Columns, each with asc (the default) or desc behind it; nulls last.")
    by: AnyNumber = Field(default=(), description="Columns of the key.")
    rank: str = Field(default="", description="Name of a column that gets each row's place, from 1.")

    @property
    def order(self) -> list[tuple[str, bool]]:
        """Columns, and whether they are descending."""
        found = []
        for text in self.order_by:
            name, _, word = text.strip().rpartition(" ")
            known = bool(name) and word.lower() in {"asc", "desc"}
            found.append((name.strip(), word.lower() == "desc") if known else (text.strip(), False))
        return found


class RunningTopStep(Node):
    """Keeps the first rows of each key so far; gives out a changelog (rows with ``_weight``)."""

    running_top: RunningTopSpec


class TopSpec(RunningTopSpec):
    """The first rows of each window and key in an order."""

    tumbling: PositiveDuration | None = Field(
        default=None, description="The length of a window; behind a window step those windows if not given."
    )
    allowed_lateness: Duration = lasting(
        "0s", description="Windows close, and rows are late, this much after the watermark has passed."
    )


class TopStep(Node):
    """Keeps the first rows of each window and key; late rows leave through the port ``late``."""

    top: TopSpec


class AsOfSpec(SpecModel):
    """Which version of a row holds: the table's rows have a time."""

    column: str = Field(description="The table's time column: since when a row holds.")
    time: str | None = Field(default=None, description="The stream's time column; the event time if not given.")
    direction: Literal["backward", "forward", "nearest"] = Field(
        default="backward", description="The latest version at or before the time, the next one, or the closer one."
    )
    within: PositiveDuration | None = Field(default=None, description="How far away in time a version may be.")


def _column(value: Any) -> Any:
    return {"column": value} if isinstance(value, str) else value


class LookupSpec(SpecModel):
    """A join with a static table."""

    table: str = Field(description="A name of the job's tables.")
    on: KeyPairs = Field(
        description="Columns that are equal on both sides, or a mapping from the rows' to the table's."
    )
    columns: tuple[str, ...] | None = Field(default=None, min_length=1, description="Columns to add; all if not given.")
    how: Literal["left", "inner", "semi", "anti"] = Field(
        default="left", description="What becomes of rows without a match."
    )
    prefix: str = Field(default="", description="Put before the names of added columns.")
    many: bool = Field(default=False, description="Allow several rows of the table for one key.")
    as_of: Annotated[AsOfSpec, BeforeValidator(_column)] | None = Field(
        default=None, description="Take the version of the row that holds at the time of the stream's row."
    )


class LookupStep(Node):
    """Adds columns of a static table."""

    lookup: LookupSpec


class EarlySpec(SpecModel):
    """Results of windows that are still open."""

    every: PositiveDuration = Field(description="How far results are apart at least, in event time.")


def _every(value: Any) -> Any:
    return {"every": value} if isinstance(value, str | int) else value


class WindowBase(SpecModel):
    """What windows of every kind share."""

    by: AnyNumber = Field(default=(), description="Columns of the key.")
    aggregate: dict[str, AggregateExpression] = Field(min_length=1, description="Output column to SQL aggregate.")
    time: Literal["event", "processing"] = Field(
        default="event",
        description="processing: rows lie in windows by the clock when they are read; the result then depends on when "
        "that is.",
    )
    allowed_lateness: Duration = lasting(
        "0s", description="Windows close, and rows are late, this much after the watermark has passed."
    )
    early: Annotated[EarlySpec, BeforeValidator(_every)] | None = Field(
        default=None, description="Give out results before windows close, as a changelog (rows with _weight)."
    )

    @property
    def period(self) -> int | None:
        """Microseconds at whose multiples rows can be cut without cutting a window; None: nowhere."""
        return None


class FixedWindowBase(WindowBase):
    """What windows that stand on a clock share."""

    offset: Duration = lasting("0s", description="Where windows begin, after midnight of 1970-01-01.")
    time_zone: str | None = Field(
        default=None, min_length=1, description="Whose days windows are, e.g. Europe/Paris; UTC if not given."
    )


class TumblingSpec(FixedWindowBase):
    """Windows side by side."""

    tumbling: PositiveDuration = Field(description="The length of a window.")

    @property
    def period(self) -> int | None:
        """See :class:`WindowBase`."""
        return None if self.time_zone else self.tumbling


class HoppingSpec(FixedWindowBase):
    """Windows of one length that overlap."""

    hopping: PositiveDuration = Field(description="The length of a window.")
    every: PositiveDuration = Field(description="How far apart windows begin, at most their length.")


class CumulatingSpec(FixedWindowBase):
    """Windows that begin together and are longer and longer."""

    cumulating: PositiveDuration = Field(description="The length of the longest window; the next ones begin then.")
    every: PositiveDuration = Field(description="By how much each window is longer than the one before it.")

    @property
    def period(self) -> int | None:
        """See :class:`WindowBase`."""
        return None if self.time_zone else self.cumulating


class SessionSpec(WindowBase):
    """Windows of rows that follow each other closely."""

    session: PositiveDuration = Field(description="The gap: rows of a key at least this far apart are in two sessions.")


WINDOW_KINDS: Final = ("tumbling", "hopping", "cumulating", "session")
WindowSpec = Annotated[
    Annotated[TumblingSpec, Tag("@tumbling")]
    | Annotated[HoppingSpec, Tag("@hopping")]
    | Annotated[CumulatingSpec, Tag("@cumulating")]
    | Annotated[SessionSpec, Tag("@session")],
    by_key(*WINDOW_KINDS),
]


class WindowStep(Node):
    """Aggregates rows by key and window; late rows leave through the port ``late``."""

    window: WindowSpec = Field(description="The kind of windows, their key and aggregates.")


class RunningAggregateSpec(SpecModel):
    """Running aggregates: the result of each key so far, as a changelog."""

    by: AnyNumber = Field(default=(), description="Columns of the key; none: one result over all rows.")
    aggregate: dict[str, AggregateExpression] = Field(min_length=1, description="Output column to SQL aggregate.")


class AggregateStep(Node):
    """Aggregates rows by key without windows; gives out a changelog (rows with ``_weight``)."""

    aggregate: RunningAggregateSpec


Step = Annotated[
    Annotated[FilterStep, Tag("@filter")]
    | Annotated[WithColumnsStep, Tag("@with_columns")]
    | Annotated[SelectStep, Tag("@select")]
    | Annotated[DropStep, Tag("@drop")]
    | Annotated[ExplodeStep, Tag("@explode")]
    | Annotated[UnnestStep, Tag("@unnest")]
    | Annotated[UnionStep, Tag("@union")]
    | Annotated[LookupStep, Tag("@lookup")]
    | Annotated[JoinStep, Tag("@join")]
    | Annotated[DedupStep, Tag("@dedup")]
    | Annotated[TopStep, Tag("@top")]
    | Annotated[WindowStep, Tag("@window")]
    | Annotated[AggregateStep, Tag("@aggregate")]
    | Annotated[RunningTopStep, Tag("@running_top")]
    | Annotated[OverStep, Tag("@over")]
    | Annotated[CustomStep, Tag("@custom")],
    by_key(*STEP_KINDS),
]
StatelessStep: TypeAlias = (
    FilterStep | WithColumnsStep | SelectStep | DropStep | ExplodeStep | UnnestStep | UnionStep | LookupStep
)
TimedStep: TypeAlias = DedupStep | TopStep | WindowStep | OverStep
"""Steps that hold rows until the watermark has passed; late rows leave them through the port ``late``."""
RunningStep: TypeAlias = AggregateStep | RunningTopStep
"""Steps that give out what holds so far, as a changelog."""
StatefulStep: TypeAlias = TimedStep | RunningStep | JoinStep | CustomStep
AnyStep: TypeAlias = StatelessStep | StatefulStep


def step_kind(step: AnyStep) -> str:
    """The key that makes a step, e.g. ``window``."""
    return next(kind for kind in STEP_KINDS if kind in type(step).model_fields)
