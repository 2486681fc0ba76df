"""What Headrace relies on a broker for, proved on the one that the tests run on."""

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.kafka import SECONDS, KafkaHelper
from tests.services import OwnBroker

pytestmark = pytest.mark.services


def test_committed_transactions_are_read(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    with kafka.transaction() as transaction:
        transaction.produce(topic, [b"a", b"b"])
        transaction.commit()

    assert kafka.values(topic) == [b"a", b"b"]


def test_aborted_transactions_are_hidden_and_take_offsets(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    with kafka.transaction() as aborted:
        aborted.produce(topic, [b"no"])
    with kafka.transaction() as committed:
        offsets = committed.produce(topic, [b"yes"])
        committed.commit()

    assert kafka.values(topic) == [b"yes"]
    assert kafka.values(topic, isolation="read_uncommitted") == [b"no", b"yes"]
    assert offsets == [2], "the aborted record and its marker take an offset each"


def test_an_open_transaction_holds_the_last_stable_offset(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"before"])
    with kafka.transaction() as transaction:
        transaction.produce(topic, [b"open"])
        kafka.produce(topic, [b"after"])

        assert kafka.values(topic) == [b"before"]
        assert kafka.watermarks(topic) == (0, 1)
        assert kafka.watermarks(topic, isolation="read_uncommitted") == (0, 3)
        transaction.commit()

    assert kafka.values(topic) == [b"before", b"open", b"after"]


def test_a_second_owner_of_a_transactional_id_fences_the_first(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    zombie = kafka.begin("owner-" + topic)
    zombie.produce(topic, [b"zombie"])
    with kafka.transaction("owner-" + topic) as owner:
        owner.produce(topic, [b"owner"])
        owner.commit()

    with pytest.raises(KafkaException) as caught:
        zombie.commit()
    assert caught.value.args[0].code() in {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
    assert kafka.values(topic) == [b"owner"]


def test_offsets_are_committed_with_their_transaction(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    consumer = Consumer(kafka.config(group_id="group-" + topic, enable_auto_commit=False))
    there = TopicPartition(topic, 0, 7)
    try:
        with kafka.transaction() as aborted:
            aborted.producer.send_offsets_to_transaction([there], consumer.consumer_group_metadata(), SECONDS)
        assert consumer.committed([there], timeout=SECONDS)[0].offset < 0
        with kafka.transaction() as committed:
            committed.producer.send_offsets_to_transaction([there], consumer.consumer_group_metadata(), SECONDS)
            committed.commit()
        assert consumer.committed([there], timeout=SECONDS)[0].offset == 7
    finally:
        consumer.close()


def test_deleted_records_move_the_log_start(kafka: KafkaHelper) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [b"0", b"1", b"2"], partition=1)
    kafka.delete_records(topic, {1: 2})

    assert kafka.watermarks(topic, 0) == (0, 0)
    assert kafka.watermarks(topic, 1) == (2, 3)
    assert kafka.values(topic) == [b"2"]


def test_a_topic_made_again_has_another_id(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    first = kafka.topic_id(topic)
    assert kafka.topic_id(topic) == first

    kafka.delete_topic(topic)
    kafka.topic_named(topic)
    assert kafka.topic_id(topic) != first


def test_topics_are_not_made_by_naming_them(kafka: KafkaHelper) -> None:
    found = kafka.admin().list_topics("never-made", timeout=SECONDS).topics["never-made"]
    assert found.error is not None
    assert found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_record_above_the_size_limit_is_refused(kafka: KafkaHelper) -> None:
    topic = kafka.topic()
    refused: list[int] = []
    from confluent_kafka import Producer

    producer = Producer(kafka.config(message_max_bytes=4_000_000))
    producer.produce(topic, bytes(2_000_000), on_delivery=lambda error, _: refused.append(error.code()))
    assert producer.flush(SECONDS) == 0
    assert refused == [KafkaError.MSG_SIZE_TOO_LARGE]


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_restart_keeps_data_addresses_and_transactions(own_broker: OwnBroker, kill: bool) -> None:
    kafka = own_broker.kafka
    topic = kafka.topic()
    identity = kafka.topic_id(topic)
    kafka.produce(topic, [b"plain"])
    with kafka.transaction("survivor") as transaction:
        transaction.produce(topic, [b"committed"])
        transaction.commit()
    interrupted = kafka.begin("survivor")
    interrupted.produce(topic, [b"interrupted"])

    own_broker.stop(kill=kill)
    own_broker.start()

    assert kafka.topic_id(topic) == identity
    with kafka.transaction("survivor") as transaction:
        transaction.produce(topic, [b"again"])
        transaction.commit()
    assert kafka.values(topic) == [b"plain", b"committed", b"again"]
