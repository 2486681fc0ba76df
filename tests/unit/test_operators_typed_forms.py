"""Decimals divided by zero."""

from __future__ import annotations

from decimal import Decimal

import polars as pl
import pytest

from operators.expressions import Expression, row_expression
from operators.stateless import Filter, Select

ROWS = pl.DataFrame(
    {"d": [Decimal("1.50"), Decimal(0), None], "i": [3, 0, None], "f": [3.0, 0.0, None]},
    schema={"d": pl.Decimal(9, 2), "i": pl.Int64, "f": pl.Float64},
)
QUOTIENTS: dict[str, tuple[Expression, list[object]]] = {
    "decimals": ("d / d", [1, None, None]),
    "a decimal and a number": ("d / i", [Decimal("0.5"), None, None]),
    "a literal makes a decimal": ("i * 1.0 / i", [1, None, None]),
    "rest": ("d % d", [0, None, None]),
    "inside others": ("coalesce(1.0 / d, 7.0) + 1.0", [Decimal("1.666667"), 8, 8]),
    "of polars": (pl.col("d") / pl.col("d"), [1, None, None]),
    "numbers": ("i / i", [1.0, float("nan"), None]),
    "floats": ("f / f", [1.0, float("nan"), None]),
}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_decimals_divided_by_zero_are_null_and_others_as_they_were(name: str) -> None:
    written, wanted = QUOTIENTS[name]
    found = Select("s", {"x": row_expression(written, "s").expr}).apply(ROWS.lazy()).collect()["x"]
    for got, value in zip(found, wanted, strict=True):
        assert got is value if value is None else float(got) == pytest.approx(float(value), nan_ok=True)


def test_conditions_on_quotients_hold_for_what_has_one() -> None:
    kept = Filter("f", "d / d = 1.0")
    assert kept.apply(ROWS.lazy()).collect()["i"].to_list() == [3]


def test_what_divides_by_constants_needs_no_types() -> None:
    for text in ("d / 7", "i % 3", "d * d", "i + 1"):
        assert not row_expression(text, "s").typed
    assert row_expression("1.0 / d", "s").typed
