"""Topics that a sink needs: made when absent, and their settings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Event
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # not in its __all__

from headrace.kafka import KafkaCluster, KafkaMetadata, TopicInfo, mapped
from headrace.kernel.errors import NotFoundError

_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05
_BROKER_DEFAULT: Final = -1


def ensure_topic(
    cluster: KafkaCluster, topic: str, *, partitions: int | None, config: Mapping[str, str] | None = None
) -> TopicInfo:
    """A topic's description; the topic is created when it is not there.

    Args:
        cluster: Where.
        topic: Its name.
        partitions: For a new topic; None: the broker's default. The replication is the broker's default.
        config: Settings of a new topic.

    Raises:
        HeadraceError: What ``headrace.kafka`` maps; also when a new topic is not served within 30 seconds.
    """
    metadata = KafkaMetadata(cluster)
    try:
        return metadata.describe(topic)
    except NotFoundError:
        _create(cluster, topic, partitions, config or {})
    deadline = time.monotonic() + _SECONDS
    pause = Event()
    while True:
        # The controller answers before the broker's own view of the cluster has caught up.
        try:
            return metadata.describe(topic)
        except NotFoundError:
            if time.monotonic() > deadline:
                raise
        pause.wait(_POLL_SECONDS)


def topic_setting(cluster: KafkaCluster, topic: str, name: str) -> str:
    """A setting of a topic, such as ``max.message.bytes``.

    Raises:
        HeadraceError: What ``headrace.kafka`` maps.
    """
    return KafkaMetadata(cluster).settings([topic], [name])[topic][name]


def _create(cluster: KafkaCluster, topic: str, partitions: int | None, config: Mapping[str, str]) -> None:
    admin = cluster.admin()
    new = NewTopic(
        topic,
        num_partitions=_BROKER_DEFAULT if partitions is None else partitions,
        replication_factor=_BROKER_DEFAULT,
        config=dict(config),
    )
    with mapped(f"topic {topic!r} cannot be created on cluster {cluster.name!r}"):
        try:
            admin.create_topics([new], request_timeout=_SECONDS)[topic].result(_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
