"""Cut-invariance on the real broker and real catalogs: everything at once, in random worlds (tests/broker_worlds.py).

As test_cut_invariance.py, with Iceberg and Kafka instead of scripted parts.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace.jobs import compile_sources
from hybrid_source import history_stage, tail_reader
from hybrid_source.handover_policy import HandoverPolicy
from hybrid_source.lake_tail import LakeTail
from tests.broker_worlds import Bench, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.jobs import Site

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]
few = settings(
    max_examples=10,  # on each catalog
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # an example takes seconds: no time to shrink
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small polls, windows and thresholds, so that a few rows are many steps."""
    monkeypatch.setattr(tail_reader, "BATCH_ROWS", 4)
    monkeypatch.setattr(history_stage, "LakeTail", partial(LakeTail, window_rows=7))
    monkeypatch.setattr(compile_sources, "HandoverPolicy", partial(HandoverPolicy, worthwhile=1, lag_every_s=0))


@pytest.fixture
def bench(any_site: Site) -> Iterator[Bench]:
    bench = Bench(any_site)
    yield bench
    bench.close()


@few
@given(seed=st.integers(0, 2**32))
def test_output_is_the_same_in_every_world(bench: Bench, seed: int) -> None:
    World(bench, seed).live()


@pytest.mark.full
@pytest.mark.timeout(3600)
@settings(few, max_examples=100)
@given(seed=st.integers(0, 2**32))
def test_output_is_the_same_in_many_more_worlds(bench: Bench, seed: int) -> None:
    World(bench, seed).live()
