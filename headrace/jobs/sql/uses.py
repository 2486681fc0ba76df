"""What a query names of the members of its FROM: nothing else needs to go into joins, and so into their state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from headrace.jobs.sql.expressions import is_star
from headrace.jobs.sql.relations import Relation, Scope, Side


@dataclass(frozen=True, slots=True)
class Uses:
    """What a query names of the members of its FROM.

    Attributes:
        names: Finds whose a column is.
        columns: Those that it names, by alias.
        outside: Those of them that stand elsewhere than in the conditions of joins, with their alias.
        stars: Members of which it takes all columns, without knowing which.
    """

    names: Scope
    columns: Mapping[str, Sequence[str]]
    outside: frozenset[tuple[str, str]]
    stars: frozenset[str]

    def where(self, column: exp.Column) -> str | None:
        """The member that a column belongs to."""
        return self.names.side_of(column)


def uses_of(query: exp.Select, sides: Mapping[str, Side], tables: frozenset[str]) -> Uses:
    """What a query names of the members of its FROM.

    Args:
        query: The query.
        sides: The members.
        tables: Those of them that are static tables.

    Raises:
        SqlError: A column may belong to several of them.
    """
    names = Scope(Relation(""), sides, tables=tables)
    aliases = {item.alias for item in query.expressions if isinstance(item, exp.Alias)}
    found: dict[str, dict[str, None]] = {alias: {} for alias in sides}
    outside: set[tuple[str, str]] = set()
    stars: set[str] = set()
    for column, in_join in _columns(query):
        if is_star(column):
            wanted = [column.table] if isinstance(column, exp.Column) and column.table else list(sides)
            for alias in wanted:
                if alias in sides and sides[alias].columns is None:
                    stars.add(alias)
                found.get(alias, {}).update(dict.fromkeys(sides[alias].columns or () if alias in sides else ()))
            continue
        parts = [part.name for part in column.parts]
        if len(parts) == 1 and parts[0] in aliases and len(names.candidates(parts[0])) != 1:
            continue
        owner = names.side_of(column)
        if owner is None:
            continue
        if parts[0] not in sides and len(names.candidates(parts[0])) > 1:
            stars |= tables & set(names.candidates(parts[0]))
        name = parts[1] if parts[0] == owner and len(parts) > 1 else parts[0]
        found[owner][name] = None
        if not in_join:
            outside.add((owner, name))
    columns = {alias: list(named) for alias, named in found.items()}
    return Uses(names, columns, frozenset(outside), frozenset(stars))


def _columns(query: exp.Select) -> Iterator[tuple[Any, bool]]:
    """The columns and stars that a query names itself, not inside queries of its FROM, and whether to say what joins.

    Of queries inside WHERE and the select list it is the columns that they take from outside.
    """
    for key, value in query.args.items():
        if key in {"from_", "with_", "joins"}:
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, exp.Expr):
                yield from ((column, False) for column in _named(node))
    for join in query.args.get("joins") or ():
        for node in (join.args.get("on"), join.this.args.get("version")):
            yield from ((column, True) for column in (_named(node) if node is not None else ()))
        for node in join.this.expressions if isinstance(join.this, exp.Unnest) else ():
            yield from ((column, False) for column in _named(node))
    aliases = {member.alias_or_name for member in _members_of(query)}
    asking = [node for node in (query.args.get("where"), *query.expressions) if node is not None]
    for inner in (found for node in asking for found in node.find_all(exp.Query)):
        taken = (column for column in inner.find_all(exp.Column) if len(column.parts) > 1)
        yield from ((column, False) for column in taken if column.parts[0].name in aliases)


def _named(node: exp.Expr) -> Iterator[Any]:
    if isinstance(node, exp.Query):
        return
    if isinstance(node, exp.Column) or (isinstance(node, exp.Star) and isinstance(node.parent, exp.Select)):
        yield node
        return
    for child in node.iter_expressions():
        yield from _named(child)


def _members_of(query: exp.Select) -> list[exp.Expr]:
    return [query.args["from_"].this, *(join.this for join in query.args.get("joins") or ())]
