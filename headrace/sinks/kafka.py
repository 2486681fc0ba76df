"""The Kafka sink: rows as JSON records, each epoch in one transaction.

*Prepare* stages the encoded records in the job's blobs, produces them together with a marker record into an open
transaction, and waits until the broker has them all: a record that is refused or a right that is missing shows before
the epoch is decided. *Commit* commits that transaction. If it is gone (timed out, fenced, the process died),
``init_transactions`` with a new producer settles what was open, the marker topic tells whether the epoch was
committed, and if not it is produced again from the staged records. Of two lineages of a job one writes:
:mod:`headrace.sinks.kafka_turn`.

A changelog (rows with ``_weight``) becomes upserts by key: the newest row of each key, and a null value (a tombstone)
for one that is gone, as a compacted topic wants it. The key must tell rows apart.

Guarantee: exactly-once for consumers with ``isolation.level=read_committed``. Values: see
:mod:`headrace.sinks.json_encode`. Keys: :func:`headrace.sinks.json_encode.record_key`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from headrace.kafka import KafkaCluster, KafkaMetadata
from headrace.kernel import columns, crash
from headrace.kernel.boundary import Boundary
from headrace.kernel.errors import (
    DataError,
    HeadraceError,
    IdentityError,
    InternalError,
    NotFoundError,
    UnavailableError,
)
from headrace.kernel.protocols import Entry, EpochId, PreCommit, SinkContext
from headrace.sinks import commit_marker
from headrace.sinks.json_encode import json_object, record_key
from headrace.sinks.kafka_topics import ensure_topic
from headrace.sinks.kafka_transaction import TransactionalProducer
from headrace.sinks.kafka_turn import Turn
from headrace.sinks.upserts import check_upsert_key, upserts
from headrace.state.checkpoint import staging_folder
from headrace.state.frames import frame_from_ipc, frame_to_ipc

_STAGE_BYTES: Final = 64 << 20
_SHARD: Final = 0
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class KafkaSink:
    """A :class:`~headrace.kernel.protocols.Sink` into a Kafka topic.

    Attributes:
        id: Stable id; the transactional id and the commit marker are bound to it.
        cluster: Where.
        topic: The target.
        key: Columns of the record key: one gives its plain text, several a JSON object, none no key.
        create: Create the topic when it is not there.
        partitions: Of a topic that is created; None: the broker's default.
    """

    id: str
    cluster: KafkaCluster
    topic: str
    key: Sequence[str] = ()
    create: bool = False
    partitions: int | None = None

    @property
    def commit_order(self) -> int:
        """Before Iceberg: a transaction times out, a pending snapshot does not."""
        return 0

    def open(self, schema: pl.Schema, context: SinkContext) -> KafkaSinkWriter:
        """See :meth:`Sink.open`.

        Raises:
            NotFoundError: The topic is not there, and is not to be created.
            SchemaError: A column has no JSON form, or a key column is missing.
            SupersededError: Another lineage of the job has taken the sink over.
            UserError: The job begins, and the topic holds what it committed before (``SINK_HAS_COMMITS``).
        """
        encoder = _encoder(self, schema)
        if self.create:
            topic = ensure_topic(self.cluster, self.topic, partitions=self.partitions)
        else:
            topic = KafkaMetadata(self.cluster).describe(self.topic)
        partition = commit_marker.ensure_marker_topic(self.cluster, context.job_uid, self.id, _SHARD)
        target = commit_marker.target_name(self.topic, topic.topic_id)
        turn = Turn(self.cluster, self.id, _SHARD, self.topic, target, context, partition)
        # Before any sink of the job fences an instance that works with another state.
        turn.check()
        return KafkaSinkWriter(self, context, encoder, topic.topic_id, turn)


class KafkaSinkWriter:
    """A :class:`~headrace.kernel.protocols.SinkWriter`. Used by one thread at a time."""

    def __init__(
        self,
        sink: KafkaSink,
        context: SinkContext,
        encoder: Callable[[pl.DataFrame], pl.DataFrame],
        topic_id: str | None,
        turn: Turn,
    ) -> None:
        self._sink = sink
        self._context = context
        self._encoder = encoder
        self._topic_id = topic_id
        self._turn = turn
        self._producer: TransactionalProducer | None = None
        self._records = _Records(sink.id, context)
        self._prepared: EpochId | None = None
        self._committed: EpochId | None = None

    def recover(self, pre_commit: PreCommit | None) -> None:
        """See :meth:`SinkWriter.recover`. May be called again later, with the same effect.

        Raises:
            IdentityError: ``pre_commit`` is not committed, and its topic was deleted and created again.
            DataError: It is not committed, and its staged records are gone.
            SupersededError: Another lineage of the job has taken the sink over.
            UserError: The job begins, and another lineage of it has committed meanwhile (``SINK_HAS_COMMITS``).
            HeadraceError: As :meth:`commit`.
        """
        producer = self._connect()
        if self._context.entry is not Entry.GOES_ON:
            self._turn.settle(producer, self._turn.partition)
        if pre_commit is not None:
            self._finish(pre_commit)

    def write(self, frame: pl.DataFrame) -> None:
        """See :meth:`SinkWriter.write`. Encoded at once; beyond 64 MB the records go to the blob store."""
        if frame.height:
            self._records.add(self._encoder(frame))

    def prepare(self, epoch: EpochId, coverage: Boundary | None) -> PreCommit | None:
        """See :meth:`SinkWriter.prepare`.

        Raises:
            RejectedRecordError: The client or the broker refuses a record; nothing of the epoch is visible.
            TransactionAbortedError: The transaction is gone.
            FencedError: Another producer has the transactional id: read the head of the job.
            SupersededError: Another lineage of the job has taken the sink over.
            UnavailableError: Kafka or the blob store does not answer.
        """
        del coverage
        rows = self._records.rows
        if not rows:
            self._records.begin(epoch.epoch + 1)
            return None
        names = self._records.stage(epoch)
        # Only now, and not when it recovers: another sink of this job may still hold back the marker's partition then.
        self._turn.settle(self._open_producer(), self._turn.partition)
        self._produce(epoch, names, self._turn.partition)
        self._prepared = epoch
        self._records.begin(epoch.epoch + 1)
        return {
            "version": _VERSION,
            "job_uid": epoch.job_uid,
            "lineage": epoch.lineage,
            "epoch": epoch.epoch,
            "attempt": epoch.attempt,
            "shard": _SHARD,
            "marker_partition": self._turn.partition,
            "topic": self._sink.topic,
            "topic_id": self._topic_id,
            "staging": names,
            "rows": rows,
        }

    def commit(self, pre_commit: PreCommit) -> None:
        """See :meth:`SinkWriter.commit`.

        A transaction that this writer has open is committed; when the broker gives no answer, or when the transaction
        is another writer's, the way of :meth:`recover` is taken.

        Raises:
            TransactionAbortedError: The broker has timed the transaction out.
            FencedError: Another producer has the transactional id.
            UnavailableError: Kafka does not answer; whether the epoch is committed is decided by the next recovery.

        After each of them: read the head of the job, and if it is still one's own, :meth:`recover`.
        """
        epoch = _epoch_of(pre_commit)
        if epoch == self._committed:
            return
        if epoch != self._prepared:
            self._connect()
            self._finish(pre_commit)
            return
        self._prepared = None
        try:
            self._commit_transaction(epoch)
        except UnavailableError:
            self._connect()
            self._finish(pre_commit)

    def abort(self) -> None:
        """See :meth:`SinkWriter.abort`."""
        self._prepared = None
        if self._producer is not None:
            self._producer.abort()
        self._records.drop()

    def close(self) -> None:
        """See :meth:`SinkWriter.close`."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _connect(self) -> TransactionalProducer:
        self.close()
        self._prepared = None
        self._turn.lose()
        self._producer = TransactionalProducer(
            self._sink.cluster, f"headrace/{self._context.job_uid}/{self._sink.id}/{_SHARD}"
        )
        return self._producer

    def _finish(self, pre_commit: PreCommit) -> None:
        epoch = _epoch_of(pre_commit)
        marker = self._turn.settle(self._open_producer(), pre_commit["marker_partition"])
        if marker is None or not marker.covers(epoch):
            self._check_target(pre_commit)
            self._produce(epoch, pre_commit["staging"], pre_commit["marker_partition"])
            self._commit_transaction(epoch)
        self._committed = epoch

    def _check_target(self, pre_commit: PreCommit) -> None:
        topic, then = pre_commit["topic"], pre_commit["topic_id"]
        now = KafkaMetadata(self._sink.cluster).describe(topic).topic_id
        if topic != self._sink.topic or (then and now and then != now):
            raise IdentityError(
                f"epoch {pre_commit['epoch']} is to be committed to another topic {topic!r}",
                detail=f"it was prepared for the topic with id {then}; sink {self._sink.id!r} has "
                f"{self._sink.topic!r} with id {now}",
                hint="the topic was deleted and created again, or the sink was renamed: start the job under another "
                "uid, or give the sink its former topic",
                context={"topic": topic, "recorded": then, "found": now},
            )

    def _produce(self, epoch: EpochId, names: Sequence[str], marker_partition: int) -> None:
        producer = self._open_producer()
        producer.begin()
        try:
            for name in names:
                producer.send(self._sink.topic, self._records.read(name))
            producer.send_one(commit_marker.TOPIC, *self._turn.record(epoch), marker_partition)
            producer.flush()
        except HeadraceError:
            producer.abort()
            raise

    def _commit_transaction(self, epoch: EpochId) -> None:
        crash.point("kafka-before-commit")
        self._open_producer().commit()
        self._committed = epoch
        crash.point("kafka-after-commit")

    def _open_producer(self) -> TransactionalProducer:
        if self._producer is None:
            raise InternalError(f"sink {self._sink.id!r} was not recovered before its first epoch")
        return self._producer


def _encoder(sink: KafkaSink, schema: pl.Schema) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Rows to records with ``key`` and ``value``; a changelog's to upserts and tombstones."""
    payload = pl.Schema({name: dtype for name, dtype in schema.items() if name != columns.WEIGHT})
    key, value = record_key(payload, sink.key).alias("key"), json_object(payload).alias("value")
    if columns.WEIGHT not in schema:
        return lambda rows: rows.select(key, value)
    check_upsert_key(sink.id, sink.key)
    return lambda rows: upserts(rows.select(key, value, columns.WEIGHT), sink.id)


class _Records:
    """The encoded records of the running epoch: in memory, and beyond a limit in the blob store."""

    def __init__(self, sink_id: str, context: SinkContext) -> None:
        self._sink_id = sink_id
        self._context = context
        self._writer = uuid.uuid4().hex
        self._parts = 0
        self.begin((context.decided or 0) + 1)

    def begin(self, epoch: int) -> None:
        """Start afresh; ``epoch`` is a lower bound of the epoch's number, which only ``prepare`` tells."""
        self._epoch = epoch
        self.rows = 0
        self._frames: list[pl.DataFrame] = []
        self._nbytes = 0
        self._names: list[str] = []
        self._latest: dict[str, pl.DataFrame] = {}

    def add(self, records: pl.DataFrame) -> None:
        self.rows += records.height
        self._frames.append(records)
        self._nbytes += int(records.estimated_size())
        if self._nbytes >= _STAGE_BYTES:
            self._stage(staging_folder(self._context.lineage, self._epoch, self._writer, self._sink_id))

    def stage(self, epoch: EpochId) -> list[str]:
        """Make all records durable; gives the names of their blobs, in order."""
        if self._frames:
            self._stage(staging_folder(epoch.lineage, epoch.epoch, epoch.attempt, self._sink_id))
        return self._names

    def read(self, name: str) -> pl.DataFrame:
        """The records of a blob.

        Raises:
            DataError: It is gone or damaged.
        """
        if name in self._latest:
            return self._latest[name]
        try:
            return frame_from_ipc(self._context.blobs.get(name), name)
        except NotFoundError as error:
            raise DataError(
                f"the staged records {name} of a decided epoch are gone",
                detail=error.detail,
                hint="restore the file from a backup of the checkpoint store",
                code="CHECKPOINT_GONE",
            ) from error

    def drop(self) -> None:
        """Forget the records; what stays behind in the store is collected with the epoch."""
        with suppress(HeadraceError):
            for name in self._names:
                self._context.blobs.delete(name)
        self.begin(self._epoch)

    def _stage(self, folder: str) -> None:
        name = f"{folder}/{self._parts:06d}.arrow"
        records = pl.concat(self._frames)
        self._context.blobs.put(name, frame_to_ipc(records))
        self._latest = {name: records}
        self._names.append(name)
        self._frames, self._nbytes = [], 0
        self._parts += 1


def _epoch_of(pre_commit: PreCommit) -> EpochId:
    version: Any = pre_commit.get("version")
    if version != _VERSION:
        raise InternalError(
            f"a pre-commit of a kafka sink has version {version!r}",
            detail=f"this release reads version {_VERSION}",
            hint="run the job with the release that wrote it, or a later one",
        )
    return EpochId(pre_commit["job_uid"], pre_commit["lineage"], pre_commit["epoch"], pre_commit["attempt"])
