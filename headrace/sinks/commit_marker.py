"""Whose turn a sink's shard is, and what it has committed: records in a compacted topic of Headrace's own.

A marker is written in the very transaction that it speaks of, so it is there if and only if the epoch's records are.
(Offsets of a consumer group are no place for it: they expire, and lag tools overwrite them.)
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as ClientPartition

from headrace.kafka import KafkaCluster, KafkaMetadata, map_error, mapped
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import ConfigError, InternalError, UnavailableError
from headrace.kernel.protocols import EpochId
from headrace.sinks.kafka_topics import ensure_topic, topic_setting

TOPIC: Final = "__headrace_commits"
PARTITIONS: Final = 32
"""Of a new topic. Jobs share it: one that dies in a transaction holds back readers of its partition for a while."""

_SECONDS: Final = 180.0
_FETCH: Final = 10_000
_FETCH_WAIT_MS: Final = 20
_POLL_SECONDS: Final = 0.1
_DAY_MS: Final = 86_400_000
_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class Marker:
    """Whose turn a shard is, and the last epoch that is committed there.

    Attributes:
        lineage: Whose turn it is.
        epoch: Its last committed epoch; None when it has only begun.
        attempt: The attempt that made the epoch; names the claim of a lineage that has only begun.
        targets: Every target (:func:`target_name`) that any lineage of the sink has committed to.
    """

    lineage: str
    epoch: int | None
    attempt: str
    targets: tuple[str, ...] = ()

    def covers(self, epoch: EpochId) -> bool:
        """Whether ``epoch`` is committed: epochs of a lineage are committed in order.

        Raises:
            InternalError: The epoch was committed by another attempt, though only one can have been decided.
        """
        if self.lineage != epoch.lineage or self.epoch is None or self.epoch < epoch.epoch:
            return False
        if self.epoch == epoch.epoch and self.attempt != epoch.attempt:
            raise InternalError(
                f"epoch {epoch.epoch} of job {epoch.job_uid!r} was committed to kafka by another attempt",
                detail=f"marker: {self.attempt}, checkpoint: {epoch.attempt}",
            )
        return True

    def after(self, epoch: EpochId, target: str) -> Marker:
        """The marker that follows when ``epoch`` is committed to ``target``."""
        targets = self.targets if target in self.targets else (*self.targets, target)
        return Marker(epoch.lineage, epoch.epoch, epoch.attempt, targets)


def target_name(topic: str, topic_id: str | None) -> str:
    """Names a topic in a marker: by its id, which a recreated topic does not share, where the broker gives one."""
    return topic_id or f"topic {topic}"


def marker_record(marker: Marker, job_uid: str, sink: str, shard: int) -> tuple[bytes, bytes]:
    """Key and value of a marker."""
    return _key(job_uid, sink, shard), json.dumps({"version": _VERSION, **asdict(marker)}).encode()


def ensure_marker_topic(cluster: KafkaCluster, job_uid: str, sink: str, shard: int) -> int:
    """Create the topic when it is absent.

    Returns:
        The partition of a shard's markers. The same when partitions beyond the first 32 are added later.

    Raises:
        ConfigError: It is there but not compacted: markers would expire, and epochs be written twice.
    """
    found = ensure_topic(
        cluster, TOPIC, partitions=PARTITIONS, config={"cleanup.policy": "compact", "segment.ms": str(_DAY_MS)}
    )
    policy = topic_setting(cluster, TOPIC, "cleanup.policy")
    if policy != "compact":
        raise ConfigError(
            f"topic {TOPIC} on cluster {cluster.name!r} is not compacted",
            detail=f"cleanup.policy is {policy}",
            hint="set cleanup.policy=compact on it",
        )
    return zlib.crc32(_key(job_uid, sink, shard)) % min(len(found.partitions), PARTITIONS)


def peek_marker(cluster: KafkaCluster, partition: int, job_uid: str, sink: str, shard: int) -> Marker | None:
    """The last marker of a shard that can be read without waiting; a newer one may be about to show."""
    at = TopicPartition(TOPIC, partition)
    return _last(cluster, partition, KafkaMetadata(cluster).stable([at])[at], _key(job_uid, sink, shard))


def read_marker(cluster: KafkaCluster, partition: int, job_uid: str, sink: str, shard: int) -> Marker | None:
    """The last committed marker of a shard.

    The caller has called ``init_transactions`` for the shard, so that no transaction of its own is open or about to
    be completed. What it wrote may still stand above the last stable offset, hidden by a transaction of *another*
    shard that is open before it. Taking it for absent would write the epoch twice, so that one is waited for; other
    shards' transactions are not, when nothing of this shard stands above them.

    Raises:
        UnavailableError: The end was not reached within three minutes.
    """
    metadata = KafkaMetadata(cluster)
    key = _key(job_uid, sink, shard)
    at = TopicPartition(TOPIC, partition)
    end = metadata.latest([at])[at]
    stable = min(metadata.stable([at])[at], end)
    hidden = any(message.key() == key for message in _records(cluster, partition, stable, end, uncommitted=True))
    return _last(cluster, partition, end if hidden else stable, key)


def _last(cluster: KafkaCluster, partition: int, end: int, key: bytes) -> Marker | None:
    # A number: to look up what OFFSET_BEGINNING means takes a new consumer half a second.
    at = TopicPartition(TOPIC, partition)
    start = KafkaMetadata(cluster).earliest([at])[at]
    found = None
    for message in _records(cluster, partition, start, end, uncommitted=False):
        if message.key() == key:
            found = message.value()
    return None if found is None else _from_json(found)


def _records(cluster: KafkaCluster, partition: int, start: int, end: int, *, uncommitted: bool) -> Iterator[Message]:
    """Records from ``start`` until the position is at ``end``."""
    cannot = f"partition {partition} of topic {TOPIC} on cluster {cluster.name!r} cannot be read to its end"
    if start >= end:
        return
    deadline = time.monotonic() + _SECONDS
    # The end lies behind a transaction marker, which shows only by the empty fetch that follows.
    consumer = cluster.consumer(uncommitted=uncommitted, fetch_wait_max_ms=_FETCH_WAIT_MS)
    reached = start
    try:
        with mapped(cannot):
            consumer.assign([ClientPartition(TOPIC, partition, start)])
            while reached < end:
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        cannot,
                        detail=f"at offset {reached} of {end} after {_SECONDS:g} s",
                        hint="another job's open transaction may hold it back; it ends with its transaction.timeout.ms",
                    )
                for message in consumer.consume(_FETCH, _POLL_SECONDS):
                    error = message.error()
                    offset = message.offset()
                    if error is None and offset is not None:
                        reached = offset + 1
                        yield message
                    elif error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's public name
                        reached = max(reached, offset or 0)
                    elif error is not None and not error.retriable():
                        raise map_error(error, cannot)
    finally:
        consumer.close()


def _key(job_uid: str, sink: str, shard: int) -> bytes:
    return json.dumps({"job": job_uid, "sink": sink, "shard": shard}).encode()


def _from_json(data: bytes | str) -> Marker:
    try:
        value = json.loads(data)
        if value["version"] == _VERSION:
            epoch = value["epoch"]
            return Marker(
                str(value["lineage"]),
                None if epoch is None else int(epoch),
                str(value["attempt"]),
                tuple(map(str, value["targets"])),
            )
    except (ValueError, KeyError, TypeError) as error:
        raise InternalError(f"a record in topic {TOPIC} is no commit marker", detail=repr(data)) from error
    raise InternalError(
        f"a record in topic {TOPIC} has version {value['version']!r}",
        detail=f"this release reads version {_VERSION}",
        hint="run the job with the release that wrote it, or a later one",
    )
