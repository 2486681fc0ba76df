"""A table of one job's Iceberg sink, for tests."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT

from catalog.catalogs import Catalogs, TableName
from catalog.staging import DataFileWriter
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary
from headrace.kernel.errors import FencedError, NotFoundError
from headrace.kernel.protocols import Entry, EpochId, SinkContext
from headrace.sinks.iceberg import IcebergSink, IcebergWriter

if TYPE_CHECKING:
    from tests.services import CatalogCase

ROWS = pl.Schema({"id": pl.Int64(), "day": pl.Date()})


class Blobs:
    """A blob store in memory."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def put(self, name: str, data: bytes) -> None:
        if name in self.blobs:
            raise FencedError(f"blob {name} exists")
        self.blobs[name] = data

    def get(self, name: str) -> bytes:
        if name not in self.blobs:
            raise NotFoundError(f"no blob {name}")
        return self.blobs[name]

    def delete(self, name: str) -> None:
        self.blobs.pop(name, None)

    def list(self, prefix: str) -> list[str]:
        return sorted(name for name in self.blobs if name.startswith(prefix))


@dataclass
class Clock:
    us: int = 1_700_000_000_000_000
    seconds: float = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now_us(self) -> int:
        return self.us

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class Lake:
    """A catalog, and writers of one job's sink to one table of it."""

    catalogs: Catalogs
    name: TableName
    blobs: Blobs = field(default_factory=Blobs)
    clock: Clock = field(default_factory=Clock)

    def writer(
        self,
        lineage: str = "L1",
        job: str = "job",
        schema: pl.Schema = ROWS,
        blobs: Blobs | None = None,
        entry: Entry = Entry.GOES_ON,
        decided: int | None = None,
        **options: Any,
    ) -> IcebergWriter:
        settings = {"create": True, "clock": self.clock, **options}
        sink = IcebergSink("out", self.catalogs, str(self.name), **settings)
        if decided is None and entry is not Entry.BEGINS:
            decided = 0 if entry is Entry.RESTORED else sys.maxsize  # whatever stands here was decided
        context = SinkContext(job, lineage, blobs or self.blobs, decided, entry is Entry.RESTORED)
        return sink.open(schema, context)

    def table(self) -> Any:
        return self.catalogs.load(self.name)

    def ids(self) -> list[int]:
        return sorted(self.table().scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())

    def data_snapshots(self) -> list[Any]:
        return [s for s in self.table().snapshots() if int(s.summary.additional_properties.get("added-records", 0))]


class Rewrite(_OverwriteFiles):
    """The same rows in other files: a snapshot of the kind that compaction makes."""

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        self._operation = Operation.OVERWRITE
        facts = super()._summary(snapshot_properties).additional_properties
        self._operation = Operation.REPLACE
        return Summary(operation=Operation.REPLACE, **facts)


def compact(table: Any) -> None:
    """All data files of an unpartitioned table in one."""
    transaction = table.transaction()
    old = [task.file for task in table.scan().plan_files()]
    merged = pl.from_arrow(table.scan().to_arrow())
    assert isinstance(merged, pl.DataFrame)
    with Rewrite(Operation.REPLACE, transaction, table.io) as rewrite:
        for data_file in DataFileWriter(table, "compacted").write(merged):
            rewrite.append_data_file(data_file)
        for data_file in old:
            rewrite.delete_data_file(data_file)
    transaction.commit_transaction()


def rows(*ids: int) -> pl.DataFrame:
    return pl.DataFrame({"id": ids, "day": [dt.date(2024, 1, 1 + n % 28) for n in ids]}, schema=ROWS)


def epoch(number: int, lineage: str = "L1", attempt: str = "a") -> EpochId:
    return EpochId("job", lineage, number, attempt)


def covers(upto: int, topic: str = "bids") -> Boundary:
    return Boundary({topic: TopicBoundary({0: PartitionRange(0, upto)}, "id-1")}, "cluster-1")


@pytest.fixture
def lake(catalog: CatalogCase) -> Iterator[Lake]:
    catalogs = Catalogs({"lake": catalog.properties})
    yield Lake(catalogs, TableName("lake", (catalog.namespace,), "t"))
    catalogs.close()


@pytest.fixture
def local(open_catalog: Callable[[str], CatalogCase]) -> Iterator[Lake]:
    catalog = open_catalog("local")
    catalogs = Catalogs({"lake": catalog.properties})
    yield Lake(catalogs, TableName("lake", (catalog.namespace,), "t"))
    catalogs.close()
