"""The state of a job's checkpoint as tables. Reads the checkpoint store only: a running job does not notice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import polars as pl

from headrace.jobs.compile import CompiledJob
from headrace.kernel.errors import NotFoundError
from headrace.kernel.held import HeldLayout, HeldSnapshot
from headrace.kernel.keyed import KeyedLayout, KeyedSnapshot
from headrace.kernel.protocols import Json, OperatorState, ShowsState
from headrace.state.backend import StateBackend
from headrace.state.checkpoint import CheckpointStore
from headrace.state.records import Checkpoint, OperatorStateRef
from headrace.state.stores import open_store
from operators.errors import computing, planning
from operators.expressions import row_expression


@dataclass(frozen=True, slots=True)
class StateTable:
    """One table of an operator's state.

    Attributes:
        operator: The operator's id.
        table: The table's name within it.
        rows: How many rows; those that wait to be merged are counted each.
        nbytes: What it takes in the checkpoint store.
        key: Columns of the key; empty: there are none, or it is a frame that is written whole.
        definition: Of the operator, in words.
    """

    operator: str
    table: str
    rows: int
    nbytes: int
    key: Sequence[str]
    definition: str

    def to_json(self) -> dict[str, Json]:
        """As JSON values."""
        return {**asdict(self), "key": list(self.key)}


class CheckpointState:
    """The state in one checkpoint of a job.

    Args:
        job: The job.
        epoch: Which checkpoint, of those that are retained; None: the last one.

    Raises:
        NotFoundError: There is no such checkpoint.
        HeadraceError: The store does not answer, or holds something else.
    """

    def __init__(self, job: CompiledJob, epoch: int | None = None) -> None:
        self._job = job
        self._checkpoints = CheckpointStore(open_store(job.store, job.config.object_stores), job.uid)
        self.record: Checkpoint = self._checkpoints.find(epoch)

    def tables(self) -> list[StateTable]:
        """What there is; reads no rows."""
        found = self.record.operators.items()
        return [table for operator, ref in sorted(found) for table in _tables(operator, ref)]

    def read(self, name: str, where: str | None = None, limit: int | None = None) -> pl.DataFrame:
        """Rows of a table.

        Args:
            name: ``OPERATOR``, if its state is one table, or ``OPERATOR.TABLE``.
            where: SQL text over its columns.
            limit: At most so many rows.

        Raises:
            NotFoundError: There is no such operator, or no such table.
            SpecError: ``where`` is no expression over the columns.
            DataError: A blob is gone or damaged.
        """
        table = self._find(name)
        backend = StateBackend(self._job.state)
        try:
            saved = self._checkpoints.restore(self.record, backend.runs, only=table.operator)
            pieces = self._pieces(backend, table, saved[table.operator].state)
            return _selected(pieces, where, limit, f"the state of {name!r}")
        finally:
            backend.close()

    def _find(self, name: str) -> StateTable:
        tables = self.tables()
        named = [table for table in tables if name in {table.operator, f"{table.operator}.{table.table}"}]
        if len(named) == 1:
            return named[0]
        if named:
            raise NotFoundError(
                f"the state of {name!r} has several tables",
                hint=f"name one: {', '.join(f'{table.operator}.{table.table}' for table in named)}",
                code="STATE_TABLE_NOT_FOUND",
            )
        known = ", ".join(dict.fromkeys(table.operator for table in tables))
        raise NotFoundError(
            f"job {self._job.uid!r} has no operator {name!r} with state in its checkpoint at epoch {self.record.epoch}",
            hint=f"there is {known}" if known else "none of its operators has state",
            code="OPERATOR_NOT_FOUND",
        )

    def _pieces(self, backend: StateBackend, table: StateTable, state: OperatorState) -> Iterator[pl.DataFrame]:
        """The rows, in pieces that fit into memory, as people read them."""
        shows = self._shows(table)
        if table.table in state.keyed:
            snapshot = state.keyed[table.table]
            held = backend.context(f"operator {table.operator!r}", state).keyed(_layout(table.table, snapshot))
            frames = itertools.chain([pl.DataFrame(schema=snapshot.schema)], held.rows())
        elif table.table in state.held:
            # At once: rows of several files may belong together, and lie on disk until they are looked at.
            layout = _held_layout(table.table, state.held[table.table])
            context = backend.context(f"operator {table.operator!r}", state)
            frames = itertools.chain([pl.concat(context.held(layout).frames())])
        else:
            frames = itertools.chain([state.frames[table.table]])
        for frame in frames:
            with computing(f"operator {table.operator!r}"):
                yield shows.shown(table.table, frame.lazy()).collect() if shows else frame

    def _shows(self, table: StateTable) -> ShowsState | None:
        """The operator as the job has it now, if it can still say what the state means."""
        operators: dict[str, object] = {
            node.id: node.operator for node in self._job.sketch().stateful() if node.fingerprint == table.definition
        }
        operator = operators.get(table.operator)
        return operator if isinstance(operator, ShowsState) else None


def _layout(name: str, snapshot: KeyedSnapshot) -> KeyedLayout:
    return KeyedLayout(name, snapshot.schema, snapshot.key, snapshot.within, snapshot.version)


def _held_layout(name: str, snapshot: HeldSnapshot) -> HeldLayout:
    return HeldLayout(name, snapshot.schema, snapshot.key, snapshot.time, snapshot.version, flag=snapshot.flag)


def _tables(operator: str, ref: OperatorStateRef) -> Iterator[StateTable]:
    for name, frame in ref.frames.items():
        yield StateTable(operator, name, frame.rows, frame.nbytes, (), ref.fingerprint)
    for name, kept in ref.kept.items():
        blobs = {run.blob: run.nbytes for part in kept.parts for run in part.runs}
        yield StateTable(operator, name, kept.rows, sum(blobs.values()), tuple(kept.key), ref.fingerprint)


def _selected(pieces: Iterator[pl.DataFrame], where: str | None, limit: int | None, what: str) -> pl.DataFrame:
    first = next(pieces)
    condition = pl.lit(value=True)
    if where is not None:
        with planning(what, first.columns):
            condition = row_expression(where, f"{what}, --where").expr
            first.lazy().filter(condition).collect_schema()
    found: list[pl.DataFrame] = []
    count = 0
    for piece in (first, *pieces):
        with computing(what):
            rows = piece.filter(condition)
        found.append(rows if limit is None else rows.head(limit - count))
        count += found[-1].height
        if limit is not None and count >= limit:
            break
    return pl.concat(found)
