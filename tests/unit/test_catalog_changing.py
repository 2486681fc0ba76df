"""What becomes of a change whose attempts fail, or end without an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ForbiddenError

from catalog.ancestry import Ancestry
from catalog.catalogs import TableName
from catalog.changing import RetryPolicy, apply
from headrace.kernel.errors import (
    AccessDeniedError,
    CommitFailedError,
    CommitUnknownError,
    HeadraceError,
    NotFoundError,
    UnavailableError,
)
from tests.lake import Clock

NAME = TableName("lake", ("ns",), "t")
DOWN = UnavailableError("down")


@dataclass
class World:
    """A table with a head, and a change that is made by moving the head; scripted answers to loads and sends.

    A send answers with an exception, or None for success; ``lands`` says which of them took effect all the same.
    """

    sends: Sequence[BaseException | None] = ()
    lands: Sequence[bool] = ()
    loads: dict[int, HeadraceError] = field(default_factory=dict)
    others_at: frozenset[int] = frozenset()
    head: int = 1
    done: bool = False
    loaded: int = 0
    sent: int = 0
    discarded: int = 0
    table: TableName = NAME
    branch: str = "main"

    def load(self, _: TableName) -> Any:
        self.loaded += 1
        if error := self.loads.get(self.loaded):
            raise error
        if self.loaded in self.others_at:
            self.head += 1
        return SimpleNamespace(metadata=SimpleNamespace(refs={"main": SimpleNamespace(snapshot_id=self.head)}))

    def result(self, _: Any) -> str | None:
        return "done" if self.done else None

    def build(self, table: Any) -> Any:
        return SimpleNamespace(write=lambda: None, send=self._send, discard=self._discard)

    def _send(self) -> None:
        self.sent += 1
        answer = self.sends[self.sent - 1] if self.sent <= len(self.sends) else None
        lands = self.lands[self.sent - 1] if self.sent <= len(self.lands) else answer is None
        if lands:
            self.head, self.done = self.head + 1, True
        if answer is not None:
            raise answer

    def _discard(self) -> None:
        self.discarded += 1

    def apply(self) -> str:
        clock = Clock()
        return apply(self, self, RetryPolicy(timeout=2, clock=clock, sleep=clock.sleep))  # type: ignore[arg-type] # a fake


def conflict() -> CommitFailedException:
    return CommitFailedException("conflict")


def unknown() -> CommitStateUnknownException:
    return CommitStateUnknownException("504")


def test_a_lost_answer_is_looked_for_not_repeated() -> None:
    for lost in (unknown(), ConnectionError("closed"), conflict()):
        world = World(sends=[lost], lands=[True])
        assert world.apply() == "done"
        assert (world.sent, world.discarded) == (1, 0)


def test_conflicts_are_tried_again_and_their_manifests_removed() -> None:
    world = World(sends=[conflict(), conflict()])
    assert world.apply() == "done"
    assert (world.sent, world.discarded) == (3, 2)


def test_conflicts_without_end_are_failed_not_unknown() -> None:
    world = World(sends=[conflict()] * 100)
    with pytest.raises(CommitFailedError):
        world.apply()
    assert world.discarded == world.sent


@pytest.mark.parametrize(
    ("others", "kind"),
    [(frozenset(), CommitUnknownError), (frozenset(range(3, 200)), CommitFailedError)],
    ids=["the head stands where the lost attempt saw it", "the head has moved: the lost attempt can never land"],
)
def test_an_open_attempt_stays_open_while_it_could_still_land(
    others: frozenset[int], kind: type[HeadraceError]
) -> None:
    world = World(sends=[unknown(), *[conflict()] * 100], others_at=others)
    with pytest.raises(kind):
        world.apply()


def test_down_before_anything_was_sent_and_after() -> None:
    world = World(loads=dict.fromkeys(range(1, 200), DOWN))
    with pytest.raises(UnavailableError):
        world.apply()
    assert world.sent == 0
    world = World(sends=[unknown()], loads=dict.fromkeys(range(2, 200), DOWN))
    with pytest.raises(CommitUnknownError):
        world.apply()
    assert (world.sent, world.discarded) == (1, 0)


def test_a_refusal_ends_at_once() -> None:
    world = World(sends=[ForbiddenError("no")] * 9)
    with pytest.raises(AccessDeniedError):
        world.apply()
    assert world.sent == 1
    world = World(loads={1: NotFoundError("gone", code="TABLE_NOT_FOUND")})
    with pytest.raises(NotFoundError):
        world.apply()
    world = World(sends=[unknown()], loads={2: AccessDeniedError("no more")})
    with pytest.raises(CommitUnknownError):
        world.apply()


def line(*snapshots: tuple[int, int | None, int]) -> Callable[[int | None], Ancestry]:
    metadata: Any = SimpleNamespace(
        snapshots=[
            SimpleNamespace(snapshot_id=number, parent_snapshot_id=parent, sequence_number=sequence)
            for number, parent, sequence in snapshots
        ]
    )
    return lambda head: Ancestry.of(metadata, head)


def test_ancestry_knows_its_line_and_what_may_lie_below_it() -> None:
    of = line((10, None, 1), (11, 10, 2), (12, 11, 3), (13, 11, 4))
    assert [s.snapshot_id for s in of(13).snapshots] == [13, 11, 10]
    assert 12 not in of(13)
    assert not of(13).may_precede(12, 3)
    assert of(None).head is None
    assert not of(99).may_precede(10, 1)
    cut = line((10, None, 1), (13, None, 4))
    assert cut(13).may_precede(10, 1)
    assert not cut(13).may_precede(10, None)
    assert not cut(13).may_precede(14, 5)
    dangling = line((13, 12, 4))
    assert dangling(13).may_precede(12, None)
