"""Plans that are made once for each schema, since a batch may be small and a plan is not cheap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import polars as pl

_Plan = TypeVar("_Plan")


def plan_for(plans: dict[tuple[Any, ...], _Plan], schema: pl.Schema, make: Callable[[pl.Schema], _Plan]) -> _Plan:
    """The plan for rows of a schema, made now if ``plans`` does not have it yet."""
    key = tuple(schema.items())
    plan = plans.get(key)
    if plan is None:
        plan = plans[key] = make(schema)
    return plan
