"""Equality deletes, as Flink and Kafka Connect leave them: applied to the history, read as changes (Iceberg spec v2).

pyiceberg can neither write nor read them: tests build the files, and keep what must be left by the rule of the spec.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType, StructType

from headrace.kernel.columns import WEIGHT
from headrace.kernel.errors import UserError
from headrace.kernel.protocols import ReadRequest
from headrace.testing import ManualClock
from hybrid_source.history import HistoryQuery
from hybrid_source.iceberg_history import open_iceberg
from hybrid_source.iceberg_plan import data_entries
from hybrid_source.splits import SplitTarget
from hybrid_source.table_source import TableSource
from tests.history_tables import (
    add_deletes,
    append,
    append_files,
    collect,
    equality_deletes,
    open_catalog,
    position_deletes,
)
from tests.lake import Rewrite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

ROWS = Schema(
    NestedField(1, "id", IntegerType(), required=False),
    NestedField(2, "k", StringType(), required=False),
    NestedField(3, "price", DoubleType(), required=False),
)
FRAME = pl.Schema({"id": pl.Int32(), "k": pl.String(), "price": pl.Float64()})
BY_K = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "k"))
numbers = itertools.count()


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Table]]:
    catalog = open_catalog(tmp_path_factory.mktemp("lake"))
    yield lambda schema=ROWS, **options: catalog.create_table(
        f"ns.e{next(numbers)}", schema, properties={"format-version": "2"}, **options
    )
    catalog.close()


def rows(*given: tuple[int | None, str | None, float | None]) -> pl.DataFrame:
    return pl.DataFrame(given, schema=FRAME, orient="row")


def keys(**columns: Any) -> pl.DataFrame:
    return pl.DataFrame(columns, schema={name: FRAME[name] for name in columns})


def history(table: Table, **query: Any) -> list[tuple[Any, ...]]:
    splits = list(open_iceberg(table.refresh(), "t").plan(HistoryQuery(**query)).splits_from())
    return sorted(collect(splits).rows(), key=repr) if splits else []


def data_files(table: Table) -> list[DataFile]:
    found = data_entries(table.refresh(), table.current_snapshot())
    return [entry.data_file for entries in found for entry in entries]


def test_del_02_rows_of_older_files_are_deleted_null_equal_to_null(make: Callable[..., Table]) -> None:
    table = make()
    append(table, rows((1, "a", 1.0), (2, "b", 1.0), (None, "n", 1.0)))
    add_deletes(table, equality_deletes(table, keys(id=[1, None]), ["id"]), rows=rows((1, "c", 2.0)))
    append(table, rows((1, "d", 3.0)))
    assert history(table) == [(1, "c", 2.0), (1, "d", 3.0), (2, "b", 1.0)]
    plan = open_iceberg(table, "t").plan(HistoryQuery(columns=["price"], predicate=pl.col("k") == "c"))
    assert collect(plan).rows() == [(2.0,)]  # the key need not be asked for


def test_del_02_a_key_that_was_renamed_promoted_or_dropped_since_is_the_same(make: Callable[..., Table]) -> None:
    table = make()
    append(table, rows((1, "a", 1.0), (2, "b", 2.0), (3, "c", 3.0)))
    add_deletes(table, equality_deletes(table, keys(id=[1]), ["id"]))
    add_deletes(table, equality_deletes(table, keys(price=[2.0]), ["price"]))
    with table.update_schema() as change:
        change.rename_column("id", "number").update_column("id", LongType()).delete_column("price")
    with table.update_schema() as change:
        change.add_column("price", StringType())
    append(table, pl.DataFrame({"number": [1], "k": ["z"], "price": ["2"]}))
    assert history(table) == [(1, "z", "2"), (3, "c", None)]


def test_a_key_that_older_files_lack_is_null_in_them(make: Callable[..., Table]) -> None:
    table = make()
    append(table, rows((1, "a", 1.0)))
    with table.update_schema() as change:
        change.add_column("new", LongType())
    append(table, pl.DataFrame({"id": [2], "k": ["b"], "price": [1.0], "new": [7]}))
    add_deletes(table, equality_deletes(table, pl.DataFrame({"new": [None]}, schema={"new": pl.Int64()}), ["new"]))
    assert history(table) == [(2, "b", 1.0, 7)]


def test_only_the_key_columns_count_whatever_else_stands_in_the_file(make: Callable[..., Table]) -> None:
    """Flink writes whole rows: a filter must not rule the file out by what they hold beside the key."""
    table = make()
    append(table, rows((1, "a", 9.0), (2, "b", 9.0)))
    add_deletes(table, equality_deletes(table, rows((1, "zz", 0.0)), ["id"]))
    assert history(table, predicate=pl.col("price") > 5) == [(2, "b", 9.0)]


def test_deletes_hold_for_their_partition_or_for_all(make: Callable[..., Table]) -> None:
    table = make(partition_spec=BY_K)
    append(table, rows((1, "a", 1.0), (1, "b", 1.0), (2, "a", 1.0), (2, "b", 1.0)))
    add_deletes(table, equality_deletes(table, keys(id=[1]), ["id"], Record("a")))
    assert history(table) == [(1, "b", 1.0), (2, "a", 1.0), (2, "b", 1.0)]
    with table.update_spec() as change:
        change.remove_field("k")
    add_deletes(table, equality_deletes(table, keys(id=[2]), ["id"]))
    assert history(table) == [(1, "b", 1.0)]


def test_deletes_of_one_spec_spare_the_files_of_another(make: Callable[..., Table]) -> None:
    table = make()
    append(table, rows((1, "a", 1.0)))
    with table.update_spec() as change:
        change.add_identity("k")
    append(table.refresh(), rows((1, "a", 2.0)))
    add_deletes(table, equality_deletes(table, keys(id=[1]), ["id"], Record("a")))
    assert history(table) == [(1, "a", 1.0)]


def test_deletes_that_cannot_meet_a_file_are_not_looked_up_in_it(make: Callable[..., Table]) -> None:
    table = make()
    append_files(table, *(rows((n, "a", 1.0), (n + 5, "a", 1.0)) for n in range(0, 100, 10)))
    add_deletes(table, equality_deletes(table, keys(id=[12, 25]), ["id"]))
    plan = open_iceberg(table.refresh(), "t").plan(HistoryQuery())
    assert plan.report.files_with_deletes == 2
    assert collect(plan).height == 19


def test_a_large_file_is_read_in_parts(make: Callable[..., Table]) -> None:
    table = make()
    table.transaction().set_properties({"write.parquet.row-group-limit": "10"}).commit_transaction()
    append(table, pl.concat([rows((n, "a", 1.0)) for n in range(50)]))
    add_deletes(table, equality_deletes(table, keys(id=[0, 9, 10, 33, 49]), ["id"]))
    left = history(table, columns=["id"], target=SplitTarget(10, 1 << 30))
    assert left == sorted([(n,) for n in range(50) if n not in {0, 9, 10, 33, 49}], key=repr)


def test_a_key_within_a_struct_is_refused(make: Callable[..., Table]) -> None:
    inner = StructType(NestedField(2, "id", LongType(), required=False))
    table = make(Schema(NestedField(1, "s", inner, required=False)))
    append(table, pl.DataFrame({"s": [{"id": 1}]}))
    deletes = equality_deletes(table, pl.DataFrame({"s": [{"id": 1}]}), ["s"])
    add_deletes(table, deletes)
    with pytest.raises(UserError, match="no plain column") as caught:
        open_iceberg(table.refresh(), "t").plan(HistoryQuery())
    assert caught.value.code == "TABLE_UNSUPPORTED"


# ------------------------------------------------------------------------------------------------------------- changes


@dataclass
class Model:
    """What a table holds by the rule of the spec."""

    table: Table
    files: dict[str, tuple[int, Any, list[tuple[Any, ...] | None]]] = field(default_factory=dict)

    def commit(self, do: Callable[[], Any], written: pl.DataFrame | None = None) -> None:
        """Do something that writes at most one file by partition; its rows are ``written``."""
        before = {file.file_path for file in data_files(self.table)}
        do()
        for file in data_files(self.table):
            if file.file_path not in before and written is not None:
                held = list(pl.read_parquet(file.file_path.removeprefix("file://")).select(*FRAME).iter_rows())
                self.files[file.file_path] = (self.sequence, tuple(file.partition), held)

    @property
    def sequence(self) -> int:
        return self.table.metadata.last_sequence_number

    def delete(self, named: pl.DataFrame, key: list[str], partition: Record | None) -> None:
        """Take out what the newest snapshot has deleted."""
        places, values = [list(FRAME).index(name) for name in key], set(named.select(key).rows())
        for sequence, mine, held in self.files.values():
            if sequence < self.sequence and (partition is None or tuple(partition) == mine):
                for at, row in enumerate(held):
                    if row is not None and tuple(row[place] for place in places) in values:
                        held[at] = None

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return [row for _, _, held in self.files.values() for row in held if row is not None]


def change(dice: random.Random, model: Model) -> None:
    """One random change."""
    table, by_k = model.table, bool(model.table.spec().fields)
    some = [(dice.choice([None, *range(12)]), dice.choice("ab"), float(dice.randint(0, 3))) for _ in range(4)]
    written = rows(*some)
    partition = Record(dice.choice("ab")) if by_k else None
    if partition is not None:
        written = written.with_columns(k=pl.lit(partition[0]))
    named = rows(*((dice.choice([None, *range(12)]), "a", 0.0) for _ in range(3)))
    key = dice.choice([["id"], ["id", "price"]])
    match dice.choice(["append", "upsert", "upsert", "delete", "positions", "compact"]):
        case "upsert":
            named = written.select(*dict.fromkeys([*key, *dice.sample(list(FRAME), 1)]))
            deletes = equality_deletes(table, named, key, partition)
            model.commit(lambda: add_deletes(table, deletes, rows=written, partition=partition), written)
            model.delete(named, key, partition)
        case "delete":
            add_deletes(table, equality_deletes(table, named, key, partition))
            model.delete(named, key, partition)
        case "positions" if model.files and not by_k:
            path = dice.choice(list(model.files))
            held = model.files[path][2]
            at = dice.randrange(len(held))
            add_deletes(table, position_deletes(table, [(path, at)]))
            held[at] = None
        case "compact" if model.rows and not by_k:
            compact(model)
        case _:
            model.commit(lambda: append(table, written), written)


def compact(model: Model) -> None:
    """All live rows in one file; the delete files stay."""
    table, left = model.table, rows(*model.rows)
    old = data_files(table)

    def rewrite() -> None:
        transaction = table.transaction()
        from catalog.staging import DataFileWriter

        with Rewrite(Operation.REPLACE, transaction, table.io) as producer:
            for file in DataFileWriter(table, f"compacted-{next(numbers)}").write(left):
                producer.append_data_file(file)
            for file in old:
                producer.delete_data_file(file)
        transaction.commit_transaction()

    model.commit(rewrite, left)
    model.files = {path: held for path, held in model.files.items() if path not in {file.file_path for file in old}}


@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.integers(0, 2**32))
def test_history_and_changes_follow_a_table_that_is_upserted(make: Callable[..., Table], seed: int) -> None:
    dice = random.Random(seed)
    table = make(**({"partition_spec": BY_K} if dice.random() < 0.4 else {}))
    model = Model(table)
    for _ in range(dice.randrange(4)):
        change(dice, model)
    schema = pl.Schema({**FRAME, WEIGHT: pl.Int64()})
    source = TableSource(
        "s", "t", table.refresh, schema, history=True, on_change="changelog", interval_s=0.0, clock=ManualClock(1)
    )
    reader, found = source.open(ReadRequest(), None), Counter[str]()
    at = reader.position
    for _ in range(dice.randrange(2, 7)):
        change(dice, model)
        assert history(table) == sorted(model.rows, key=repr)
        above = pl.col("price") > dice.randint(0, 2)
        assert history(table, predicate=above) == sorted(rows(*model.rows).filter(above).rows(), key=repr)
        while (batch := reader.poll(0)) is not None:
            if dice.random() < 0.2:  # killed: what was read since the position is read again
                reader = source.open(ReadRequest(), json.loads(json.dumps(at)))
                continue
            for row in batch.rows.collect().iter_rows(named=True):
                found[repr(tuple(row[name] for name in FRAME))] += row[WEIGHT]
            at = batch.position
        assert min(found.values(), default=0) >= 0
        assert +found == Counter(map(repr, model.rows))


def test_what_a_delete_takes_back_is_what_was_there(make: Callable[..., Table]) -> None:
    table = make()
    append(table, rows((1, "a", 1.0), (2, "b", 1.0)))
    before = table.refresh().current_snapshot().snapshot_id
    add_deletes(table, equality_deletes(table, keys(id=[1, 3]), ["id"]), rows=rows((1, "a", 2.0), (3, "c", 2.0)))
    added = open_iceberg(table.refresh(), "t", since=before, on_change="changelog").plan(HistoryQuery())
    (first, *rest) = collect(added).rows()
    assert (first, sorted(rest)) == ((1, "a", 1.0, -1), [(1, "a", 2.0, 1), (3, "c", 2.0, 1)])
    again = table.current_snapshot().snapshot_id
    add_deletes(table, equality_deletes(table, keys(id=[7]), ["id"]), rows=rows((2, "b", 1.0)))
    added = open_iceberg(table.refresh(), "t", since=again, on_change="changelog").plan(HistoryQuery())
    assert collect(added).rows() == [(2, "b", 1.0, 1)]
