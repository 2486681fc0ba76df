"""The seam proof: what the lake holds, and whether the tail goes on exactly where it ends."""

import io
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from headrace.cli.seam import print_seam
from headrace.jobs.seam import PartitionSeam, SeamProof, SourceSeam, scan_lake
from headrace.jobs.seam_store import LakeSide, SeamStore
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary, TopicPartition
from headrace.testing.stores import MemoryBlobs
from hybrid_source.hybrid_position import KEPT_SWITCHES, HybridPosition
from hybrid_source.parquet_history import open_parquet
from hybrid_source.resolution import OffsetNames, Resolution

NAMES = OffsetNames()
NOTHING = LakeSide(0, None, None, 0, [], 7)


def scan(folder: Path, files: list[list[tuple[int, int]]], boundary: dict[int, int]) -> dict[int, LakeSide]:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for number, rows in enumerate(files):
        schema = {"_kafka_partition": pl.Int32, "_kafka_offset": pl.Int64}
        pl.DataFrame(rows, schema=schema, orient="row").write_parquet(folder / f"{number}.parquet")
    ranges = {partition: PartitionRange(0, next_offset) for partition, next_offset in boundary.items()}
    found = scan_lake(open_parquet(f"{folder}/*.parquet"), NAMES, "topic", ranges)
    assert found is not None
    return dict(found)


def test_contiguous_files(tmp_path: Path) -> None:
    found = scan(tmp_path / "h", [[(0, 0), (0, 1), (1, 5)], [(0, 2), (1, 6)]], {0: 3, 1: 7})
    assert found == {0: LakeSide(3, 0, 2, 0, [], 0), 1: LakeSide(2, 5, 6, 0, [], 0)}


def test_holes_duplicates_and_rows_beyond_the_boundary(tmp_path: Path) -> None:
    files = [[(0, 0), (0, 1), (0, 1), (0, 4)], [(0, 4), (0, 5), (0, 9), (0, 12)], [(2, 1)]]
    found = scan(tmp_path / "h", files, {0: 10})
    assert found == {
        0: LakeSide(7, 0, 9, 2, [(2, 4), (6, 9)], 1),
        2: LakeSide(0, None, None, 0, (), 1),
    }


def test_other_topics_do_not_count(tmp_path: Path) -> None:
    rows = {"_kafka_topic": ["topic", "other", None], "_kafka_partition": [0, 0, 0], "_kafka_offset": [0, 1, 2]}
    pl.DataFrame(rows).write_parquet(tmp_path / "a.parquet")
    found = scan_lake(
        open_parquet(f"{tmp_path}/*.parquet"), OffsetNames(topic="_kafka_topic"), "topic", {0: PartitionRange(0, 3)}
    )
    assert found == {0: LakeSide(2, 0, 2, 0, [(1, 2)], 0)}


def test_rows_without_offsets_prove_nothing(tmp_path: Path) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "a.parquet")
    assert scan_lake(open_parquet(f"{tmp_path}/*.parquet"), NAMES, "topic", {}) is None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=12), min_size=1, max_size=4), st.integers(0, 31))
def test_scan_agrees_with_counting(files: list[list[int]], boundary: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        found = scan(Path(folder) / "h", [[(0, offset) for offset in rows] for rows in files], {0: boundary})
    offsets = [offset for rows in files for offset in rows]
    below = [offset for offset in offsets if offset < boundary]
    side = found[0]
    assert side.rows == len(below)
    assert side.duplicates == len(below) - len(set(below))
    assert side.trimmed == len(offsets) - len(below)
    if below:
        assert (side.first, side.last) == (min(below), max(below))
        absent = set(range(min(below), max(below) + 1)) - set(below)
        assert {offset for start, end in side.holes for offset in range(start, end)} == absent


@pytest.mark.parametrize(
    ("boundary", "tail_start", "duplicates", "missing", "overlap", "exact"),
    [
        (10, 10, 0, 0, 0, True),
        (10, 12, 0, 2, 0, False),
        (10, 8, 0, 0, 2, False),
        (10, 10, 1, 0, 0, False),
        (None, 0, 0, 0, 0, True),
        (None, 4, 0, 4, 0, False),
        (10, None, 0, 0, 0, True),
    ],
)
def test_verdict(
    boundary: int | None, tail_start: int | None, duplicates: int, missing: int, overlap: int, exact: bool
) -> None:
    lake = LakeSide(10, 0, 9, duplicates, [], 0)
    seam = PartitionSeam("topic", 0, 0, boundary, tail_start, tail_start, tail_start, lake)
    assert (seam.missing, seam.overlap, seam.exact) == (missing, overlap, exact)


def test_what_was_lost_is_no_exact_seam() -> None:
    seam = PartitionSeam("topic", 0, 0, 10, 10, 10, 90, LakeSide(10, 0, 9, 0, [], 0), ((40, 50),))
    assert not seam.exact
    assert seam.to_json()["lost"] == ((40, 50),)
    proof = SeamProof("job", 1, [SourceSeam("s", "tail", {}, "own record", "snapshot", [seam])])
    console = Console(file=io.StringIO(), width=120, color_system=None)
    print_seam(proof, console)
    assert isinstance(console.file, io.StringIO)
    assert "topic[0]: offsets 40 to 50 (exclusive) were gone, and are lost" in console.file.getvalue()


def test_proof_for_people_and_machines() -> None:
    lake = LakeSide(1998, 0, 1999, 0, [(5, 7)], 3)
    partition = PartitionSeam("topic", 0, 0, 2000, 2001, 2001, 2500, lake)
    proof = SeamProof(
        "job",
        4,
        [SourceSeam("s", "tail", {}, "own record", "snapshot [42]", [partition])],
    )
    console = Console(file=io.StringIO(), width=120, color_system=None)
    print_seam(proof, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "boundary by own record: snapshot [42]" in text
    assert "topic[0]: no rows for offsets 5 to 7 (exclusive)" in text
    assert "the seam is NOT exact" in text
    facts = proof.to_json()
    assert facts["exact"] is False
    assert facts["sources"][0]["partitions"][0]["missing"] == 1


def test_scans_are_stored_and_bounded() -> None:
    store = SeamStore(MemoryBlobs())
    boundary = Resolution(Boundary({"t": TopicBoundary({0: PartitionRange(0, 3)}, None)}), "record", "evidence")
    at = [HybridPosition("tail", pin={"snapshot": number}, resolution=boundary) for number in range(KEPT_SWITCHES + 2)]
    sides = [
        {TopicPartition("t", 0): LakeSide(number, 0, 2**53 + 1, 0, [(1, 2)], 0), TopicPartition("t", 1): NOTHING}
        for number in range(len(at))
    ]
    for epoch, (position, found) in enumerate(zip(at, sides, strict=True)):
        assert store.find("a/b", position) is None
        store.keep("a/b", position, epoch, found)
        store.keep("other", position, epoch, {})
    assert [store.find("a/b", position) for position in at] == [None, None, *sides[2:]]
    assert store.find("other", at[-1]) == {}
    assert len(store.blobs.list("seam/")) == 2 * KEPT_SWITCHES
