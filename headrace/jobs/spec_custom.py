"""The step ``custom``: an operator in Python (docs/custom-operators.md)."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from headrace.jobs.spec_base import Node, SpecModel
from headrace.jobs.values import AnyNumber, Duration, lasting
from operators.custom import CustomOperator

IN_MODULE: Final = ":"
"""Stands between module and attribute where an operator is no registered name."""


def _operator(value: Any) -> str | type[CustomOperator]:
    if isinstance(value, type) and issubclass(value, CustomOperator):
        return value
    if isinstance(value, str) and value.strip() == value and value:
        module, colon, attribute = value.partition(IN_MODULE)
        parts = [*module.split("."), *attribute.split(".")] if colon else []
        if all(part.isidentifier() for part in parts):
            return value
    raise PydanticCustomError(
        "message", "{message}", {"message": f"{value!r} is no operator: write a registered name, or MODULE:CLASS"}
    )


def _operator_text(value: str | type[CustomOperator]) -> str:
    return value if isinstance(value, str) else f"{value.__module__}{IN_MODULE}{value.__qualname__}"


OperatorRef = Annotated[
    str | type[CustomOperator],
    PlainValidator(_operator),
    PlainSerializer(_operator_text, return_type=str),
    WithJsonSchema({"type": "string", "minLength": 1, "examples": ["sessionize", "my_package.operators:Sessionize"]}),
]
"""A registered name, ``MODULE:CLASS``, or in Python jobs the class."""


class CustomSpec(SpecModel):
    """An operator in Python over frames, with state by key and timers."""

    operator: OperatorRef = Field(description="A registered name, or MODULE:CLASS.")
    by: AnyNumber = Field(default=(), description="Columns of the key.")
    order_by: str | None = Field(
        default=None,
        description="The event-time column: rows wait for the watermark and come in order. As they are read if not "
        "given.",
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Arguments, as the operator declares them.")
    allowed_lateness: Duration = lasting(
        "0s", description="With order_by: rows are processed, and are late, this much after the watermark has passed."
    )
    event_time: str | None = Field(
        default=None, description="With order_by: the output's column that is its event time; none if not given."
    )

    @property
    def name(self) -> str:
        """What the operator is called."""
        return _operator_text(self.operator)


class CustomStep(Node):
    """Gives rows to an operator in Python; late rows leave through the port ``late`` (with ``order_by``)."""

    custom: CustomSpec
