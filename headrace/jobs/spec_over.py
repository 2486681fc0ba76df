"""The step ``over``: each row with what is computed of the rows of its key before it (docs/job-spec.md, "Frames")."""

from __future__ import annotations

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from headrace.jobs.spec_base import Node, SpecModel
from headrace.jobs.values import (
    AnyNumber,
    Duration,
    OverExpression,
    PositiveDuration,
    RowsBefore,
    TimeBefore,
    lasting,
)
from operators.over_frames import Frame


class OverSpec(SpecModel):
    """What is computed of the rows of a key up to each row, by event time."""

    by: AnyNumber = Field(default=(), description="Columns of the key.")
    compute: dict[str, OverExpression] = Field(
        min_length=1, description="Added column to SQL aggregate, lag(x), first_value(x), row_number() or rank()."
    )
    rows: RowsBefore | None = Field(
        default=None, description="Frames are so many rows before each row, and the row itself."
    )
    range: TimeBefore | None = Field(
        default=None,
        description="Frames are the rows at most so long before each row, and all rows of its own event time; "
        "unbounded if neither rows nor range is given.",
    )
    ttl: PositiveDuration | None = Field(
        default=None,
        description="A key of which no row has come for this long (in event time) is forgotten; never if not given.",
    )
    allowed_lateness: Duration = lasting(
        "0s", description="Rows are given out, and are late, this much after the watermark has passed."
    )

    @model_validator(mode="after")
    def _one_frame(self) -> OverSpec:
        if self.rows is not None and self.range is not None:
            raise PydanticCustomError("message", "{message}", {"message": "rows and range are two frames; keep one"})
        return self

    @property
    def frame(self) -> Frame:
        """The frame."""
        given = self.range if self.rows is None else self.rows
        return Frame("range" if self.rows is None else "rows", given if isinstance(given, int) else None)


class OverStep(Node):
    """Adds what is computed of frames; late rows leave through the port ``late``."""

    over: OverSpec
