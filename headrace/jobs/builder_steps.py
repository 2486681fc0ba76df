# ruff: noqa: A002 - id is a word of the spec
"""The steps of a job in Python: one method for each kind of step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Self, TypeAlias

import polars as pl

from operators.aggregates import Aggregate
from operators.custom import CustomOperator

Expr: TypeAlias = str | pl.Expr
DurationLike: TypeAlias = str | timedelta
Section: TypeAlias = Mapping[str, Any]


class Steps(ABC):
    """What reads the step before it, or the node that ``from_`` names, and gives a job with one more step."""

    __slots__ = ()

    @abstractmethod
    def _step(self, section: dict[str, Any], step_id: str | None, from_: str | None) -> Self:
        """The same with this step at the end."""

    def filter(self, predicate: Expr, *, id: str | None = None, from_: str | None = None) -> Self:
        """Keep the rows for which ``predicate`` is true."""
        return self._step({"filter": predicate}, id, from_)

    def with_columns(
        self,
        columns: Mapping[str, Expr] | None = None,
        *,
        id: str | None = None,
        from_: str | None = None,
        **named: Expr,
    ) -> Self:
        """Add or replace columns."""
        return self._step({"with_columns": {**(columns or {}), **named}}, id, from_)

    def select(
        self,
        columns: Sequence[str] | Mapping[str, Expr],
        *,
        id: str | None = None,
        from_: str | None = None,
    ) -> Self:
        """Keep columns (a list), or compute exactly these (a mapping)."""
        return self._step({"select": dict(columns) if isinstance(columns, Mapping) else columns}, id, from_)

    def drop(self, *columns: str, id: str | None = None, from_: str | None = None) -> Self:
        """Leave columns out."""
        return self._step({"drop": list(columns)}, id, from_)

    def explode(
        self,
        columns: str | Sequence[str],
        *,
        keep_empty: bool | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Self:
        """A row for each element of a list."""
        return self._step({"explode": given(columns=columns, keep_empty=keep_empty)}, id, from_)

    def unnest(
        self,
        columns: str | Sequence[str],
        *,
        prefix: str | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Self:
        """A column for each field of a struct."""
        return self._step({"unnest": given(columns=columns, prefix=prefix)}, id, from_)

    def union(self, *streams: str, id: str | None = None) -> Self:
        """The rows of several streams as one: nodes, or ports of nodes (``NODE.PORT``)."""
        return self._step({"union": list(streams)}, id, None)

    def dedup(
        self,
        by: str | Sequence[str],
        *,
        keep: str | None = None,
        ttl: DurationLike | None = None,
        allowed_lateness: DurationLike | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Self:
        """Keep the first or last row of each key by event time."""
        wanted = given(by=by, keep=keep, ttl=ttl, allowed_lateness=allowed_lateness)
        return self._step({"dedup": wanted}, id, from_)

    def top(
        self,
        n: int,
        *,
        order_by: str | Sequence[str],
        by: str | Sequence[str] | None = None,
        tumbling: DurationLike | None = None,
        rank: str | None = None,
        allowed_lateness: DurationLike | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Self:
        """Keep the first ``n`` rows of each window and key in an order, e.g. ``"price desc"``."""
        wanted = given(n=n, order_by=order_by, by=by, tumbling=tumbling, rank=rank, allowed_lateness=allowed_lateness)
        return self._step({"top": wanted}, id, from_)

    def running_top(
        self,
        n: int,
        *,
        order_by: str | Sequence[str],
        by: str | Sequence[str] | None = None,
        rank: str | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Self:
        """Keep the first ``n`` rows of each key so far, as a changelog."""
        return self._step({"running_top": given(n=n, order_by=order_by, by=by, rank=rank)}, id, from_)

    def over(
        self,
        compute: Mapping[str, str | Aggregate],
        *,
        by: str | Sequence[str] | None = None,
        rows: int | str | None = None,
        range: DurationLike | None = None,
        ttl: DurationLike | None = None,
        allowed_lateness: DurationLike | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Self:
        """Add what is computed of the rows of a key up to each row, e.g. ``{"total": "sum(x)"}``."""
        wanted = given(compute=dict(compute), by=by, rows=rows, range=range, ttl=ttl, allowed_lateness=allowed_lateness)
        return self._step({"over": wanted}, id, from_)

    def lookup(
        self,
        table: str,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        columns: Sequence[str] | None = None,
        how: str | None = None,
        prefix: str | None = None,
        many: bool | None = None,
        as_of: str | Section | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Self:
        """Join with a static table."""
        wanted = given(table=table, on=on, columns=columns, how=how, prefix=prefix, many=many, as_of=as_of)
        return self._step({"lookup": wanted}, id, from_)

    def join(
        self,
        left: str,
        right: str,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        how: str | None = None,
        within: DurationLike | Section | None = None,
        window: Section | None = None,
        as_of: str | Section | None = None,
        ttl: DurationLike | None = None,
        where: Expr | None = None,
        left_prefix: str | None = None,
        right_prefix: str | None = None,
        event_time: str | None = None,
        allowed_lateness: DurationLike | None = None,
        id: str | None = None,
    ) -> Self:
        """Join two streams: nodes, or ports of nodes (``NODE.PORT``)."""
        wanted = given(
            left=left,
            right=right,
            on=dict(on) if isinstance(on, Mapping) else on,
            how=how,
            within=within,
            window=window,
            as_of=as_of,
            ttl=ttl,
            where=where,
            left_prefix=left_prefix,
            right_prefix=right_prefix,
            event_time=event_time,
            allowed_lateness=allowed_lateness,
        )
        return self._step({"join": wanted}, id, None)

    def aggregate(
        self,
        aggregate: Mapping[str, str | Aggregate],
        *,
        by: str | Sequence[str] | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Self:
        """Aggregate by key without windows; gives out a changelog."""
        return self._step({"aggregate": given(by=by, aggregate=dict(aggregate))}, id, from_)

    def custom(
        self,
        operator: str | type[CustomOperator],
        *,
        by: str | Sequence[str] | None = None,
        order_by: str | None = None,
        args: Mapping[str, Any] | None = None,
        allowed_lateness: DurationLike | None = None,
        event_time: str | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Self:
        """Give rows to an operator in Python: a registered name, ``MODULE:CLASS``, or the class."""
        wanted = given(
            operator=operator,
            by=by,
            order_by=order_by,
            args=args,
            allowed_lateness=allowed_lateness,
            event_time=event_time,
        )
        return self._step({"custom": wanted}, id, from_)

    def window(
        self,
        tumbling: DurationLike | None = None,
        *,
        aggregate: Mapping[str, str | Aggregate],
        hopping: DurationLike | None = None,
        cumulating: DurationLike | None = None,
        every: DurationLike | None = None,
        session: DurationLike | None = None,
        by: str | Sequence[str] | None = None,
        offset: DurationLike | None = None,
        time_zone: str | None = None,
        time: str | None = None,
        allowed_lateness: DurationLike | None = None,
        early: DurationLike | Section | None = None,
        id: str | None = None,
        from_: str | None = None,
    ) -> Self:
        """Aggregate by key over windows of event (or processing) time: tumbling, hopping, cumulating or session."""
        wanted = given(
            tumbling=tumbling,
            hopping=hopping,
            cumulating=cumulating,
            every=every,
            session=session,
            offset=offset,
            time_zone=time_zone,
            time=time,
            allowed_lateness=allowed_lateness,
            early=early,
            by=by,
            aggregate=dict(aggregate),
        )
        return self._step({"window": wanted}, id, from_)


def given(**values: Any) -> dict[str, Any]:
    """The keys that have a value."""
    return {key: value for key, value in values.items() if value is not None}


def from_section(from_: str | None) -> dict[str, Any]:
    """The key ``from``, if a node is named."""
    return {} if from_ is None else {"from": from_}
