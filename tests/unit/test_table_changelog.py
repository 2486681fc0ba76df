"""Overwrites and deletes of a followed table as changes: what is left of them is the table, whatever was done to it."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, ListType, LongType, NestedField, StringType

from headrace.kernel.columns import WEIGHT
from headrace.kernel.errors import DataError, SnapshotGoneError
from headrace.kernel.protocols import ReadRequest
from headrace.testing import ManualClock
from hybrid_source.iceberg_history import open_iceberg
from hybrid_source.iceberg_scan import IcebergScanner
from hybrid_source.splits import DeleteFile, FileChange, HistoryFile, Split, SplitTarget
from hybrid_source.table_source import TableSource
from tests.history_tables import (
    add_deletes,
    append,
    append_files,
    arrow,
    open_catalog,
    position_deletes,
    rewrite_file,
    write_puffin,
)
from tests.lake import compact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg.table import Table

    from headrace.kernel.protocols import Position
    from hybrid_source.table_reader import TableReader

ROWS = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "k", StringType(), required=False),
    NestedField(3, "price", DoubleType(), required=False),
    NestedField(4, "tags", ListType(5, LongType(), element_required=False), required=False),
)
FRAME = pl.Schema({"id": pl.Int64(), "k": pl.String(), "price": pl.Float64(), "tags": pl.List(pl.Int64())})
BY_K = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "k"))
numbers = itertools.count()


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Table]]:
    catalog = open_catalog(tmp_path_factory.mktemp("lake"))
    yield lambda **options: catalog.create_table(
        f"ns.c{next(numbers)}", ROWS, properties={"write.delete.mode": "copy-on-write"}, **options
    )
    catalog.close()


def rows(*ids: int, price: float | None = 1.5) -> pl.DataFrame:
    columns = {"id": ids, "k": ["ab"[n % 2] for n in ids], "price": [price] * len(ids), "tags": [[n] for n in ids]}
    return pl.DataFrame(columns, schema=FRAME)


def follow(table: Table, **more: Any) -> TableSource:
    schema = pl.Schema({**FRAME, WEIGHT: pl.Int64()})
    options = {"history": True, "interval_s": 0.0, "clock": ManualClock(1_000_000), "on_change": "changelog", **more}
    return TableSource("s", "t", table.refresh, schema, **options)


def given_out(reader: TableReader) -> list[pl.DataFrame]:
    """Every batch that is there now."""
    found = []
    while (batch := reader.poll(0)) is not None:
        found.append(batch.rows.collect())
    return found


def left(changes: list[pl.DataFrame]) -> list[tuple[Any, ...]]:
    """The rows that hold after some changes, each as often as it does."""
    held: dict[str, int] = {}
    for row in itertools.chain.from_iterable(frame.select(*FRAME, WEIGHT).iter_rows() for frame in changes):
        text = json.dumps(row[:-1])
        held[text] = held.get(text, 0) + row[-1]
    assert all(times >= 0 for times in held.values())
    return sorted(text for text, times in held.items() for _ in range(times))


def held_by(table: Table) -> list[str]:
    """The rows of a table as pyiceberg reads them."""
    frame = pl.DataFrame(table.refresh().scan().to_arrow()).select(*FRAME)
    return sorted(json.dumps(row) for row in frame.iter_rows())


def after(table: Table, do: Callable[[], Any]) -> pl.DataFrame:
    """What a change gives to who has read everything before it."""
    reader = follow(table).open(ReadRequest(), None)
    before = given_out(reader)
    do()
    changes = given_out(reader)
    assert left(before + changes) == held_by(table)
    return pl.concat([frame for frame in changes if frame.height] or [pl.DataFrame(schema=changes[0].schema)])


def data_file(table: Table, index: int = 0) -> str:
    return str(table.refresh().inspect.files().filter(_data())["file_path"][index].as_py())


def _data() -> Any:
    import pyarrow.compute as pc

    return pc.field("content") == 0


def test_rows_that_a_rewrite_has_only_moved_cancel_out(make: Callable[..., Table]) -> None:
    table = make()
    append(table, rows(*range(100)))
    changes = after(table, lambda: table.delete("id = 3"))
    assert changes.select("id", WEIGHT).rows() == [(3, -1)]


def test_an_overwrite_takes_the_old_rows_back_before_it_gives_the_new_ones(make: Callable[..., Table]) -> None:
    table = make()
    append(table, rows(1, 2, 3))
    new = pl.concat([rows(1, 3), rows(2, price=9.0)])
    changes = after(table, lambda: rewrite_file(table, data_file(table), new))
    assert changes.select("id", "price", WEIGHT).rows() == [(2, 1.5, -1), (2, 9.0, 1)]


def test_equal_rows_count_as_often_as_they_are_there(make: Callable[..., Table]) -> None:
    table = make()
    append(table, rows(1, 1, 1, 2))
    changes = after(table, lambda: table.overwrite(arrow(rows(1, 2)).cast(table.schema().as_arrow())))
    # A whole overwrite is two snapshots: all rows go, then the new ones come.
    assert changes.filter(pl.col(WEIGHT) < 0)["id"].sort().to_list() == [1, 1, 1, 2]
    assert changes[WEIGHT].abs().unique().to_list() == [1]


def test_rows_that_position_deletes_name_are_taken_back_once(make: Callable[..., Table]) -> None:
    table = make()
    append(table, rows(*range(10)), rows(*range(10, 20)))
    path = data_file(table)
    first = pl.DataFrame(table.scan().to_arrow())["id"][0]
    ids = list(range(10)) if first < 10 else list(range(10, 20))
    changes = after(table, lambda: add_deletes(table, position_deletes(table, [(path, 1), (path, 4)])))
    assert sorted(changes.select("id", WEIGHT).rows()) == [(ids[1], -1), (ids[4], -1)]
    again = after(table, lambda: add_deletes(table, position_deletes(table, [(path, 4), (path, 5)])))
    assert again.select("id", WEIGHT).rows() == [(ids[5], -1)]  # what was deleted already is not taken back again
    assert after(table, lambda: compact(table)).height == 0
    assert after(table, lambda: table.delete(f"id = {ids[0]}")).select("id", WEIGHT).rows() == [(ids[0], -1)]


def test_a_file_that_goes_gives_back_what_was_still_live_of_it(make: Callable[..., Table]) -> None:
    table = make()
    append(table, rows(1, 2, 3))
    add_deletes(table, position_deletes(table, [(data_file(table), 0)]))
    changes = after(table, lambda: table.delete("id > 0"))
    assert sorted(changes.select("id", WEIGHT).rows()) == [(2, -1), (3, -1)]


def test_a_deletion_vector_that_replaces_another_takes_back_what_is_new_in_it(
    make: Callable[..., Table], tmp_path: Path
) -> None:
    table = make()
    append(table, rows(*range(5)))
    path = data_file(table)
    old, new = tmp_path / "old.puffin", tmp_path / "new.puffin"
    write_puffin(old, {path: [0, 3]})
    write_puffin(new, {path: [0, 1]})
    before, after_ = (DeleteFile(f"file://{at}", vector=True) for at in (old, new))
    file = HistoryFile(path, 5, Path(path.removeprefix("file://")).stat().st_size)

    def given(*change: tuple[DeleteFile, ...] | None) -> list[tuple[int, int]]:
        changed = HistoryFile("snapshot 1", 5, 1, changes=(FileChange(file, *change),))
        frame = IcebergScanner(table, weights=True).scan(Split((changed,), None, 5, 1, None, None)).collect()
        return sorted(frame.select("id", WEIGHT).rows())

    assert given((before,), (after_,)) == [(1, -1), (3, 1)]  # a row may come back, too
    assert given((), (after_,)) == [(0, -1), (1, -1)]
    assert given((before,), None) == [(1, -1), (2, -1), (4, -1)]
    assert given(None, (after_,)) == [(2, 1), (3, 1), (4, 1)]


def test_only_what_is_asked_for_is_read_and_cancels_out(make: Callable[..., Table]) -> None:
    table = make(partition_spec=BY_K)
    append(table, rows(*range(20)))
    request = ReadRequest(["k", WEIGHT], predicate=pl.col("k") == "a")
    reader = follow(table).open(request, None)
    given_out(reader)
    table.overwrite(arrow(rows(2, 4, price=9.0)).cast(table.schema().as_arrow()), "id = 2 or id = 4")
    table.delete("id = 3")
    # pyiceberg overwrites in two snapshots; the delete in b is not read.
    assert [frame.rows() for frame in given_out(reader) if frame.height] == [[("a", -1)] * 2, [("a", 1)] * 2]
    counted = follow(table).open(ReadRequest([WEIGHT]), None)
    assert sum(frame[WEIGHT].sum() for frame in given_out(counted)) == 19
    table.delete("id = 5 or id = 6")
    assert [row for frame in given_out(counted) for row in frame.rows()] == [(-1,), (-1,)]


def test_a_change_whose_predecessor_has_expired_is_an_error(make: Callable[..., Table]) -> None:
    table = make()
    append(table, rows(1, 2))
    since = table.metadata.current_snapshot_id
    table.delete("id = 2")
    # As Iceberg's Java library leaves it: the later snapshot still names its parent.
    later = [one for one in table.refresh().metadata.snapshots if one.snapshot_id != since]
    table.metadata = table.metadata.model_copy(update={"snapshots": later})
    with pytest.raises(SnapshotGoneError, match=f"after {since} have been expired"):
        open_iceberg(table, "t", since=since, on_change="changelog")


def test_the_policy_that_refuses_names_the_one_that_reads(make: Callable[..., Table]) -> None:
    table = make()
    append(table, rows(1, 2))
    since = table.metadata.current_snapshot_id
    table.delete("id = 2")
    with pytest.raises(DataError) as caught:
        open_iceberg(table.refresh(), "t", since=since)
    assert "on_change: changelog" in caught.value.hint


def change(dice: random.Random, table: Table, ids: Iterator[int]) -> None:
    """One random change of a table."""
    table.refresh()
    some = dice.sample(range(40), 3)
    match dice.choice(["append", "append", "overwrite", "rewrite", "replace all", "delete", "positions", "compact"]):
        case "overwrite":
            new = arrow(rows(*some, price=dice.random())).cast(table.schema().as_arrow())
            table.overwrite(new, f"id >= {min(some)} and id <= {max(some)}")
        case "replace all" if dice.random() < 0.3:
            table.overwrite(arrow(rows(*some)).cast(table.schema().as_arrow()))
        case "rewrite" if not table.spec().fields and (files := table.inspect.files().filter(_data())).num_rows:
            rewrite_file(table, dice.choice(files["file_path"].to_pylist()), rows(*some))
        case "delete":
            table.delete(f"id = {some[0]} or id = {some[1]}")
        case "positions" if not table.spec().fields and table.current_snapshot() is not None:
            files = table.inspect.files().filter(_data())
            if files.num_rows:
                file = dice.choice(files.to_pylist())
                places = {dice.randrange(file["record_count"]) for _ in range(3)}
                add_deletes(table, position_deletes(table, [(file["file_path"], at) for at in places]))
        case "compact" if table.current_snapshot() is not None:
            compact(table)
        case _ if table.spec().fields:
            append(table, rows(*(next(ids) % 40 for _ in range(4))))
        case _:
            append_files(table, rows(*(next(ids) % 40 for _ in range(4))), rows(some[0]))


@pytest.mark.filterwarnings("ignore:Delete operation did not match")
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_left_of_the_changes_is_the_table(make: Callable[..., Table], seed: int) -> None:
    dice = random.Random(seed)
    table = make(**({"partition_spec": BY_K} if dice.random() < 0.3 else {}))
    ids = itertools.count(dice.randrange(40))
    if dice.random() < 0.8:
        append(table, rows(*(next(ids) for _ in range(6))))
    source = follow(table, target=SplitTarget(4, 1 << 30), concurrency=dice.choice([0, 2]))
    request = ReadRequest(compute=lambda rows, *_, **__: rows.collect()) if source.concurrency else ReadRequest()
    reader, found = source.open(request, None), []
    at: Position = reader.position
    for _ in range(dice.randrange(2, 8)):
        change(dice, table, ids)
        while (batch := reader.poll(5.0 if source.concurrency else 0)) is not None:
            if dice.random() < 0.2:  # killed: what was read since the position is read again
                reader.close()
                reader = source.open(request, json.loads(json.dumps(at)))
                continue
            found.append(batch.computed if isinstance(batch.computed, pl.DataFrame) else batch.rows.collect())
            at = batch.position
    assert left(found) == held_by(table)
    reader.close()
