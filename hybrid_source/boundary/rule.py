"""The protocol of the rules, and how they are tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headrace.kernel.errors import BoundaryError, DataError, HeadraceError, UserError
from hybrid_source.history import History
from hybrid_source.resolution import Resolution, Verdict


@dataclass(frozen=True, slots=True)
class BoundaryContext:
    """What a rule looks at.

    Attributes:
        history: The pinned history; boundary and rows always come from the same version.
        topic: The topic whose partitions are wanted.
        several: The source reads other topics, too: rows must say which topic they are of.
    """

    history: History
    topic: str
    several: bool = False


@dataclass(frozen=True, slots=True)
class Unusable:
    """What a rule looks for is there, but gives no boundary; the next rule is tried.

    Attributes:
        why: The reason, for people.
    """

    why: str


class BoundaryRule(Protocol):
    """One way to find a boundary."""

    @property
    def name(self) -> str:
        """What plans and errors call it."""

    @property
    def looks_for(self) -> str:
        """What it needs, for the message when every rule has failed."""

    def resolve(self, context: BoundaryContext) -> Resolution | Unusable | None:
        """The boundary, or None when there is nothing that it looks for. Reads metadata, at most a few columns.

        Raises:
            BoundaryError: An exact record is there but damaged, or the job asks for just this rule; no later one is
                tried.
        """


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of the rules.

    Attributes:
        verdicts: One for each rule, in order.
        resolution: The first boundary that a rule gave.
        error: Why none did; None when one did.
    """

    verdicts: tuple[Verdict, ...]
    resolution: Resolution | None = None
    error: HeadraceError | None = None


def try_rules(rules: Sequence[BoundaryRule], context: BoundaryContext) -> Trial:
    """Try rules in order, up to the first that decides."""
    verdicts: list[Verdict] = []
    for index, rule in enumerate(rules):
        rest = tuple(Verdict(later.name, "not tried", later.looks_for) for later in rules[index + 1 :])
        try:
            found = rule.resolve(context)
        except (DataError, UserError) as error:
            said = f"{error.message}: {error.detail}" if error.detail else error.message
            tried = (*verdicts, Verdict(rule.name, "not usable", said), *rest)
            return Trial(tried, error=_with_verdicts(error, context, tried, rule.name))
        if isinstance(found, Resolution):
            tried = (*verdicts, Verdict(rule.name, "applied", found.evidence), *rest)
            return Trial(tried, replace(found, tried=tried))
        seen = isinstance(found, Unusable)
        detail = found.why if isinstance(found, Unusable) else rule.looks_for
        verdicts.append(Verdict(rule.name, "not usable" if seen else "not there", detail))
    return Trial(tuple(verdicts), error=_none_applies(context, verdicts))


def resolve_boundary(rules: Sequence[BoundaryRule], context: BoundaryContext) -> Resolution:
    """The first boundary that a rule gives.

    Raises:
        BoundaryError: No rule gives one: going on would lose or double rows. The message says what was looked for.
    """
    trial = try_rules(rules, context)
    if trial.resolution is None:
        raise trial.error or _none_applies(context, trial.verdicts)
    return trial.resolution


def _with_verdicts(
    error: HeadraceError, context: BoundaryContext, tried: Sequence[Verdict], rule: str
) -> HeadraceError:
    said = f"boundary of topic {context.topic} of {context.history.name} by rule {rule!r}"
    error.detail = f"{error.detail}; {said}" if error.detail else said
    error.context = {**_facts(context, tried), "rule": rule, **error.context}
    return error


def _none_applies(context: BoundaryContext, tried: Sequence[Verdict]) -> BoundaryError:
    seen = [f"{verdict.rule}: {verdict.detail}" for verdict in tried if verdict.outcome == "not usable"]
    absent = [verdict.detail for verdict in tried if verdict.outcome == "not there"]
    parts = ["found, but not usable: " + "; ".join(seen)] if seen else []
    return BoundaryError(
        f"no boundary between {context.history.name} and topic {context.topic} is known",
        detail=". ".join([*parts, "looked in vain for: " + "; ".join(absent)]),
        hint="name the columns that hold each row's partition and offset (boundary: {columns: {partition: p, offset: "
        'o}}), give the next offsets (boundary: {offsets: {"0": 120}}), accept doubles around a time (boundary: '
        "{timestamp: 2026-01-01T00:00:00Z, overlap: 5m}), or let `headrace boundary set` record the offsets with the "
        "table; `headrace boundary show TABLE --topic TOPIC` tells what each rule found",
        context=_facts(context, tried),
    )


def _facts(context: BoundaryContext, tried: Sequence[Verdict]) -> dict[str, Any]:
    return {
        "history": context.history.name,
        "topic": context.topic,
        "tried": [[verdict.rule, verdict.outcome, verdict.detail] for verdict in tried],
    }
