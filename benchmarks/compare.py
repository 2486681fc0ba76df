"""Pairs of measurements in the order A B A B, and what can be said of their ratio."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, Literal

from benchmarks.measure import Cost

_RESAMPLES: Final = 10_000
_CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report.

    Attributes:
        name: Begins with history, tail, memory, checkpoint or boundary.
        figure: ``ratio`` or ``value``.
        value: The median.
        target: What it should be.
        at_least: The value should not be below the target; else not above.
        low: Lower end of the 95 % confidence interval of the median.
        high: Upper end.
        details: Medians of the sides, number of pairs, spread, what was measured.
    """

    name: str
    figure: Literal["ratio", "value"]
    value: float
    target: float
    at_least: bool
    low: float
    high: float
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the median meets the target."""
        return self.value >= self.target if self.at_least else self.value <= self.target

    def to_json(self) -> dict[str, Any]:
        """As it stands in latest.json."""
        return {
            "name": self.name,
            self.figure: round(self.value, 4),
            "target": self.target,
            "better": "higher" if self.at_least else "lower",
            "ok": self.ok,
            "low": round(self.low, 4),
            "high": round(self.high, 4),
            **self.details,
        }

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        verdict = "ok" if self.ok else "MISSED"
        return (
            f"{self.name:28s} {self.value:7.3f}  ({self.low:.3f} to {self.high:.3f})"
            f"  target {sign} {self.target:g}  {verdict}"
        )


def pairs(count: int, one: Callable[[], Cost], other: Callable[[], Cost]) -> list[tuple[Cost, Cost]]:
    """Measure both sides in turn, ``count`` times.

    Raises:
        RuntimeError: The sides found different things, so that a ratio of their costs says nothing.
    """
    out = []
    for _ in range(count):
        pair = one(), other()
        if pair[0].rows != pair[1].rows or pair[0].facts != pair[1].facts:
            raise RuntimeError(f"the sides differ: {pair[0]} and {pair[1]}")
        out.append(pair)
    return out


def ratio(
    name: str,
    measured: Sequence[tuple[Cost, Cost]],
    of: Callable[[Cost, Cost], float],
    target: float,
    *,
    at_least: bool,
    **details: Any,
) -> Result:
    """The median over pairs of some ratio, with its bounds."""
    ratios = [of(one, other) for one, other in measured]
    low, high = bounds(ratios)
    spread = {"pairs": len(ratios), "least": round(min(ratios), 4), "most": round(max(ratios), 4)}
    return Result(name, "ratio", median(ratios), target, at_least, low, high, {**details, **spread})


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """Confidence interval (95 %) of the median, by bootstrap."""
    pick = random.Random(len(values))
    medians = sorted(median(pick.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    tail = (1 - _CONFIDENCE) / 2
    return medians[int(tail * _RESAMPLES)], medians[int((1 - tail) * _RESAMPLES) - 1]
