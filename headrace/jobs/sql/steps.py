"""The steps that SQL becomes, as a spec has them, with the place of each in the text."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

from headrace.jobs.sql.errors import Place, place_of

_NO_NAME: Final = re.compile(r"[^A-Za-z0-9-]")
_LONGEST: Final = 90


@dataclass(slots=True)
class Steps:
    """Steps under construction.

    Ids are made of the statement's name and the step's kind (``hourly-window``), so that they stay the same while other
    statements change: state is bound to them.
    """

    taken: Collection[str]
    steps: list[dict[str, Any]] = field(default_factory=list)
    places: list[Place | None] = field(default_factory=list)

    def add(self, owner: str, body: Mapping[str, Any], near: exp.Expr) -> str:
        """Append a step, and give its id.

        Args:
            owner: What its id begins with.
            body: The step without id; its first key says what kind it is.
            near: What it stands for in the text.
        """
        node = self._name(_NO_NAME.sub("-", f"{owner[:_LONGEST]}-{next(iter(body))}"))
        self.steps.append({"id": node, **body})
        self.places.append(place_of(near))
        return node

    def _name(self, wanted: str) -> str:
        used = {*self.taken, *(step["id"] for step in self.steps)}
        name, number = wanted, 1
        while name in used:
            number += 1
            name = f"{wanted}-{number}"
        return name
