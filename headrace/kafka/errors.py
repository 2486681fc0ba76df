"""The one mapping of confluent-kafka's errors to ours.

A request whose answer never came is *unavailable*, not *failed*; what that means for a transaction is for the sink
to decide (``is_fencing``, ``needs_abort``).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from headrace.kernel.errors import (
    AccessDeniedError,
    ConfigError,
    ExternalError,
    FencedError,
    GapError,
    HeadraceError,
    IdentityError,
    InternalError,
    NotFoundError,
    RejectedRecordError,
    TransactionAbortedError,
    UnavailableError,
)

TOPIC_NOT_FOUND: Final = "TOPIC_NOT_FOUND"

_FENCING: Final = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.TRANSACTION_COORDINATOR_FENCED})  # noqa: SLF001 - the public names of librdkafka's local codes begin with an underscore

_KINDS: Final[dict[type[HeadraceError], tuple[str, ...]]] = {
    NotFoundError: ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"),
    AccessDeniedError: (
        "TOPIC_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
        "SASL_AUTHENTICATION_FAILED",
        "_AUTHENTICATION",
        "DELEGATION_TOKEN_EXPIRED",
        "DELEGATION_TOKEN_NOT_FOUND",
    ),
    ConfigError: (
        "_INVALID_ARG",
        "_SSL",
        "_UNSUPPORTED_FEATURE",
        "_NOT_IMPLEMENTED",
        "UNSUPPORTED_VERSION",
        "UNSUPPORTED_SASL_MECHANISM",
        "ILLEGAL_SASL_STATE",
        "SECURITY_DISABLED",
        "INVALID_CONFIG",
        "INVALID_TRANSACTION_TIMEOUT",
        "TOPIC_EXCEPTION",
        "POLICY_VIOLATION",
        "INVALID_REPLICATION_FACTOR",
        "INVALID_PARTITIONS",
    ),
    FencedError: ("_FENCED", "PRODUCER_FENCED", "TRANSACTION_COORDINATOR_FENCED"),
    TransactionAbortedError: ("TRANSACTION_ABORTABLE", "INVALID_PRODUCER_ID_MAPPING", "INVALID_PRODUCER_EPOCH"),
    RejectedRecordError: (
        "MSG_SIZE_TOO_LARGE",
        "RECORD_LIST_TOO_LARGE",
        "INVALID_RECORD",
        "INVALID_TIMESTAMP",
        "INVALID_MSG_SIZE",
    ),
    GapError: ("OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET", "_LOG_TRUNCATION"),
    IdentityError: ("INCONSISTENT_TOPIC_ID",),
    InternalError: ("_STATE", "_CONFLICT", "_INVALID_TYPE", "_EXISTING_SUBSCRIPTION", "_READ_ONLY"),
    UnavailableError: (
        "_ALL_BROKERS_DOWN",
        "_TRANSPORT",
        "_RESOLVE",
        "_TIMED_OUT",
        "_TIMED_OUT_QUEUE",
        "_MSG_TIMED_OUT",
        "_WAIT_COORD",
        "_WAIT_CACHE",
        "_RETRY",
        "_DESTROY",
        "_DESTROY_BROKER",
        "_UNKNOWN_BROKER",
        "_NOENT",
        "_ISR_INSUFF",
        "_QUEUE_FULL",
        "REQUEST_TIMED_OUT",
        "NETWORK_EXCEPTION",
        "BROKER_NOT_AVAILABLE",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_FOR_PARTITION",
        "REPLICA_NOT_AVAILABLE",
        "OFFSET_NOT_AVAILABLE",
        "NOT_CONTROLLER",
        "NOT_COORDINATOR",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "CONCURRENT_TRANSACTIONS",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "ELIGIBLE_LEADERS_NOT_AVAILABLE",
        "PREFERRED_LEADER_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
        "KAFKA_STORAGE_ERROR",
        "THROTTLING_QUOTA_EXCEEDED",
        "STALE_BROKER_EPOCH",
        "REBOOTSTRAP_REQUIRED",
    ),
}

_BY_CODE: Final[dict[int, type[HeadraceError]]] = {
    getattr(KafkaError, name): kind for kind, names in _KINDS.items() for name in names
}

_HINTS: Final[dict[type[HeadraceError], str]] = {
    NotFoundError: "check the topic's name, or create the topic",
    AccessDeniedError: "give the job's principal the right it lacks, or correct its credentials",
    ConfigError: "check the cluster's options in headrace.toml and the topic's settings",
    UnavailableError: "check that the brokers of bootstrap.servers are up and can be reached from here; those that "
    "want TLS close connections without (security.protocol)",
}


def is_fencing(error: KafkaError) -> bool:
    """Whether another producer with the same transactional id has taken over."""
    return error.code() in _FENCING


def needs_abort(error: KafkaError) -> bool:
    """Whether the open transaction can only be aborted, after which the producer can go on."""
    return bool(error.txn_requires_abort())


def kafka_error(error: KafkaError | KafkaException) -> KafkaError:
    """The ``KafkaError`` that an exception carries."""
    return error.args[0] if isinstance(error, KafkaException) else error


def map_error(
    error: KafkaError | KafkaException, message: str, *, hint: str = "", context: dict[str, Any] | None = None
) -> HeadraceError:
    """Our error for one of the client's: the kind says what to do.

    Args:
        error: What the client gave.
        message: What could not be done, naming topic or cluster.
        hint: The cure, where the caller knows it better than this table.
        context: Machine-readable facts.

    Returns:
        The error, to be raised ``from`` the exception. Codes that no rule knows are ``ExternalError``, retryable
        codes among them ``UnavailableError``.
    """
    inner = kafka_error(error)
    kind = _BY_CODE.get(inner.code())
    if kind is None:
        aborted = TransactionAbortedError if inner.txn_requires_abort() else None
        kind = aborted or (UnavailableError if inner.retriable() else ExternalError)
    code = TOPIC_NOT_FOUND if kind is NotFoundError else ""
    return kind(
        message,
        detail=f"{inner.name()}: {inner.str()}",
        hint=hint or _HINTS.get(kind, ""),
        code=code,
        context={**(context or {}), "kafka_error": inner.name()},
    )


@contextmanager
def mapped(message: str, *, hint: str = "", context: dict[str, Any] | None = None) -> Iterator[None]:
    """Turn the client's exceptions (and a future's timeout) inside the block into ours.

    Raises:
        HeadraceError: What :func:`map_error` makes of it.
    """
    try:
        yield
    except KafkaException as error:
        raise map_error(error, message, hint=hint, context=context) from error
    except futures.TimeoutError as error:
        raise UnavailableError(
            message, detail="no answer in time", hint=hint or _HINTS[UnavailableError], context=context
        ) from error
