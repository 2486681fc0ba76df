"""Options of a cluster, and the mapping of the client's errors."""

from __future__ import annotations

import logging
import pickle
from concurrent import futures

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.kafka import KafkaCluster, KafkaMetadata, is_fencing, map_error, mapped, needs_abort
from headrace.kernel.errors import (
    AccessDeniedError,
    ConfigError,
    ExternalError,
    FencedError,
    GapError,
    HeadraceError,
    NotFoundError,
    RejectedRecordError,
    TransactionAbortedError,
    UnavailableError,
)

CODES = sorted(
    {
        value
        for name in dir(KafkaError)
        if not name.startswith("__") and isinstance(value := getattr(KafkaError, name), int) and value != 0
    }
)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("isolation.level", "read_uncommitted"),
        ("auto.offset.reset", "latest"),
        ("auto.offset.reset", "earliest"),
        ("enable.auto.commit", True),
        ("enable.auto.offset.store", "true"),
        ("group.instance.id", "me"),
        ("group.protocol", "consumer"),
        ("enable.partition.eof", False),
        ("allow.auto.create.topics", True),
        ("enable.idempotence", "false"),
        ("acks", 1),
        ("max.in.flight", 6),
        ("transactional.id", "mine"),
    ],
)
def test_kaf_01_an_override_that_breaks_a_guarantee_is_refused(key: str, value: str | bool | int) -> None:
    with pytest.raises(ConfigError, match=key) as raised:
        KafkaCluster("prod", {"bootstrap.servers": "b:9092", key: value})
    assert "[kafka.prod]" in raised.value.hint
    assert raised.value.context == {"cluster": "prod", "key": key}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("isolation.level", "READ_COMMITTED"),
        ("enable.auto.commit", False),
        ("acks", -1),
        ("acks", "all"),
        ("max.in.flight", 5),
        ("group.id", "label"),
        ("fetch.max.bytes", 1_000_000),
    ],
)
def test_an_option_that_keeps_the_guarantees_passes(key: str, value: str | bool | int) -> None:
    KafkaCluster("prod", {"bootstrap.servers": "b:9092", key: value})


def test_bootstrap_servers_are_demanded() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        KafkaCluster("prod", {})


def test_secrets_do_not_show_in_the_representation() -> None:
    cluster = KafkaCluster("prod", {"bootstrap.servers": "b:9092", "sasl.password": "hunter2"})
    assert "hunter2" not in repr(cluster)


def test_an_option_that_librdkafka_does_not_know_is_a_config_error() -> None:
    cluster = KafkaCluster("prod", {"bootstrap.servers": "b:9092", "no.such.option": "1"})
    for client in (cluster.consumer, cluster.producer, cluster.admin):
        with pytest.raises(ConfigError, match="'prod'") as raised:
            client()
        assert "no.such.option" in raised.value.detail


def test_each_kind_of_client_gets_only_its_own_options(caplog: pytest.LogCaptureFixture) -> None:
    options = {"bootstrap.servers": "127.0.0.1:1", "fetch.max.bytes": 1_000_000, "batch.size": 1000}
    cluster = KafkaCluster("prod", options)
    with caplog.at_level(logging.WARNING, "headrace.kafka.client"):
        consumer = cluster.consumer()
        consumer.poll(0.05)
        consumer.close()
        producer = cluster.producer()
        producer.poll(0.05)
        cluster.admin().poll(0.05)
    assert [line for line in caplog.messages if "CONFWARN" in line] == []


def test_librdkafka_logs_to_python(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    cluster = KafkaCluster("nowhere", {"bootstrap.servers": "127.0.0.1:1"})
    consumer = cluster.consumer()
    with caplog.at_level(logging.DEBUG, "headrace.kafka.client"):
        for _ in range(20):
            consumer.poll(0.1)
            if caplog.records:
                break
    consumer.close()
    assert {record.name for record in caplog.records} == {"headrace.kafka.client"}
    assert "Connection refused" in caplog.text
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("code", CODES)
def test_every_code_maps_to_an_error_of_ours(code: int) -> None:
    mapped_error = map_error(KafkaError(code), "topic 't' failed", context={"topic": "t"})
    assert type(mapped_error) is not HeadraceError
    assert mapped_error.message == "topic 't' failed"
    assert mapped_error.detail
    assert mapped_error.context["topic"] == "t"
    assert pickle.loads(pickle.dumps(mapped_error)).to_dict() == mapped_error.to_dict()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, NotFoundError),
        (KafkaError._UNKNOWN_TOPIC, NotFoundError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDeniedError),
        (KafkaError._AUTHENTICATION, AccessDeniedError),
        (KafkaError._ALL_BROKERS_DOWN, UnavailableError),
        (KafkaError._TRANSPORT, UnavailableError),
        (KafkaError._TIMED_OUT, UnavailableError),
        (KafkaError.REQUEST_TIMED_OUT, UnavailableError),
        (KafkaError._FENCED, FencedError),
        (KafkaError.PRODUCER_FENCED, FencedError),
        (KafkaError.TRANSACTION_ABORTABLE, TransactionAbortedError),
        (KafkaError.INVALID_PRODUCER_EPOCH, TransactionAbortedError),
        (KafkaError.MSG_SIZE_TOO_LARGE, RejectedRecordError),
        (KafkaError.OFFSET_OUT_OF_RANGE, GapError),
        (KafkaError._AUTO_OFFSET_RESET, GapError),
        (KafkaError._INVALID_ARG, ConfigError),
        (KafkaError.UNKNOWN, ExternalError),
    ],
)
def test_the_kind_says_what_to_do(code: int, kind: type[HeadraceError]) -> None:
    assert type(map_error(KafkaException(KafkaError(code)), "x")) is kind


def test_an_unknown_topic_has_its_stable_code() -> None:
    assert map_error(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), "x").code == "TOPIC_NOT_FOUND"


def test_an_unknown_code_that_asks_for_an_abort_is_an_aborted_transaction() -> None:
    error = KafkaError(KafkaError.UNKNOWN, "x", False, False, True)
    assert needs_abort(error)
    assert type(map_error(error, "x")) is TransactionAbortedError


def test_fencing_codes() -> None:
    assert is_fencing(KafkaError(KafkaError._FENCED))
    assert is_fencing(KafkaError(KafkaError.PRODUCER_FENCED))
    assert not is_fencing(KafkaError(KafkaError.INVALID_PRODUCER_EPOCH))


def test_mapped_turns_exceptions_and_timeouts_into_ours() -> None:
    with pytest.raises(NotFoundError, match="reading t"), mapped("reading t"):
        raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC))
    with pytest.raises(UnavailableError, match="reading t"), mapped("reading t"):
        raise futures.TimeoutError


def test_metadata_of_a_cluster_that_is_down_ends_at_the_deadline() -> None:
    metadata = KafkaMetadata(KafkaCluster("gone", {"bootstrap.servers": "127.0.0.1:1"}), deadline=0.3)
    with pytest.raises(UnavailableError, match="'gone'"):
        metadata.cluster_id()
