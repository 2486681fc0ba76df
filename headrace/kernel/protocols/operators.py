"""What happens to rows: transforms, and operators with state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from headrace.kernel.protocols.values import Emission, Json

if TYPE_CHECKING:
    import polars as pl

    from headrace.kernel.held import HeldLayout, HeldSnapshot, HeldState
    from headrace.kernel.keyed import KeyedLayout, KeyedSnapshot, KeyedState, KeyGroups


class Determinism(StrEnum):
    """What an operator promises about its output (ARCHITECTURE.md, cut-invariance)."""

    EXACT = "exact"
    EXACT_TABLE = "exact as a final table"
    WITHIN_TOLERANCE = "within tolerance"
    NOT_INVARIANT = "not invariant"


class Transform(Protocol):
    """A stateless operator: consecutive ones are fused into one lazy plan."""

    @property
    def id(self) -> str:
        """Stable id."""

    @property
    def determinism(self) -> Determinism:
        """What it promises."""

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Rows in, rows out. Pure; called for each batch, and once on an empty frame to probe the plan."""


COUNTS: Final = "counts"
"""The name in :attr:`OperatorState.values` of whole numbers by name, which several instances add up."""


@dataclass(frozen=True, slots=True)
class OperatorState:
    """A stateful operator's state at a barrier.

    Attributes:
        version: Of the layout of values and frames; an operator reads its own older versions.
        values: Small values. Beside :data:`COUNTS`, which are added up, those of an operator with a key are the same in
            all of its instances; of marks that differ, as after a drain, the highest holds for all.
        frames: Frames, written whole at each barrier; those of an operator with a key have its key columns.
        keyed: By the layout's name, what :meth:`OperatorContext.keyed` has given; only changes are written.
        held: The same of :meth:`OperatorContext.held`.
    """

    version: int
    values: Mapping[str, Json] = field(default_factory=dict)
    frames: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    keyed: Mapping[str, KeyedSnapshot] = field(default_factory=dict)
    held: Mapping[str, HeldSnapshot] = field(default_factory=dict)


class OperatorContext(Protocol):
    """What an instance of a stateful operator is opened with."""

    @property
    def state(self) -> OperatorState | None:
        """Where to resume; None: from the beginning."""

    @property
    def key_groups(self) -> KeyGroups:
        """The keys that come to this instance."""

    def keyed(self, layout: KeyedLayout) -> KeyedState:
        """Open keyed state, resumed from ``state.keyed[layout.name]`` where that is there; once for each name.

        Only rows of :attr:`key_groups` are there. Closed by whoever made the context.

        Raises:
            GraphChangedError: What is stored has another version, key or columns.
        """

    def held(self, layout: HeldLayout) -> HeldState:
        """Open rows held by time, resumed from ``state.held[layout.name]``; otherwise as :meth:`keyed`.

        Raises:
            GraphChangedError: What is stored has another version, key, time or columns.
        """

    def narrowed(self, key_groups: KeyGroups, state: OperatorState | None) -> OperatorContext:
        """The same for one of several instances of the operator."""


class OperatorInstance(Protocol):
    """A stateful operator at work. Used by one thread."""

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in one batch of partials (or rows); may give out rows at once."""

    def advance(self, watermark: int) -> Emission:
        """The watermark is now ``watermark`` (microseconds; never goes back); give out what is complete."""

    def drain(self) -> Emission:
        """The input has ended: give out everything that is still held."""

    def outgoing_watermark(self, watermark: int) -> int:
        """The watermark for operators downstream once ``advance(watermark)`` has been given out."""

    def rows_held(self) -> int:
        """Rows in the state now, as good as it is known without work; for progress displays."""

    def snapshot(self) -> OperatorState:
        """The state at this barrier; the frames must not change afterwards."""


class StatefulOperator(Protocol):
    """A keyed, stateful operator, split into a stateless part that fuses with what stands before it, and a merge."""

    @property
    def id(self) -> str:
        """Stable id: state is bound to it."""

    @property
    def determinism(self) -> Determinism:
        """What it promises."""

    @property
    def fingerprint(self) -> str:
        """Changes when the state of the old definition cannot serve the new one (keys, types, window)."""

    @property
    def ports(self) -> Sequence[str]:
        """Output ports; ``main`` first."""

    @property
    def key_columns(self) -> Sequence[str]:
        """Columns of the partials that are the key: rows of different keys never meet in the operator.

        The operator then runs as several instances, each for some of the keys (:mod:`headrace.runtime.exchange`). None:
        as one instance only.
        """

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The stateless part: rows in (late ones included), partials of the rows that are not late out.

        Rows without the column ``_row_watermark`` are never late: the engine drops it where a batch has no late row.
        """

    def late(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows that ``partial`` leaves out because they are late."""

    def leaves_out(self, partials: pl.DataFrame) -> bool:
        """Whether a batch with these partials has rows that only :meth:`late` gives, though none of them came late."""

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        """Columns of the ``main`` port, given the schema of the partials."""

    def open(self, schema: pl.Schema, context: OperatorContext) -> OperatorInstance:
        """An instance over partials of ``schema``, resumed from ``context.state`` if there is one.

        Raises:
            GraphChangedError: The state does not fit the definition.
        """


@runtime_checkable
class Ticks(Protocol):
    """An instance of a stateful operator that goes by processing time, too."""

    def tick(self, now_us: int) -> Emission:
        """The wall clock shows ``now_us`` (microseconds since the epoch); give out what is due.

        Called before rows are processed, and now and then when there are none. It may go back, also through a restart.
        """


@runtime_checkable
class ShowsState(Protocol):
    """A stateful operator that can say what its state means."""

    def shown(self, table: str, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Rows of a frame, of keyed state, or held (all of them, not merged), of that name, as people read them."""
