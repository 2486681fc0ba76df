"""Where the local log of a tiered topic begins (KIP-405); what lies before it comes from the remote tier, and slower.

librdkafka does not send the question (ListOffsets with timestamp -4), so the optional extra ``tiered`` (kafka-python)
asks it. Nothing that a job reads depends on the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any, Final

from headrace.kafka.cluster import KafkaCluster, Option
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import ConfigError, DependencyError, UnavailableError

REMOTE_STORAGE: Final = "remote.storage.enable"
"""The topic setting that is ``true`` for tiered topics."""

_OPTIONS: Final[Mapping[str, str]] = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
}
_NAMED: Final = ("ssl.", "sasl.", "security.", "enable.ssl")
"""Options that decide who is talked to and how begin with these; none of them may be left out."""


def local_starts(
    cluster: KafkaCluster, partitions: Iterable[TopicPartition], deadline: float
) -> dict[TopicPartition, int]:
    """The first offset by partition that the brokers hold themselves; the log start where nothing was moved away.

    Args:
        cluster: The cluster.
        partitions: Of which partitions.
        deadline: Seconds for the whole.

    Raises:
        DependencyError: The extra is not installed.
        ConfigError: It cannot talk to a cluster with these options.
        UnavailableError: No answer, or one that is an error.
    """
    try:
        from kafka import KafkaAdminClient
        from kafka import TopicPartition as ClientPartition
        from kafka.admin import OffsetSpec
        from kafka.errors import KafkaError
    except ImportError as error:
        raise DependencyError(
            "asking where the local log of a topic begins needs kafka-python",
            hint="install the extra: pip install 'headrace[tiered]'",
        ) from error
    limit = int(deadline * 1000)
    asked = {ClientPartition(*at): OffsetSpec.EARLIEST_LOCAL for at in partitions}
    try:
        options = {**client_options(cluster), "request_timeout_ms": limit, "bootstrap_timeout_ms": limit}
        with closing(KafkaAdminClient(**options)) as admin:
            found = admin.list_partition_offsets(asked, timeout_ms=limit)
    except KafkaError as error:
        raise UnavailableError(
            f"cluster {cluster.name!r} does not say where its local logs begin",
            detail=f"{type(error).__name__}: {error}",
        ) from error
    return {TopicPartition(at.topic, at.partition): held.offset for at, held in found.items()}


def client_options(cluster: KafkaCluster) -> dict[str, Any]:
    """The cluster's librdkafka options, as kafka-python calls them.

    Raises:
        ConfigError: One that decides who is talked to has no counterpart.
    """
    unknown = sorted(key for key in cluster.options if key not in _OPTIONS and key.startswith(_NAMED) and key != _CHECK)
    if unknown:
        raise ConfigError(
            f"the extra 'tiered' cannot be used with {unknown[0]} of kafka cluster {cluster.name!r}",
            detail=f"options that it knows: {', '.join([*_OPTIONS, _CHECK])}",
        )
    options: dict[str, Any] = {
        _OPTIONS[key]: _value(key, value) for key, value in cluster.options.items() if key in _OPTIONS
    }
    if _CHECK in cluster.options:
        options["ssl_check_hostname"] = str(cluster.options[_CHECK]).lower() == "https"
    return options


_CHECK: Final = "ssl.endpoint.identification.algorithm"


def _value(key: str, value: Option) -> Option | list[str]:
    if key == "bootstrap.servers":
        return [server.strip() for server in str(value).split(",")]
    return str(value).upper() if key in {"security.protocol", "sasl.mechanism", "sasl.mechanisms"} else value
