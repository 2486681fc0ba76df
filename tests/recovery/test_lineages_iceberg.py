"""One job uid in two state folders: two lineages, one Iceberg table. Only one of them may ever have rows there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import pytest

from catalog.catalogs import Catalogs, TableName
from catalog.changing import RetryPolicy
from catalog.commit import commit_epoch, fence
from catalog.tables import create_table
from catalog.tokens import LINEAGE, SinkKey
from headrace.kernel.errors import FencedError, SupersededError, UserError
from headrace.kernel.protocols import Entry, PreCommit
from headrace.sinks.iceberg_precommit import from_json
from tests.lake import ROWS, Blobs, Lake, epoch, rows
from tests.services import CatalogCase

KEY = SinkKey("job", "out")


@pytest.fixture
def lake(open_catalog: Callable[[str], CatalogCase]) -> Iterator[Lake]:
    case = open_catalog("local")
    catalogs = Catalogs({"lake": case.properties})
    yield Lake(catalogs, TableName("lake", (case.namespace,), "t"))
    catalogs.close()


class Stale:
    """Catalogs that show a table as it was read earlier, the first time they are asked."""

    def __init__(self, real: Catalogs, table: Any) -> None:
        self._real = real
        self._shown: Any = table

    def load(self, name: str | TableName) -> Any:
        shown, self._shown = self._shown, None
        return self._real.load(name) if shown is None else shown


@dataclass
class Instance:
    """A lineage: it begins, commits epoch 1, dies and recovers; each change of the table is read, then sent."""

    lake: Lake
    lineage: str
    staged: PreCommit
    read: Any = None
    outcome: str = "running"
    steps: Iterator[Callable[[], None]] = field(init=False)

    def __post_init__(self) -> None:
        self.steps = iter([self._look, self._begin, self._look, self._commit])

    def step(self) -> None:
        action = next(self.steps)
        if self.outcome != "running":
            return
        try:
            action()
        except (SupersededError, UserError) as error:
            self.outcome = error.code

    def _look(self) -> None:
        self.read = self.lake.table()

    def _begin(self) -> None:
        self._fence(Stale(self.lake.catalogs, self.read), Entry.BEGINS)

    def _commit(self) -> None:
        stale: Any = Stale(self.lake.catalogs, self.read)
        commit_epoch(stale, from_json(self.staged), RetryPolicy(first_wait=0.0))

    def _fence(self, catalogs: Any, entry: Entry) -> None:
        fence(catalogs, self.lake.name, KEY, self.lineage, RetryPolicy(first_wait=0.0), entry=entry)

    def recover(self) -> None:
        """As after a restart, with epoch 1 decided; whoever was refused has decided nothing, and begins again."""
        entry = Entry.BEGINS if self.outcome == "SINK_HAS_COMMITS" else Entry.GOES_ON
        try:
            self._fence(self.lake.catalogs, entry)
            commit_epoch(self.lake.catalogs, from_json(self.staged))
        except (SupersededError, UserError):
            return


@pytest.mark.parametrize("table", ["empty", "with rows of others"])
def test_two_lineages_in_every_order_of_reads_and_writes(lake: Lake, table: str) -> None:
    prepared = staged(lake)
    # The two are alike: the first one may as well take the first step.
    for order, first in enumerate((0, *later) for later in combinations(range(1, 8), 3)):
        fresh = TableName(lake.name.catalog, lake.name.namespace, f"t{order}")
        here = Lake(lake.catalogs, fresh)
        made = create_table(lake.catalogs, fresh, ROWS)
        if table != "empty":
            made.append(rows(7).to_arrow().cast(made.schema().as_arrow()))
        one, two = (Instance(here, name, retargeted(prepared[name], here)) for name in ("L1", "L2"))
        for at in range(8):
            (one if at in first else two).step()
        check(here, first)
        for instance in (one, two) if order % 2 else (two, one):
            instance.recover()
        check(here, first)


def check(lake: Lake, order: tuple[int, ...]) -> None:
    owners = [s.summary.additional_properties.get(LINEAGE) for s in lake.data_snapshots()]
    owners = [owner for owner in owners if owner is not None]
    assert len(owners) == 1, (order, owners)


def staged(lake: Lake) -> dict[str, PreCommit]:
    """Epoch 1 of both lineages, prepared on a table that only serves to write the files."""
    found: dict[str, PreCommit] = {}
    for name in ("L1", "L2"):
        writer = lake.writer(name, blobs=Blobs())
        writer.write(rows(1))
        pre_commit = writer.prepare(epoch(1, name), None)
        assert pre_commit is not None
        found[name] = pre_commit
        writer.close()
    return found


def retargeted(pre_commit: PreCommit, lake: Lake) -> PreCommit:
    return {**pre_commit, "table": str(lake.name), "table_uuid": str(lake.table().metadata.table_uuid)}


def test_a_job_that_lost_its_state_is_refused_and_the_other_goes_on(lake: Lake) -> None:
    first = lake.writer(entry=Entry.BEGINS)
    first.recover(None)
    first.write(rows(1))
    first.commit(first.prepare(epoch(1), None) or {})
    with pytest.raises(UserError, match="has committed before") as caught:
        lake.writer("L2", blobs=Blobs(), entry=Entry.BEGINS)
    assert caught.value.code == "SINK_HAS_COMMITS"
    first.write(rows(2))
    first.commit(first.prepare(epoch(2), None) or {})
    assert lake.ids() == [1, 2]
    lake.writer("L3", job="another-job", blobs=Blobs(), entry=Entry.BEGINS).recover(None)


def test_a_lineage_that_was_superseded_never_takes_its_turn_back(lake: Lake) -> None:
    older = lake.writer(entry=Entry.BEGINS)
    older.recover(None)
    older.write(rows(1))
    decided = older.prepare(epoch(1), None)
    assert decided is not None
    newer = lake.writer("L2", blobs=Blobs(), entry=Entry.BEGINS)
    newer.recover(None)
    newer.write(rows(1))
    newer.commit(newer.prepare(epoch(1, "L2"), None) or {})
    for _ in range(2):
        with pytest.raises(FencedError) as caught:
            lake.writer().recover(decided)
        assert caught.value.code == "LINEAGE_SUPERSEDED"
    newer.write(rows(2))
    newer.commit(newer.prepare(epoch(2, "L2"), None) or {})
    assert lake.ids() == [1, 2]
