"""Options of librdkafka as the client for tiered topics calls them."""

from __future__ import annotations

import sys

import pytest

from headrace.kafka.cluster import KafkaCluster
from headrace.kafka.tiered import client_options, local_starts
from headrace.kernel.boundary import TopicPartition
from headrace.kernel.errors import ConfigError, DependencyError


def test_options_that_say_who_is_talked_to_are_handed_on() -> None:
    cluster = KafkaCluster(
        "prod",
        {
            "bootstrap.servers": "a:9092, b:9092",
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": "ca.pem",
            "ssl.endpoint.identification.algorithm": "none",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "u",
            "sasl.password": "p",
            "queued.min.messages": 10,
        },
    )
    assert client_options(cluster) == {
        "bootstrap_servers": ["a:9092", "b:9092"],
        "security_protocol": "SASL_SSL",
        "ssl_cafile": "ca.pem",
        "ssl_check_hostname": False,
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
    }


def test_an_option_without_counterpart_is_named() -> None:
    cluster = KafkaCluster("prod", {"bootstrap.servers": "a:9092", "sasl.oauthbearer.config": "x"})
    with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.config of kafka cluster 'prod'"):
        client_options(cluster)


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kafka", None)
    with pytest.raises(DependencyError, match="needs kafka-python") as caught:
        local_starts(KafkaCluster("prod", {"bootstrap.servers": "a:9092"}), [TopicPartition("t", 0)], 1.0)
    assert "headrace[tiered]" in (caught.value.hint or "")
