"""What tests of changelogs share: an operator that is fed with batches, and what its changes come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from headrace.kernel.protocols import MAIN, OperatorState, StatefulOperator
from headrace.testing import operator_context

if TYPE_CHECKING:
    from headrace.kernel.protocols import OperatorInstance


class Running:
    """An operator over batches, restored from its snapshot between any two of them."""

    def __init__(self, operator: StatefulOperator, schema: pl.Schema, state: OperatorState | None = None) -> None:
        self.operator = operator
        self.schema = operator.partial(pl.LazyFrame(schema=schema)).collect_schema()
        self.output = operator.output_schema(self.schema)
        self.instance = self._opened(state)

    def feed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The changes that a batch brings; of the right schema where there are none, too."""
        out = self.instance.process(self.operator.partial(rows.lazy()).collect()).get(MAIN)
        self.instance = self._opened(self.instance.snapshot())
        if out is None:
            return pl.DataFrame(schema=self.output)
        assert out.schema == self.output
        return out

    def _opened(self, state: OperatorState | None) -> OperatorInstance:
        return self.operator.open(self.schema, operator_context(state))
