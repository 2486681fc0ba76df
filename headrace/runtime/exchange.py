"""Several instances of one operator, each for some of the keys, as if they were one.

Partials come here already aggregated as far as a batch allows; they are dealt out by the key group of their key columns
(:mod:`headrace.kernel.keyed`), and the instances work at once: Polars releases the GIL. A snapshot is that of one
operator, whatever the number of instances, so that a job goes on from it with any other number: frames of state hold
the key columns, and are dealt out anew; keyed state and held rows are opened by range of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

import numpy as np
import polars as pl

from headrace.kernel.held import united_held
from headrace.kernel.keyed import KeyGroups, key_groups, united
from headrace.kernel.protocols import (
    COUNTS,
    Emission,
    Json,
    OperatorContext,
    OperatorInstance,
    OperatorState,
    StatefulOperator,
    Ticks,
)

_T = TypeVar("_T")


class Workers:
    """The threads in which the instances of a job's operators work.

    Args:
        parallelism: Instances of each operator that has a key; from 1 up to ``keyed.GROUPS``.
    """

    def __init__(self, parallelism: int = 1) -> None:
        self.parallelism = parallelism
        # One task of several is done by the caller.
        self._pool = ThreadPoolExecutor(parallelism - 1, "operator") if parallelism > 1 else None

    def run(self, tasks: Sequence[Callable[[], _T]]) -> list[_T]:
        """Run tasks at once; gives their results in order, or raises what the first one that failed has raised.

        Nothing runs any more when it returns or raises.
        """
        if self._pool is None or len(tasks) < 2:  # noqa: PLR2004 - nothing to be done at once
            return [task() for task in tasks]
        others = [self._pool.submit(task) for task in tasks[1:]]
        try:
            first = tasks[0]()
        finally:
            wait(others)
        return [first, *(other.result() for other in others)]

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()


def open_operator(
    operator: StatefulOperator, schema: pl.Schema, context: OperatorContext, workers: Workers
) -> OperatorInstance:
    """An operator at work: one instance, or as many as there are workers where it has a key.

    Raises:
        GraphChangedError: See :meth:`headrace.kernel.protocols.StatefulOperator.open`.
    """
    key = list(operator.key_columns)
    if workers.parallelism == 1 or not key:
        return operator.open(schema, context)
    ranges = [KeyGroups.of(index, workers.parallelism) for index in range(workers.parallelism)]
    states = [None] * len(ranges) if context.state is None else split_state(context.state, key, ranges)
    instances = [
        operator.open(schema, context.narrowed(groups, state)) for groups, state in zip(ranges, states, strict=True)
    ]
    return Exchange(key, ranges, instances, workers)


class Exchange:
    """Implements :class:`headrace.kernel.protocols.OperatorInstance` over several.

    Args:
        key: Columns of the partials that are the key.
        ranges: The key groups of each instance.
        instances: The instances.
        workers: Where they work.
    """

    def __init__(
        self, key: Sequence[str], ranges: Sequence[KeyGroups], instances: Sequence[OperatorInstance], workers: Workers
    ) -> None:
        self._key = key
        self._ranges = ranges
        self._instances = instances
        self._workers = workers

    def process(self, partials: pl.DataFrame) -> Emission:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        parts = split(partials, self._key, self._ranges)
        return self._together(
            [
                partial(instance.process, part)
                for instance, part in zip(self._instances, parts, strict=True)
                if part.height
            ]
        )

    def advance(self, watermark: int) -> Emission:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        return self._together([partial(instance.advance, watermark) for instance in self._instances])

    def tick(self, now_us: int) -> Emission:
        """See :class:`headrace.kernel.protocols.Ticks`; for operators that do not go by the clock, nothing."""
        return self._together(
            [partial(instance.tick, now_us) for instance in self._instances if isinstance(instance, Ticks)]
        )

    def drain(self) -> Emission:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        return self._together([instance.drain for instance in self._instances])

    def outgoing_watermark(self, watermark: int) -> int:
        """The lowest of the instances'."""
        return min(instance.outgoing_watermark(watermark) for instance in self._instances)

    def rows_held(self) -> int:
        """Rows in the state of all instances."""
        return sum(instance.rows_held() for instance in self._instances)

    def snapshot(self) -> OperatorState:
        """See :class:`headrace.kernel.protocols.OperatorInstance`."""
        return unite_states(self._workers.run([instance.snapshot for instance in self._instances]))

    def _together(self, tasks: Sequence[Callable[[], Emission]]) -> Emission:
        emissions = [emission for emission in self._workers.run(tasks) if emission]
        if len(emissions) < 2:  # noqa: PLR2004 - nothing to put together
            return emissions[0] if emissions else {}
        ports = dict.fromkeys(port for emission in emissions for port in emission)
        return {port: pl.concat([emission[port] for emission in emissions if port in emission]) for port in ports}


def split(rows: pl.DataFrame, key: Sequence[str], ranges: Sequence[KeyGroups]) -> list[pl.DataFrame]:
    """Rows by the range that their key's group lies in."""
    owners = pl.Series(np.searchsorted([groups.end for groups in ranges], key_groups(rows, key), side="right"))
    return [rows.filter(owners == index) for index in range(len(ranges))]


def split_state(state: OperatorState, key: Sequence[str], ranges: Sequence[KeyGroups]) -> list[OperatorState]:
    """An operator's state as that of several instances, one for each range; the opposite of :func:`unite_states`."""
    frames = {
        # One without the key is of another definition: the operator refuses it when it is opened.
        name: split(frame, key, ranges) if set(key) <= set(frame.columns) else [frame] * len(ranges)
        for name, frame in state.frames.items()
    }
    return [
        OperatorState(
            state.version,
            _without_counts(state.values) if index else state.values,
            {name: parts[index] for name, parts in frames.items()},
            state.keyed,
            state.held,
        )
        for index in range(len(ranges))
    ]


def unite_states(states: Sequence[OperatorState]) -> OperatorState:
    """The states of several instances as that of one operator. At least one."""
    first = states[0]
    return OperatorState(
        first.version,
        _united_values([state.values for state in states]),
        {name: pl.concat([state.frames[name] for state in states]) for name in first.frames},
        {name: united([state.keyed[name] for state in states]) for name in first.keyed},
        {name: united_held([state.held[name] for state in states]) for name in first.held},
    )


def _without_counts(values: Mapping[str, Json]) -> Mapping[str, Json]:
    return {**values, COUNTS: dict.fromkeys(values[COUNTS], 0)} if COUNTS in values else values


def _united_values(values: Sequence[Mapping[str, Json]]) -> Mapping[str, Json]:
    out: dict[str, Json] = {}
    for name, one in values[0].items():
        if name == COUNTS:
            out[name] = {count: sum(each[name][count] for each in values) for count in one}
        else:
            differing = [each[name] for each in values if each[name] is not None and each[name] != one]
            out[name] = max([*differing, *([] if one is None else [one])]) if differing else one
    return out
