"""What the job must have written: one plain batch computation over all flights, and the comparison with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

KEYS: Final = ("window_start", "carrier", "name", "origin")
VALUES: Final = ("flights", "delayed", "total_delay", "worst_delay")


def batch_computation(flights: pl.DataFrame, airlines: pl.DataFrame) -> pl.DataFrame:
    """Hourly delay statistics per carrier and origin, without Headrace."""
    return (
        flights.filter(pl.col("dep_delay").is_not_null())
        .join(airlines, on="carrier", how="left")
        .group_by(pl.col("time_hour").dt.truncate("1h").alias("window_start"), "carrier", "name", "origin")
        .agg(
            pl.len().cast(pl.Int64).alias("flights"),
            (pl.col("dep_delay") > 15).sum().cast(pl.Int64).alias("delayed"),  # noqa: PLR2004 - the job's definition
            pl.col("dep_delay").sum().alias("total_delay"),
            pl.col("dep_delay").max().alias("worst_delay"),
        )
        .pipe(in_order)
    )


def in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """The compared columns, sorted."""
    return frame.select(*KEYS, *VALUES).sort(KEYS)


def from_json_records(values: list[bytes]) -> pl.DataFrame:
    """Rows of the output topic."""
    return pl.DataFrame([json.loads(value) for value in values], infer_schema_length=None).with_columns(
        pl.col("window_start").str.to_datetime(time_zone="UTC", time_unit="us")
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """How an output differs from the batch computation.

    Attributes:
        rows: Rows in the output.
        expected: Rows in the batch computation.
        missing: Expected rows that are not there, as often as they lack.
        unexpected: Rows that should not be there: doubled or wrong.
    """

    rows: int
    expected: int
    missing: int
    unexpected: int

    @property
    def equal(self) -> bool:
        """Whether both hold the same rows, each as often."""
        return not self.missing and not self.unexpected

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "rows": self.rows,
            "expected": self.expected,
            "missing": self.missing,
            "unexpected": self.unexpected,
            "equal": self.equal,
        }


def compare(output: pl.DataFrame, expected: pl.DataFrame) -> Comparison:
    """Compare as bags of rows: order does not count, doubled rows do."""
    columns = [*KEYS, *VALUES]
    left = in_order(output).group_by(columns).len(name="found")
    right = expected.group_by(columns).len(name="wanted")
    both = left.join(right, on=columns, how="full", coalesce=True, nulls_equal=True).with_columns(
        pl.col("found").fill_null(0).cast(pl.Int64), pl.col("wanted").fill_null(0).cast(pl.Int64)
    )
    surplus = both["found"] - both["wanted"]
    return Comparison(
        output.height,
        expected.height,
        int((-surplus).clip(lower_bound=0).sum()),
        int(surplus.clip(lower_bound=0).sum()),
    )
