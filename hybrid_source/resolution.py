"""A resolved boundary as a value: next offsets, the rule that gave them, the evidence, and the columns behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import polars as pl

from headrace.kafka import TOPIC_NOT_FOUND
from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary
from headrace.kernel.errors import BoundaryError, GapError, HeadraceError, IdentityError, SnapshotGoneError
from headrace.kernel.protocols import Json

Outcome = Literal["applied", "not there", "not usable", "not tried"]


@dataclass(frozen=True, slots=True)
class OffsetNames:
    """The columns of the history that say where in the topic a row came from; ``a.b`` is a field of a struct.

    Attributes:
        partition: The partition's number.
        offset: The record's offset.
        topic: The topic's name; None where the history has no such column.
    """

    partition: str = system.PARTITION
    offset: str = system.OFFSET
    topic: str | None = None

    def within(self, stored: pl.Schema) -> bool:
        """Whether a history has them."""
        return all(_has(stored, name) for name in (self.partition, self.offset, self.topic) if name is not None)

    def to_json(self) -> Json:
        """As positions keep it."""
        named = {"partition": self.partition, "offset": self.offset}
        return named if self.topic is None else {**named, "topic": self.topic}

    def __str__(self) -> str:
        return ", ".join(name for name in (self.topic, self.partition, self.offset) if name is not None)


def _has(stored: pl.Schema, name: str) -> bool:
    outer, _, inner = name.partition(".")
    dtype = stored.get(outer)
    return name in stored or (isinstance(dtype, pl.Struct) and any(field.name == inner for field in dtype.fields))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one boundary rule.

    Attributes:
        rule: Its name.
        outcome: ``applied``; ``not there`` (the history has nothing of this kind); ``not usable`` (it has, but that
            gives no boundary); ``not tried`` (an earlier rule decided).
        detail: The evidence, what was looked for, or why it cannot be used.
    """

    rule: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True, slots=True)
class Resolution:
    """A boundary and how it was found.

    Attributes:
        boundary: Next offsets, exclusive.
        rule: The rule's name.
        evidence: What it rests on, for people.
        guarantee: ``exactly-once``, or the weaker one that this rule gives.
        trim: History rows may lie at or above the boundary and are to be left out, where rows carry offsets.
        columns: The columns that carry them; None: the rows carry no offsets of the topic as it is now.
        distinct: One offset may stand in several rows of the history, of which one is to be read.
        ends: Of a history of several stages, where the rows of each but the last end.
        tried: What came of every rule, in order. Positions do not keep it.
        notes: What a plan should say besides, of a history of several stages; likewise.
    """

    boundary: Boundary
    rule: str
    evidence: str
    guarantee: str = "exactly-once"
    trim: bool = True
    columns: OffsetNames | None = None
    distinct: bool = False
    tried: tuple[Verdict, ...] = ()
    ends: Sequence[Boundary] = ()
    notes: Sequence[str] = ()

    def to_json(self) -> Json:
        """As positions keep it: all but ``tried`` and ``notes``."""
        out: dict[str, Any] = {
            "record": self.boundary.to_json(),
            "rule": self.rule,
            "evidence": self.evidence,
            "guarantee": self.guarantee,
            "trim": self.trim,
        }
        if self.columns is not None:
            out["columns"] = self.columns.to_json()
        if self.distinct:
            out["distinct"] = True
        if self.ends:
            out["ends"] = [end.to_json() for end in self.ends]
        return out

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Resolution:
        """Read :meth:`to_json`'s form."""
        columns = value.get("columns")
        return cls(
            Boundary.from_json(value["record"]),
            value["rule"],
            value["evidence"],
            value["guarantee"],
            value["trim"],
            OffsetNames(**columns) if columns else None,
            value.get("distinct", False),
            ends=[Boundary.from_json(end) for end in value.get("ends", ())],
        )


TAIL_ALONE: Final = Resolution(Boundary(), "tail.start", "no history: the topic is read from where the job began")
"""What decides of the offsets of a source without a history."""

_REFUSALS: Final = (BoundaryError, GapError, IdentityError, SnapshotGoneError)


@contextmanager
def naming(decided: Callable[[], Resolution | None]) -> Iterator[None]:
    """Add the rule that decided of the offsets to a refusal: the rule may be what is wrong.

    The one place where refusals get it: while a source is planned, opened (a restored one, too) and read.

    Args:
        decided: Gives what decided of the offsets at the moment of the refusal; None: nothing did.
    """
    try:
        yield
    except HeadraceError as error:
        resolution = decided()
        told = "rule" in error.context or "tried" in error.context
        if resolution is None or told or not (_refuses(error)):
            raise
        said = f"boundary by rule {resolution.rule!r}: {resolution.evidence}"
        error.detail = f"{error.detail}; {said}" if error.detail else said
        error.context = {**error.context, "rule": resolution.rule}
        raise


def _refuses(error: HeadraceError) -> bool:
    return isinstance(error, _REFUSALS) or "wanted" in error.context or error.code == TOPIC_NOT_FOUND
