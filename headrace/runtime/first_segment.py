"""The first segments behind a source, over the rows of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from headrace.kernel import columns
from headrace.kernel.errors import InternalError
from headrace.kernel.protocols import Origin
from headrace.runtime.dataflow import LegResult, collect
from headrace.runtime.graph import Graph, Stream
from hybrid_source.read_errors import reading


@dataclass(frozen=True, slots=True)
class GraphSegment:
    """See :class:`headrace.kernel.protocols.FirstSegment`.

    Attributes:
        source: The source's id.
        graph: The job.
        absent: Columns that the rows lack and the plans name (:func:`headrace.runtime.pushdown.absent`).
    """

    source: str
    graph: Graph
    absent: pl.Schema = field(default_factory=pl.Schema)

    def __call__(
        self, rows: pl.LazyFrame, origin: Origin, *, maybe_late: bool = False, files: Sequence[str] = ()
    ) -> list[LegResult]:
        """Read the rows and collect the legs of everybody who consumes them, as one query."""
        stream, streaming = Stream(self.source), origin == "history"
        if self.absent:
            rows = rows.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in self.absent.items())
        with reading(f"{origin} of source {self.source}", files):
            if maybe_late:
                return collect(self.graph.legs(stream, rows, maybe_late=True), streaming=streaming)
            rows = rows.drop(columns.ROW_WATERMARK, strict=False)
            results = collect(self.graph.legs(stream, rows, maybe_late=False), streaming=streaming)
            partials: dict[str, list[pl.DataFrame]] = {}
            for result in results:
                if result.role == "partial":
                    partials.setdefault(result.node, []).append(result.frame)
            return results + collect(self.graph.left_out(stream, rows, partials), streaming=streaming)

    def given(self, computed: object) -> list[LegResult]:
        """What a source that reads ahead has got from it.

        Raises:
            InternalError: It is not from here.
        """
        if not isinstance(computed, list):
            raise InternalError(f"source {self.source!r} hands out {type(computed).__name__} as computed rows")
        return computed
