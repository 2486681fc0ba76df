"""A history that holds several topics gives the rows of the source's topics."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
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
from hybrid_source.history_rows import Trim
from hybrid_source.history_sequence import HistorySequence
from hybrid_source.history_stage import LakeHistory
from hybrid_source.iceberg_history import open_iceberg
from hybrid_source.resolution import OffsetNames, Resolution
from tests.history_tables import append, open_catalog

if TYPE_CHECKING:
    from collections.abc import Mapping
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
    """A boundary rule of the tests: each topic ends at offset 3, if nothing else is said."""

    trim: bool
    ends: Mapping[str, int] = field(default_factory=dict)
    name: str = "stated"
    looks_for: str = "nothing"

    def resolve(self, context: BoundaryContext) -> Resolution:
        boundary = Boundary({context.topic: TopicBoundary({0: PartitionRange(0, self.ends.get(context.topic, 3))})})
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


# ------------------------------------------------------------------------------------------------ rows at the boundary

NEXTS = {"a": {0: 2, 1: 4}, "b": {0: 5}}
PLACES = pl.DataFrame(
    list(product(["a", "b", "c", None], [0, 1, 2, None], [0, 1, 2, 3, 4, 5, 6, None])),
    schema={"t": pl.String, "p": pl.Int32, "o": pl.Int64},
    orient="row",
)


def stays(row: tuple[str | None, int | None, int | None], rest: int, topics: Mapping[str, object]) -> bool:
    """What the trim means, for one row."""
    topic, partition, offset = row
    if partition is None or offset is None or topic == "c":
        return True
    limits = [NEXTS[one].get(partition, rest) for one in topics if topic in (one, None)]
    return all(offset < limit for limit in limits)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("rest", [0, 3, 1 << 62])
@pytest.mark.parametrize("topics", [["a"], ["b"], ["a", "b"]])
def test_a_row_stays_below_the_next_offset_of_its_own_place(topics: list[str], rest: int, *, named: bool) -> None:
    nexts = {topic: NEXTS[topic] for topic in topics}
    rows = PLACES.filter(pl.col("t").is_null() | pl.col("t").is_in([*topics, "c"]))
    trim = Trim(nexts, OffsetNames("p", "o", "t" if named else None), rest)
    wanted = [row for row in rows.rows() if stays((row[0] if named else None, *row[1:]), rest, nexts)]
    predicate = trim.predicate(rows.schema)
    assert predicate is not None
    assert rows.filter(predicate).rows() == wanted
    narrow = replace(trim, others=False).predicate(rows.schema)
    assert narrow is not None
    assert rows.filter(narrow).filter(pl.col("t") != "c").rows() == [row for row in wanted if row[0] in topics]


def test_rows_of_no_topic_are_undecided_between_the_topics_next_offsets() -> None:
    trim = Trim(NEXTS, OffsetNames("p", "o", "t"))
    undecided = trim.undecided(PLACES.schema)
    assert undecided is not None
    found = PLACES.filter(undecided)
    assert found["t"].null_count() == found.height
    assert found.select("p", "o").rows() == [*((0, at) for at in (2, 3, 4)), *((1, at) for at in (0, 1, 2, 3))]
    assert Trim({"a": NEXTS["a"]}, OffsetNames("p", "o", "t")).undecided(PLACES.schema) is None


def test_the_trim_of_many_topics_is_one_look_up() -> None:
    # A predicate for each topic took 3.9 s for a million rows at 400 topics.
    def parts(topics: int) -> int:
        trim = Trim({f"t{number}": {0: number, 1: 7} for number in range(topics)}, OffsetNames("p", "o", "t"))
        drawn = trim.predicate(PLACES.schema)
        assert drawn is not None
        return len(str(drawn.meta.tree_format(return_as_string=True)).splitlines())

    assert parts(400) == parts(2)


def test_files_above_the_boundary_are_not_opened_where_rows_name_their_topic(tmp_path: Path) -> None:
    table = open_catalog(tmp_path).create_table("ns.t", TABLE)
    append(table, rows("a", 3), rows("b", 5), rows("a", 9).tail(4), rows("b", 9).tail(4))
    stage = LakeHistory(
        lambda pin: open_iceberg(table, "local.ns.t", pin=pin), rules=[Stated(trim=True, ends={"b": 5})]
    )
    pin = stage.pin()
    assert read(stage, "a", "b") == {"a": 3, "b": 5}
    assert stage.open(REQUEST, pin, stage.resolve(pin, ["a", "b"])).plan.report.files == 2


def test_rows_of_no_topic_that_one_topic_has_in_the_history_and_another_in_the_tail_are_refused(tmp_path: Path) -> None:
    table = open_catalog(tmp_path).create_table("ns.t", TABLE)
    nameless = rows("a", 5).with_columns(pl.lit(None, pl.String()).alias(system.TOPIC))
    append(table, rows("a", 3), rows("b", 5), nameless)
    stage = LakeHistory(
        lambda pin: open_iceberg(table, "local.ns.t", pin=pin), rules=[Stated(trim=True, ends={"b": 5})]
    )
    with pytest.raises(BoundaryError, match=r"2 rows of local\.ns\.t do not say .* partition 0 offset 3") as refused:
        stage.resolve(stage.pin(), ["a", "b"])
    assert refused.value.code == "ROWS_WITHOUT_TOPIC"
    assert refused.value.hint
    # Below both, or left out, or where the boundary is that of one topic alone, there is nothing to decide.
    stage.resolve(stage.pin(), ["a"])
    without = replace(stage, where=pl.col(system.TOPIC).is_not_null())
    assert read(without, "a", "b") == {"a": 3, "b": 5}
