"""A cluster that cannot be reached is told apart from one that is slow, and the error says why."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from confluent_kafka import KafkaError

from headrace.kafka import KafkaCluster, KafkaMetadata
from headrace.kafka.reach import Reach
from headrace.kernel.errors import ConfigError, HeadraceError, UnavailableError

LONG_S = 60.0


@contextmanager
def server(meet: Callable[[socket.socket], None]) -> Iterator[str]:
    """An address where every connection is met like this."""
    listening = socket.create_server(("127.0.0.1", 0))
    met: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                met.append(connection)
                meet(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()
        for connection in met:
            connection.close()


def refused(**options: str) -> HeadraceError:
    """What a call raises that would wait long for an answer."""
    metadata = KafkaMetadata(KafkaCluster("mine", options), deadline=LONG_S, patience=0.0)
    began = time.monotonic()
    with pytest.raises(HeadraceError, match=r"cluster 'mine' .* cannot be reached") as caught:
        metadata.cluster_id()
    assert time.monotonic() - began < LONG_S
    assert options["bootstrap.servers"] in caught.value.message
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("addresses", ["127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2"])
def test_a_port_that_nobody_listens_on_is_named_at_once(addresses: str) -> None:
    error = refused(**{"bootstrap.servers": addresses})
    assert isinstance(error, UnavailableError)
    assert "Connection refused" in error.detail


def test_a_name_that_nobody_knows_is_named_at_once() -> None:
    error = refused(**{"bootstrap.servers": "nowhere.invalid:9092"})
    assert isinstance(error, UnavailableError)
    assert "Failed to resolve 'nowhere.invalid:9092'" in error.detail


def test_tls_that_the_other_side_does_not_speak_is_named_at_once() -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(1)
        connection.sendall(b"no TLS here\n" * 9)

    with server(answer) as address:
        error = refused(**{"bootstrap.servers": address, "security.protocol": "SSL"})
    assert isinstance(error, ConfigError | UnavailableError)  # librdkafka says _SSL, and now and then _TRANSPORT
    assert "wrong version number" in error.detail


def test_brokers_that_close_connections_are_named_at_once() -> None:
    with server(lambda connection: connection.close()) as address:
        error = refused(**{"bootstrap.servers": address})
    assert isinstance(error, UnavailableError)
    assert "security.protocol" in error.hint  # what a broker does that expects TLS


def test_a_broker_that_takes_its_time_is_waited_for() -> None:
    with server(lambda _: None) as address:
        metadata = KafkaMetadata(KafkaCluster("slow", {"bootstrap.servers": address}), deadline=1.0, patience=0.0)
        with pytest.raises(UnavailableError, match=r"'slow' .* cannot be described"):
            metadata.cluster_id()


def test_without_patience_stated_a_call_waits_until_its_deadline() -> None:
    metadata = KafkaMetadata(KafkaCluster("gone", {"bootstrap.servers": "127.0.0.1:1"}), deadline=0.5)
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="cannot be reached") as caught:
        metadata.cluster_id()
    assert time.monotonic() - began >= 0.4
    assert "Connection refused" in caught.value.detail


def test_an_answer_ends_what_was_said_before_it() -> None:
    reach = Reach()
    reach.on_error(KafkaError(KafkaError._TRANSPORT, "refused"))
    assert not reach.down  # another broker may be there
    reach.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert reach.down
    assert reach.reason is not None
    assert reach.reason.str() == "refused"
    reach.answered()
    assert (reach.down, reach.reason) == (False, None)
