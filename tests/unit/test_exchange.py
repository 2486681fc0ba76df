"""Several instances of an operator as one: nothing of them is seen, but that they work at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel.errors import GraphChangedError
from headrace.kernel.keyed import KeyGroups
from headrace.kernel.protocols import MAIN, OperatorInstance, OperatorState, StatefulOperator
from headrace.runtime.exchange import Workers, open_operator, split, split_state, unite_states
from headrace.testing import operator_context
from operators.dedup import Dedup
from operators.keyed_aggregate import KeyedAggregate
from operators.session import SessionWindow
from operators.top import TopN
from operators.window import HoppingWindow, TumblingWindow
from tests.windows import small_context

SCHEMA = pl.Schema({"t": pl.Datetime("us", "UTC"), "k": pl.String(), "f": pl.Float64(), "v": pl.Int64()})
OPERATORS: Sequence[StatefulOperator] = [
    TumblingWindow("w", "t", 10, {"n": "count(*)", "s": "sum(v)"}, by=["k"]),
    HoppingWindow("w", "t", 10, 5, {"s": "sum(v)"}, by=["k", "f"]),
    TumblingWindow("w", "t", 10, {"n": "count(*)"}),
    SessionWindow("w", "t", 7, {"n": "count(*)"}, by=["f"]),
    Dedup("d", "t", by=["k"], ttl_us=9),
    Dedup("d", "t", by=["k", "f"]),
    TopN("top", "t", 2, order_by=[("v", True)], by=["k"], size_us=10),
    KeyedAggregate("a", {"n": "count(*)", "s": "sum(v)"}, by=["f"]),
]
ROWS = st.lists(
    st.tuples(
        st.integers(0, 60) | st.none(),
        st.sampled_from(["a", "b", "c", "d", None]),
        st.sampled_from([0.0, -0.0, 1.5, float("nan"), None]),
        st.integers(-9, 9),
    ),
    max_size=40,
)


def frame_of(rows: Sequence[tuple[object, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={**SCHEMA, "t": pl.Int64()}, orient="row").cast(dict(SCHEMA))


def play(operator: StatefulOperator, batches: Sequence[pl.DataFrame], parallelisms: Sequence[int]) -> pl.DataFrame:
    """What is given out of batches; before each of them the operator is restored at the next parallelism."""
    schema = operator.partial(pl.LazyFrame(schema=SCHEMA)).collect_schema()
    out = [pl.DataFrame(schema=operator.output_schema(schema))]
    state: OperatorState | None = None
    alive = []
    for index, batch in enumerate(batches):
        workers = Workers(parallelisms[index % len(parallelisms)])
        context = small_context(state)
        alive.append(context)  # a snapshot refers to what lies in its folder
        instance = open_operator(operator, schema, context, workers)
        out += emitted(instance, operator.partial(batch.lazy()).collect(), index * 12)
        state = instance.snapshot()
        if index == len(batches) - 1:
            out.append(instance.drain().get(MAIN, out[0]))
        workers.close()
    return pl.concat(out)


def emitted(instance: OperatorInstance, partials: pl.DataFrame, watermark: int) -> list[pl.DataFrame]:
    given = [instance.process(partials), instance.advance(watermark)]
    assert instance.outgoing_watermark(watermark) <= watermark
    return [emission[MAIN] for emission in given if MAIN in emission]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.fingerprint.split(",")[0])
@given(st.lists(ROWS, min_size=1, max_size=4))
@settings(max_examples=8, deadline=None)
def test_par_01_output_is_that_of_one_instance_whatever_the_parallelism_at_each_restore(
    operator: StatefulOperator, batches: list[list[tuple[object, ...]]]
) -> None:
    frames = [frame_of(rows) for rows in batches]
    alone = play(operator, frames, [1])
    several = play(operator, frames, [2, 3, 1, 5])
    assert several.sort(several.columns).equals(alone.sort(alone.columns))


def test_par_02_counts_are_added_and_marks_are_the_same_in_all_instances() -> None:
    operator = OPERATORS[0]
    schema = operator.partial(pl.LazyFrame(schema=SCHEMA)).collect_schema()
    workers = Workers(3)
    instance = open_operator(operator, schema, operator_context(), workers)
    instance.advance(40)
    rows = frame_of([(None, key, None, 1) for key in "abcdefgh"] + [(3, key, None, 1) for key in "abcd"])
    instance.process(operator.partial(rows.lazy()).collect())
    state = instance.snapshot()
    assert state.values == {"closed": 40, "counts": {"dropped_late": 4, "null_event_time": 8}}
    parts = split_state(state, ["k"], [KeyGroups.of(index, 2) for index in range(2)])
    assert unite_states(parts).values == state.values
    workers.close()


def test_par_03_each_key_has_one_range_and_null_is_a_key() -> None:
    rows = pl.DataFrame({"k": [*map(str, range(500)), None, "7", None], "v": range(503)})
    ranges = [KeyGroups.of(index, 3) for index in range(3)]
    parts = split(rows, ["k"], ranges)
    assert pl.concat(parts).sort("v").equals(rows)
    assert sum(part["k"].n_unique() for part in parts) == rows["k"].n_unique()
    assert min(part.height for part in parts) > 100


def test_par_04_instances_work_at_once_and_none_works_on_when_one_has_failed() -> None:
    workers, meeting = Workers(3), threading.Barrier(3, timeout=60)
    assert workers.run([lambda n=n: (meeting.wait(), n)[1] for n in range(3)]) == [0, 1, 2]
    done = threading.Event()
    begun = threading.Event()

    def fails() -> None:
        begun.wait(60)
        raise ValueError("first")

    def goes_on() -> None:
        begun.set()
        done.set()

    with pytest.raises(ValueError, match="first"):
        workers.run([fails, goes_on])
    assert done.is_set()
    with pytest.raises(ValueError, match="first"):
        workers.run([goes_on, fails])
    workers.close()


def test_par_05_state_of_another_key_is_refused_at_any_parallelism() -> None:
    before, after = (TumblingWindow("w", "t", 10, {"n": "count(*)"}, by=[key]) for key in ("k", "f"))
    schemas = [operator.partial(pl.LazyFrame(schema=SCHEMA)).collect_schema() for operator in (before, after)]
    state = before.open(schemas[0], operator_context()).snapshot()
    workers = Workers(2)
    with pytest.raises(GraphChangedError):
        open_operator(after, schemas[1], operator_context(state), workers)
    workers.close()
