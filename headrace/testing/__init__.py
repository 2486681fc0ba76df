"""Tools for tests of jobs and of Headrace itself. Public.

A scripted source (:class:`ScriptedSource`), a table that lives in memory and commits in two phases
(:class:`MemorySink`), a job store in memory (:func:`memory_store`), what an operator is opened with
(:func:`operator_context`), a movable clock (:class:`ManualClock`), and crash points: by SIGKILL (``HEADRACE_CRASH``),
or thousands of times within one process (:func:`crash_at`).
"""

from __future__ import annotations

from headrace.kernel.crash import POINTS as CRASH_POINTS
from headrace.kernel.crash import VARIABLE as CRASH_VARIABLE
from headrace.testing.clock import ManualClock
from headrace.testing.crashes import SimulatedCrashError, crash_at
from headrace.testing.operators import operator_context
from headrace.testing.program import StaticProgram
from headrace.testing.sinks import MemorySink, MemoryTable
from headrace.testing.sources import ScriptedSource, Tick
from headrace.testing.stores import memory_store

__all__ = [
    "CRASH_POINTS",
    "CRASH_VARIABLE",
    "ManualClock",
    "MemorySink",
    "MemoryTable",
    "ScriptedSource",
    "SimulatedCrashError",
    "StaticProgram",
    "Tick",
    "crash_at",
    "memory_store",
    "operator_context",
]
