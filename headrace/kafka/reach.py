"""Whether a cluster can be reached, by what its client says of its connections."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

_ALL_DOWN: Final = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 - its public name


class Reach:
    """Listens to one client (``error_cb``), which says what it meets at each attempt to connect.

    Attributes:
        down: No broker could be reached when the client had tried all of them. Brokers that are slow to answer, or to
            connect to, are none of those.
        reason: Why, by the last attempt; None: it has not said.
    """

    def __init__(self) -> None:
        self.down = False
        self.reason: KafkaError | None = None

    def on_error(self, error: KafkaError) -> None:
        """See :data:`headrace.kafka.cluster.OnError`."""
        if error.code() != _ALL_DOWN:
            self.reason = error
            return
        self.down = True
        if self.reason is None:  # brokers that close the connection say no more
            self.reason = error

    def answered(self) -> None:
        """A broker has answered."""
        self.down, self.reason = False, None
