"""SNK-01: commits whose answer is lost, doubled or late, through a real proxy in front of a real REST catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from catalog.catalogs import Catalogs, TableName
from catalog.changing import RetryPolicy
from headrace.kernel.errors import CommitUnknownError, UnavailableError
from headrace.kernel.protocols import Entry
from tests.faulty_proxy import Fault, FaultyProxy
from tests.lake import Lake, covers, epoch, rows
from tests.services import CatalogCase

pytestmark = pytest.mark.services

QUICK = RetryPolicy(timeout=20, max_wait=0.5)


@dataclass
class Setup:
    proxy: FaultyProxy
    through: Lake
    direct: Lake


@pytest.fixture
def setup(open_catalog: Callable[[str], CatalogCase]) -> Iterator[Setup]:
    catalog = open_catalog("lake")
    proxy = FaultyProxy(catalog.properties["uri"])
    name = TableName("lake", (catalog.namespace,), "t")
    with proxy.running():
        through = Catalogs({"lake": {**catalog.properties, "uri": proxy.uri}})
        yield Setup(proxy, Lake(through, name), Lake(Catalogs({"lake": catalog.properties}), name))
        through.close()


def files_of(lake: Lake) -> list[str]:
    return [task.file.file_path for task in lake.table().scan().plan_files()]


@pytest.mark.parametrize("first", [True, False], ids=["first commit", "later commit"])
@pytest.mark.parametrize(
    "plan",
    [
        ["504 after commit"],
        ["close after commit"],
        ["commit twice"],
        ["close before commit"],
        ["504 before commit"],
        ["late commit"],
        ["504 before commit", "late commit", "close after commit"],
    ],
    ids=" then ".join,
)
def test_snk_01_a_commit_without_a_clear_answer_is_never_doubled(setup: Setup, plan: list[Fault], first: bool) -> None:
    writer = setup.through.writer(retry=QUICK)
    writer.recover(None)
    expected = list(range(100))
    if not first:
        writer.write(rows(1000))
        before = writer.prepare(epoch(1), None)
        assert before is not None
        writer.commit(before)
        expected.append(1000)
    writer.write(rows(*range(100)))
    pre_commit = writer.prepare(epoch(2), covers(100))
    assert pre_commit is not None
    setup.proxy.plan = list(plan)
    writer.commit(pre_commit)
    for timer in setup.proxy.late:
        timer.join()
    assert setup.proxy.plan == []
    writer.commit(pre_commit)
    assert setup.direct.ids() == expected
    paths = files_of(setup.direct)
    assert len(paths) == len(set(paths)) == (1 if first else 2)
    assert len(setup.direct.data_snapshots()) == len(paths)
    if plan == ["commit twice"]:
        assert setup.proxy.answers == [200]


@pytest.mark.parametrize("fault", ["504 after commit", "close before commit"])
def test_snk_01_what_cannot_be_decided_stops_and_keeps_the_files(setup: Setup, fault: Fault) -> None:
    writer = setup.through.writer(retry=RetryPolicy(timeout=1, max_wait=0.2))
    writer.recover(None)
    writer.write(rows(*range(100)))
    pre_commit = writer.prepare(epoch(1), covers(100))
    assert pre_commit is not None
    setup.proxy.plan, setup.proxy.down_after_fault = [fault], True
    with pytest.raises(CommitUnknownError) as caught:
        writer.commit(pre_commit)
    assert not caught.value.retryable
    setup.proxy.down = setup.proxy.down_after_fault = False
    again = setup.through.writer(retry=QUICK)
    again.recover(pre_commit)
    assert setup.direct.ids() == list(range(100))
    assert len(files_of(setup.direct)) == 1


def test_a_catalog_that_is_down_before_anything_is_sent_is_unavailable_not_unknown(setup: Setup) -> None:
    writer = setup.through.writer(retry=RetryPolicy(timeout=1, max_wait=0.2))
    writer.recover(None)
    writer.write(rows(1))
    pre_commit = writer.prepare(epoch(1), None)
    assert pre_commit is not None
    setup.proxy.down = True
    with pytest.raises(UnavailableError):
        writer.commit(pre_commit)
    setup.proxy.down = False
    writer.commit(pre_commit)
    assert setup.direct.ids() == [1]


@pytest.mark.parametrize("fault", ["504 after commit", "late commit", "commit twice", "close before commit"])
def test_a_fence_without_a_clear_answer_stands(setup: Setup, fault: Fault) -> None:
    first = setup.through.writer(retry=QUICK)
    first.recover(None)
    first.write(rows(1))
    pre_commit = first.prepare(epoch(1), None)
    assert pre_commit is not None
    first.commit(pre_commit)
    second = setup.through.writer("L2", entry=Entry.RESTORED, retry=QUICK)
    setup.proxy.plan = [fault]
    second.recover(None)
    for timer in setup.proxy.late:
        timer.join()
    second.write(rows(2))
    later = second.prepare(epoch(2, "L2"), None)
    assert later is not None
    second.commit(later)
    assert setup.direct.ids() == [1, 2]
