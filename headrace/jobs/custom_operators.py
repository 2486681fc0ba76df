"""From the name of an operator to the operator: registered ones, and those that are named by module and class."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from headrace.jobs.names import suggest
from headrace.jobs.spec_custom import IN_MODULE, CustomSpec
from headrace.kernel.errors import SpecError
from operators.custom import CustomOperator
from operators.custom_calls import OPERATOR_INVALID, defining, told
from operators.custom_step import CustomStep

GROUP: Final = "headrace.operators"
"""The entry points under which packages register operators."""

OPERATOR_NOT_FOUND: Final = "OPERATOR_NOT_FOUND"
ARGUMENTS_INVALID: Final = "ARGUMENTS_INVALID"


def registered(configured: Mapping[str, str]) -> Mapping[str, str]:
    """``MODULE:CLASS`` by the name under which an operator is registered.

    Args:
        configured: Those of ``[operators]`` in headrace.toml, which go before the entry points of packages.
    """
    return {point.name: point.value for point in _points()} | dict(configured)


def _points() -> list[EntryPoint]:
    return list(entry_points(group=GROUP))


def build_custom(node_id: str, spec: CustomSpec, configured: Mapping[str, str]) -> CustomStep:
    """The operator of a step.

    Args:
        node_id: The step's id.
        spec: What the step says.
        configured: See :func:`registered`.

    Raises:
        SpecError: No operator is registered under its name (``OPERATOR_NOT_FOUND``), it cannot be imported or is no
            operator (``OPERATOR_INVALID``), or its arguments are wrong (``ARGUMENTS_INVALID``).
    """
    found = spec.operator if isinstance(spec.operator, type) else operator_class(spec.operator, configured)
    where = f"custom operator {spec.name!r} of step {node_id!r}"
    args = arguments(found, spec.args, where)
    with defining(where, "__init__"):
        operator = found(args)
    return CustomStep(
        node_id, operator, spec.name, spec.by, spec.order_by, spec.args, spec.allowed_lateness, spec.event_time
    )


def operator_class(name: str, configured: Mapping[str, str]) -> type[CustomOperator]:
    """The operator of a name, or of ``MODULE:CLASS``.

    Raises:
        SpecError: Nothing is registered under the name or the module has no such attribute (``OPERATOR_NOT_FOUND``),
            the module cannot be imported, or it is no operator (``OPERATOR_INVALID``).
    """
    place = name if IN_MODULE in name else _place(name, configured)
    module_name, _, attribute = place.partition(IN_MODULE)
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        raise SpecError(
            f"operator {name!r}: there is no module {missing!r}",
            detail=told(error) if missing != module_name else "",
            hint="install the package that has it, or put its folder into PYTHONPATH",
            code=OPERATOR_NOT_FOUND,
        ) from error
    except AttributeError as error:
        raise SpecError(
            f"operator {name!r}: module {module_name!r} has no {attribute!r}",
            detail=told(error),
            code=OPERATOR_NOT_FOUND,
        ) from error
    except Exception as error:
        raise SpecError(
            f"operator {name!r}: module {module_name!r} cannot be imported", detail=told(error), code=OPERATOR_INVALID
        ) from error
    if not (isinstance(found, type) and issubclass(found, CustomOperator)):
        raise SpecError(
            f"operator {name!r} is no subclass of headrace.operators.CustomOperator",
            detail=f"{place} is {found!r}",
            code=OPERATOR_INVALID,
        )
    return found


def _place(name: str, configured: Mapping[str, str]) -> str:
    known = registered(configured)
    if name not in known:
        there = f"registered: {', '.join(sorted(known))}" if known else "no operator is registered"
        raise SpecError(
            f"there is no operator named {name!r}",
            detail=there,
            hint=suggest(name, known)
            or f"register it under the entry points {GROUP!r} or in [operators] of "
            "headrace.toml; on the command line MODULE:CLASS will do",
            code=OPERATOR_NOT_FOUND,
            context={"operator": name, "registered": sorted(known)},
        )
    return known[name]


def arguments(operator: type[CustomOperator], given: Mapping[str, Any], where: str) -> Any:
    """The arguments of an operator, checked against its ``Args``; None for one that declares none.

    Raises:
        SpecError: ``ARGUMENTS_INVALID``: one is unknown, missing, or of another type.
    """
    wanted = operator.Args
    if wanted is None:
        if given:
            raise SpecError(f"{where} takes no arguments", detail=f"given: {', '.join(given)}", code=ARGUMENTS_INVALID)
        return None
    with defining(where, "Args"):
        adapter: TypeAdapter[Any] = TypeAdapter(wanted)
        known = list(adapter.json_schema().get("properties", {}))
    unknown = [name for name in given if name not in known]
    if unknown:
        raise SpecError(
            f"{where} has no argument {unknown[0]!r}",
            hint=suggest(unknown[0], known) or f"there is {', '.join(known) or 'none'}",
            code=ARGUMENTS_INVALID,
        )
    try:
        return adapter.validate_python(dict(given))
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg']}"
            for problem in error.errors(include_url=False)
        ]
        raise SpecError(f"{where} has wrong arguments", detail="; ".join(problems), code=ARGUMENTS_INVALID) from error
