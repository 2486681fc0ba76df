"""The step ``join``: two streams with equal keys (docs/job-spec.md, "Joins of streams")."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag

from headrace.jobs.spec_base import Node, SpecModel, by_key
from headrace.jobs.values import Duration, Expression, KeyPairs, PositiveDuration, SignedDuration, lasting, pairs_of


def _around(value: Any) -> Any:
    if isinstance(value, timedelta):
        return {"lower": -value, "upper": value}
    return {"lower": f"-{value}", "upper": value} if isinstance(value, str) else value


class WithinSpec(SpecModel):
    """How far apart the event times of two rows may be."""

    lower: SignedDuration = lasting("0s", description="A left row is at least this much later than the right one;")
    upper: SignedDuration = lasting("0s", description="and at most this much later;")
    until: str | None = Field(
        default=None, description="or, in place of upper, at most as late as this column of the right row says."
    )


class JoinTumblingSpec(SpecModel):
    """Windows side by side."""

    tumbling: PositiveDuration = Field(description="The length of a window.")
    offset: Duration = lasting("0s", description="Where windows begin, after midnight of 1970-01-01.")
    time_zone: str | None = Field(default=None, min_length=1, description="Whose days windows are; UTC if not given.")


class JoinHoppingSpec(SpecModel):
    """Windows of one length that overlap."""

    hopping: PositiveDuration = Field(description="The length of a window.")
    every: PositiveDuration = Field(description="How far apart windows begin, at most their length.")
    offset: Duration = lasting("0s", description="Where windows begin, after midnight of 1970-01-01.")
    time_zone: str | None = Field(default=None, min_length=1, description="Whose days windows are; UTC if not given.")


JoinWindowSpec = Annotated[
    Annotated[JoinTumblingSpec, Tag("@tumbling")] | Annotated[JoinHoppingSpec, Tag("@hopping")],
    by_key("tumbling", "hopping"),
]


def _directed(value: Any) -> Any:
    return {"direction": value} if isinstance(value, str) else value


class VersionSpec(SpecModel):
    """Which of the right side's rows a left row takes: one, by event time."""

    direction: Literal["backward", "forward", "nearest"] = Field(
        default="backward", description="The latest at or before the left row's time, the next one, or the closer one."
    )
    within: PositiveDuration | None = Field(
        default=None, description="How far away in time it may be; forward and nearest need it."
    )


class JoinSpec(SpecModel):
    """A join of two streams: one of ``within``, ``window`` and ``as_of``, or none of them."""

    left: str = Field(description="NODE or NODE.PORT.")
    right: str = Field(description="NODE or NODE.PORT; may be the left one.")
    on: KeyPairs = Field(
        description="Columns that are equal on both sides, or a mapping from the left's to the right's."
    )
    how: Literal["inner", "left", "right", "full", "semi", "anti"] = Field(
        default="inner", description="What becomes of rows without a match."
    )
    within: Annotated[WithinSpec, BeforeValidator(_around)] | None = Field(
        default=None, description="Interval join: right + lower <= left <= right + upper for the event times."
    )
    window: JoinWindowSpec | None = Field(default=None, description="Window join: both rows lie in one window.")
    as_of: Annotated[VersionSpec, BeforeValidator(_directed)] | None = Field(
        default=None, description="Temporal join: the version of the right side that held at the left row's event time."
    )
    ttl: PositiveDuration | None = Field(
        default=None,
        description="Without within, window and as_of: rows match only if their event times are at most this far apart,"
        " and are forgotten then; never if not given.",
    )
    where: Expression | None = Field(
        default=None, description="Part of what makes rows match: over both sides' columns, by their output names."
    )
    left_prefix: str = Field(default="", description="Put before the names of the left side's columns.")
    right_prefix: str = Field(default="", description="Put before the names of the right side's columns.")
    event_time: str | None = Field(
        default=None,
        description="With within: adds a column, the later of both event times, which is the output's event time.",
    )
    allowed_lateness: Duration = lasting(
        "0s", description="Rows are given up, and are late, this much after the watermark has passed."
    )

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Key columns: the left's and the right's."""
        return pairs_of(self.on)

    @property
    def kind(self) -> Literal["within", "window", "as_of", "regular"]:
        """What kind of join it is."""
        if self.within is not None:
            return "within"
        if self.window is not None:
            return "window"
        return "regular" if self.as_of is None else "as_of"

    @property
    def timed(self) -> bool:
        """Whether event times decide what matches; late rows then leave through the port ``late``."""
        return self.kind != "regular" or self.ttl is not None

    @property
    def updates(self) -> bool:
        """Whether it takes rows back, whatever its inputs are."""
        return self.kind == "regular" and self.how not in {"inner", "semi"}

    def output_name(self, side: str, column: str) -> str:
        """What a column of one side is called in the output."""
        if (column, column) in self.pairs:
            return column
        return (self.left_prefix if side == "left" else self.right_prefix) + column


class JoinStep(Node):
    """Joins two streams."""

    join: JoinSpec
