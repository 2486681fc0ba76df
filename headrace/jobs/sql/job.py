"""A job with ``sql`` as the same job with steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.jobs.spec_base import Path
from headrace.jobs.sql.errors import Place, SqlError
from headrace.jobs.sql.relations import Relation
from headrace.jobs.sql.statements import Translation, translate
from headrace.kernel.errors import SpecError


def expand(job: Mapping[str, Any], places: Mapping[Path, str]) -> tuple[dict[str, Any], dict[Path, str]]:
    """Replace ``sql`` by the steps that it means; each sink of an INSERT INTO reads its statement.

    The values need not be checked yet: what is wrong elsewhere in them is left for the checks to say.

    Args:
        job: The job, with ``sql``.
        places: ``file:line:column`` by path.

    Returns:
        The job with ``sql`` and ``steps``, and the places, those of the steps too.

    Raises:
        SpecError: ``SQL_INVALID`` or ``SQL_NOT_SUPPORTED`` with line and column in the text.
    """
    text = job["sql"]
    if not isinstance(text, str):
        raise SpecError(f"{_named(places, None)}: must be text, not {text!r}", code="SQL_INVALID")
    if job.get("steps"):
        raise SpecError(
            f"{_named(places, None)}: a job has sql or steps, not both",
            hint="put views of the SQL into steps, or the steps into the SQL",
        )
    try:
        found = translate(text, dict(_sources(job)), _keys(job.get("tables")), _sinks(job).keys())
        sinks = _fed(job, found)
    except SqlError as error:
        raise SpecError(f"{_named(places, error.place)}: {error.message}", hint=error.hint, code=error.code) from error
    stepped: dict[Path, str] = {("steps", index): _named(places, place) for index, place in enumerate(found.places)}
    return {**job, "steps": list(found.steps), "sinks": sinks}, {**places, **stepped}


def _named(places: Mapping[Path, str], place: Place | None) -> str:
    file = places.get(("sql",))
    within = f"sql line {place[0]}, column {place[1]}" if place else "sql"
    return f"{file}: {within}" if file else within


def _keys(section: Any) -> list[str]:
    return [name for name in section if isinstance(name, str)] if isinstance(section, Mapping) else []


def _sources(job: Mapping[str, Any]) -> Iterator[tuple[str, Relation]]:
    """What is known of the sources without reaching any: columns only where the tail's schema says all of them."""
    sources = job.get("sources")
    for name in _keys(sources):
        source = _mapping(sources, name)
        column = _mapping(source, "event_time").get("column")
        time = column if isinstance(column, str) else None
        changelog = source.get("changelog")
        changes = isinstance(changelog, Mapping) and changelog.get("give", "changes") == "changes"
        schema = _mapping(_mapping(source, "tail"), "schema")
        known = schema and not source.get("history") and not source.get("metadata") and not changelog
        columns = tuple(schema) if known else None
        yield name, Relation(name, time, columns, changes, {time: 0} if time else {})


def _mapping(values: Any, key: str) -> Mapping[str, Any]:
    found = values.get(key) if isinstance(values, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _sinks(job: Mapping[str, Any]) -> dict[str, int]:
    """Sinks by the names that INSERT INTO may use: the id, else the table or topic."""
    names: dict[str, int] = {}
    sinks = job.get("sinks")
    for index, sink in enumerate(sinks if isinstance(sinks, list | tuple) else ()):
        if not isinstance(sink, Mapping):
            continue
        if isinstance(sink.get("id"), str):
            names[sink["id"]] = index
            continue
        for kind, target in (("iceberg", "table"), ("kafka", "topic")):
            body = sink.get(kind)
            if isinstance(body, Mapping) and isinstance(body.get(target), str):
                names.setdefault(body[target], index)
    return names


def _fed(job: Mapping[str, Any], found: Translation) -> Any:
    names = _sinks(job)
    sinks = job.get("sinks")
    if not isinstance(sinks, list | tuple):
        return sinks
    fed = [dict(sink) if isinstance(sink, Mapping) else sink for sink in sinks]
    for name, node in found.inserts.items():
        sink = fed[names[name]]
        if sink.get("from", node) != node:
            raise SqlError(f"sink {name!r} has a from, and an INSERT INTO", hint="leave the from out")
        sink["from"] = node
    if found.result is not None:
        for sink in fed:
            if isinstance(sink, dict):
                sink.setdefault("from", found.result)
    return fed
