"""How the boundary between history and tail is found, and what the plan says about it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import jsonschema
import polars as pl
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType

from catalog import boundary_record
from catalog.boundary_record import forgotten, merged
from headrace.kernel.boundary import Boundary, Incarnation, PartitionRange, TopicBoundary, TopicPartition
from headrace.kernel.errors import BoundaryError, NotFoundError, SpecError
from hybrid_source.boundary import (
    BoundaryContext,
    BoundaryRule,
    ExplicitOffsets,
    NamedColumns,
    auto_rules,
    resolve_boundary,
)
from hybrid_source.iceberg_history import open_iceberg
from hybrid_source.parquet_history import open_parquet
from hybrid_source.resolution import OffsetNames, Resolution
from tests.history_tables import append, open_catalog

NAME = "local.ns.t"
AUTO: Sequence[BoundaryRule] = auto_rules(None)
ARCHIVE = Schema(
    NestedField(1, "v", LongType(), required=False),
    NestedField(2, "_kafka_partition", IntegerType(), required=False),
    NestedField(3, "_kafka_offset", LongType(), required=False),
)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    opened = open_catalog(tmp_path)
    yield opened
    opened.close()


def rows(*pairs: tuple[int | None, int | None]) -> pl.DataFrame:
    return pl.DataFrame(
        {"v": [0] * len(pairs), "_kafka_partition": [p for p, _ in pairs], "_kafka_offset": [o for _, o in pairs]},
        schema={"v": pl.Int64, "_kafka_partition": pl.Int32, "_kafka_offset": pl.Int64},
    )


def partition(number: int, offsets: range) -> pl.DataFrame:
    return rows(*((number, offset) for offset in offsets))


def resolve(table: Table, rules: Sequence[BoundaryRule] = AUTO, topic: str = "t") -> Resolution:
    return resolve_boundary(rules, BoundaryContext(open_iceberg(table, NAME), topic))


def nexts(found: Resolution, topic: str = "t") -> dict[int, int]:
    return {number: covered.next for number, covered in found.boundary.topics[topic].partitions.items()}


def record(table: Table, frame: pl.DataFrame, boundary: Boundary) -> None:
    text = boundary_record.write(table, boundary)
    table.append(frame.to_arrow().cast(table.schema().as_arrow()), snapshot_properties={boundary_record.BOUNDARY: text})


def bounds(next_offset: int, topic: str = "t") -> Boundary:
    return Boundary({topic: TopicBoundary({0: PartitionRange(0, next_offset)}, "id-1")}, "cluster-1")


def test_our_own_record_comes_first_and_keeps_the_identity(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", ARCHIVE)
    record(table, partition(0, range(10)), bounds(12))  # past a transaction marker: more than the last row says
    found = resolve(table)
    assert nexts(found) == {0: 12}
    assert found.rule == "recorded boundary"
    assert found.guarantee == "exactly-once"
    assert found.boundary.cluster == "cluster-1"
    assert found.boundary.topics["t"].topic_id == "id-1"
    assert str(table.current_snapshot().snapshot_id) in found.evidence


def test_the_record_is_the_one_of_the_pinned_snapshot(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", ARCHIVE)
    record(table, partition(0, range(10)), bounds(10))
    pinned = table.current_snapshot().snapshot_id
    record(table, partition(0, range(10, 20)), bounds(20))
    history = open_iceberg(table, NAME, snapshot_id=pinned)
    assert nexts(resolve_boundary(AUTO, BoundaryContext(history, "t"))) == {0: 10}


def test_rows_that_others_added_since_weaken_the_guarantee(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", ARCHIVE)
    record(table, partition(0, range(10)), bounds(10))
    append(table, rows((None, None)))
    found = resolve(table)
    assert nexts(found) == {0: 10}
    assert "other writers" in found.guarantee
    assert "added 1" in found.evidence


def test_a_record_of_another_topic_is_not_ours(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", ARCHIVE)
    record(table, partition(0, range(10)), bounds(99, topic="other"))
    assert nexts(resolve(table)) == {0: 10}


def test_an_unreadable_record_stops_instead_of_trying_another_rule(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", ARCHIVE)
    table.append(
        partition(0, range(3)).to_arrow().cast(table.schema().as_arrow()),
        snapshot_properties={boundary_record.BOUNDARY: '{"version": 9}'},
    )
    with pytest.raises(BoundaryError, match="cannot be read"):
        resolve(table)


def test_offset_columns_are_read_from_file_statistics_where_these_are_exact(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", ARCHIVE)
    append(table, partition(0, range(10)), partition(1, range(5, 8)), partition(0, range(10, 13)))
    found = resolve(table)
    assert nexts(found) == {0: 13, 1: 8}
    assert found.boundary.topics["t"].partitions[1].start == 5
    assert found.evidence.startswith("file statistics")
    assert "exactly-once if" in found.guarantee


def test_offset_columns_are_scanned_where_files_mix_partitions(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", ARCHIVE)
    append(table, rows((0, 0), (1, 0), (0, 1), (1, 2), (None, None), (1, 2)), partition(0, range(2, 4)))
    found = resolve(table)
    assert nexts(found) == {0: 4, 1: 3}
    assert found.evidence.startswith("a scan")
    assert "partition 0 holds offsets 0 to 3, each once" in found.evidence


def test_holes_and_doubles_are_told(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", ARCHIVE)
    append(table, rows((0, 0), (0, 5), (1, 0), (1, 0)))
    evidence = resolve(table).evidence
    assert "offsets 0 to 5 with 4 left out" in evidence
    assert "with 1 rows more than offsets" in evidence


def test_named_columns_of_other_writers_may_be_nested(catalog: SqlCatalog) -> None:
    meta = StructType(
        NestedField(11, "partition", IntegerType(), required=False),
        NestedField(12, "offset", LongType(), required=False),
    )
    table = catalog.create_table("ns.t", Schema(NestedField(1, "redpanda", meta, required=False)))
    frame = pl.DataFrame(
        {"redpanda": [{"partition": 0, "offset": 6}, {"partition": 2, "offset": 1}]},
        schema={"redpanda": pl.Struct({"partition": pl.Int32, "offset": pl.Int64})},
    )
    append(table, frame)
    rule = NamedColumns(OffsetNames("redpanda.partition", "redpanda.offset"))
    assert nexts(resolve(table, [rule])) == {0: 7, 2: 2}


def test_rows_of_other_topics_do_not_count(catalog: SqlCatalog) -> None:
    schema = Schema(*ARCHIVE.fields, NestedField(4, "_kafka_topic", StringType(), required=False))
    table = catalog.create_table("ns.t", schema)
    ours = partition(0, range(3)).with_columns(_kafka_topic=pl.lit("t"))
    theirs = partition(0, range(50)).with_columns(_kafka_topic=pl.lit("other"))
    rule = NamedColumns(OffsetNames(topic="_kafka_topic"))
    append(table, ours, theirs)
    by_statistics = resolve(table, [rule])
    append(table, pl.concat([theirs, ours]))
    by_rows = resolve(table, [rule])
    assert nexts(by_statistics) == nexts(by_rows) == {0: 3}
    assert (by_statistics.evidence[:4], by_rows.evidence[:6]) == ("file", "a scan")


def test_named_columns_that_are_not_there_are_an_error(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", ARCHIVE)
    append(table, partition(0, range(1)))
    with pytest.raises(NotFoundError, match="no column nope"):
        resolve(table, [NamedColumns(OffsetNames("nope", "_kafka_offset"))])


def test_snp_04_an_empty_table_begins_the_tail_at_the_earliest_offsets(catalog: SqlCatalog) -> None:
    found = resolve(catalog.create_table("ns.t", Schema(NestedField(1, "v", LongType(), required=False))))
    assert nexts(found) == {}
    assert found.rule == "empty history"


def test_without_any_rule_the_refusal_says_what_was_looked_for_and_what_helps(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", Schema(NestedField(1, "v", LongType(), required=False)))
    append(table, pl.DataFrame({"v": [1]}))
    with pytest.raises(BoundaryError) as caught:
        resolve(table)
    assert NAME in caught.value.message
    assert "topic t" in caught.value.message
    assert "_kafka_offset" in caught.value.detail
    assert "boundary record" in caught.value.detail
    assert ["recorded boundary", "not there", "a boundary record of Headrace in the table"] in caught.value.context[
        "tried"
    ]
    assert "boundary: {offsets" in caught.value.hint


def test_stated_offsets_are_taken_on_trust(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", ARCHIVE)
    found = resolve(table, [ExplicitOffsets({TopicPartition("t", 1): 7, TopicPartition("t", 0): 120})])
    assert nexts(found) == {0: 120, 1: 7}
    assert "exactly-once if" in found.guarantee
    with pytest.raises(SpecError):
        resolve(table, [ExplicitOffsets({TopicPartition("t", 0): -1})])


def test_a_parquet_history_is_scanned(tmp_path: Path) -> None:
    rows((0, 0), (0, 1), (1, 4)).write_parquet(tmp_path / "a.parquet")
    context = BoundaryContext(open_parquet(str(tmp_path)), "t")
    assert nexts(resolve_boundary(AUTO, context)) == {0: 2, 1: 5}


def _one(start: int, following: int) -> Boundary:
    return Boundary({"t": TopicBoundary({0: PartitionRange(start, following)})})


@pytest.mark.parametrize(
    ("earlier", "ours", "expected"),
    [
        ((0, 100), (100, 150), (0, 150)),
        ((0, 1000), (0, 100), (0, 1000)),
        ((50, 100), (0, 60), (0, 100)),
        ((0, 1000), (2000, 3000), (2000, 3000)),
    ],
)
def test_ranges_of_two_writers_join_and_never_go_back(
    earlier: tuple[int, int], ours: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert merged(_one(*earlier), _one(*ours)) == _one(*expected)


def test_a_boundary_that_is_stated_anew_replaces_the_range() -> None:
    assert merged(_one(0, 500), _one(5, 450), restate=True) == _one(5, 450)


@pytest.mark.parametrize(
    ("earlier", "ours", "both"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T02:00:00+01:00", "2026-01-01T00:00:00Z"),
        ("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        (None, "2026-01-01T00:00:00Z", None),
    ],
)
def test_the_watermark_of_several_topics_is_the_smallest(earlier: str | None, ours: str, both: str | None) -> None:
    other = replace(bounds(5, "other"), watermark=earlier)
    mine = replace(bounds(7), watermark=ours)
    assert merged(other, mine).watermark == both
    assert merged(replace(bounds(5), watermark=earlier), mine).watermark == ours


# -------------------------------------------------------------------------------------------------- topics that changed


def of_incarnation(topic_id: str, next_offset: int, cluster: str = "c1") -> Boundary:
    return Boundary({"t": TopicBoundary({0: PartitionRange(0, next_offset)}, topic_id)}, cluster)


@pytest.mark.parametrize(
    ("now", "was"),
    [
        (of_incarnation("id-2", 10), Incarnation("id-1", "c1")),
        (of_incarnation("id-1", 10, "c2"), Incarnation("id-1", "c1")),
    ],
)
def test_hyb_05_ranges_of_a_former_incarnation_are_not_carried_on(now: Boundary, was: Incarnation) -> None:
    found = merged(of_incarnation("id-1", 10_000), now)
    assert found.next_offset("t", 0) == 10
    assert found.topics["t"].earlier == (was,)
    assert Boundary.from_json(found.to_json()) == found
    again = merged(
        found, replace(now, topics={"t": TopicBoundary({0: PartitionRange(10, 12)}, now.topics["t"].topic_id)})
    )
    assert again.topics["t"] == TopicBoundary({0: PartitionRange(0, 12)}, now.topics["t"].topic_id, (was,))


def test_hyb_05_a_reset_record_covers_nothing_of_the_topic_as_it_is_now(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", ARCHIVE)
    record(table, partition(0, range(10)), of_incarnation("id-1", 10))
    found = resolve(table)
    reset = forgotten(found.boundary, "t", Incarnation("id-2", "c1"))
    record(table, rows(), reset)
    found = resolve(table)
    assert nexts(found) == {}
    assert (found.boundary.topics["t"].topic_id, found.boundary.topics["t"].earlier) == (
        "id-2",
        (Incarnation("id-1", "c1"),),
    )
    assert "1 earlier incarnations" in found.evidence
    schema = json.loads((Path(__file__).parents[2] / "docs" / "boundary-format.schema.json").read_text())
    jsonschema.validate(found.boundary.to_json(), schema)
    # Others add rows: offsets of the former incarnation must not be taken for those of the present one.
    append(table, rows((None, None)))
    found = resolve(table)
    assert found.trim
    assert found.columns is None


def test_hyb_05_the_record_of_a_rolled_back_snapshot_is_not_used(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", ARCHIVE)
    record(table, partition(0, range(10)), bounds(10))
    first = table.current_snapshot().snapshot_id
    record(table, partition(0, range(10, 20)), bounds(20))
    rolled_back = table.current_snapshot().snapshot_id
    with table.transaction() as transaction:
        sequence = table.current_snapshot().sequence_number
        transaction.set_properties(
            boundary_record.properties(json.dumps(bounds(20).to_json()), rolled_back, sequence or 0)
        )
    table.manage_snapshots().set_current_snapshot(snapshot_id=first).commit()
    found = resolve(table)
    assert nexts(found) == {0: 10}
    assert str(first) in found.evidence


def test_hyb_05_an_expired_snapshots_record_is_kept_by_the_mirrored_property(catalog: SqlCatalog) -> None:
    table = catalog.create_table("ns.t", ARCHIVE)
    record(table, partition(0, range(10)), bounds(10))
    owner = table.current_snapshot()
    append(table, rows((None, None)))
    with table.transaction() as transaction:
        transaction.set_properties(
            boundary_record.properties(json.dumps(bounds(10).to_json()), owner.snapshot_id, owner.sequence_number or 0)
        )
    table.maintenance.expire_snapshots().by_id(owner.snapshot_id).commit()
    found = resolve(table)
    assert nexts(found) == {0: 10}
    assert "table property" in found.evidence
    assert found.trim
    with pytest.raises(NotFoundError, match="has no snapshot"):
        open_iceberg(table, NAME, snapshot_id=owner.snapshot_id)
