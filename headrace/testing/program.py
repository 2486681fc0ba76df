"""A job made of a ready graph, for tests that do not want the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.kernel.protocols import Json
from headrace.runtime.graph import Graph


@dataclass(frozen=True, slots=True)
class StaticProgram:
    """A job without lookup tables."""

    uid: str
    fixed: Graph

    def pin(self, known: Mapping[str, Json]) -> Mapping[str, Json]:  # noqa: ARG002 - the protocol's signature
        """See :meth:`Program.pin`."""
        return {}

    def graph(self, pins: Mapping[str, Json]) -> Graph:  # noqa: ARG002 - the protocol's signature
        """See :meth:`Program.graph`."""
        return self.fixed
