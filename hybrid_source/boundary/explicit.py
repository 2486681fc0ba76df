"""Rule: the job states the next offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary, TopicPartition
from headrace.kernel.errors import SpecError
from hybrid_source.boundary import layouts
from hybrid_source.boundary.coverage import check_topic
from hybrid_source.boundary.rule import BoundaryContext
from hybrid_source.resolution import Resolution


@dataclass(frozen=True, slots=True)
class ExplicitOffsets:
    """The next offset (exclusive) of each partition, as the job states them. Taken on trust.

    Attributes:
        offsets: By topic and partition.
    """

    offsets: Mapping[TopicPartition, int]
    name: str = "offsets stated by the job"
    looks_for: str = "offsets stated by the job"

    def resolve(self, context: BoundaryContext) -> Resolution:
        """See :class:`hybrid_source.boundary.rule.BoundaryRule`.

        Raises:
            SpecError: A negative partition or offset.
            BoundaryError: No row is of the topic.
        """
        mine = {at.partition: offset for at, offset in sorted(self.offsets.items()) if at.topic == context.topic}
        wrong = {partition: offset for partition, offset in mine.items() if partition < 0 or offset < 0}
        if wrong:
            raise SpecError(
                f"boundary offsets of topic {context.topic} must not be negative: {wrong}",
                hint="state the next offset of each partition, 0 where the history has none of it",
                context={"topic": context.topic, "wanted": wrong, "available": "offsets from 0 on"},
            )
        ranges = {partition: PartitionRange(0, offset) for partition, offset in mine.items()}
        stated = ", ".join(f"{partition}: {offset}" for partition, offset in mine.items())
        columns = layouts.any_known(context.history.stored)
        check_topic(context, columns, mine)
        held = "every record" if columns else "exactly the records"
        return Resolution(
            Boundary({context.topic: TopicBoundary(ranges)}),
            self.name,
            f"next offset by partition {{{stated}}}",
            f"exactly-once if the history holds {held} below these offsets",
            columns=columns,
        )
