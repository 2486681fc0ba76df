"""Statements: views, a query for every sink, or an INSERT INTO for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp

from headrace.jobs.sql.dialect import parse
from headrace.jobs.sql.errors import Place, SqlError, refuse
from headrace.jobs.sql.lowering import Deferred, Lowering
from headrace.jobs.sql.queries import Queries
from headrace.jobs.sql.relations import Relation
from headrace.jobs.sql.steps import Steps

QUERY: Final = "query"
"""What the steps of a query without INSERT INTO are named after."""


@dataclass(frozen=True, slots=True)
class Translation:
    """What SQL became.

    Attributes:
        steps: Steps as a spec has them, each with ``id`` and ``from``.
        places: Where in the text each of them stands.
        inserts: For each sink of an INSERT INTO the node that it reads.
        result: The node of the query without INSERT INTO, None when there is none.
    """

    steps: Sequence[Mapping[str, Any]]
    places: Sequence[Place | None]
    inserts: Mapping[str, str]
    result: str | None


def translate(
    sql: str, sources: Mapping[str, Relation], tables: Collection[str], sinks: Collection[str]
) -> Translation:
    """Translate the statements of a job.

    Nothing that the text names is opened: it can only name what the job declares.

    Args:
        sql: Statements, separated by semicolons.
        sources: What is known of the rows of each source.
        tables: Names of static tables.
        sinks: What INSERT INTO may name.

    Raises:
        SqlError: A statement is no SQL, or not supported.
    """
    statements = parse(sql)
    if not statements:
        raise SqlError("holds no statement", hint="write a SELECT")
    names: dict[str, Relation | Deferred] = dict(sources)
    steps = Steps({*sources, *tables})
    queries = Queries(Lowering(steps, tables))
    inserts: dict[str, str] = {}
    result: str | None = None
    for statement in statements:
        if isinstance(statement, exp.Create):
            name, query = _view(statement, {*names, *tables})
            names[name] = queries.named(query, name, dict(names))
        elif isinstance(statement, exp.Insert):
            sink, query = _insert(statement, sinks)
            if sink in inserts:
                raise refuse(statement, f"two statements insert into {sink!r}", "declare a second sink")
            inserts[sink] = queries.relation(query, sink, names).node
        elif isinstance(statement, exp.Query):
            if result is not None:
                raise refuse(statement, "there is a second query", "write INSERT INTO sink before each")
            result = queries.relation(statement, QUERY, names).node
        else:
            raise refuse(
                statement,
                f"{_kind(statement)} is not supported",
                "a job's SQL is CREATE VIEW, INSERT INTO ... SELECT and SELECT",
            )
    return Translation(steps.steps, steps.places, inserts, result)


def _view(statement: exp.Create, taken: Collection[str]) -> tuple[str, exp.Expr]:
    if statement.kind != "VIEW" or statement.args.get("replace") or statement.expression is None:
        raise refuse(statement, f"CREATE {statement.kind} is not supported", "write CREATE VIEW name AS SELECT ...")
    if isinstance(statement.this, exp.Schema):
        raise refuse(statement, "a view has no list of columns", "name them in its SELECT")
    name = statement.this.name
    if name in taken:
        raise refuse(statement, f"the name {name!r} is taken")
    return name, statement.expression


def _insert(statement: exp.Insert, sinks: Collection[str]) -> tuple[str, exp.Expr]:
    if statement.args.get("overwrite") or isinstance(statement.this, exp.Schema):
        raise refuse(statement, "an INSERT has neither OVERWRITE nor a list of columns", "name columns in its SELECT")
    if not isinstance(statement.this, exp.Table):
        raise refuse(statement, "INSERT INTO needs the name of a sink", f"sinks: {', '.join(sorted(sinks))}")
    sink = statement.this.sql()
    name = ".".join(part.name for part in statement.this.parts)
    if name not in sinks:
        raise refuse(statement, f"there is no sink {sink}", f"sinks: {', '.join(sorted(sinks))}")
    if statement.expression is None or not isinstance(statement.expression, exp.Query):
        raise refuse(statement, "INSERT INTO needs a SELECT")
    return name, statement.expression


def _kind(statement: exp.Expr) -> str:
    return str(statement.this).upper() if isinstance(statement, exp.Command) else statement.key.upper()
