"""Which lineage of a job may write to a topic: the commit marker as one writer has read it.

Two lineages of one job uid (two state folders) share the transactional id, so that of their transactions only those of
the one that initialised it last can commit. Whoever has just initialised it reads the marker: what stands there then
can no longer be changed by a predecessor. A lineage that begins leaves its claim there at once; one that goes on and
finds another's claim has lost its turn for good, and one that begins where another has committed is refused.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from headrace.kafka import KafkaCluster
from headrace.kernel.errors import has_commits, set_back, superseded
from headrace.kernel.protocols import Entry, EpochId, SinkContext
from headrace.sinks import commit_marker
from headrace.sinks.commit_marker import Marker
from headrace.sinks.kafka_transaction import TransactionalProducer


@dataclass(slots=True)
class Turn:
    """The turn of one writer.

    Attributes:
        cluster: Where.
        sink: The sink's id.
        shard: The sink's shard.
        topic: The target.
        target: The target's name in markers.
        context: The job and its lineage.
        partition: Of the marker topic, for new markers.
    """

    cluster: KafkaCluster
    sink: str
    shard: int
    topic: str
    target: str
    context: SinkContext
    partition: int
    _marker: Marker | None = None
    _settled: bool = field(default=False)
    _began: bool = field(default=False)

    def check(self) -> None:
        """Refuse what can be seen to be another lineage's. Waits for nobody and fences nobody.

        Raises:
            SupersededError: Another lineage has taken the turn.
            UserError: The job begins, and another lineage has committed to the topic (``SINK_HAS_COMMITS``).
            DataError: The marker names an epoch that the job's head does not know (``CHECKPOINT_SET_BACK``).
        """
        self._refuse(
            commit_marker.peek_marker(self.cluster, self.partition, self.context.job_uid, self.sink, self.shard)
        )

    def lose(self) -> None:
        """The producer is another one now: what was read under the former one may have changed."""
        self._settled = False

    def settle(self, producer: TransactionalProducer, partition: int) -> Marker | None:
        """Read the marker, once for a producer that has fenced its predecessors; who takes the turn leaves a claim.

        Args:
            producer: Without an open transaction.
            partition: Of the marker topic, where the shard's marker is.

        Raises:
            HeadraceError: As :meth:`check`, and as :func:`commit_marker.read_marker`.
        """
        if self._settled:
            return self._marker
        found = commit_marker.read_marker(self.cluster, partition, self.context.job_uid, self.sink, self.shard)
        self._refuse(found)
        if self.context.entry is not Entry.GOES_ON and (found is None or found.lineage != self.context.lineage):
            found = Marker(self.context.lineage, None, uuid.uuid4().hex, found.targets if found else ())
            producer.begin()
            producer.send_one(commit_marker.TOPIC, *self._record(found), partition)
            producer.flush()
            producer.commit()
        self._marker, self._settled, self._began = found, True, True
        return found

    def record(self, epoch: EpochId) -> tuple[bytes, bytes]:
        """Key and value of the marker of an epoch; after :meth:`settle`."""
        return self._record((self._marker or Marker(epoch.lineage, None, "")).after(epoch, self.target))

    def _record(self, marker: Marker) -> tuple[bytes, bytes]:
        return commit_marker.marker_record(marker, self.context.job_uid, self.sink, self.shard)

    def _refuse(self, marker: Marker | None) -> None:
        own = self.context.lineage
        if marker is None:
            return
        if marker.lineage == own:
            self._refuse_set_back(marker)
            return
        if self.context.entry is Entry.GOES_ON:
            raise superseded(f"topic {self.topic!r}", self.sink, self.context.job_uid, own, marker.lineage)
        # What a restored lineage does again must not be there yet.
        decided = self.context.decided
        if self.target in marker.targets and (decided is None or (marker.epoch or 0) > decided):
            raise has_commits(
                f"topic {self.topic!r}",
                self.context.job_uid,
                f"its commit marker is of another life of this job (lineage {marker.lineage}, epoch {marker.epoch})",
                {"topic": self.topic, "epoch": marker.epoch},
            )

    def _refuse_set_back(self, marker: Marker) -> None:
        # Later epochs than the head's are this writer's own, once it has been settled.
        decided = self.context.decided
        if not self._began and decided is not None and (marker.epoch or 0) > decided:
            context = {"topic": self.topic}
            raise set_back(f"topic {self.topic!r}", self.context.job_uid, decided, marker.epoch or 0, context)
