"""The order in which ``boundary: auto`` tries the rules."""

from __future__ import annotations

from headrace.kafka import KafkaCluster
from hybrid_source.boundary.aiven import AivenColumns
from hybrid_source.boundary.automq import AutoMqColumns
from hybrid_source.boundary.connect_columns import ConnectColumns
from hybrid_source.boundary.connect_replay import ConnectReplay
from hybrid_source.boundary.empty import EmptyHistory
from hybrid_source.boundary.fluss import FlussColumns, FlussOffsets
from hybrid_source.boundary.foreign_marks import ForeignMarks
from hybrid_source.boundary.offset_columns import OwnColumns
from hybrid_source.boundary.olake import OlakeState
from hybrid_source.boundary.recorded import RecordedBoundary
from hybrid_source.boundary.redpanda import RedpandaColumns
from hybrid_source.boundary.rule import BoundaryRule
from hybrid_source.boundary.sidecar import SidecarBoundary
from hybrid_source.boundary.tableflow import TableflowColumns


def auto_rules(cluster: KafkaCluster | None) -> tuple[BoundaryRule, ...]:
    """Exact records first, then columns of rows, then what needs another service.

    A replay comes after the columns: it rests on the retention of a control topic, and gives the same where both are.

    Args:
        cluster: Where a control topic of Kafka Connect would be; None: that rule is left out.
    """
    return (
        RecordedBoundary(),
        SidecarBoundary(),
        EmptyHistory(),
        FlussOffsets(),
        OlakeState(),
        OwnColumns(),
        ConnectColumns(),
        RedpandaColumns(),
        TableflowColumns(),
        AutoMqColumns(),
        AivenColumns(),
        FlussColumns(),
        *([ConnectReplay(cluster)] if cluster is not None else []),
        ForeignMarks(),
    )
