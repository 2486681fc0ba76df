"""Hands keyed state and held rows to operators: one backend for each attempt at a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.kernel.held import HeldLayout, HeldState
from headrace.kernel.keyed import KeyedLayout, KeyedState, KeyGroups
from headrace.kernel.layouts import part_of
from headrace.kernel.protocols import OperatorState
from headrace.state.held import HeldStore
from headrace.state.keyed import KeyedStore, MemoryBudget, Sizes
from headrace.state.runs import RunFolder
from headrace.state.sorted_rows import Hashing

DEFAULT_MEMORY: Final = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StateOptions:
    """How much memory the state of a job may take, and where it spills to.

    Attributes:
        memory: Bytes, for all operators together.
        folder: On a local disk; None: the system's folder for temporary files.
        sizes: When what is merged.
    """

    memory: int = DEFAULT_MEMORY
    folder: Path | None = None
    sizes: Sizes = field(default_factory=Sizes)


class StateBackend:
    """The state of one attempt.

    Args:
        options: Memory and folder.
    """

    def __init__(self, options: StateOptions | None = None) -> None:
        options = options or StateOptions()
        self.runs = RunFolder(options.folder)
        self._budget = MemoryBudget(options.memory)
        self._sizes = options.sizes

    def context(self, where: str, state: OperatorState | None = None) -> StateContext:
        """What an operator is opened with.

        Args:
            where: Names the operator in error messages.
            state: Where it resumes.
        """
        return StateContext(where, self.runs, self._budget, self._sizes, state)

    def close(self) -> None:
        """Remove what lies on the local disk."""
        self.runs.close()


@dataclass(frozen=True, slots=True)
class StateContext:
    """Implements :class:`headrace.kernel.protocols.OperatorContext`."""

    where: str
    runs: RunFolder
    budget: MemoryBudget
    sizes: Sizes
    state: OperatorState | None = None
    key_groups: KeyGroups = field(default_factory=KeyGroups)

    def keyed(self, layout: KeyedLayout) -> KeyedState:
        """See :meth:`headrace.kernel.protocols.OperatorContext.keyed`.

        Raises:
            GraphChangedError: The state where it resumes lacks this part, or does not fit.
            HeadraceError: As :meth:`RunFolder.open`.
        """
        self.runs.open()
        store = KeyedStore(Hashing(layout), self.runs, self.budget, self.sizes)
        if self.state is not None:
            store.restore(part_of(self.state.keyed, layout.name, self.where), self.key_groups, self.where)
        return store

    def held(self, layout: HeldLayout) -> HeldState:
        """See :meth:`headrace.kernel.protocols.OperatorContext.held`.

        Raises:
            GraphChangedError: The state where it resumes lacks this part, or does not fit.
            HeadraceError: As :meth:`RunFolder.open`.
        """
        self.runs.open()
        store = HeldStore(layout, self.key_groups, self.runs, self.budget, self.sizes)
        if self.state is not None:
            store.restore(part_of(self.state.held, layout.name, self.where), self.where)
        return store

    def narrowed(self, key_groups: KeyGroups, state: OperatorState | None) -> StateContext:
        """See :meth:`headrace.kernel.protocols.OperatorContext.narrowed`."""
        return StateContext(self.where, self.runs, self.budget, self.sizes, state, key_groups)
