"""Early results: what open windows hold so far, given out before they close, as a changelog.

Each time the watermark passes a multiple of ``every``, and each time windows close, the results of all windows that
are open are given out anew: rows that have changed since are taken back (``_weight`` -1) and their successors inserted
(+1). The last result of a window is the one that it would be given out with alone, so what the changelog comes to is
what the window gives without early results. They accumulate: a result counts all rows of the window so far.

Time is event time: a stream that stands still gives nothing out, and a history is not slowed down by a clock. Which
results in between are given out depends on how the watermark moves in steps; the final table does not
(``EXACT_TABLE``). All changes of a window come before the watermark that the operator gives on has passed its start, so
that windows behind it see them in time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from headrace.kernel import columns
from headrace.kernel.errors import SpecError
from headrace.kernel.keyed import KeyedLayout
from headrace.kernel.merged import Merged
from headrace.kernel.protocols import MAIN, Determinism, Emission, OperatorContext, OperatorState
from operators.determinism import weakest
from operators.passage import Narrowed, Passage
from operators.restored import fitting
from operators.windowed import WINDOW_END, WINDOW_START, OpenWindows, WindowOperator

VERSION: Final = 1
_GIVEN: Final = "given"
_TOUCHED: Final = "touched"
_ALL: Final = "_all"
"""The key where there is none: one group for all rows."""
_TICK: Final = "tick"


@dataclass(frozen=True, slots=True)
class EarlyWindow:
    """A window with early results; implements :class:`headrace.kernel.protocols.StatefulOperator`.

    Output: that of the window, and ``_weight``. Rows that are given out together are sorted by window and key, a
    retraction before the insertion that replaces it.

    Args:
        window: The window.
        every_us: How far results are apart at least, in event time, microseconds.

    Raises:
        SpecError: That is not positive.
    """

    window: WindowOperator
    every_us: int

    def __post_init__(self) -> None:
        if self.every_us <= 0:
            raise SpecError(f"{self.window.where} has early results every {self.every_us} us", hint="give 1s or more")

    @property
    def id(self) -> str:
        """The window's."""
        return self.window.id

    @property
    def determinism(self) -> Determinism:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return weakest([Determinism.EXACT_TABLE, self.window.determinism])

    @property
    def fingerprint(self) -> str:
        """What the state depends on: the window, and that it is given out early; not how often."""
        return f"{self.window.fingerprint}, early"

    @property
    def ports(self) -> Sequence[str]:
        """The window's."""
        return self.window.ports

    @property
    def key_columns(self) -> Sequence[str]:
        """The window's."""
        return self.window.key_columns

    def partial(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """See :meth:`operators.windowed.WindowOperator.partial`."""
        return self.window.partial(rows)

    def passages(self, rows: pl.Schema) -> Sequence[Passage]:
        """The window's."""
        return self.window.passages(rows)

    def narrowed(self, wanted: Collection[str], rows: pl.Schema) -> Narrowed:  # noqa: ARG002 - the protocol's signature
        """See :meth:`operators.windowed.WindowOperator.narrowed`."""
        return Narrowed(replace(self, window=self.window.computing(wanted)))

    def late(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """See :meth:`operators.windowed.WindowOperator.late`."""
        return self.window.late(rows)

    def leaves_out(self, partials: pl.DataFrame) -> bool:
        """See :meth:`operators.windowed.WindowOperator.leaves_out`."""
        return self.window.leaves_out(partials)

    def shown(self, table: str, rows: pl.LazyFrame) -> pl.LazyFrame:
        """See :class:`headrace.kernel.protocols.ShowsState`."""
        kept = {_GIVEN, _TOUCHED}
        return rows.drop(_ALL, strict=False) if table in kept else self.window.shown(table, rows)

    def output_schema(self, schema: pl.Schema) -> pl.Schema:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return pl.Schema({**self.window.output_schema(schema), columns.WEIGHT: columns.WEIGHT_TYPE})

    def open(self, schema: pl.Schema, context: OperatorContext) -> EarlyInstance:
        """An instance over partials of ``schema``.

        Raises:
            GraphChangedError: The state was made by another definition, or over other types.
        """
        return EarlyInstance(self, self.window.open(schema, context), self.window.output_schema(schema), context)


class EarlyInstance:
    """Implements :class:`headrace.kernel.protocols.OperatorInstance`.

    State: the window's, what was given out of open windows by key, and the keys that have changed since. What is given
    out concerns these keys, and those of windows that close: the others cost nothing.
    """

    def __init__(self, operator: EarlyWindow, inner: OpenWindows, results: pl.Schema, context: OperatorContext) -> None:
        self._inner = inner
        self._every = operator.every_us
        self._by = list(operator.window.by)
        self._sorted_by = [WINDOW_START, WINDOW_END, *self._by, columns.WEIGHT]
        self._results = results
        key = self._by or [_ALL]
        kept = pl.Schema({**({} if self._by else {_ALL: pl.Int8()}), **results})
        self._given = context.keyed(KeyedLayout(_GIVEN, kept, key, [WINDOW_START, WINDOW_END], VERSION))
        keys = pl.Schema({name: kept[name] for name in key})
        self._touched = Merged(keys, lambda rows: rows.unique())
        self._tick: int | None = None
        state = context.state
        if state is not None:
            self._tick = state.values[_TICK]
            self._touched.put(fitting(state, _TOUCHED, keys, state.version, operator.window.where))

    @property
    def counts(self) -> Mapping[str, int]:
        """The window's."""
        return self._inner.counts

    def process(self, partials: pl.DataFrame) -> Emission:
        """Take in partials; results are only given out by :meth:`advance` and :meth:`drain`."""
        self._touched.add(self._keys(partials))
        return self._inner.process(partials)

    def advance(self, watermark: int) -> Emission:
        """Give out what has changed, if the watermark has passed a multiple of ``every`` or windows close."""
        closed, tick = self._inner.advance(watermark), watermark // self._every
        if not closed and self._tick is not None and tick <= self._tick:
            return {}
        self._tick = tick if self._tick is None else max(tick, self._tick)
        return self._give(closed)

    def drain(self) -> Emission:
        """Give out the last results of all windows."""
        return self._give(self._inner.drain())

    def outgoing_watermark(self, watermark: int) -> int:
        """The window's: the earliest start of those that are open."""
        return self._inner.outgoing_watermark(watermark)

    def rows_held(self) -> int:
        """Groups in the state, and results that were given out and may change."""
        return self._inner.rows_held() + self._given.height

    def snapshot(self) -> OperatorState:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        state = self._inner.snapshot()
        return replace(
            state,
            values={**state.values, _TICK: self._tick},
            frames={**state.frames, _TOUCHED: self._touched.merged()},
            keyed={**state.keyed, _GIVEN: self._given.snapshot()},
        )

    def _keys(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The key of each row, once."""
        if not self._by:
            return pl.DataFrame({_ALL: [0] if rows.height else []}, schema=self._touched.schema)
        return rows.select(self._by).unique()

    def _give(self, closed: Emission) -> Emission:
        ended = [frame.select(self._results.names()) for frame in closed.values()]
        for frame in ended:
            self._touched.add(self._keys(frame))
        keys = self._touched.merged()
        if not keys.height:
            return {}
        self._touched.put(keys.clear())
        before = self._given.find(keys).select(self._results.names())
        now = self._inner.results(keys.select(self._by))
        weighed = [(before, -1), (now, 1), *((frame, 1) for frame in ended)]
        both = pl.concat(
            frame.with_columns(pl.lit(weight, columns.WEIGHT_TYPE).alias(columns.WEIGHT)) for frame, weight in weighed
        )
        weight = pl.col(columns.WEIGHT)
        changes = both.group_by(self._results.names()).agg(weight.sum()).filter(weight != 0)
        self._note(before, now, changes.filter(weight > 0))
        changes = changes.sort(self._sorted_by, nulls_last=False)
        return {MAIN: changes} if changes.height else {}

    def _note(self, before: pl.DataFrame, now: pl.DataFrame, inserted: pl.DataFrame) -> None:
        """Keep what open windows have been given out with."""
        window = [*self._by, WINDOW_START, WINDOW_END]
        gone = before.join(now, on=window, how="anti", nulls_equal=True)
        changed = now.join(inserted, on=window, how="semi", nulls_equal=True)
        alone = [] if self._by else [pl.lit(0, pl.Int8()).alias(_ALL)]
        self._given.remove(gone.with_columns(alone))
        self._given.put(changed.with_columns(alone))
