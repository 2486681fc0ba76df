"""Whether the state in a checkpoint still fits a job: it is bound to an operator's id, definition and inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import uuid4

from headrace.kernel.errors import GraphChangedError, NotFoundError
from headrace.kernel.protocols import OperatorInstance, OperatorState
from headrace.runtime.exchange import Workers, open_operator
from headrace.runtime.graph import Graph
from headrace.runtime.job import Program
from headrace.runtime.schemas import Schemas
from headrace.state.backend import StateBackend
from headrace.state.checkpoint import CheckpointStore
from headrace.state.records import Checkpoint
from headrace.state.stores import JobStore


def refuse_changed(record: Checkpoint, graph: Graph) -> None:
    """Check that every state in a checkpoint has its operator, unchanged, and every operator its state.

    Operators whose state was dropped (:func:`drop_state`) may be without. Every position must have its source, too: one
    under another name would begin anew, and give all its rows again.

    Raises:
        GraphChangedError: Naming each operator that is missing, new or changed, and each source that is missing.
    """
    now = {node.id: node for node in graph.stateful()}
    differences = [f"{name}: removed" for name in sorted(record.operators.keys() - now.keys())]
    differences += [f"{name}: new" for name in sorted(now.keys() - record.operators.keys() - {*record.dropped})]
    for name in sorted(record.operators.keys() & now.keys()):
        then, node = record.operators[name], now[name]
        if then.fingerprint != node.fingerprint:
            differences.append(f"{name}: changed from {then.fingerprint!r} to {node.fingerprint!r}")
        if tuple(then.inputs) != graph.inputs(node):
            was, feeds = ", ".join(then.inputs), ", ".join(graph.inputs(node))
            differences.append(f"{name}: fed by {feeds} instead of {was}")
    gone = record.positions.keys() - {node.id for node in graph.sources()}
    differences += [f"source {name}: removed or renamed" for name in sorted(gone)]
    _refuse(record.job_uid, record.epoch, differences)


def open_operators(
    graph: Graph,
    schemas: Schemas,
    states: Mapping[str, OperatorState],
    record: Checkpoint | None,
    backend: StateBackend,
    workers: Workers,
) -> dict[str, OperatorInstance]:
    """Open every stateful operator, by id, with its state.

    Raises:
        GraphChangedError: Naming each operator whose state has other types than the job now gives it.
    """
    opened: dict[str, OperatorInstance] = {}
    errors: dict[str, GraphChangedError] = {}
    for node in graph.stateful():
        try:
            context = backend.context(f"operator {node.id!r}", states.get(node.id))
            opened[node.id] = open_operator(node.operator, schemas.partials[node.id], context, workers)
        except GraphChangedError as error:
            errors[node.id] = error
    if record is not None:
        _refuse(
            record.job_uid, record.epoch, [f"{name}: {error.detail or error.message}" for name, error in errors.items()]
        )
    return opened


def _refuse(job_uid: str, epoch: int, differences: Sequence[str]) -> None:
    if not differences:
        return
    raise GraphChangedError(
        f"job {job_uid} no longer fits the state of its checkpoint at epoch {epoch}",
        detail="; ".join(differences),
        hint="restore the old definition; or let an operator begin empty, with --drop-state ID; or "
        "give the changed job another uid to start it afresh",
        context={"differences": list(differences)},
    )


def drop_state(program: Program, store: JobStore, operators: Sequence[str]) -> None:
    """Decide that operators begin empty, whatever the last checkpoint holds of them: once, not again at a restart.

    Args:
        program: The job as it is now.
        store: Its checkpoints. A running instance is fenced.
        operators: Ids of operators with state, in the job or in its checkpoint.

    Raises:
        NotFoundError: The job has no checkpoint, or no operator with state has such an id.
    """
    checkpoints = CheckpointStore(store, program.uid)
    head = store.head.read()
    record = checkpoints.read(head.record) if head is not None and head.record is not None else None
    known: set[str] = set()
    if record is not None:
        graph = program.graph(program.pin(record.pins))
        known = {*record.operators, *(node.id for node in graph.stateful())}
    unknown = [name for name in operators if record is not None and name not in known]
    if unknown:
        raise NotFoundError(
            f"job {program.uid!r} has no operator {unknown[0]!r} with state",
            hint=f"there is {', '.join(sorted(known))}" if known else "none of its operators has state",
            code="OPERATOR_NOT_FOUND",
        )
    checkpoints.drop_state(uuid4().hex, operators)
