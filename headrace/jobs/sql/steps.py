"""The steps that SQL becomes, as a spec has them, with the place of each in the text."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

from headrace.jobs.sql.errors import Place, place_of

_NO_NAME: Final = re.compile(r"[^A-Za-z0-9-]")


@dataclass(frozen=True, slots=True)
class Relation:
    """What a name in FROM stands for.

    Attributes:
        node: The source or step that gives its rows.
        time: The event-time column of its rows; None: unknown, or there is none.
    """

    node: str
    time: str | None = None


@dataclass(slots=True)
class Steps:
    """Steps under construction.

    Ids are made of the statement's name and the step's kind (``hourly-window``), so that they stay the same while other
    statements change: state is bound to them.
    """

    taken: Collection[str]
    steps: list[dict[str, Any]] = field(default_factory=list)
    places: list[Place | None] = field(default_factory=list)

    def add(self, owner: str, kind: str, body: Any, rows: Relation, near: exp.Expr, time: str | None) -> Relation:
        """Append a step that reads ``rows``; ``near`` tells where it stands in the text."""
        node = self._name(_NO_NAME.sub("-", f"{owner}-{kind}"))
        self.steps.append({"id": node, "from": rows.node, kind: body})
        self.places.append(place_of(near))
        return Relation(node, time)

    def union(self, owner: str, rows: Sequence[Relation], near: exp.Expr, time: str | None) -> Relation:
        """Append a union of several relations."""
        node = self._name(_NO_NAME.sub("-", f"{owner}-union"))
        self.steps.append({"id": node, "union": [row.node for row in rows]})
        self.places.append(place_of(near))
        return Relation(node, time)

    def _name(self, wanted: str) -> str:
        used = {*self.taken, *(step["id"] for step in self.steps)}
        name, number = wanted, 1
        while name in used:
            number += 1
            name = f"{wanted}-{number}"
        return name
