"""The life of a job as a table of transitions.

::

    CREATED ──► PLANNED ──► STARTING ──► RUNNING ──► STOPPING ──► STOPPED
                               ▲  │        │  │                ├► FINISHED
                               │  ▼        ▼  └──────────────► ├► FAILED
                              RETRYING ◄───┘                   └► FENCED

A terminal state is never left and never overwritten: every change is a compare-and-set on the states it may come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class JobState(StrEnum):
    """Where a job stands."""

    CREATED = "CREATED"
    """Accepted and stored; no worker yet."""
    PLANNED = "PLANNED"
    """Accepted, stored and planned; no worker yet."""
    STARTING = "STARTING"
    """A worker process is being started and has not reported yet."""
    RUNNING = "RUNNING"
    """A worker has reported and owns the job."""
    RETRYING = "RETRYING"
    """The worker ended early; another one starts from the checkpoint after a delay."""
    STOPPING = "STOPPING"
    """The worker has been asked to stop at its next epoch."""
    STOPPED = "STOPPED"
    """Stopped on request; its checkpoint stands."""
    FINISHED = "FINISHED"
    """Ran to the end of its input."""
    FAILED = "FAILED"
    """Ended by an error that a retry cannot help, or that too many retries did not help."""
    FENCED = "FENCED"
    """Another instance (a ``headrace run`` with the same uid, for one) has taken the job over."""

    @property
    def terminal(self) -> bool:
        """Whether the job is over for good."""
        return not TRANSITIONS[self]


class Desired(StrEnum):
    """What people want of a job."""

    RUN = "RUN"
    STOP = "STOP"


class JobKind(StrEnum):
    """What a job is for."""

    JOB = "job"
    BACKFILL = "backfill"


class StopMode(StrEnum):
    """What a stop does with open windows."""

    DRAIN = "drain"
    """Fires them: the end of the input."""
    SUSPEND = "suspend"
    """Keeps them in the checkpoint."""


_ENDS: Final = frozenset({JobState.STOPPED, JobState.FINISHED, JobState.FAILED, JobState.FENCED})

TRANSITIONS: Final[Mapping[JobState, frozenset[JobState]]] = {
    JobState.CREATED: frozenset({JobState.PLANNED, JobState.STARTING, JobState.STOPPED, JobState.FAILED}),
    JobState.PLANNED: frozenset({JobState.STARTING, JobState.STOPPED, JobState.FAILED}),
    JobState.STARTING: frozenset({JobState.RUNNING, JobState.RETRYING, JobState.STOPPED, JobState.FAILED}),
    JobState.RUNNING: _ENDS | {JobState.STOPPING, JobState.RETRYING},
    JobState.RETRYING: frozenset({JobState.STARTING, JobState.STOPPED, JobState.FAILED}),
    JobState.STOPPING: _ENDS,
    JobState.STOPPED: frozenset(),
    JobState.FINISHED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.FENCED: frozenset(),
}

TERMINAL: Final = frozenset(state for state, targets in TRANSITIONS.items() if not targets)
ACTIVE: Final = frozenset(JobState) - TERMINAL


def sources_of(target: JobState) -> frozenset[JobState]:
    """The states from which ``target`` may be reached."""
    return frozenset(state for state, targets in TRANSITIONS.items() if target in targets)
