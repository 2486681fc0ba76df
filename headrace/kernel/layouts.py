"""Whether stored state still fits the operator that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import polars as pl

from headrace.kernel.errors import GraphChangedError

Part = TypeVar("Part")


def check_layout(found_version: int, found: pl.Schema, version: int, wanted: pl.Schema, where: str) -> None:
    """Check version and columns (in any order) of stored state.

    Args:
        found_version: Of what is stored.
        found: Its columns.
        version: What is read.
        wanted: The columns that it must have.
        where: Names the operator in error messages.

    Raises:
        GraphChangedError: They differ.
    """
    if found_version != version:
        raise GraphChangedError(
            f"{where}: its state has version {found_version}, this release reads version {version}",
            hint="resume with the release that made the checkpoint, or a newer one",
        )
    if dict(found) != dict(wanted):
        raise GraphChangedError(
            f"{where}: its state does not fit the job",
            detail=_difference(found, wanted),
            hint=f"undo the change, or give the {where.partition(' ')[0]} a new id to begin it with empty state",
        )


def part_of(parts: Mapping[str, Part], name: str, where: str) -> Part:
    """A part of a restored state.

    Args:
        parts: All parts of its kind.
        name: The part's name in it.
        where: Names the operator in error messages.

    Raises:
        GraphChangedError: There is none: to go on without what it held would give other results.
    """
    if name not in parts:
        raise GraphChangedError(
            f"{where}: its state has no {name!r}, which this release needs",
            detail=f"the checkpoint has {', '.join(map(repr, parts)) or 'nothing of this kind'}",
            hint="resume with the release that made the checkpoint, or give the step a new id to begin it anew",
        )
    return parts[name]


def _difference(old: pl.Schema, new: pl.Schema) -> str:
    """What differs between two layouts of the state, in words."""
    gone = [f"{name} ({dtype}) is no longer there" for name, dtype in old.items() if name not in new]
    added = [f"{name} ({dtype}) is new" for name, dtype in new.items() if name not in old]
    changed = [f"{name} was {old[name]}, is {new[name]}" for name in new if name in old and old[name] != new[name]]
    return "; ".join([*gone, *added, *changed])
