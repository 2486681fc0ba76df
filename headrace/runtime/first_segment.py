"""The first segments behind a source, over the rows of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """

    source: str
    graph: Graph

    def __call__(
        self, rows: pl.LazyFrame, origin: Origin, *, maybe_late: bool = False, files: Sequence[str] = ()
    ) -> list[LegResult]:
        """Read the rows and collect the legs of everybody who consumes them, as one query."""
        stream, streaming = Stream(self.source), origin == "history"
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
