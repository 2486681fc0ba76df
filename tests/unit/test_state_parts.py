"""A state that lacks a part is refused: what the part held would be forgotten without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import polars as pl
import pytest

from headrace.kernel.errors import GraphChangedError
from headrace.kernel.held import HeldLayout
from headrace.kernel.keyed import KeyedLayout
from headrace.kernel.protocols import OperatorState
from headrace.state.backend import StateBackend, StateContext
from operators.restored import fitting

SCHEMA = pl.Schema({"k": pl.String(), "t": pl.Int64()})
KEYED = KeyedLayout("rows", SCHEMA, ["k"])
HELD = HeldLayout("waiting", SCHEMA, ["k"], "t")


@pytest.fixture
def backend() -> Iterator[StateBackend]:
    backend = StateBackend()
    yield backend
    backend.close()


PARTS: dict[str, Callable[[StateContext], object]] = {
    "rows": lambda context: context.keyed(KEYED),
    "waiting": lambda context: context.held(HELD),
    "touched": lambda context: fitting(context.state or OperatorState(1), "touched", SCHEMA, 1, context.where),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_state_without_a_part_is_refused_by_its_name(backend: StateBackend, part: str) -> None:
    empty = backend.context("window 'w'")
    keyed, held = empty.keyed(KEYED).snapshot(), empty.held(HELD).snapshot()
    other = OperatorState(1, keyed={"others": keyed}, held={"others": held}, frames={"others": pl.DataFrame()})
    with pytest.raises(GraphChangedError, match=f"window 'w': its state has no '{part}'") as caught:
        PARTS[part](backend.context("window 'w'", other))
    assert caught.value.detail == "the checkpoint has 'others'"


def test_a_state_with_all_parts_is_opened(backend: StateBackend) -> None:
    empty = backend.context("window 'w'")
    keyed, held = empty.keyed(KEYED).snapshot(), empty.held(HELD).snapshot()
    frames = {"touched": pl.DataFrame(schema=SCHEMA)}
    whole = backend.context(
        "window 'w'", OperatorState(1, keyed={"rows": keyed}, held={"waiting": held}, frames=frames)
    )
    for opened in PARTS.values():
        opened(whole)
