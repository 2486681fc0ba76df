"""Names in specs, and what was probably meant when one is unknown."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Annotated, Final

from annotated_types import Len
from pydantic import BeforeValidator, StringConstraints, WithJsonSchema

from headrace.kernel.columns import listed

JOB_NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
NODE_NAME_PATTERN: Final = r"^[A-Za-z0-9_][A-Za-z0-9_-]*$"
TABLE_NAME_PATTERN: Final = r"^[^.\s]+(\.[^.\s]+){2,}$"
TOPIC_PATTERN: Final = r"^[A-Za-z0-9._-]+$"

PATTERN_HELP: Final = {
    JOB_NAME_PATTERN: "a name is made of letters, digits, '-', '_' and '.', and begins with a letter or digit",
    NODE_NAME_PATTERN: "a name is made of letters, digits, '-' and '_'",
    TABLE_NAME_PATTERN: "a table is written CATALOG.NAMESPACE.TABLE, for example local.flights.archive",
    TOPIC_PATTERN: "a topic is made of letters, digits, '-', '_' and '.'",
}
"""What a name of each kind looks like, for error messages."""

JobName = Annotated[str, StringConstraints(pattern=JOB_NAME_PATTERN, max_length=200)]
NodeName = Annotated[str, StringConstraints(pattern=NODE_NAME_PATTERN, max_length=100)]
TableName = Annotated[str, StringConstraints(pattern=TABLE_NAME_PATTERN)]
TopicName = Annotated[str, StringConstraints(pattern=TOPIC_PATTERN, max_length=249)]
"""Topic names are limited to 249 characters by Kafka."""

Topics = Annotated[
    tuple[TopicName, ...],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Len(min_length=1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": TOPIC_PATTERN},
                {"type": "array", "items": {"type": "string", "pattern": TOPIC_PATTERN}, "minItems": 1},
            ]
        }
    ),
]
"""One topic, or a list of at least one."""

_NODE_NAME: Final = re.compile(NODE_NAME_PATTERN)


def is_node_name(text: str) -> bool:
    """Whether ``text`` can name a source, table or step."""
    return _NODE_NAME.match(text) is not None


def suggest(wrong: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: ``did you mean 'filter'?``, or the known names when nothing is close."""
    names = sorted(listed(known))
    close = difflib.get_close_matches(wrong, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(names)}" if names else ""
