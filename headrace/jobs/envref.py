"""References to environment variables in configuration and specs: ``${NAME}`` and ``${NAME:-default}``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_REFERENCE: Final = re.compile(r"\$(?:(?P<escaped>\$\{)|\{(?P<name>[^}:]*)(?::-(?P<default>[^}]*))?\})")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class EnvReferenceError(ValueError):
    """A reference that cannot be resolved; ``variable`` is the one that is not set, if that is the reason."""

    def __init__(self, message: str, variable: str = "") -> None:
        super().__init__(message)
        self.variable = variable


def has_reference(text: str) -> bool:
    """Whether ``text`` holds a reference (or an escaped one)."""
    return "${" in text


def substitute(text: str, environ: Mapping[str, str]) -> str:
    """``text`` with every reference replaced. ``$${`` stands for a literal ``${``.

    An empty variable counts as set for ``${NAME}`` and as unset for ``${NAME:-default}``, as in a shell.

    Raises:
        EnvReferenceError: A variable is not set and the reference has no default, or a reference is malformed.
    """

    def replace(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "${"
        name, default = match["name"], match["default"]
        if not _NAME.fullmatch(name):
            raise EnvReferenceError(f"{match[0]!r} is no reference to an environment variable; write ${{NAME}}")
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            raise EnvReferenceError(f"environment variable {name} is not set", name)
        return environ[name]

    return _REFERENCE.sub(replace, text)
