"""A Kafka cluster as the user names it, and the clients that Headrace builds for it.

librdkafka's options pass through. The few that a guarantee hangs on are set here, and an override that would break
it is refused: a job that silently reads aborted records, or that jumps over deleted ones, is worse than none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from headrace.kafka import options as known
from headrace.kafka.errors import mapped
from headrace.kernel.errors import ConfigError

Option: TypeAlias = str | int | float | bool
OnError: TypeAlias = Callable[[KafkaError], None]

logger: Final = logging.getLogger("headrace.kafka.client")
"""Where librdkafka's own log lines go (never to stderr)."""


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """A named cluster: ``[kafka.NAME]`` of headrace.toml. Building it checks the options and does no I/O.

    Attributes:
        name: What jobs call it.
        options: librdkafka options for every client (``bootstrap.servers`` at least). Options that only consumers or
            only producers know may stand together; each client gets its own.

    Raises:
        ConfigError: ``bootstrap.servers`` is missing, or an option would break a guarantee; the message names the key.
    """

    name: str
    options: Mapping[str, Option] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.options.get("bootstrap.servers"):
            raise ConfigError(
                f"kafka cluster {self.name!r} has no bootstrap.servers",
                hint=f'set bootstrap.servers = "HOST:PORT" under [kafka.{self.name}] in headrace.toml',
            )
        for key, value in self.options.items():
            self._check(key, value)

    def consumer(self, *, on_error: OnError | None = None, uncommitted: bool = False, **tuning: Option) -> Consumer:
        """A consumer that reads committed records only, never resets its offsets and never commits any.

        It is meant for ``assign``: with ``subscribe`` a group's stored offsets would decide where it starts.

        Args:
            on_error: Called with cluster-wide errors (all brokers down, authentication) while the client is polled.
            uncommitted: Give records of open and aborted transactions too: to look at, never for a job's rows.
            tuning: Further options, underscores for dots; the user's own options win over them.

        Raises:
            ConfigError: librdkafka does not know an option or its value.
        """
        fixed = {**known.CONSUMER, "isolation.level": "read_uncommitted"} if uncommitted else known.CONSUMER
        config = self._config(known.PRODUCER_ONLY, known.CONSUMER_DEFAULTS, fixed, tuning, on_error)
        with mapped(self._cannot):
            return Consumer(config)

    def producer(
        self, *, transactional_id: str | None = None, on_error: OnError | None = None, **tuning: Option
    ) -> Producer:
        """An idempotent producer (``acks=all``), transactional when it gets a ``transactional_id``.

        The caller calls ``init_transactions``; until then nothing is sent.
        """
        fixed = dict(known.PRODUCER)
        if transactional_id is not None:
            fixed["transactional.id"] = transactional_id
        config = self._config(known.CONSUMER_ONLY, known.PRODUCER_DEFAULTS, fixed, tuning, on_error)
        with mapped(self._cannot):
            return Producer(config)

    def admin(self, *, on_error: OnError | None = None) -> AdminClient:
        """A client for metadata and administration.

        Args:
            on_error: Called with what goes wrong at connecting while the client is polled.
        """
        config = self._config(known.CONSUMER_ONLY | known.PRODUCER_ONLY, known.ADMIN_DEFAULTS, {}, {}, on_error)
        with mapped(self._cannot):
            return AdminClient(config)

    @property
    def _cannot(self) -> str:
        return f"kafka cluster {self.name!r} cannot be used"

    def _check(self, key: str, value: Option) -> None:
        rule = known.GUARDED.get(key)
        if rule is None or str(value).lower() in rule.allowed:
            return
        raise ConfigError(
            f"kafka cluster {self.name!r} sets {key} = {value!r}, which would break a guarantee",
            detail=rule.reason,
            hint=f"remove {key} from [kafka.{self.name}]"
            + (f", or set it to {' or '.join(rule.allowed)}" if rule.allowed else ""),
            context={"cluster": self.name, "key": key},
        )

    def _config(
        self,
        foreign: frozenset[str],
        defaults: Mapping[str, Option],
        fixed: Mapping[str, Option],
        tuning: Mapping[str, Option],
        on_error: OnError | None,
    ) -> dict[str, Any]:
        own = {key: value for key, value in self.options.items() if key not in foreign}
        tuned = {key.replace("_", "."): value for key, value in tuning.items()}
        config: dict[str, Any] = {**defaults, **tuned, **own, **fixed, "logger": logger}
        config["error_cb"] = on_error if on_error is not None else _log_error
        return config


def _log_error(error: KafkaError) -> None:
    logger.warning("%s: %s", error.name(), error.str())
