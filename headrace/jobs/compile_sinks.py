"""Sinks of a spec as two-phase sinks."""

from __future__ import annotations

from catalog.catalogs import Catalogs
from headrace.jobs.config import Config
from headrace.jobs.graph import SinkNode
from headrace.jobs.spec import IcebergSink
from headrace.kafka.cluster import KafkaCluster
from headrace.kernel.protocols import Sink
from headrace.sinks import iceberg, kafka


def build_sink(node: SinkNode, config: Config, catalogs: Catalogs) -> Sink:
    """One sink. Does no I/O."""
    if isinstance(node.sink, IcebergSink):
        table = node.sink.iceberg
        return iceberg.IcebergSink(
            node.id,
            catalogs,
            table.table,
            create=table.create,
            partition_by=table.partition_by,
            marker_interval_us=table.marker,
        )
    topic = node.sink.kafka
    cluster = KafkaCluster(topic.cluster, {**config.kafka_cluster(topic.cluster), **topic.options})
    return kafka.KafkaSink(node.id, cluster, topic.topic, topic.key, topic.create, topic.partitions)
