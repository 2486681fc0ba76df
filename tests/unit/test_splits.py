"""The order of files, the cut into splits, cursors and watermarks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernel.errors import InternalError
from hybrid_source.source_values import END_OF_HISTORY
from hybrid_source.splits import END_CURSOR, NO_EVENT_TIME, DeleteFile, HistoryFile, Split, SplitPlan, SplitTarget

GROUP = 10
DELETES = DeleteFile("d", vector=False)


def groups(file: HistoryFile) -> list[int]:
    whole, rest = divmod(file.records, GROUP)
    return [GROUP] * whole + ([rest] if rest else [])


def plan(*files: HistoryFile, rows: int = 25, nbytes: int = 10**9) -> SplitPlan:
    return SplitPlan(files, SplitTarget(rows, nbytes), groups)


def file(path: str, records: int = 10, low: int | None = 0, **more: object) -> HistoryFile:
    return HistoryFile(path, records, records * 100, low, **more)  # type: ignore[arg-type]


def paths(split: Split) -> list[str]:
    return [found.path for found in split.files]


def test_files_without_bounds_come_first_and_hold_the_watermark() -> None:
    found = list(
        plan(
            file("late", low=900), file("b", low=None), file("early", low=100), file("a", low=None), rows=1
        ).splits_from(None)
    )
    assert [paths(split) for split in found] == [["a"], ["b"], ["early"], ["late"]]
    assert [split.watermark for split in found] == [None, 99, 899, END_OF_HISTORY]


def test_files_without_any_event_time_come_last_and_hold_nothing() -> None:
    found = list(plan(file("nulls", low=NO_EVENT_TIME), file("rows", low=5), rows=1).splits_from(None))
    assert [paths(split) for split in found] == [["rows"], ["nulls"]]
    assert found[0].watermark == END_OF_HISTORY


def test_small_files_are_bundled_up_to_the_target() -> None:
    found = list(plan(*(file(f"f{n}", low=n) for n in range(5))).splits_from(None))
    assert [paths(split) for split in found] == [["f0", "f1"], ["f2", "f3"], ["f4"]]
    assert [split.records for split in found] == [20, 20, 10]
    assert found[0].watermark == 1
    limited = plan(*(file(f"f{n}", low=n) for n in range(5)), nbytes=1000)
    assert len(list(limited.splits_from(None))) == 5


def test_a_large_file_is_cut_at_row_groups_and_holds_the_watermark_until_it_is_done() -> None:
    found = list(plan(file("big", records=64, low=7), file("next", low=50)).splits_from(None))
    assert [split.rows for split in found] == [(0, 20), (20, 20), (40, 24), None]
    assert [split.watermark for split in found] == [6, 6, 49, END_OF_HISTORY]
    assert sum(split.records for split in found) == 74


def test_a_file_with_deletes_is_not_bundled_but_may_be_cut() -> None:
    files = file("a", low=0), file("d", records=40, low=1, deletes=(DELETES,)), file("z", low=2)
    found = list(plan(*files).splits_from(None))
    assert [paths(split) for split in found] == [["a"], ["d"], ["d"], ["z"]]


def test_the_order_does_not_depend_on_how_files_were_found() -> None:
    files = [file(f"f{n}", low=n % 3) for n in range(9)]
    forward, backward = plan(*files), plan(*reversed(files))
    assert [paths(split) for split in forward.splits_from(None)] == [paths(s) for s in backward.splits_from(None)]


def test_a_cursor_finds_its_place_in_a_plan_that_was_pruned_otherwise() -> None:
    files = [file(f"f{n}", low=n) for n in range(6)]
    second = list(plan(*files, rows=1).splits_from(None))[1]
    pruned = plan(*(files[n] for n in (0, 1, 3, 5)), rows=1)  # the next file, f2, is not in it
    assert [paths(split) for split in pruned.splits_from(second.cursor)] == [["f3"], ["f5"]]


def test_an_empty_history_is_at_its_end() -> None:
    empty = plan()
    assert list(empty.splits_from(None)) == []
    assert empty.watermark(None) == END_OF_HISTORY
    assert empty.remaining(None).records == 0


def test_a_broken_cursor_is_refused() -> None:
    with pytest.raises(InternalError):
        list(plan(file("a")).splits_from({"low": 1}))


@st.composite
def histories(draw: st.DrawFn) -> SplitPlan:
    shapes = draw(
        st.lists(
            st.tuples(
                st.integers(0, 120),
                st.none() | st.integers(-(10**18), 10**18) | st.just(NO_EVENT_TIME),
                st.booleans(),
            ),
            max_size=12,
        )
    )
    files = [
        file(f"f{n:02}", records, low, deletes=(DELETES,) if deleted else ())
        for n, (records, low, deleted) in enumerate(shapes)
    ]
    return plan(*files, rows=draw(st.integers(1, 60)), nbytes=draw(st.integers(1, 9000)))


def ranges(splits: list[Split]) -> list[tuple[str, int, int]]:
    out = []
    for split in splits:
        if split.rows is not None:
            out.append((split.files[0].path, split.rows[0], sum(split.rows)))
        else:
            out.extend((found.path, 0, found.records) for found in split.files)
    return out


@settings(deadline=None)
@given(histories())
def test_splits_cover_every_row_once_from_every_cursor(history: SplitPlan) -> None:
    splits = list(history.splits_from(None))
    covered: dict[str, int] = {}
    for path, start, end in ranges(splits):
        assert covered.get(path, 0) == start  # in order, without gap or overlap
        covered[path] = end
    assert covered == {found.path: found.records for found in history.files}
    if splits:
        assert splits[-1].cursor == END_CURSOR
    for done, split in enumerate(splits):
        resumed = list(history.splits_from(json.loads(json.dumps(split.cursor))))
        assert merged(resumed) == merged(splits[done + 1 :])
        assert history.remaining(split.cursor).records == sum(found.records for found in splits[done + 1 :])


def merged(splits: list[Split]) -> dict[str, tuple[int, int]]:
    """Rows read of each file, however they were cut."""
    out: dict[str, tuple[int, int]] = {}
    for path, start, end in ranges(splits):
        out[path] = (min(start, out[path][0]), max(end, out[path][1])) if path in out else (start, end)
    return out


@settings(deadline=None)
@given(histories())
def test_the_watermark_never_goes_back_and_never_passes_an_unread_row(history: SplitPlan) -> None:
    last = history.watermark(None)
    unread = [found.low for found in history.files]
    for split in history.splits_from(None):
        finished = len(split.files) if split.cursor == END_CURSOR or split.cursor["row"] == 0 else 0
        del unread[:finished]
        if split.watermark is not None:
            assert None not in unread
            assert last is None or split.watermark >= last
            assert all((low is not None and split.watermark < low) or low == NO_EVENT_TIME for low in unread)
        last = split.watermark
