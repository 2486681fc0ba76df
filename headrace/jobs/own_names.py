"""Names of columns that steps give to what they compute on the way, and that rows must not have.

A column of such a name would be taken for that, or be lost. Where it matters is refused; behind steps that give it
another name it does not. ``tests/unit/test_own_names.py`` compares these names with those that operators use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from headrace.kernel import columns
from headrace.kernel.errors import SpecError

OF_STEPS: Final = frozenset(
    [
        *("_after", "_alarms", "_all", "_asof_matched", "_asof_time", "_before", "_bucket", "_code", "_count"),
        *("_due", "_end", "_first", "_floor", "_found", "_given", "_joins", "_kept", "_last", "_mark", "_matched"),
        *("_matches", "_new", "_number", "_old", "_opens", "_order", "_place", "_rank", "_row", "_run"),
        *("_settles", "_states", "_stretch", "_stretch_first", "_stretch_goes_on", "_time", "_touched", "_until"),
        "_version",
    ]
)
"""What operators with state name columns; ``_side``, which late rows of joins have, is in the way of joins alone."""
PREFIXES: Final = ("_before:", "_key:", "_order:", "rows:", "value:")
"""What names of such columns begin with."""
OF_JOINS: Final = frozenset({"_side"})
_OF_SQL: Final = re.compile(r"_(one|in|number|rows|(on|in|key|value|rank|over|over_key|lookup|query|unnest)_\d+)")


def check_step(names: Iterable[str], where: str, *, join: bool, changelog: bool) -> None:
    """Refuse columns that a step with state would take for its own.

    Args:
        names: The columns of the rows that it reads.
        where: Names the step.
        join: It is a join.
        changelog: The rows are a changelog.

    Raises:
        SpecError: ``COLUMN_NAME_UNSUPPORTED``.
    """
    for name in names:
        if name in OF_STEPS or name.startswith(PREFIXES) or (join and name in OF_JOINS):
            raise _refused(name, where, "give it another name in a with_columns step before, and drop it")
        if name == columns.WEIGHT and not changelog:
            raise SpecError(
                f"{where} reads a column {name!r}, which says how often rows of a changelog count, and these are none",
                hint="give it another name in a with_columns step before, and drop it",
                code="COLUMN_NAME_UNSUPPORTED",
                context={"column": name},
            )


def check_sql(names: Iterable[str], where: str) -> None:
    """Refuse columns of a source that SQL would write over.

    Raises:
        SpecError: ``COLUMN_NAME_UNSUPPORTED``.
    """
    for name in names:
        if _OF_SQL.fullmatch(name):
            raise _refused(name, where, "rename it in the table, or write steps in place of SQL")


def _refused(name: str, where: str, hint: str) -> SpecError:
    return SpecError(
        f"{where} reads a column {name!r}, a name that it gives to a column of its own",
        hint=hint,
        code="COLUMN_NAME_UNSUPPORTED",
        context={"column": name},
    )
