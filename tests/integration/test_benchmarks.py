"""The benchmarks run and say what they found; nothing is said here about speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.compare import Result, bounds, pairs, ratio
from benchmarks.measure import Cost
from infra.dev import endpoints as variables
from tests.kafka import KafkaHelper

ROOT = Path(__file__).parents[2]


@pytest.mark.services
def test_the_short_form_measures_every_group(kafka: KafkaHelper, tmp_path: Path) -> None:
    output = tmp_path / "latest.json"
    subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--work", str(tmp_path), "--output", str(output)],
        cwd=ROOT,
        env={**os.environ, variables.KAFKA_BOOTSTRAP: kafka.bootstrap},
        check=True,
        timeout=280,
    )
    found = json.loads(output.read_text(encoding="utf-8"))
    assert {result["name"].partition("_")[0] for result in found} == {
        "history",
        "tail",
        "memory",
        "checkpoint",
        "boundary",
    }
    for result in found:
        value = result["ratio"] if "ratio" in result else result["value"]
        assert result["low"] <= value <= result["high"]
        assert value > 0
        assert isinstance(result["ok"], bool)
        assert result["target"] > 0
    assert list(tmp_path.iterdir()) == [output]


def cost(cpu_s: float, rows: int = 10, **facts: int) -> Cost:
    return Cost(rows, cpu_s, 1.0, 1.0, facts)


def test_sides_that_differ_have_no_ratio() -> None:
    with pytest.raises(RuntimeError, match="differ"):
        pairs(1, lambda: cost(1.0, windows=3), lambda: cost(1.0, windows=4))
    with pytest.raises(RuntimeError, match="differ"):
        pairs(1, lambda: cost(1.0, rows=9), lambda: cost(1.0))


def test_a_ratio_is_the_median_over_pairs() -> None:
    measured = [(cost(one), cost(2.0)) for one in (1.0, 2.0, 6.0)]
    found = ratio("history_x", measured, lambda one, other: one.cpu_s / other.cpu_s, 0.9, at_least=True)
    assert (found.value, found.low, found.high) == (1.0, 0.5, 3.0)
    assert found.ok
    assert not Result("memory_x", "ratio", 1.0, 0.9, at_least=False, low=1.0, high=1.0).ok


def test_bounds_hold_the_median_and_narrow() -> None:
    low, high = bounds([1.0, 2.0, 3.0, 4.0, 5.0] * 20)
    assert 2.0 <= low <= 3.0 <= high <= 4.0
