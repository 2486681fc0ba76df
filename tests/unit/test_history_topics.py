"""A history that holds several topics gives the rows of the source's topics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from headrace.kernel import columns as system
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary, TopicPartition
from headrace.kernel.errors import BoundaryError
from headrace.kernel.protocols import ReadRequest
from hybrid_source.boundary import BoundaryContext, ExplicitOffsets, resolve_boundary
from hybrid_source.history_sequence import HistorySequence
from hybrid_source.history_stage import LakeHistory
from hybrid_source.iceberg_history import open_iceberg
from hybrid_source.resolution import OffsetNames, Resolution
from tests.history_tables import append, open_catalog

if TYPE_CHECKING:
    from pathlib import Path

REQUEST = ReadRequest(["id", system.TOPIC])
TABLE = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, system.TOPIC, StringType(), required=False),
    NestedField(3, system.PARTITION, IntegerType(), required=False),
    NestedField(4, system.OFFSET, LongType(), required=False),
)


@dataclass(frozen=True, slots=True)
class Stated:
    """A boundary rule of the tests: each topic ends at offset 3."""

    trim: bool
    name: str = "stated"
    looks_for: str = "nothing"

    def resolve(self, context: BoundaryContext) -> Resolution:
        boundary = Boundary({context.topic: TopicBoundary({0: PartitionRange(0, 3)})})
        return Resolution(boundary, "stated", "", trim=self.trim, columns=OffsetNames(topic=system.TOPIC))


def rows(topic: str | None, count: int = 4) -> pl.DataFrame:
    number = pl.int_range(count, eager=True)
    return pl.DataFrame({"id": number, system.OFFSET: number if topic else None}).select(
        "id",
        pl.lit(topic, pl.String()).alias(system.TOPIC),
        pl.lit(0 if topic else None, pl.Int32()).alias(system.PARTITION),
        pl.col(system.OFFSET).cast(pl.Int64),
    )


@pytest.fixture
def history(tmp_path: Path) -> LakeHistory:
    table = open_catalog(tmp_path).create_table("ns.t", TABLE)
    append(table, *map(rows, ("orders-eu", "orders-us", "my-orders-eu", "other", None)))
    return LakeHistory(lambda pin: open_iceberg(table, "local.ns.t", pin=pin))


def read(history: LakeHistory | HistorySequence, *topics: str) -> dict[str | None, int]:
    """How many rows of each topic a source reads that has a tail of some topics; of none: that has no tail."""
    pin = history.pin()
    opened = history.open(REQUEST, pin, history.resolve(pin, topics) if topics else None)
    found = pl.concat([batch.rows.collect() for batch in opened.read(None)])[system.TOPIC]
    return dict(found.value_counts().iter_rows())


@pytest.mark.parametrize(("trim", "each"), [(True, 3), (False, 4)])
def test_rows_of_other_topics_are_left_out(history: LakeHistory, *, trim: bool, each: int) -> None:
    history = replace(history, rules=[Stated(trim)])
    assert read(history, "orders-eu") == {"orders-eu": each, None: 4}
    assert read(history, "orders-eu", "orders-us") == {"orders-eu": each, "orders-us": each, None: 4}


def test_files_of_other_topics_are_not_opened(history: LakeHistory) -> None:
    history = replace(history, rules=[Stated(trim=False)])
    pin = history.pin()
    assert history.open(REQUEST, pin, history.resolve(pin, ["orders-eu"])).plan.report.files == 2


def test_a_table_without_a_tail_is_read_whole(history: LakeHistory) -> None:
    whole = {"orders-eu": 4, "orders-us": 4, "my-orders-eu": 4, "other": 4, None: 4}
    assert read(history) == whole


@pytest.mark.parametrize("pattern", ["orders-.*|o", r"(?!my-|other).*"])
def test_topics_that_match_the_pattern_belong_to_the_source(history: LakeHistory, pattern: str) -> None:
    # Of what matches, the cluster no longer has orders-us: its rows are here only. Polars knows no look-around.
    history = replace(history, rules=[Stated(trim=True)], topic_pattern=pattern)
    assert read(history, "orders-eu") == {"orders-eu": 3, "orders-us": 4, None: 4}


def test_earlier_stages_leave_them_out_as_well(history: LakeHistory, tmp_path: Path) -> None:
    new = open_catalog(tmp_path).create_table("ns.new", TABLE)
    append(new, rows("orders-eu").filter(pl.col("id") >= 2), rows("other"))
    last = LakeHistory(lambda pin: open_iceberg(new, "local.ns.new", pin=pin), rules=[Stated(trim=True)])
    assert read(HistorySequence([history, last]), "orders-eu") == {"orders-eu": 3, None: 4}


def test_stated_offsets_of_a_topic_that_no_row_names_are_refused(history: LakeHistory) -> None:
    pinned = history.open_history(None)
    rule = ExplicitOffsets({TopicPartition("renamed", 0): 3, TopicPartition("other", 0): 3})
    assert rule.resolve(BoundaryContext(pinned, "other")).columns == OffsetNames(topic=system.TOPIC)
    with pytest.raises(
        BoundaryError, match=r"no row of local\.ns\.t is of topic 'renamed', which the boundary says"
    ) as refused:
        resolve_boundary([rule], BoundaryContext(pinned, "renamed"))
    assert refused.value.code == "TOPIC_NOT_IN_HISTORY"
    assert "other" in str(refused.value.detail)
    assert "offsets stated by the job" in str(refused.value.detail)
    nothing = ExplicitOffsets({TopicPartition("renamed", 0): 0})
    assert nothing.resolve(BoundaryContext(pinned, "renamed")).boundary.nexts == {TopicPartition("renamed", 0): 0}
