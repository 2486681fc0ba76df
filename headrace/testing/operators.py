"""Opens operators in unit tests, with keyed state on the local disk as in a job."""

from __future__ import annotations

from headrace.kernel.protocols import OperatorContext, OperatorState
from headrace.state.backend import StateBackend, StateOptions


def operator_context(
    state: OperatorState | None = None, where: str = "operator 'test'", options: StateOptions | None = None
) -> OperatorContext:
    """What an operator is opened with; without a state it begins empty.

    Args:
        state: A snapshot to resume from, as it was taken.
        where: Names the operator in error messages.
        options: Memory and folder of keyed state.
    """
    return StateBackend(options).context(where, state)
