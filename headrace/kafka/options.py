"""Which librdkafka options Headrace sets, guards, and hands to which client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Guard:
    """The values (lower case) that leave the guarantees whole, and what another one would break."""

    allowed: tuple[str, ...]
    reason: str


_NO_GROUP: Final = "a job's positions live in its checkpoints; a consumer group would decide where it reads"

GUARDED: Final[Mapping[str, Guard]] = {
    "isolation.level": Guard(("read_committed",), "records of aborted transactions would enter the job"),
    "auto.offset.reset": Guard(("error", "none"), "deleted records would be jumped over without an error"),
    "enable.auto.commit": Guard(("false",), _NO_GROUP),
    "enable.auto.offset.store": Guard(("false",), _NO_GROUP),
    "group.instance.id": Guard((), _NO_GROUP),
    "group.protocol": Guard((), _NO_GROUP),
    "group.remote.assignor": Guard((), _NO_GROUP),
    "partition.assignment.strategy": Guard((), _NO_GROUP),
    "enable.partition.eof": Guard(("true",), "a bounded read could not tell where a partition ends"),
    "allow.auto.create.topics": Guard(("false",), "a mistyped topic would be created and read as empty"),
    "enable.idempotence": Guard(("true",), "retries could write a record twice"),
    "acks": Guard(("all", "-1"), "an acknowledged record could be lost with its broker"),
    "request.required.acks": Guard(("all", "-1"), "an acknowledged record could be lost with its broker"),
    "max.in.flight.requests.per.connection": Guard(("1", "2", "3", "4", "5"), "idempotence holds up to 5"),
    "max.in.flight": Guard(("1", "2", "3", "4", "5"), "idempotence holds up to 5"),
    "transactional.id": Guard((), "the sink derives it from the job, so that a successor fences its predecessor"),
}
"""Options that a guarantee hangs on."""

CONSUMER: Final[Mapping[str, str | bool]] = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
}

CONSUMER_DEFAULTS: Final[Mapping[str, str | int]] = {
    "group.id": "headrace",
    "fetch.queue.backoff.ms": 10,
    "queued.min.messages": 10_000,
    "fetch.wait.max.ms": 100,
}
"""``fetch.queue.backoff.ms`` is 1000 by default: a consumer that works on its records then stalls a second at a time.

``group.id`` is a label that librdkafka demands; nothing is ever stored under it.
"""

PRODUCER: Final[Mapping[str, str | bool]] = {"enable.idempotence": True, "acks": "all"}

PRODUCER_DEFAULTS: Final[Mapping[str, str | int]] = {"linger.ms": 20, "compression.type": "lz4"}

ADMIN_DEFAULTS: Final[Mapping[str, str | int]] = {"log_level": 2}
"""Each attempt to connect that fails would be a line of level 3; what matters of them is told as an error."""

CONSUMER_ONLY: Final = frozenset(
    {
        *CONSUMER,
        *CONSUMER_DEFAULTS,
        "auto.commit.interval.ms",
        "check.crcs",
        "fetch.error.backoff.ms",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "heartbeat.interval.ms",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "queued.max.messages.kbytes",
        "session.timeout.ms",
    }
)

PRODUCER_ONLY: Final = frozenset(
    {
        *PRODUCER,
        *PRODUCER_DEFAULTS,
        "batch.num.messages",
        "batch.size",
        "compression.codec",
        "compression.level",
        "delivery.report.only.error",
        "delivery.timeout.ms",
        "message.send.max.retries",
        "message.timeout.ms",
        "partitioner",
        "queue.buffering.backpressure.threshold",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "queue.buffering.max.ms",
        "queuing.strategy",
        "request.required.acks",
        "request.timeout.ms",
        "retries",
        "sticky.partitioning.linger.ms",
        "transaction.timeout.ms",
    }
)
"""librdkafka warns about an option that its kind of client does not use; the split keeps the log clean."""
