"""What operators of your own are made of. Public; docs/custom-operators.md explains it.

>>> from headrace.operators import CustomOperator, Determinism, StateTable
"""

from __future__ import annotations

from headrace.kernel.protocols import Determinism
from operators.custom import CustomOperator, StateTable
from operators.custom_state import State, Table
from operators.custom_timers import Timers

__all__ = ["CustomOperator", "Determinism", "State", "StateTable", "Table", "Timers"]
