"""The broker as a service of the stack: one KRaft node on loopback."""

from __future__ import annotations

import base64
import os
import socket
import uuid
from importlib import resources
from typing import TYPE_CHECKING, ClassVar, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.kernel.errors import UnavailableError
from infra.dev.endpoints import Endpoints
from infra.dev.kafka.jars import kafka_jars
from infra.dev.kafka.java import find_java
from infra.dev.ports import HOST
from infra.dev.service import Command, NotReadyError, Place
from infra.dev.tools import run_tool

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Quick to start rather than quick at its best: the second compiler costs four CPU seconds before the first request.
_JVM: Final = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
_FORMAT_SECONDS: Final = 120.0

# Internal topics small and unreplicated; retention and compaction check often, so that a test sees them happen.
_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{broker},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{broker}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
num.partitions=1
num.network.threads=2
num.io.threads=2
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=1000
log.retention.check.interval.ms=1000
log.initial.task.delay.ms=500
log.cleaner.backoff.ms=500
file.delete.delay.ms=1000
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
"""


class Broker:
    """Apache Kafka; needs Java, and Maven for the first start."""

    name: ClassVar[str] = "kafka"
    ports: ClassVar[tuple[str, ...]] = ("broker", "controller")
    port_variables: ClassVar[Mapping[str, str]] = {"broker": "HEADRACE_DEV_KAFKA_PORT"}
    secrets: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = False
    start_seconds: ClassVar[float] = 180.0
    ports_taken: ClassVar[tuple[str, ...]] = ("Address already in use",)

    def given(self, external: Endpoints) -> bool:
        """See :meth:`Service.given`."""
        return external.kafka_bootstrap is not None

    def require(self, home: Path) -> None:
        """See :meth:`Service.require`."""
        del home
        find_java()
        kafka_jars()

    def prepare(self, place: Place) -> Command:
        """See :meth:`Service.prepare`."""
        data, properties = place.home / "data", place.home / "server.properties"
        properties.write_text(
            _PROPERTIES.format(
                host=HOST, broker=place.ports["broker"], controller=place.ports["controller"], data=data
            ),
            encoding="utf-8",
        )
        logging = place.home / "log4j2.properties"
        logging.write_bytes(resources.files(__package__).joinpath("log4j2.properties").read_bytes())
        # Java itself expands the asterisk; a shell must not.
        java = (find_java(), *_JVM, f"-Dlog4j2.configurationFile={logging}", "-cp", str(kafka_jars() / "*"))
        if not (data / "meta.properties").exists():
            _format((*java, "kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(properties)))
        return Command((*java, "kafka.Kafka", str(properties)), os.environ)

    def probe(self, place: Place) -> None:
        """See :meth:`Service.probe`."""
        address = (HOST, place.ports["broker"])
        try:
            # librdkafka backs off after a refused connection, so knock first.
            socket.create_connection(address, timeout=1).close()
            client = AdminClient({"bootstrap.servers": f"{HOST}:{address[1]}", "log_level": 0})
            brokers = client.list_topics(timeout=2).brokers
        except (OSError, KafkaException) as error:
            raise NotReadyError(str(error)) from error
        if not brokers:
            raise NotReadyError("the broker is not registered with its controller yet")

    def endpoints(self, place: Place) -> Endpoints:
        """See :meth:`Service.endpoints`."""
        return Endpoints(kafka_bootstrap=f"{HOST}:{place.ports['broker']}")


def _cluster_id() -> str:
    """A fresh id; one that begins with a dash would be read as an option of the tool that formats the folder."""
    found = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
    return _cluster_id() if found.startswith("-") else found


def _format(argv: tuple[str, ...]) -> None:
    formatted = run_tool(argv, _FORMAT_SECONDS)
    if not formatted.ok:
        raise UnavailableError(
            "the Kafka broker's data folder could not be made",
            code="SERVICE_START_FAILED",
            detail=formatted.last_words(),
            hint="stop the stack, delete its folder and start it again",
        )
