"""One transactional producer: begin, send whole frames, flush, commit; and what its errors mean.

librdkafka reports a transaction that the broker has timed out and a producer that was fenced by a newer one alike
(``_FENCED``, fatal: seen with a 4.4 broker and librdkafka 2.16). They are told apart by the age of the transaction:

* older than ``transaction.timeout.ms``: ``TransactionAbortedError`` (code ``TRANSACTION_TIMED_OUT``);
* younger: ``FencedError`` (code ``PRODUCER_FENCED``).

A paused instance that was replaced sees the first one too, so in both cases the head of the job decides who goes on.
After any error but a rejected record the producer is used up; recovery needs a new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event
from typing import Any, Final

import polars as pl
from confluent_kafka import KafkaError, KafkaException, Message

from headrace.kafka import KafkaCluster, is_fencing, kafka_error, map_error
from headrace.kernel.errors import (
    FencedError,
    HeadraceError,
    TransactionAbortedError,
    UnavailableError,
)
from headrace.sinks.kafka_topics import topic_setting

DEFAULT_TIMEOUT_MS: Final = 120_000
_ANSWER_SECONDS: Final = 60.0
_STEP_SECONDS: Final = 0.2
_CALL_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.05
_SLICE_ROWS: Final = 10_000
_SLICE_BYTES: Final = 16 << 20
_QUEUE_ROWS: Final = 100_000
_QUEUE_KBYTES: Final = 1 << 20
_MESSAGE_BYTES: Final = 1_000_000

_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class _Failure:
    """A record that was not delivered."""

    error: KafkaError
    topic: str | None
    key: bytes | str | None
    value: bytes | str | None
    at_broker: bool = True

    @property
    def size(self) -> int:
        return len(self.value.encode() if isinstance(self.value, str) else self.value or b"")

    @property
    def words(self) -> str:
        """Which record: by its key, or by how it begins."""
        name = f"with key {_shown(self.key)}" if self.key is not None else f"without a key, {_shown(self.value)},"
        return f"the record {name} ({self.size:,} bytes)"

    @property
    def too_large(self) -> bool:
        return self.error.code() in {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}


class TransactionalProducer:
    """A producer that has fenced every earlier one of its transactional id. Used by one thread at a time.

    Args:
        cluster: Where. Its ``transaction.timeout.ms`` wins over two minutes.
        transactional_id: Who.

    Raises:
        UnavailableError: The coordinator did not answer within a minute.
        AccessDeniedError: The id may not be used.
    """

    def __init__(self, cluster: KafkaCluster, transactional_id: str) -> None:
        options = cluster.options
        self._cluster = cluster
        self._id = transactional_id
        self._timeout = int(options.get("transaction.timeout.ms", DEFAULT_TIMEOUT_MS)) / 1000
        self._began: float | None = None
        self._failures: list[_Failure] = []
        self._room_rows = max(int(options.get("queue.buffering.max.messages", _QUEUE_ROWS)) // 2, 1)
        self._room_bytes = int(options.get("queue.buffering.max.kbytes", _QUEUE_KBYTES)) * 1024 // 4
        self._queued_rows = self._queued_bytes = 0
        tuning: dict[str, Any] = {
            "transaction_timeout_ms": DEFAULT_TIMEOUT_MS,
            "partitioner": "murmur2_random",
            "delivery_report_only_error": True,
        }
        self._producer = cluster.producer(transactional_id=transactional_id, **tuning)
        self._patiently("transactions cannot be initialised", self._producer.init_transactions)

    def begin(self) -> None:
        """Begin a transaction."""
        with self._errors("a transaction cannot be begun"):
            self._producer.begin_transaction()
        self._began = time.monotonic()
        self._failures.clear()

    def send(self, topic: str, records: pl.DataFrame) -> None:
        """Queue the rows of a frame with columns ``key`` and ``value`` (String or Binary), in order.

        Waits for room in the client's queue. Partitions by key like Java's clients (murmur2).

        Raises:
            RejectedRecordError: A record is larger than the client's ``message.max.bytes``.
            HeadraceError: Delivery of an earlier record has failed for good.
        """
        width = max(int(records.estimated_size()) // max(records.height, 1), 1)
        rows = max(min(_SLICE_ROWS, self._room_rows, min(_SLICE_BYTES, self._room_bytes) // width), 1)
        for part in records.iter_slices(rows):
            nbytes = int(part.estimated_size())
            if self._queued_rows + part.height > self._room_rows or self._queued_bytes + nbytes > self._room_bytes:
                self.flush()
            self._queued_rows += part.height
            self._queued_bytes += nbytes
            pairs = zip(part["key"].to_list(), part["value"].to_list(), strict=True)
            self._send_slice(topic, [{"key": key, "value": value} for key, value in pairs])

    def send_one(self, topic: str, key: bytes, value: bytes, partition: int) -> None:
        """Queue one record for one partition."""
        with self._errors(f"topic {topic!r} cannot be written"):
            self._producer.produce(topic, value, key, partition, on_delivery=self._delivered)

    def flush(self) -> None:
        """Wait until the broker has everything that was sent.

        Raises:
            RejectedRecordError: The broker refuses a record; the message names it.
            TransactionAbortedError: The transaction is gone.
            FencedError: Another producer has the id.
            UnavailableError: No answer until the transaction's timeout.
        """
        deadline = time.monotonic() + self._timeout
        left = 1
        while left:
            with self._errors("records cannot be delivered"):
                left = self._producer.flush(_STEP_SECONDS)
            self._check_failures()
            if left and time.monotonic() > deadline:
                raise UnavailableError(
                    f"records cannot be delivered to kafka cluster {self._cluster.name!r}",
                    detail=f"{left} are left after {self._timeout:g} s",
                )
        self._queued_rows = self._queued_bytes = 0

    def commit(self) -> None:
        """Commit. Tried again while the client allows it.

        Raises:
            TransactionAbortedError: It was not committed and cannot be any more.
            FencedError: Another producer has the id; what it did with the transaction is not known.
            UnavailableError: No answer within a minute: it may or may not be committed.
        """
        self._patiently("a transaction cannot be committed", self._producer.commit_transaction)
        self._began = None

    def abort(self) -> None:
        """Abort an open transaction, if the broker lets us; else its timeout or a successor does."""
        if self._began is None:
            return
        self._began = None
        with suppress(KafkaException), _client_errors():
            self._producer.abort_transaction(_CALL_SECONDS)

    def close(self) -> None:
        """Abort what is open and let go of what is queued."""
        self.abort()
        with suppress(KafkaException), _client_errors():
            self._producer.purge()

    def _send_slice(self, topic: str, messages: list[dict[str, Any]]) -> None:
        with self._errors(f"topic {topic!r} cannot be written"):
            queued = self._producer.produce_batch(topic, messages, on_delivery=self._delivered)
        if queued != len(messages):
            refused = next(message for message in messages if "_error" in message)
            raise self._undelivered(
                _Failure(refused["_error"], topic, refused["key"], refused["value"], at_broker=False)
            )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append(_Failure(error, message.topic(), message.key(), message.value()))

    def _check_failures(self) -> None:
        if self._failures:
            # One record that is too large fails its whole batch.
            raise self._undelivered(max(self._failures, key=lambda failure: (failure.too_large, failure.size)))

    def _undelivered(self, failure: _Failure) -> HeadraceError:
        what = f"{failure.words} cannot be written to topic {failure.topic!r}"
        if not failure.too_large:
            return self._map(failure.error, what)
        limit = self._topic_limit(failure.topic) if failure.at_broker else self._own_limit
        return map_error(
            failure.error,
            f"{what}: it is larger than the {'broker' if failure.at_broker else 'client'}'s limit of {limit:,} bytes",
            hint=f"raise max.message.bytes of the topic and message.max.bytes under [kafka.{self._cluster.name}], "
            "or shorten or filter such rows in a step before the sink",
            context={"topic": failure.topic, "key": _shown(failure.key), "size": failure.size, "limit": limit},
        )

    @property
    def _own_limit(self) -> int:
        return int(self._cluster.options.get("message.max.bytes", _MESSAGE_BYTES))

    def _topic_limit(self, topic: str | None) -> int:
        try:
            return int(topic_setting(self._cluster, topic or "", "max.message.bytes"))
        except HeadraceError:
            return self._own_limit

    def _patiently(self, what: str, call: Callable[[float], object]) -> None:
        deadline = time.monotonic() + _ANSWER_SECONDS
        pause = Event()
        while True:
            try:
                with _client_errors():
                    call(_CALL_SECONDS)
            except KafkaException as error:
                if not kafka_error(error).retriable() or time.monotonic() > deadline:
                    raise self._map(kafka_error(error), self._cannot(what)) from error
                pause.wait(_PAUSE_SECONDS)
            else:
                return

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            with _client_errors():
                yield
        except KafkaException as error:
            raise self._map(kafka_error(error), self._cannot(what)) from error

    def _cannot(self, what: str) -> str:
        return f"{what} on kafka cluster {self._cluster.name!r}"

    def _map(self, error: KafkaError, what: str) -> HeadraceError:
        if not is_fencing(error):
            return map_error(error, what)
        detail = f"{error.name()}: {error.str()}"
        if self._began is not None and time.monotonic() - self._began >= self._timeout:
            return TransactionAbortedError(
                what,
                detail=f"the transaction is older than {self._timeout:g} s, the broker has aborted it; {detail}",
                hint=f"raise transaction.timeout.ms under [kafka.{self._cluster.name}] if checkpoints take that long",
                code="TRANSACTION_TIMED_OUT",
            )
        return FencedError(
            what,
            detail=f"another producer has taken over the transactional id {self._id!r}; {detail}",
            hint="only one instance of a job runs at a time; stop one of them",
            code="PRODUCER_FENCED",
        )


@contextmanager
def _client_errors() -> Iterator[None]:
    """Let KafkaExceptions pass, and dig out those that the client has buried.

    A fatal error is raised from within ``poll`` or ``flush``; when a delivery callback runs after it, Python makes a
    SystemError of the two.
    """
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from error
        raise


def _shown(key: bytes | str | None) -> str | None:
    if key is None:
        return None
    text = key.decode(errors="replace") if isinstance(key, bytes) else key
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
