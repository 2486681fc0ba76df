"""Rule: a table that OLake fills from Kafka."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary
from hybrid_source.boundary import layouts
from hybrid_source.boundary.rule import BoundaryContext, Unusable
from hybrid_source.iceberg_history import IcebergHistory
from hybrid_source.resolution import Resolution

PROPERTY: Final = "olake_2pc"
_PARTITION: Final = re.compile(r"partition_(\d+)")


@dataclass(frozen=True, slots=True)
class OlakeState:
    """The *table* property ``olake_2pc``: JSON whose ``state`` holds ``partition_N``, the next offset of partition N.

    It is committed with the rows but replaced by every commit, so that it speaks of the newest snapshot only: for an
    older one the rows' own columns are asked. Source: OLake's ``types.MetadataState`` and its Kafka driver.
    """

    name: str = "state of OLake"
    looks_for: str = f"the table property {PROPERTY}"

    def resolve(self, context: BoundaryContext) -> Resolution | Unusable | None:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`."""
        history = context.history
        if not isinstance(history, IcebergHistory):
            return None
        text = history.table.metadata.properties.get(PROPERTY)
        if text is None:
            return None
        head = history.table.metadata.current_snapshot_id
        if history.snapshot_id != head:
            return Unusable(
                f"{PROPERTY} is not kept by snapshot: it speaks of the newest one, {head}, and snapshot "
                f"{history.snapshot_id} is read"
            )
        nexts = _nexts(text)
        if not nexts:
            return Unusable(f"{PROPERTY} holds no offsets of partitions (the table may be filled from no topic)")
        columns = layouts.own(history.stored)
        if columns is None:
            return Unusable(
                f"{PROPERTY} may leave out partitions that an earlier sync has read, and the rows carry no columns "
                "_kafka_partition and _kafka_offset that would tell"
            )
        ranges = {partition: PartitionRange(0, offset) for partition, offset in sorted(nexts.items())}
        said = ", ".join(f"{partition}: {offset}" for partition, offset in sorted(nexts.items()))
        return Resolution(
            Boundary({context.topic: TopicBoundary(ranges)}),
            self.name,
            f"table property {PROPERTY} as of the newest snapshot {head}: next offset by partition {{{said}}}",
            columns=columns,
        )


def _nexts(text: str) -> Mapping[int, int]:
    try:
        value: Any = json.loads(text)
        state = value.get("state", value) if isinstance(value, dict) else None
        state = json.loads(state) if isinstance(state, str) else state
        found = state.items() if isinstance(state, dict) else ()
        return {int(match[1]): int(offset) for key, offset in found if (match := _PARTITION.fullmatch(key))}
    except (ValueError, TypeError):
        return {}
