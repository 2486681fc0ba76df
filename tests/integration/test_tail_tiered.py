"""Topics with tiered storage (KIP-405): a job reads what has left the broker, a plan says where its own part begins."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest

from catalog.tables import load_or_create
from headrace.jobs.boundary import explain_boundary
from headrace.jobs.builder import Job
from headrace.jobs.compile import compile_job
from headrace.jobs.config import Config
from headrace.jobs.planning import plan_job
from headrace.jobs.run import run_job
from headrace.kafka.cluster import KafkaCluster
from headrace.kafka.metadata import KafkaMetadata
from headrace.kafka.tiered import local_starts
from headrace.kernel.boundary import TopicPartition
from headrace.runtime.job import RunOptions
from headrace.runtime.observer import SilentObserver, StopSignal
from infra.dev.kafka.broker import Broker
from infra.dev.kafka.jars import kafka_jars
from infra.dev.ports import free_port
from infra.dev.process import wait_until
from infra.dev.service import NotReadyError, Place
from tests.kafka import KafkaHelper

pytestmark = [
    pytest.mark.services,
    # Of kafka-python, when it is imported.
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
]

SECONDS = 90.0
TIERED = """
remote.log.storage.system.enable=true
remote.log.storage.manager.class.name=FolderStorage
remote.log.storage.manager.class.path={classes}
remote.log.storage.manager.impl.prefix=rsm.config.
rsm.config.folder={folder}
remote.log.metadata.manager.listener.name=PLAINTEXT
rlmm.config.remote.log.metadata.topic.replication.factor=1
rlmm.config.remote.log.metadata.topic.num.partitions=1
remote.log.manager.task.interval.ms=500
"""
SETTINGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "1048576",
    "retention.ms": "-1",
    "local.retention.ms": "1",
}


@pytest.fixture
def tiered_broker(tmp_path: Path) -> Iterator[KafkaHelper]:
    """A broker whose remote tier is a folder. Its plugin is compiled here: Maven needs a JDK, too."""
    compiler = shutil.which("javac")
    assert compiler, "javac is not installed: apt-get install openjdk-17-jdk-headless"
    classes, home = tmp_path / "classes", tmp_path / "broker"
    home.mkdir()
    source = Path(__file__).parents[1] / "FolderStorage.java"
    subprocess.run([compiler, "-cp", f"{kafka_jars()}/*", "-d", classes, source], check=True, timeout=120)
    taken: set[int] = set()
    broker, place = Broker(), Place(home, {name: free_port(taken) for name in Broker.ports}, {})
    command = broker.prepare(place)
    with (home / "server.properties").open("a") as properties:
        properties.write(TIERED.format(classes=classes, folder=tmp_path / "remote"))
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command.argv, env=command.env, stdout=log, stderr=log)
    try:
        assert wait_until(lambda: process.poll() is not None or _answers(broker, place), SECONDS)
        assert process.poll() is None, (home / "log").read_text()[-3000:]
        yield KafkaHelper(broker.endpoints(place).kafka_bootstrap or "")
    finally:
        process.kill()
        process.wait(SECONDS)


def _answers(broker: Broker, place: Place) -> bool:
    with suppress(NotReadyError):
        broker.probe(place)
        return True
    return False


def test_a_plan_shows_both_starts_and_the_job_reads_from_the_remote_tier(
    tiered_broker: KafkaHelper, tmp_path: Path
) -> None:
    kafka = tiered_broker
    topic, plain = kafka.topic(config=SETTINGS), kafka.topic()
    count = 3000
    kafka.produce(topic, [json.dumps({"n": number, "pad": "x" * 1000}).encode() for number in range(count)])
    kafka.produce(plain, [b'{"n": 1, "pad": ""}'])
    cluster = KafkaCluster("default", {"bootstrap.servers": kafka.bootstrap})
    place, other = TopicPartition(topic, 0), TopicPartition(plain, 0)

    def local() -> int:
        return local_starts(cluster, [place], 30.0)[place]

    assert wait_until(lambda: local() > 0, SECONDS)
    assert KafkaMetadata(cluster).earliest([place, other]) == {place: 0, other: 0}
    assert local_starts(cluster, [other], 30.0) == {other: 0}

    config = Config(
        kafka={"default": {"bootstrap.servers": kafka.bootstrap}},
        catalogs={"local": {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}},
        state_path=tmp_path / "state",
    )
    job = (
        Job("tiered")
        .source("rows", tail={"topic": [topic, plain], "schema": {"n": "long", "pad": "string"}})
        .aggregate({"rows": "count(*)", "most": "max(n)"})
        .sink_iceberg("local.ns.out", create=True, changes="append")
    )
    compiled = compile_job(job.spec(), config)
    tail = plan_job(compiled).sources[0].tail
    assert tail is not None
    shown = {at.topic: at for at in tail.partitions}
    assert shown[topic].log_start == 0
    assert 0 < (shown[topic].local_start or 0) <= count
    assert shown[plain].local_start is None
    assert not tail.notes
    name = "local.ns.archive"
    load_or_create(compiled.catalogs, name, pl.Schema({"n": pl.Int64()}))
    logs = explain_boundary(config, name, topic, None, "default").logs
    assert (logs[0].earliest, logs[0].latest, logs[0].local) == (0, count, shown[topic].local_start)
    assert explain_boundary(config, name, plain, None, "default").logs[0].local is None

    result = run_job(job.spec(), config, RunOptions(until="caught-up"), SilentObserver(), StopSignal())
    assert result.records == count + 1
