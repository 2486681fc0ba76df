"""The protocol of the rules, and how they are tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.kernel.errors import BoundaryError
from hybrid_source.history import History
from hybrid_source.stages import Resolution


@dataclass(frozen=True, slots=True)
class BoundaryContext:
    """What a rule looks at.

    Attributes:
        history: The pinned history; boundary and rows always come from the same version.
        topic: The topic whose partitions are wanted.
    """

    history: History
    topic: str


class BoundaryRule(Protocol):
    """One way to find a boundary."""

    @property
    def looks_for(self) -> str:
        """What it needs, for the message when every rule has failed."""

    def resolve(self, context: BoundaryContext) -> Resolution | None:
        """The boundary, or None when this rule does not apply. Reads metadata, at most a few columns.

        Raises:
            BoundaryError: What it needs is there but cannot be used; no later rule is tried.
        """


def resolve_boundary(rules: Sequence[BoundaryRule], context: BoundaryContext) -> Resolution:
    """The first boundary that a rule gives.

    Raises:
        BoundaryError: No rule gives one: going on would lose or double rows. The message says what was looked for.
    """
    for rule in rules:
        found = rule.resolve(context)
        if found is not None:
            return found
    raise BoundaryError(
        f"no boundary between {context.history.name} and topic {context.topic} is known",
        detail="looked for: " + "; ".join(rule.looks_for for rule in rules),
        hint="name the columns that hold each row's partition and offset (boundary: {columns: {partition: p, offset: "
        'o}}), give the next offsets (boundary: {offsets: {"0": 120}}), or let `headrace boundary set` record them '
        "with the table",
        context={"history": context.history.name, "topic": context.topic},
    )
