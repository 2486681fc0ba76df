"""From JSON-like values to a checked :class:`JobSpec`; every fault becomes a ``SpecError`` with its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headrace.jobs.graph import build_graph
from headrace.jobs.names import PATTERN_HELP, suggest
from headrace.jobs.spec import JobSpec
from headrace.jobs.spec_base import TAG_MARK, Path, path_text
from headrace.jobs.spec_steps import STEP_KINDS
from headrace.kernel.errors import SpecError

_FOLLOWS: Final = "default_factory_not_called"
"""The type of an error that only says that another one came first."""
_KEY_MARK: Final = "[key]"
_SHOWN_PROBLEMS: Final = 10
_NODE_DEPTH: Final = 2
_OWN_MESSAGES: Final = ("duration", "size", "expression", "aggregate", "column_type", "message")
_TYPE_WORDS: Final[Mapping[str, str]] = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "float_type": "a number",
    "float_parsing": "a number",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
    "timezone_aware": "a time with its zone, for example 2026-01-01T00:00:00Z",
    "datetime_parsing": "a time with its zone, for example 2026-01-01T00:00:00Z",
    "datetime_from_date_parsing": "a time with its zone, for example 2026-01-01T00:00:00Z",
}


@dataclass(frozen=True, slots=True)
class _Problem:
    path: Path
    message: str
    hint: str = ""
    detail: str = ""
    code: str = ""


def parse_job(value: Any, *, places: Mapping[Path, str] | None = None) -> JobSpec:
    """Check a job given as JSON-like values (what YAML, the API and the Python builder give).

    Args:
        value: The job. Expressions may be Polars expressions.
        places: ``file:line:column`` by path, so that errors can point there.

    Raises:
        SpecError: The job is wrong; the first problem is the message, further ones are the detail.
    """
    known = dict(places or {})
    if isinstance(value, Mapping) and value.get("sql") is not None:
        from headrace.jobs.sql import expand  # sqlglot is slow to import, and most jobs have steps

        value, known = expand(value, known)
    try:
        spec = JobSpec.model_validate(value)
    except ValidationError as error:
        found = [details for details in error.errors(include_url=False) if details["type"] != _FOLLOWS]
        problems = [problem for details in found for problem in _explain(details)]
        raise _spec_error(problems, known) from error
    spec.set_places(known)
    build_graph(spec)
    return spec


def _spec_error(problems: list[_Problem], places: Mapping[Path, str]) -> SpecError:
    order = {path: number for number, path in enumerate(places)}
    problems.sort(key=lambda problem: order.get(problem.path, order.get(problem.path[:-1], len(order))))
    first, *others = [(problem, _text(problem, places)) for problem in problems]
    shown = [f"{text}{f' ({problem.hint})' if problem.hint else ''}" for problem, text in others[:_SHOWN_PROBLEMS]]
    if len(others) > len(shown):
        shown.append(f"and {len(others) - len(shown)} more")
    problem, text = first
    also = "\n    ".join(["also wrong:", *shown]) if shown else ""
    detail = "\n  ".join(part for part in (problem.detail, also) if part)
    return SpecError(text, detail=detail, hint=problem.hint, code=problem.code, context={"path": list(problem.path)})


def _text(problem: _Problem, places: Mapping[Path, str]) -> str:
    place = next((places[problem.path[:n]] for n in range(len(problem.path), -1, -1) if problem.path[:n] in places), "")
    return ": ".join(part for part in (place, path_text(problem.path), problem.message) if part)


def _explain(details: ErrorDetails) -> Iterator[_Problem]:
    path = tuple(part for part in details["loc"] if not (isinstance(part, str) and part.startswith(TAG_MARK)))
    if path and path[-1] == _KEY_MARK:
        path = path[:-1]
    kind, given, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "unknown_keys":
        for key in context["keys"]:
            yield _unknown_key(path, key, context["known"])
    elif kind == "wrong_choice":
        yield _wrong_choice(path, given, details["msg"].split())
    elif kind == "missing":
        yield _Problem(path, f"{path[-1]!r} is missing")
    elif kind == "sql":
        yield _Problem(path, context["message"], context["hint"], context["detail"], context["code"])
    elif kind == "literal_error":
        yield _wrong_word(path, given, context["expected"])
    else:
        yield _Problem(path, _message(kind, given, context, details["msg"]))


def _unknown_key(path: Path, key: Any, known: list[str]) -> _Problem:
    if key in STEP_KINDS and path[:1] == ("steps",) and len(path) == _NODE_DEPTH:
        return _Problem((*path, key), "a step does one thing", f"make {key!r} a step of its own")
    if not isinstance(key, str):
        return _Problem(path, f"the key {key!r} must be a string")
    return _Problem((*path, key), f"unknown key {key!r}", suggest(key, known))


def _wrong_choice(path: Path, given: Any, choices: list[str]) -> _Problem:
    wanted = " or ".join(choices) if len(choices) == _NODE_DEPTH else f"one of {', '.join(choices)}"
    if isinstance(given, Mapping):
        unknown = [key for key in given if isinstance(key, str) and key not in ("id", "from")]
        hint = suggest(unknown[0], choices) if unknown else ""
        if len(unknown) == 1:
            return _Problem((*path, unknown[0]), f"unknown key {unknown[0]!r}, wanted {wanted}", hint)
        return _Problem(path, f"needs the key {wanted}", hint if hint.startswith("did") else "")
    return _Problem(path, f"must be a mapping with the key {wanted}, not {_describe(given)}")


def _wrong_word(path: Path, given: Any, expected: str) -> _Problem:
    words = [word for word in expected.replace(" or ", ", ").replace("'", "").split(", ") if word]
    hint = suggest(given, words) if isinstance(given, str) else ""
    return _Problem(
        path, f"must be {' or '.join(words)}, not {_describe(given)}", hint if hint.startswith("did") else ""
    )


def _message(kind: str, given: Any, context: Mapping[str, Any], default: str) -> str:
    if kind in _OWN_MESSAGES:
        return default
    if kind in _TYPE_WORDS:
        return f"must be {_TYPE_WORDS[kind]}, not {_describe(given)}"
    if kind == "string_pattern_mismatch":
        return f"{given!r} does not fit: {PATTERN_HELP.get(context['pattern'], context['pattern'])}"
    if kind in ("too_short", "string_too_short"):
        least = context.get("min_length", 1)
        return "must not be empty" if least == 1 else f"needs at least {least} entries"
    if kind == "greater_than_equal":
        return f"must be {context['ge']} or more, not {given}"
    return default[:1].lower() + default[1:]


def _describe(given: Any) -> str:
    if given is None:
        return "empty"
    if isinstance(given, Mapping):
        return "a mapping"
    if isinstance(given, list | tuple):
        return "a list"
    if isinstance(given, bool):
        return str(given).lower()
    return repr(given)
