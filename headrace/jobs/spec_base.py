"""What the models of the job spec stand on: strict frozen models, unions told apart by key, paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, model_validator
from pydantic_core import PydanticCustomError

from headrace.jobs.names import NodeName

TAG_MARK: Final = "@"
"""Union tags begin with it, so that they can be told from keys in the paths of errors."""

Path: TypeAlias = tuple[str | int, ...]
"""Where something stands in a spec: keys and list indices."""


class SpecModel(BaseModel):
    """Frozen, and strict about keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        known = [field.alias or name for name, field in cls.model_fields.items()]
        unknown = [key for key in value if key not in known]
        if unknown:
            raise PydanticCustomError("unknown_keys", "unknown keys", {"keys": unknown, "known": known})
        return value


class Node(SpecModel):
    """What steps and sinks share."""

    id: NodeName | None = Field(default=None, description="Stable id; state is bound to it.")
    from_: str | None = Field(
        default=None, alias="from", description="NODE or NODE.PORT; the step before if not given."
    )


def by_key(*choices: str, text: str = "", same: Mapping[str, str] | None = None) -> Discriminator:
    """Tells the members of a union apart by the key that only one of them has (or by being text).

    Args:
        choices: The keys.
        text: The tag of the member that is text.
        same: Keys that stand for the member of another key.
    """

    def kind(value: Any) -> str | None:
        if isinstance(value, str):
            return TAG_MARK + text if text else None
        for choice in choices:
            if choice in value if isinstance(value, dict) else getattr(value, choice, None) is not None:
                return TAG_MARK + (same or {}).get(choice, choice)
        return None

    return Discriminator(
        kind,
        custom_error_type="wrong_choice",
        custom_error_message=" ".join(choices),
    )


def path_text(path: Path) -> str:
    """A path as people write it: ``steps[0].filter``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
