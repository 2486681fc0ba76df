"""What a plan says of topics with tiered storage: where the part of the log begins that the brokers hold themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from headrace.kafka.cluster import KafkaCluster
from headrace.kafka.metadata import KafkaMetadata
from headrace.kafka.tiered import REMOTE_STORAGE, local_starts
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import ConfigError, DependencyError, ExternalError

_DEADLINE_S: Final = 10.0


def tiers(
    cluster: KafkaCluster, partitions: Collection[TopicPartition]
) -> tuple[Mapping[TopicPartition, int], Sequence[str]]:
    """The local starts of those partitions whose topic is tiered; and, in words, why some are not known.

    A plan does not fail over this: no job needs the answer.
    """
    try:
        settings = KafkaMetadata(cluster).settings({at.topic for at in partitions}, [REMOTE_STORAGE])
        tiered = [at for at in partitions if settings[at.topic].get(REMOTE_STORAGE) == "true"]
        return (local_starts(cluster, tiered, _DEADLINE_S) if tiered else {}), ()
    except (ConfigError, DependencyError, ExternalError) as error:
        return {}, [
            f"where the local log of tiered topics begins is not known: {error.message}; {error.hint}".rstrip("; ")
        ]
