"""The one error tree.

::

    HeadraceError
    ├── UserError                  the user can mend it; a retry cannot help
    │   ├── ConfigError            connections, headrace.toml, environment
    │   ├── SpecError              the job spec (points at file and line)
    │   ├── NotFoundError          a catalog, table, topic, column, job, file that is named but is not there
    │   ├── AccessDeniedError      the service answered: not allowed
    │   ├── DependencyError        an extra, Java, Maven, a port: something this machine lacks
    │   └── GraphChangedError      the job no longer fits the state in its checkpoint
    ├── DataError                  the data does not allow to go on without loss or doubling
    │   ├── BoundaryError          no rule gives a boundary
    │   ├── GapError               wanted offsets are gone, or hidden
    │   ├── IdentityError          a topic, cluster or table is not the one that was recorded
    │   ├── SnapshotGoneError      a pinned snapshot or one of its files is no longer there
    │   ├── DecodeError            a record that cannot be decoded, under ``on_error: fail``
    │   ├── SchemaError            a value or column that does not fit the job's schema
    │   └── RejectedRecordError    a record the target refuses (too large, for one)
    ├── ExternalError              a service failed; a retry may help
    │   ├── UnavailableError       no answer, or an answer that says "later"
    │   ├── CommitFailedError      the commit certainly did not happen
    │   ├── CommitUnknownError     the commit may have happened: never retried blindly
    │   └── TransactionAbortedError  the epoch's transaction is gone: replay from the checkpoint
    ├── FencedError                another instance owns the job: stop for good
    │   └── SupersededError        so says a target: the job was begun anew with another state
    └── InternalError              a fault of Headrace

Every error has a stable ``code``, a ``domain``, ``retryable``, a primary message in lower case, an optional
``detail`` and an optional ``hint`` (the cure), and survives pickling. ``exit_code`` is what the CLI ends with.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any, ClassVar


class Domain(StrEnum):
    """Who must act."""

    USER = "user"
    DATA = "data"
    EXTERNAL = "external"
    INTERNAL = "internal"


class ExitCode(IntEnum):
    """What the command line ends with (documented in docs/exit-codes.md)."""

    OK = 0
    INTERNAL = 1
    USER = 2
    EXTERNAL = 3
    DATA = 4
    FENCED = 5
    INTERRUPTED = 130


class HeadraceError(Exception):
    """Base of every error that Headrace raises on purpose.

    Args:
        message: What is wrong, naming the thing; short, lower case, no full stop.
        detail: What was seen (values, the library's own words).
        hint: What to do about it.
        code: A stable code; the class's own when not given.
        context: Machine-readable facts (topic, partition, wanted, available ...), JSON-serialisable.
    """

    default_code: ClassVar[str] = "INTERNAL"
    domain: ClassVar[Domain] = Domain.INTERNAL
    retryable: ClassVar[bool] = False
    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL

    def __init__(
        self, message: str, *, detail: str = "", hint: str = "", code: str = "", context: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        self.code = code or self.default_code
        self.context = context or {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.detail, self.hint, self.code, self.context)

    def __str__(self) -> str:
        text = self.message
        if self.detail:
            text += f"\n  detail: {self.detail}"
        if self.hint:
            text += f"\n  hint: {self.hint}"
        return text

    def to_dict(self) -> dict[str, Any]:
        """The error as JSON-serialisable values: code, domain, retryable, message, detail, hint, context."""
        return {
            "code": self.code,
            "domain": self.domain.value,
            "retryable": self.retryable,
            "message": self.message,
            "detail": self.detail,
            "hint": self.hint,
            "context": self.context,
        }


def _rebuild(
    kind: type[HeadraceError], message: str, detail: str, hint: str, code: str, context: dict[str, Any]
) -> HeadraceError:
    return kind(message, detail=detail, hint=hint, code=code, context=context)


class UserError(HeadraceError):
    """The user can mend it; a retry cannot help."""

    default_code = "USER"
    domain = Domain.USER
    exit_code = ExitCode.USER


class ConfigError(UserError):
    """Connections, headrace.toml or the environment are wrong."""

    default_code = "CONFIG_INVALID"


class SpecError(UserError):
    """The job spec is wrong; the message points at file and line where it can."""

    default_code = "SPEC_INVALID"


class NotFoundError(UserError):
    """A named thing is not there. ``code`` says which kind, e.g. ``TABLE_NOT_FOUND``."""

    default_code = "NOT_FOUND"


class AccessDeniedError(UserError):
    """The service answered that this is not allowed."""

    default_code = "ACCESS_DENIED"


class DependencyError(UserError):
    """This machine lacks something: an extra, Java, Maven, a free port."""

    default_code = "DEPENDENCY_MISSING"


class GraphChangedError(UserError):
    """The job no longer fits the state in its checkpoint."""

    default_code = "GRAPH_CHANGED"


class DataError(HeadraceError):
    """The data does not allow to go on without loss or doubling."""

    default_code = "DATA"
    domain = Domain.DATA
    exit_code = ExitCode.DATA


class BoundaryError(DataError):
    """No rule gives a boundary between history and tail."""

    default_code = "BOUNDARY_MISSING"


class GapError(DataError):
    """Wanted offsets are gone (or not there yet): going on would lose rows."""

    default_code = "OFFSET_GAP"


class IdentityError(DataError):
    """A topic, cluster or table is not the one that was recorded."""

    default_code = "IDENTITY_CHANGED"


class SnapshotGoneError(DataError):
    """A pinned snapshot, or a file of it, is no longer there."""

    default_code = "SNAPSHOT_GONE"


class DecodeError(DataError):
    """A record cannot be decoded and the job's policy is to fail."""

    default_code = "DECODE_FAILED"


class SchemaError(DataError):
    """A value or a column does not fit the job's schema."""

    default_code = "SCHEMA_MISMATCH"


class RejectedRecordError(DataError):
    """The target refuses a record for good, e.g. because it is too large."""

    default_code = "RECORD_REJECTED"


class ExternalError(HeadraceError):
    """A service failed; a retry may help."""

    default_code = "EXTERNAL"
    domain = Domain.EXTERNAL
    retryable = True
    exit_code = ExitCode.EXTERNAL


class UnavailableError(ExternalError):
    """A service gave no answer, or one that says "later"."""

    default_code = "UNAVAILABLE"


class CommitFailedError(ExternalError):
    """The commit certainly did not happen."""

    default_code = "COMMIT_FAILED"


class CommitUnknownError(ExternalError):
    """The commit may have happened and it cannot be decided now. Files are kept; nothing is retried blindly."""

    default_code = "COMMIT_UNKNOWN"
    retryable = False


class TransactionAbortedError(ExternalError):
    """The open transaction of this epoch is gone; the epoch is replayed from its checkpoint."""

    default_code = "TRANSACTION_ABORTED"


class FencedError(HeadraceError):
    """Another instance owns the job: this one stops for good and commits nothing more."""

    default_code = "FENCED"
    domain = Domain.EXTERNAL
    exit_code = ExitCode.FENCED


class SupersededError(FencedError):
    """A target belongs to another lineage: the job was begun with another state. Final whatever the own head says."""

    default_code = "LINEAGE_SUPERSEDED"


def superseded(target: str, sink: str, job_uid: str, lineage: str, owner: str) -> SupersededError:
    """The error for a lineage that meets another one's mark in a target.

    Args:
        target: What is marked, such as ``table lake.ns.t``.
        sink: The sink's id.
        job_uid: The job.
        lineage: The lineage that stops.
        owner: The one whose mark it is.
    """
    return SupersededError(
        f"another instance, with a state of its own, has taken over the sink {sink!r} of job {job_uid!r}",
        detail=f"{target} belongs to lineage {owner}, this is {lineage}",
        hint="stop this instance: the other one has all the job's rows. One uid belongs to one state folder (or "
        "checkpoint store); give one of the two jobs another uid",
    )


def has_commits(target: str, job_uid: str, detail: str, context: dict[str, Any]) -> UserError:
    """The error for a job that begins although a target holds what another lineage of it has committed."""
    return UserError(
        f"{target} holds what job {job_uid!r} has committed before, and the job would begin anew and write it again",
        detail=detail,
        hint="run the job with the state (or checkpoint store) it had; to begin anew, delete the target, or give the "
        "job another uid and accept that the rows are there twice",
        code="SINK_HAS_COMMITS",
        context={"job": job_uid, **context},
    )


def set_back(target: str, job_uid: str, decided: int, committed: int, context: dict[str, Any]) -> DataError:
    """The error for a job whose checkpoints end before what they have brought about, as after an old backup.

    Its next epochs would have the numbers of those that are committed, and would count as committed themselves.
    """
    return DataError(
        f"the checkpoints of job {job_uid!r} end at epoch {decided}, but {target} holds its epoch {committed}",
        detail="the job's folder (or prefix) was set back, for instance to an older backup; what came after it was "
        "not forgotten by the target",
        hint="bring the newest checkpoints back; without them begin anew: another uid, and targets that are empty",
        code="CHECKPOINT_SET_BACK",
        context={"job": job_uid, "decided": decided, "committed": committed, **context},
    )


class InternalError(HeadraceError):
    """A fault of Headrace itself."""
