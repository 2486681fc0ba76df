"""Where a hybrid source stands, as a versioned value: everything that is decided once is in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from headrace.kernel.boundary import TopicPartition, flat, nested
from headrace.kernel.errors import InternalError
from headrace.kernel.protocols import Json, Position
from hybrid_source.resolution import TAIL_ALONE, Resolution
from hybrid_source.run_ends import Offsets, RunEnds
from hybrid_source.source_values import TopicIdentity

POSITION_VERSION: Final = 1
KEPT_SWITCHES: Final = 20

Phase = Literal["history", "tail", "done"]
SwitchKind = Literal["handover", "history", "chase", "switch-back"]


@dataclass(frozen=True, slots=True)
class LakeRead:
    """A version of the table that is read in the place of the topic, up to its boundary.

    Attributes:
        pin: The pinned version.
        resolution: Its boundary (where the topic goes on) and the rule that gave it.
        kind: Why the lake is read; ``history``: it is the history, read as the topic would be.
    """

    pin: Json
    resolution: Resolution
    kind: SwitchKind = "chase"

    def to_json(self) -> Json:
        """The JSON form."""
        return {"pin": self.pin, "boundary": self.resolution.to_json(), "kind": self.kind}

    @classmethod
    def from_json(cls, value: Json) -> LakeRead:
        """Read the JSON form."""
        return cls(value["pin"], Resolution.from_json(value["boundary"]), value["kind"])


@dataclass(frozen=True, slots=True)
class Switch:
    """One passage between lake and topic, for people and the seam proof.

    Attributes:
        kind: ``handover``: from the lake to the topic. ``chase``, ``switch-back``: to the lake.
        at: Next offsets by partition at that moment.
        rule: The rule that gave the boundary.
        pin: The version of the table; None for a handover.
    """

    kind: SwitchKind
    at: Offsets
    rule: str
    pin: Json = None

    def to_json(self) -> Json:
        """The JSON form."""
        out = {"kind": self.kind, "at": nested(self.at), "rule": self.rule}
        return out if self.pin is None else {**out, "pin": self.pin}

    @classmethod
    def from_json(cls, value: Json) -> Switch:
        """Read the JSON form."""
        return cls(value["kind"], flat(value["at"]), value["rule"], value.get("pin"))


@dataclass(frozen=True, slots=True)
class HybridPosition:
    """Where a hybrid source stands.

    Attributes:
        phase: ``history``, ``tail``, or ``done`` (a history without a tail that was read to its end).
        pin: The pinned version of the history; None without one.
        cursor: Next split of the history; meaningless after it.
        tail: The tail's own position; its start while the history is read.
        resolution: The boundary and the rule that gave it; None without history or tail.
        identities: The topics that all offsets refer to, by name.
        start: Offsets at which the tail's coverage begins, by partition (inclusive).
        watermark: Event time in microseconds, or None.
        event_time: The column that orders the history's splits; the cursor means nothing in another order.
        handover: Where the tail stood when the topic took over from the lake for the first time (next offsets by
            partition), for the seam proof; None before that, and without a history.
        live: Partitions whose history is done, and which are read from the topic while that of others is not.
        lake: In the phase ``tail``: the rows come from this version of the table until its boundary; None: from the
            topic.
        switches: The last passages between lake and topic, oldest first.
        bound: Where the bounded run ends that the position is of; None: it is of none.
    """

    phase: Phase
    pin: Json = None
    cursor: Json = None
    tail: Json = None
    resolution: Resolution | None = None
    identities: Mapping[str, TopicIdentity] | None = None
    start: Offsets | None = None
    watermark: int | None = None
    handover: Offsets | None = None
    event_time: str | None = None
    live: frozenset[TopicPartition] = frozenset()
    lake: LakeRead | None = None
    switches: Sequence[Switch] = ()
    bound: RunEnds | None = None

    @property
    def decided(self) -> Resolution | None:
        """What decided of the offsets that are read now; None for a history alone."""
        if self.lake is not None:
            return self.lake.resolution
        return TAIL_ALONE if self.resolution is None and self.tail is not None else self.resolution

    def switched(self, switch: Switch) -> HybridPosition:
        """The position with one more passage in its list."""
        return replace(self, switches=(*self.switches, switch)[-KEPT_SWITCHES:])

    def to_json(self) -> Position:
        """The versioned JSON form."""
        out: dict[str, Any] = {"version": POSITION_VERSION, "phase": self.phase}
        for name in ("pin", "cursor", "tail", "watermark", "event_time"):
            if getattr(self, name) is not None:
                out[name] = getattr(self, name)
        for name, value in (("boundary", self.resolution), ("lake", self.lake), ("bound", self.bound)):
            if value is not None:
                out[name] = value.to_json()
        if self.identities is not None:
            out["topics"] = {
                name: {"id": topic.topic_id, "cluster": topic.cluster_id} for name, topic in self.identities.items()
            }
        for name, offsets in (("start", self.start), ("handover", self.handover)):
            if offsets is not None:
                out[name] = nested(offsets)
        if self.live:
            out["live"] = [list(at) for at in sorted(self.live)]
        if self.switches:
            out["switches"] = [switch.to_json() for switch in self.switches]
        return out

    @classmethod
    def from_json(cls, value: Position) -> HybridPosition:
        """Read the JSON form.

        Raises:
            InternalError: Written by a later release.
        """
        if value.get("version") != POSITION_VERSION:
            raise InternalError(
                f"a source position has version {value.get('version')!r}; this release reads {POSITION_VERSION}",
                hint="run the release that wrote the checkpoint, or a later one",
            )
        found, topics, lake = value.get("boundary"), value.get("topics"), value.get("lake")
        bound = value.get("bound")
        return cls(
            phase=value["phase"],
            pin=value.get("pin"),
            cursor=value.get("cursor"),
            tail=value.get("tail"),
            resolution=Resolution.from_json(found) if found else None,
            identities=None
            if topics is None
            else {name: TopicIdentity(name, topic["id"], topic["cluster"]) for name, topic in topics.items()},
            start=_by_partition(value.get("start")),
            watermark=value.get("watermark"),
            handover=_by_partition(value.get("handover")),
            event_time=value.get("event_time"),
            live=frozenset(TopicPartition(*at) for at in value.get("live", ())),
            lake=LakeRead.from_json(lake) if lake else None,
            switches=tuple(Switch.from_json(switch) for switch in value.get("switches", ())),
            bound=RunEnds.from_json(bound) if bound else None,
        )


def _by_partition(offsets: Mapping[str, Mapping[str, int]] | None) -> Offsets | None:
    return None if offsets is None else flat(offsets)
