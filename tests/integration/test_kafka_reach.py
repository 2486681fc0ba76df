"""A real broker: one that is slow is waited for, and one that does not take the client says why."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from headrace.kafka import KafkaCluster, KafkaMetadata
from headrace.kernel.errors import HeadraceError
from tests.kafka import KafkaHelper

pytestmark = pytest.mark.services


@contextmanager
def slow(upstream: str, seconds: float) -> Iterator[str]:
    """An address at which the broker is, each of its answers this much later."""
    host, _, port = upstream.partition(",")[0].rpartition(":")
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ended = threading.Event()

        def forward(source: socket.socket, target: socket.socket, delay: float) -> None:
            with suppress(OSError):
                while data := source.recv(1 << 16):
                    ended.wait(delay)
                    target.sendall(data)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    here, _ = listening.accept()
                    there = stack.enter_context(socket.create_connection((host, int(port))))
                    stack.enter_context(here)
                    for ends in ((here, there, 0.0), (there, here, seconds)):
                        threading.Thread(target=forward, args=ends, daemon=True).start()

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ended.set()
            listening.shutdown(socket.SHUT_RDWR)
            serving.join()


def test_a_slow_broker_is_waited_for_however_little_patience_there_is(kafka: KafkaHelper) -> None:
    with slow(kafka.bootstrap, 0.3) as address:
        metadata = KafkaMetadata(KafkaCluster("slow", {"bootstrap.servers": address}), patience=0.0)
        assert metadata.cluster_id() == KafkaMetadata(KafkaCluster("it", kafka.config())).cluster_id()


def test_one_bootstrap_server_that_is_down_is_no_cluster_that_is(kafka: KafkaHelper) -> None:
    for addresses in (f"127.0.0.1:1,{kafka.bootstrap}", f"{kafka.bootstrap},127.0.0.1:1"):
        metadata = KafkaMetadata(KafkaCluster("half", {"bootstrap.servers": addresses}), patience=0.0)
        assert metadata.cluster_id()


@pytest.mark.parametrize(
    "options",
    [
        {"security.protocol": "SSL"},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"},
    ],
    ids=["tls", "sasl"],
)
def test_a_broker_that_does_not_take_the_client_says_why(kafka: KafkaHelper, options: dict[str, str]) -> None:
    cluster = KafkaCluster("prod", {**options, "bootstrap.servers": kafka.bootstrap})
    with pytest.raises(HeadraceError, match=r"cluster 'prod' .* cannot be reached") as caught:
        KafkaMetadata(cluster, deadline=60.0, patience=0.0).cluster_id()
    assert "SSL" in caught.value.detail or "SASL" in caught.value.detail
    assert caught.value.hint
