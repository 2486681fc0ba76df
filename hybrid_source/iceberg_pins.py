"""Which snapshot of a table a pin or a job names, and the refusals where it is not there."""

from __future__ import annotations

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from headrace.kernel.errors import IdentityError, NotFoundError, SnapshotGoneError
from headrace.kernel.protocols import Json


def whole_pin(pin: Json) -> Json:
    """The pin of all rows at an increment's end: what a boundary is resolved for."""
    return {key: value for key, value in pin.items() if key != "since"}


def check_table(table: Table, name: str, pin: Json) -> None:
    """Refuse a table that is not the one of a pin (dropped and created again).

    Raises:
        IdentityError: It is another one.
    """
    uuid = str(table.metadata.table_uuid)
    if pin["table_uuid"] != uuid:
        raise IdentityError(
            f"table {name} is not the one this job began with",
            detail=f"recorded uuid {pin['table_uuid']}, found {uuid}",
            hint="start the job afresh under a new uid, or restore the old table",
            context={"table": name, "wanted": pin["table_uuid"], "available": uuid},
        )


def pinned_snapshot(table: Table, name: str, pin: Json) -> Snapshot | None:
    """The snapshot of a pin; None where the table had none then.

    Raises:
        SnapshotGoneError: The table has it no longer.
        IdentityError: It is another table.
    """
    check_table(table, name, pin)
    pinned = pin["snapshot_id"]
    snapshot = table.metadata.snapshot_by_id(pinned) if pinned is not None else None
    if pinned is not None and snapshot is None:
        raise snapshot_gone(name, pinned, known=_latest(table))
    return snapshot


def snapshot_gone(name: str, snapshot_id: int | None, file: str = "", known: str = "") -> SnapshotGoneError:
    """The error for a pinned snapshot that has been expired, or lost a file; ``known`` are those that are left."""
    missing = f"missing file: {file}" if file else "the table's metadata no longer holds it; its latest snapshots: "
    return SnapshotGoneError(
        f"snapshot {snapshot_id} of table {name} is no longer available",
        detail=missing if file else missing + (known or "none"),
        hint="keep snapshots at least as long as a job needs them (a tag), then start the job afresh",
        context={"table": name, "snapshot_id": str(snapshot_id), "wanted": file or str(snapshot_id)}
        | ({"file": file} if file else {"available": known}),
    )


def chosen_snapshot(table: Table, name: str, snapshot_id: int | None) -> Snapshot | None:
    """The snapshot with an id; without one the current one, or None where the table has none.

    Raises:
        NotFoundError: ``SNAPSHOT_NOT_FOUND``.
    """
    if snapshot_id is None:
        return table.current_snapshot()
    found = table.metadata.snapshot_by_id(snapshot_id)
    if found is None:
        known = _latest(table)
        raise NotFoundError(
            f"table {name} has no snapshot {snapshot_id}",
            detail=f"its latest snapshots: {known or 'none'}",
            hint="name one that the table still has, or leave snapshot out for the newest",
            code="SNAPSHOT_NOT_FOUND",
            context={"table": name, "wanted": str(snapshot_id), "available": known},
        )
    return found


def _latest(table: Table) -> str:
    return ", ".join(str(snapshot.snapshot_id) for snapshot in table.metadata.snapshots[-5:])
