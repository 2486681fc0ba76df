"""Whether stored state still fits the operator that reads it."""

from __future__ import annotations

import polars as pl

from headrace.kernel.errors import GraphChangedError


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


def _difference(old: pl.Schema, new: pl.Schema) -> str:
    """What differs between two layouts of the state, in words."""
    gone = [f"{name} ({dtype}) is no longer there" for name, dtype in old.items() if name not in new]
    added = [f"{name} ({dtype}) is new" for name, dtype in new.items() if name not in old]
    changed = [f"{name} was {old[name]}, is {new[name]}" for name in new if name in old and old[name] != new[name]]
    return "; ".join([*gone, *added, *changed])
