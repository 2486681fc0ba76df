"""``headrace boundary``: show, set and reset what a table covers of a topic."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

import typer

from catalog.boundary_record import find_boundary, merged
from catalog.catalogs import Catalogs, TableName
from catalog.commit import set_boundary as commit_boundary
from headrace.cli.settings import Settings
from headrace.jobs.boundary import explain_boundary as explain
from headrace.jobs.boundary import plan_reset
from headrace.jobs.boundary import reset_boundary as commit_reset
from headrace.jobs.config import Config
from headrace.kafka.cluster import KafkaCluster
from headrace.kafka.metadata import KafkaMetadata, OffsetRange, TopicInfo
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary, TopicPartition
from headrace.kernel.errors import NotFoundError, UserError

_OFFSET: Final = re.compile(r"(\d{1,9}):(?:(\d{1,18})-)?(\d{1,18})")


def show_boundary(name: str, snapshot: int | None, settings: Settings, *, as_json: bool) -> None:
    """Print the record that holds for a snapshot of a table.

    Raises:
        NotFoundError: There is no such table or snapshot, or no record.
    """
    table = Catalogs(settings.load().catalogs).load(name)
    if snapshot is not None and table.snapshot_by_id(snapshot) is None:
        raise NotFoundError(f"table {name} has no snapshot {snapshot}", code="SNAPSHOT_NOT_FOUND")
    current = table.current_snapshot()
    pinned = snapshot or (current.snapshot_id if current else None)
    found = find_boundary(table, pinned)
    if found is None:
        hint = (
            "give --topic to see what other writers have left; fill the table with headrace archive, or state what it "
            "covers with headrace boundary set"
        )
        raise NotFoundError(f"table {name} has no boundary record", hint=hint, code="BOUNDARY_NOT_FOUND")
    if as_json:
        facts = {
            "table": name,
            "snapshot": pinned,
            "recorded_in": found.snapshot_id,
            "where": found.where,
            "proven": found.proven,
            "foreign_changes": [change.snapshot_id for change in found.foreign_changes],
        }
        typer.echo(json.dumps(facts | {"boundary": found.boundary.to_json()}))
        return
    typer.echo(f"table {name}, snapshot {pinned}: recorded in snapshot {found.snapshot_id} ({found.where})")
    _print(found.boundary)
    for change in found.foreign_changes:
        rows = f"{change.added} rows added, {change.deleted} deleted"
        typer.echo(f"warning: snapshot {change.snapshot_id} ({change.operation}, {rows}) says nothing of its offsets")


def explain_boundary(
    name: str, topic: str, snapshot: int | None, cluster: str, settings: Settings, *, as_json: bool
) -> None:
    """Print what every rule says of a table and a topic.

    Raises:
        NotFoundError: There is no such table or snapshot.
        BoundaryError: No rule gives a boundary; printed before.
    """
    explained = explain(settings.load(), name, topic, snapshot, cluster)
    found, error = explained.trial.resolution, explained.trial.error
    if as_json:
        typer.echo(json.dumps(explained.to_json()))
    else:
        typer.echo(f"table {name}, snapshot {explained.snapshot}, topic {topic}: {found.rule if found else 'none'}")
        if found is not None:
            for partition, at in sorted(found.boundary.topics[topic].partitions.items()):
                typer.echo(f"  partition {partition}: offsets {at.start} up to {at.next}, exclusive")
            typer.echo(f"guarantee: {found.guarantee}")
            typer.echo(f"columns: {found.columns or 'the rows carry no offsets of the topic'}")
        for number, log in explained.logs.items():
            tier = "" if log.local is None else f"; the brokers' own part begins at {log.local}"
            typer.echo(f"topic now: partition {number} holds {log.earliest} up to {log.latest}, exclusive{tier}")
        for note in explained.notes:
            typer.echo(f"topic now: {note}")
        typer.echo("rules, in order:")
        for verdict in explained.trial.verdicts:
            typer.echo(f"  {verdict.outcome:10}  {verdict.rule}: {verdict.detail}")
    if error is not None:
        raise error


def reset_boundary(name: str, topic: str | None, cluster: str, settings: Settings, *, confirmed: bool) -> None:
    """Take back what a table covers of a topic, which was created again or is on another cluster now; rows stay.

    Raises:
        NotFoundError: There is no such table or record.
        UserError: It was not confirmed (``CONFIRMATION_MISSING``); nothing was written.
    """
    config = settings.load()
    reset = plan_reset(config, name, topic, cluster)
    if reset.same:
        typer.echo(
            f"warning: topic {reset.topic} is the one that was recorded: a job will read its records again, next to "
            "the rows that the table has of them",
            err=True,
        )
    covered = reset.before.partitions if reset.before else {}
    said = ", ".join(f"{partition}: {at.start} up to {at.next}" for partition, at in sorted(covered.items()))
    if not confirmed:
        raise UserError(
            f"table {name} would cover nothing of topic {reset.topic} any more",
            detail=f"its record covers {said or 'nothing'}; its rows would stay",
            hint="add --yes to do it",
            code="CONFIRMATION_MISSING",
        )
    snapshot = commit_reset(config, reset)
    typer.echo(f"table {name}: recorded in snapshot {snapshot} that nothing of topic {reset.topic} is covered")
    typer.echo(f"  before: {said or 'nothing'}; topic id now {reset.now.topic_id or 'not known'}")
    typer.echo("start jobs over it under another uid: positions of the former topic mean nothing now")


def set_boundary(name: str, topic: str, offsets: Sequence[str], cluster: str, settings: Settings) -> None:
    """Record what a table covers of a topic; other topics' records stay.

    Raises:
        NotFoundError: There is no such table, topic or partition.
        UserError: An offset is malformed or beyond the end of the log.
    """
    wanted = dict(parse_offset(text) for text in offsets)
    config = settings.load()
    catalogs = Catalogs(config.catalogs)
    table = catalogs.load(name)
    info, logs = _topic(config, cluster, topic, wanted)
    for partition, covered in wanted.items():
        _check(topic, partition, covered, logs[partition])
    current = table.current_snapshot()
    found = find_boundary(table, current.snapshot_id if current else None)
    stated = Boundary({topic: TopicBoundary(wanted, info.topic_id)}, info.cluster_id)
    boundary = merged(found.boundary if found else None, stated, restate=True)
    snapshot = commit_boundary(catalogs, TableName.parse(name), boundary)
    typer.echo(f"table {name}: recorded in snapshot {snapshot}")
    _print(boundary)


def parse_offset(text: str) -> tuple[int, PartitionRange]:
    """``PARTITION:NEXT`` or ``PARTITION:START-NEXT``; the start is 0 when it is not given.

    Raises:
        UserError: The text is neither.
    """
    match = _OFFSET.fullmatch(text)
    if not match or int(match[2] or 0) > int(match[3]):
        hint = "write PARTITION:NEXT_OFFSET, for example 0:1834, or PARTITION:START-NEXT"
        raise UserError(f"{text!r} is no offset of a partition", hint=hint, code="OFFSET_INVALID")
    return int(match[1]), PartitionRange(int(match[2] or 0), int(match[3]))


def _topic(
    config: Config, cluster: str, topic: str, wanted: dict[int, PartitionRange]
) -> tuple[TopicInfo, dict[int, OffsetRange]]:
    metadata = KafkaMetadata(KafkaCluster(cluster, config.kafka_cluster(cluster)))
    info = metadata.describe(topic)
    unknown = sorted(set(wanted) - set(info.partitions))
    if unknown:
        hint = f"it has partitions {info.partitions[0]} to {info.partitions[-1]}"
        raise NotFoundError(f"topic {topic!r} has no partition {unknown[0]}", hint=hint, code="PARTITION_NOT_FOUND")
    logs = metadata.ranges(TopicPartition(topic, partition) for partition in wanted)
    return info, {at.partition: held for at, held in logs.items()}


def _check(topic: str, partition: int, covered: PartitionRange, log: OffsetRange) -> None:
    if covered.next > log.latest:
        raise UserError(
            f"topic {topic!r} partition {partition} ends at {log.latest}, before {covered.next}",
            hint="give the first offset that the table does not hold",
            code="OFFSET_INVALID",
        )
    if covered.next < log.earliest:
        typer.echo(
            f"warning: partition {partition} begins at {log.earliest}: offsets from {covered.next} on are gone, "
            "and a job over this table would refuse to start",
            err=True,
        )


def _print(boundary: Boundary) -> None:
    for topic, covered in sorted(boundary.topics.items()):
        typer.echo(f"topic {topic}" + (f" (id {covered.topic_id})" if covered.topic_id else ""))
        for partition, at in sorted(covered.partitions.items()):
            typer.echo(f"  partition {partition}: offsets {at.start} up to {at.next}, exclusive")
