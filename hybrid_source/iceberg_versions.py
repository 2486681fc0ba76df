"""What has come to a table since a pinned version: newer pins, one by one or as a whole, and what has changed rows."""

from __future__ import annotations

from pyiceberg.table import Table

from catalog.ancestry import Ancestry
from headrace.kernel.errors import DataError, SnapshotGoneError
from headrace.kernel.protocols import Json
from hybrid_source.iceberg_history import IcebergHistory
from hybrid_source.iceberg_increments import OnChange, between, increment, is_change, operation
from hybrid_source.iceberg_pins import check_table, whole_pin


def newer_pin(table: Table, name: str, pin: Json, on_change: OnChange = "fail") -> Json:
    """The pin of the increment from a pinned version to the table's newest snapshot; None when there is none newer.

    After a version without a snapshot (a table that was empty then) this is a pin of all rows, without ``since``.

    Args:
        table: The table, loaded just now.
        name: As in the pin.
        pin: Of the whole table, or of an increment.
        on_change: See :func:`open_iceberg`.

    Raises:
        SnapshotGoneError: Snapshots in between have been expired.
        IdentityError: It is another table.
        DataError: As :func:`hybrid_source.iceberg_increments.increment`.
    """
    check_table(table, name, pin)
    head = table.current_snapshot()
    if head is None or head.snapshot_id == pin["snapshot_id"]:
        return None
    since = pin["snapshot_id"]
    if since is None:
        return IcebergHistory(table, name, head).pin
    return IcebergHistory(table, name, head, increment(table, name, since, head, on_change)).pin


def newer_snapshots(table: Table, name: str, pin: Json) -> list[Json]:
    """A pin for each snapshot after a pinned one, oldest first: the increment that this snapshot alone makes.

    Whether each can be read is seen when it is opened. After a version without a snapshot the first one is of all rows.

    Raises:
        SnapshotGoneError: Snapshots in between have been expired.
        IdentityError: It is another table.
        DataError: ``SNAPSHOT_NOT_ANCESTOR``.
    """
    check_table(table, name, pin)
    head, since = table.current_snapshot(), pin["snapshot_id"]
    if head is None or head.snapshot_id == since:
        return []
    pins = []
    for snapshot in between(table, name, since, head):
        one = {**whole_pin(pin), "snapshot_id": snapshot.snapshot_id}
        pins.append(one if since is None else {**one, "since": since})
        since = snapshot.snapshot_id
    return pins


def changed_between(table: Table, name: str, pin: Json, newer: Json) -> str:
    """The first snapshot after a pinned one, up to a newer one, that changed or deleted rows; for people.

    Returns:
        Empty where there is none among the snapshots that have not been expired. A table that was rolled back behind
        the pinned snapshot, or created again, has changed, too.
    """
    if pin["table_uuid"] != newer["table_uuid"]:
        return f"table {name} is not the one this job began with (uuid {pin['table_uuid']}, now {newer['table_uuid']})"
    head = table.metadata.snapshot_by_id(newer["snapshot_id"]) if newer["snapshot_id"] is not None else None
    if head is None or head.snapshot_id == pin["snapshot_id"]:
        return ""
    try:
        line = between(table, name, pin["snapshot_id"], head)
    except SnapshotGoneError:
        line = Ancestry.of(table.metadata, head.snapshot_id).snapshots[::-1]
    except DataError as error:
        return error.message
    changes = (snapshot for snapshot in line if is_change(snapshot))
    return next((f"snapshot {one.snapshot_id} of table {name} is of operation {operation(one)}" for one in changes), "")
