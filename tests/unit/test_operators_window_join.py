"""Window joins: a brute-force model over cuts, turns, disorder, late rows and restarts; days of a zone; refusals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel.errors import GraphChangedError, SpecError
from headrace.kernel.protocols import MAIN, Determinism
from headrace.testing import operator_context
from operators.slices import Slices
from operators.time_scales import Utc, time_scale
from operators.window_join import WindowJoin
from tests.joins import HOWS, STREAMS, TURNS, WHERE, in_order, matches, play, schema_of, sides_of, tagged
from tests.joins import model as joined_rows
from tests.windows import CUTS, RESTARTS, Row, frame_of, stored

WINDOWS = st.sampled_from([(10, 10, 0), (10, 10, 3), (10, 5, 0), (9, 4, -2), (1, 1, 0)])


def joined(how="inner", windows=(10, 10, 0), *, where=None, lateness=0, **more) -> WindowJoin:
    return WindowJoin("j", sides_of(how, where=where, **more), Slices(*windows, Utc()), lateness)


def model(how, streams, windows, where, lateness) -> list[tuple]:
    size, every, offset = windows
    inputs = []
    for history, tail in zip(streams.histories, streams.tails, strict=True):
        marked = [(row, None) for row in history]
        marked += [(row, mark - lateness) for row, mark in zip(tail.rows, tail.marks, strict=True)]
        inputs.append(marked)
    out = []
    for start in range(offset - 20 * every - 60, 120, 1):
        if (start - offset) % every:
            continue
        end = start + size
        left, right = (
            [row for row, mark in side if start <= row.t < end and (mark is None or end > mark)] for side in inputs
        )
        rows = joined_rows(how, left, right, lambda a, b: matches(a, b, where=where))
        out += [(*row, start, end) for row in rows]
    return in_order(out)


def late(streams, windows, lateness) -> list[tuple]:
    size, every, offset = windows
    out = []
    for side, tail in zip(("left", "right"), streams.tails, strict=True):
        for row, mark in zip(tail.rows, tail.marks, strict=True):
            last = row.t - (row.t - offset) % every + size
            if last <= mark - lateness:
                out.append((side, row.k))
    return in_order(out)


@settings(max_examples=40, deadline=None)
@given(
    STREAMS, CUTS, CUTS, TURNS, RESTARTS, st.sampled_from(HOWS), WINDOWS, st.booleans(), st.sampled_from([0, 6])
)  # fmt: skip
def test_equals_the_model_whatever_the_cuts_and_turns(
    streams, cuts, others, turns, restarts, how, windows, where, lateness
) -> None:
    operator = joined(how, windows, where=WHERE if where else None, lateness=lateness)
    found = play(operator, streams, (cuts, others), turns, restarts, time="window_start")
    assert found.rows() == model(how, streams, windows, where, lateness)
    assert found.late == late(streams, windows, lateness)
    assert found.instance.counts == {"dropped_late": 0, "null_event_time": 0}
    assert found.instance.rows_held() == 0


def test_days_of_a_zone_are_as_long_as_they_are() -> None:
    day = 86_400_000_000
    operator = WindowJoin("j", sides_of("inner"), Slices(day, day, 0, time_scale("Europe/Paris", {"size": day}, "j")))
    instance = operator.open(schema_of(operator), operator_context())
    short = datetime(2024, 3, 31, tzinfo=UTC)
    for side, hour in (("left", -1), ("right", 21), ("right", 22)):  # 23 hours from 2024-03-30T23:00Z
        at = int((short + timedelta(hours=hour)).timestamp() * 1e6)
        instance.process(operator.partial(tagged(operator.sides, side, frame_of([Row(at, "a")]))).collect())
    found = instance.drain()[MAIN]
    assert found.height == 1
    assert found["window_end"].item() - found["window_start"].item() == timedelta(hours=23)


def test_rows_for_windows_that_are_closed_are_counted() -> None:
    operator = joined("left")
    instance = operator.open(schema_of(operator), operator_context())
    instance.process(operator.partial(tagged(operator.sides, "left", frame_of([Row(-5, "a")]))).collect())
    assert instance.drain()[MAIN].height == 1
    instance.process(operator.partial(tagged(operator.sides, "left", frame_of([Row(-5, "a"), Row(0, "a")]))).collect())
    assert instance.counts["dropped_late"] == 1
    assert instance.rows_held() == 1


def test_state_and_fingerprint_are_bound_to_the_definition() -> None:
    base = joined()
    others = [joined("left"), joined(windows=(10, 5, 0)), joined(where=WHERE), joined(lateness=1)]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert base.determinism is Determinism.EXACT
    state = base.open(schema_of(base), operator_context()).snapshot()
    more = joined(left={"more": pl.Int8()})
    with pytest.raises(GraphChangedError, match=r"more.*is new"):
        more.open(schema_of(more), operator_context(stored(state)))


def test_columns_that_the_join_adds_are_refused() -> None:
    with pytest.raises(SpecError, match="would add 'window_start', which a side already has"):
        joined(left={"window_start": pl.Datetime("us", "UTC")})
