"""What the clauses of a query share while it becomes steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from headrace.jobs.sql.expressions import joined
from headrace.jobs.sql.relations import Relation
from headrace.jobs.sql.steps import Steps


@dataclass(frozen=True, slots=True)
class Deferred:
    """A query that becomes steps where it is read, because its reader decides what is kept of it (``ROW_NUMBER``)."""

    query: exp.Expr
    names: Names
    owner: str


Names = Mapping[str, Relation | Deferred]
"""What FROM may name."""


@dataclass(frozen=True, slots=True)
class Lowering:
    """Where steps go.

    Attributes:
        steps: Where they are added.
        tables: Names of static tables, which can be joined.
        operators: Names of custom operators, which can stand in FROM.
    """

    steps: Steps
    tables: Collection[str]
    operators: Mapping[str, Any] = field(default_factory=dict)

    def filter(self, owner: str, conditions: Sequence[str], rows: Relation, near: exp.Expr) -> Relation:
        """Rows for which all conditions hold."""
        if not conditions:
            return rows
        return rows.at(self.steps.add(owner, {"filter": joined(list(conditions)), "from": rows.node}, near))

    def with_columns(self, owner: str, added: Mapping[str, str], rows: Relation, near: exp.Expr) -> Relation:
        """Rows with columns that queries do not see."""
        if not added:
            return rows
        return rows.at(self.steps.add(owner, {"with_columns": dict(added), "from": rows.node}, near))

    def select(self, owner: str, items: Mapping[str, str], rows: Relation, near: exp.Expr) -> Relation:
        """Exactly these columns; clocks and event time are what the caller says of the result."""
        node = self.steps.add(owner, {"select": dict(items), "from": rows.node}, near)
        return replace(rows, node=node, columns=tuple(items))

    def step(self, owner: str, kind: str, body: Any, rows: Relation, near: exp.Expr) -> Relation:
        """Any step that reads one relation."""
        return rows.at(self.steps.add(owner, {kind: body, "from": rows.node}, near))
