"""Fixtures on real services: the dev stack, a Kafka helper and one catalog of each kind.

The stack lives as long as the session, in a temporary folder; of several workers each has its own.
``HEADRACE_DEV_STATE=folder`` names a stack that is kept up between sessions instead, and the variables of
``infra.dev.endpoints`` name services of one's own.
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import Catalog, load_catalog

from infra import dev
from infra.dev import endpoints as variables
from infra.dev.lock import exclusive
from infra.dev.process import ProcessId, identify
from tests.kafka import KafkaHelper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PREFIX = "headrace-tests-"
_OWNER = "owner.json"


@dataclass(frozen=True, slots=True)
class Stack:
    """The session's services."""

    folder: Path
    endpoints: dev.Endpoints


@dataclass(frozen=True, slots=True)
class CatalogCase:
    """One catalog, with a namespace that is this test's alone.

    ``properties`` are pyiceberg's; ``client`` is open already, ``load()`` gives another one.
    """

    name: str
    properties: dict[str, str] = field(repr=False)
    namespace: str
    client: Catalog

    def load(self) -> Catalog:
        return load_catalog(self.name, **self.properties)

    def identifier(self, table: str) -> str:
        return f"{self.namespace}.{table}"


@dataclass(frozen=True, slots=True)
class OwnBroker:
    """A broker of one test, which may be stopped, killed and started again with its data."""

    kafka: KafkaHelper
    folder: Path

    def stop(self, *, kill: bool = False) -> None:
        dev.stop_service(self.folder, "kafka", kill=kill)

    def start(self) -> None:
        dev.start_service(self.folder, "kafka")


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The dev stack: Kafka, S3, the Iceberg REST catalog, and PostgreSQL where the machine has it."""
    if named := os.environ.get(dev.STATE_VARIABLE):
        yield Stack(Path(named), dev.up(Path(named)))
        return
    folder = _own_folder()
    try:
        yield Stack(folder, dev.up(folder))
    finally:
        dev.down(folder, delete=True)


@pytest.fixture(scope="session")
def kafka(stack: Stack) -> KafkaHelper:
    """The session's broker: topics, records, transactions. Never stop it: see ``own_broker``."""
    assert stack.endpoints.kafka_bootstrap
    return KafkaHelper(stack.endpoints.kafka_bootstrap)


@pytest.fixture
def own_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnBroker]:
    """A broker for this test alone, for tests that stop it (about six seconds)."""
    for variable in (variables.KAFKA_BOOTSTRAP, "HEADRACE_DEV_KAFKA_PORT"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "own-broker"
    try:
        there = dev.up(folder, ["kafka"])
        assert there.kafka_bootstrap
        yield OwnBroker(KafkaHelper(there.kafka_bootstrap), folder)
    finally:
        dev.down(folder, delete=True)


@pytest.fixture
def open_catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], CatalogCase]]:
    """A function that opens a catalog by name: ``local``, ``lake`` or ``postgres``; skips when there is none."""
    opened: list[Catalog] = []

    def open_(name: str) -> CatalogCase:
        there = dev.Endpoints() if name == "local" else request.getfixturevalue("stack").endpoints
        properties = dev.catalogs(there, tmp_path).get(name)
        if properties is None:
            pytest.skip(f"no catalog {name} on this machine")
        client = load_catalog(name, **properties)
        opened.append(client)
        namespace = f"n{uuid.uuid4().hex[:12]}"
        client.create_namespace(namespace)
        return CatalogCase(name, properties, namespace, client)

    yield open_
    for client in opened:
        client.close()


@pytest.fixture(
    params=[
        "local",
        pytest.param("lake", marks=pytest.mark.services),
        pytest.param("postgres", marks=pytest.mark.services),
    ]
)
def catalog(request: pytest.FixtureRequest, open_catalog: Callable[[str], CatalogCase]) -> CatalogCase:
    """Each catalog in turn: SQLite with local files, REST on S3, PostgreSQL on S3."""
    return open_catalog(request.param)


@pytest.fixture
def settings_file(stack: Stack, tmp_path: Path) -> Path:
    """A ``headrace.toml`` for the stack, in the test's own folder."""
    path = tmp_path / "headrace.toml"
    path.write_text(dev.render_settings(stack.endpoints, tmp_path), encoding="utf-8")
    return path


def _own_folder() -> Path:
    """A folder for this process's stack; the stacks of processes that were killed before they could are ended."""
    everybody = Path(tempfile.gettempdir())
    me, user = identify(os.getpid()), os.geteuid()
    with exclusive(everybody / f"headrace-stacks-{user}.lock"):
        for owner in everybody.glob(f"{_PREFIX}*/{_OWNER}"):
            with suppress(FileNotFoundError):  # whose process ends just now
                pid, started = json.loads(owner.read_text(encoding="utf-8"))
                if owner.stat().st_uid == user and not ProcessId(pid, started).alive():
                    dev.down(owner.parent, delete=True)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        (folder / _OWNER).write_text(json.dumps([me.pid, me.started]), encoding="utf-8")
    return folder
