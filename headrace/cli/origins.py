"""A folder of the user's that hides one of our packages: found at start, and named."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

import headrace
from headrace.kernel.errors import UserError

PACKAGES: Final = ("hybrid_source", "operators", "catalog", "api", "infra")
"""Top-level packages of Headrace with names that others use, too."""


def check_origins() -> None:
    """Make sure that our packages come from where ``headrace`` itself comes from.

    Raises:
        UserError: Something on the import path hides one of them.
    """
    home = Path(headrace.__file__).parent.parent
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        places = [Path(place).parent for place in (spec.submodule_search_locations or ())] if spec else []
        if home not in places:
            found = spec.origin or str(places[0]) if spec else "nothing"
            raise UserError(
                f"package {package!r} of headrace is hidden",
                detail=f"wanted {home / package}, found {found}",
                hint="run from another folder, rename the file or folder, or take it off PYTHONPATH",
                code="PACKAGE_HIDDEN",
            )
