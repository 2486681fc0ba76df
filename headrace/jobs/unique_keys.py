"""Which columns tell the rows of a stream apart: what a sink that upserts may have as its key.

After Flink's upsert keys. A changelog's rows are meant as the table that its changes come to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final, TypeAlias

from headrace.jobs.graph import JobGraph, StepNode
from headrace.jobs.spec_joins import JoinSpec, JoinStep
from headrace.jobs.spec_over import OverStep
from headrace.jobs.spec_sources import ChangelogSpec, SourceSpec
from headrace.jobs.spec_steps import (
    AggregateStep,
    AnyStep,
    CumulatingSpec,
    DedupStep,
    DropStep,
    FilterStep,
    LookupStep,
    RunningTopSpec,
    RunningTopStep,
    SelectStep,
    TopStep,
    UnnestStep,
    WindowStep,
    WithColumnsStep,
)
from headrace.kernel.protocols import MAIN
from headrace.runtime.graph import Stream
from operators.expressions import Expression, row_expression
from operators.windowed import WINDOW_END, WINDOW_START

Key: TypeAlias = frozenset[str]

_MOST: Final = 8
"""Joins multiply keys; so many are kept, the shortest ones."""


@dataclass(frozen=True, slots=True)
class UniqueKeys:
    """What is known of the columns that tell rows apart.

    Attributes:
        known: In each of these no two rows are alike. The empty one: there is one row at most.
        shared: Columns in which rows are alike, even in all of them together; others come from outside, where only the
            user knows. None: there are no others.
        computed: Columns that are computed from those of a known key; whether they tell rows apart only the user knows.
    """

    known: frozenset[Key] = frozenset()
    shared: Key | None = frozenset()
    computed: Key = frozenset()

    def hold(self, key: Collection[str]) -> bool:
        """Whether it is known that no two rows are alike in these columns."""
        return any(known <= frozenset(key) for known in self.known)

    def allow(self, key: Collection[str]) -> bool:
        """Whether no two rows are alike in these columns, or only the user knows."""
        wanted = frozenset(key)
        outside = self.shared is not None and not wanted <= self.shared
        return self.hold(key) or outside or not wanted.isdisjoint(self.computed)

    @property
    def shortest(self) -> list[str]:
        """A known one with the fewest columns; none where none is known."""
        return sorted(min(self.known, key=lambda key: (len(key), sorted(key)), default=()))

    def named(self, names: Callable[[str], Collection[str]], computed: Iterable[str] = ()) -> UniqueKeys:
        """The same behind a step that gives columns other names.

        Args:
            names: The names that a column has behind the step; none: it is left out.
            computed: Columns that the step computes from those of a known key.
        """
        known = {frozenset(made) for key in self.known for made in product(*map(names, sorted(key)))}
        shared = None if self.shared is None else frozenset(name for column in self.shared for name in names(column))
        kept = {name for column in self.computed for name in names(column)}
        return UniqueKeys(_shortest(known), shared, frozenset({*kept, *computed}))

    def also(self, *keys: Iterable[str]) -> UniqueKeys:
        """With further known ones."""
        return replace(self, known=_shortest({*self.known, *map(frozenset, keys)}))


_UNKNOWN: Final = UniqueKeys()


def unique_keys(graph: JobGraph) -> Callable[[Stream], UniqueKeys]:
    """What gives the keys of any stream of a job.

    Args:
        graph: The job, whose expressions can be parsed.
    """
    steps = {node.id: node for node in graph.steps}
    made: dict[str, UniqueKeys] = {}

    def of(ref: Stream) -> UniqueKeys:
        node = steps.get(ref.node)
        if node is None:
            return _declared(graph.sources[ref.node]) if ref.port == MAIN else _UNKNOWN
        return made[node.id] if ref.port == MAIN else of(node.input)  # other ports give rows as they came

    for node in graph.steps:  # inputs come earlier
        made[node.id] = _of_step(node, [of(above) for above in node.inputs])
    return of


def _declared(source: SourceSpec) -> UniqueKeys:
    changelog = source.changelog
    if isinstance(changelog, ChangelogSpec) and changelog.give == "changes":
        return _UNKNOWN.also(changelog.key)
    return _UNKNOWN


def _of_step(node: StepNode, above: Sequence[UniqueKeys]) -> UniqueKeys:  # noqa: PLR0911 - one for each kind
    keys = above[0]
    match node.step:
        case OverStep():
            return keys
        case AggregateStep(aggregate=running):
            return UniqueKeys(shared=None).also(running.by)
        case WindowStep(window=window):
            edges = (WINDOW_END,) if isinstance(window, CumulatingSpec) else (WINDOW_START, WINDOW_END)
            return UniqueKeys(shared=None).also(*([*window.by, edge] for edge in edges))
        case DedupStep(dedup=dedup):
            return keys if dedup.ttl is not None else keys.also(dedup.by)
        case RunningTopStep(running_top=top):
            return _ranked(keys, top, top.by)
        case TopStep(top=top):
            return _ranked(keys, top, [*top.by, WINDOW_START])
        case JoinStep(join=join):
            return _joined(join, *above)
        case step:
            return _of_rows(step, keys)


def _of_rows(step: AnyStep, keys: UniqueKeys) -> UniqueKeys:  # noqa: PLR0911 - one for each kind
    """Behind a step that looks at each row alone."""
    match step:
        case FilterStep():
            return keys
        case WithColumnsStep(with_columns=columns):
            return _behind(keys, columns.items(), lambda name: name not in columns)
        case SelectStep(select=columns):
            given = columns.items() if isinstance(columns, Mapping) else [("", text) for text in columns]
            return _behind(keys, given, lambda _: False)
        case DropStep(drop=left_out):
            return _behind(keys, (), lambda name: name not in left_out)
        case UnnestStep(unnest=unnested):
            return _behind(keys, (), lambda name: name not in unnested.columns)
        case LookupStep(lookup=lookup):
            return _UNKNOWN if lookup.many and lookup.how not in {"semi", "anti"} else keys
        case _:  # unions, lists taken apart, custom operators
            return _UNKNOWN


def _behind(keys: UniqueKeys, given: Iterable[tuple[str, Expression]], stays: Callable[[str], bool]) -> UniqueKeys:
    """Behind a step that computes columns, and lets some stay.

    Args:
        keys: Those before it.
        given: The expressions, each with the name that it gets; empty: its own.
        stays: Whether a column keeps its name.
    """
    within = {column for key in keys.known for column in key}
    copies: dict[str, list[str]] = {}
    computed = []
    for name, written in given:
        expr = row_expression(written, "").expr
        if expr.meta.undo_aliases().meta.is_column():
            copies.setdefault(expr.meta.root_names()[0], []).append(name or expr.meta.output_name())
        elif not within.isdisjoint(expr.meta.root_names()):
            computed.append(name or expr.meta.output_name())
    return keys.named(lambda column: [*([column] if stays(column) else []), *copies.get(column, ())], computed)


def _ranked(keys: UniqueKeys, top: RunningTopSpec, by: Sequence[str]) -> UniqueKeys:
    place = {*by, top.rank} if top.rank else set(by)
    own = [place] if top.rank else []
    shared = None if keys.shared is None else keys.shared | place
    return replace(keys, shared=shared).also(*own, *([by] if top.n == 1 else []))


def _joined(join: JoinSpec, left: UniqueKeys, right: UniqueKeys) -> UniqueKeys:
    lefts, rights = (
        keys.named(lambda column, side=side: [join.output_name(side, column)])  # type: ignore[misc]
        for side, keys in (("left", left), ("right", right))
    )
    if join.how in {"semi", "anti"}:
        return lefts
    window = {WINDOW_START} if join.kind == "window" else set()
    known = {one | other | window for one in lefts.known for other in rights.known}
    regular = join.kind == "regular"
    ons = list(zip(*join.pairs, strict=True))
    # A row that meets one of the other side's at most comes once.
    if join.how in {"inner", "left"} and (join.kind == "as_of" or (regular and right.hold(ons[1]))):
        known |= lefts.known
    if join.how in {"inner", "right"} and regular and left.hold(ons[0]):
        known |= rights.known
    opened = [keys.shared for keys in (lefts, rights) if keys.shared is not None]
    shared = frozenset[str]().union(*opened) if opened else None
    return UniqueKeys(_shortest(known), shared, lefts.computed | rights.computed)


def _shortest(keys: Iterable[Key]) -> frozenset[Key]:
    """Without those that hold another one, and not too many."""
    found: list[Key] = []
    for key in sorted(keys, key=lambda key: (len(key), sorted(key))):
        if not any(one <= key for one in found):
            found.append(key)
    return frozenset(found[:_MOST])
