"""What operators share for which time means nothing: no row is late, and everything is given out at once."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from headrace.kernel.protocols import MAIN, Emission


class UntimedOperator:
    """The part of :class:`headrace.kernel.protocols.StatefulOperator` that is about time."""

    __slots__ = ()

    @property
    def ports(self) -> Sequence[str]:
        """See :class:`headrace.kernel.protocols.StatefulOperator`."""
        return (MAIN,)

    def late(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """No row is late, whenever it comes."""
        return rows.filter(pl.lit(value=False))

    def leaves_out(self, partials: pl.DataFrame) -> bool:  # noqa: ARG002 - the protocol's signature
        """See :class:`headrace.kernel.protocols.StatefulOperator`: never."""
        return False


class UntimedInstance:
    """The part of :class:`headrace.kernel.protocols.OperatorInstance` that is about time."""

    def advance(self, watermark: int) -> Emission:  # noqa: ARG002 - the protocol's signature
        """Time changes nothing here."""
        return {}

    def drain(self) -> Emission:
        """Everything has been given out already."""
        return {}

    def outgoing_watermark(self, watermark: int) -> int:
        """Rows pass at once."""
        return watermark
