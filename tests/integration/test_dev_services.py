"""The dev stack's own services: on loopback only, and with their data after a restart or a crash."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from infra import dev
from infra.dev.record import load
from tests.services import Stack

pytestmark = pytest.mark.services

LISTENING = "0A"
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@pytest.fixture
def own_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in list(os.environ):
        if name.startswith(("HEADRACE_S3_", "HEADRACE_ICEBERG_", "HEADRACE_DEV_")):
            monkeypatch.delenv(name)
    folder = tmp_path / "own-lake"
    try:
        dev.up(folder, ["lake"])
        yield folder
    finally:
        dev.down(folder, delete=True)


def listening(pid: int) -> set[str]:
    """The addresses on which a process listens, as the kernel writes them."""
    inodes = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        target = str(handle.readlink()) if handle.is_symlink() else ""
        if target.startswith("socket:["):
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in inodes:
                found.add(fields[1].partition(":")[0])
    return found


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")
def test_every_service_listens_on_loopback_only(stack: Stack) -> None:
    records = load(stack.folder).services
    for name, record in records.items():
        assert record.process is not None
        addresses = listening(record.process.pid)
        assert addresses, name
        assert addresses <= LOOPBACK, name


@pytest.mark.parametrize("how", ["stopped", "killed", "moved"])
def test_the_lake_keeps_its_tables(own_lake: Path, tmp_path: Path, how: str) -> None:
    rows = pa.table({"a": [1, 2]})
    with load_catalog("lake", **dev.catalogs(dev.locate(own_lake), tmp_path)["lake"]) as catalog:
        catalog.create_namespace("n")
        catalog.create_table("n.t", rows.schema).append(rows)

    dev.stop_service(own_lake, "lake", kill=how == "killed")
    if how == "moved":
        with taken(load(own_lake).services["lake"].ports["s3"]), taken(load(own_lake).services["lake"].ports["volume"]):
            dev.start_service(own_lake, "lake")
    else:
        dev.start_service(own_lake, "lake")

    with load_catalog("lake", **dev.catalogs(dev.locate(own_lake), tmp_path)["lake"]) as catalog:
        table = catalog.load_table("n.t")
        table.append(rows)
        assert table.scan().to_arrow().num_rows == 4


def taken(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def test_postgres_keeps_its_rows(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "postgres" not in load(stack.folder).services:
        pytest.skip("PostgreSQL is not installed")
    monkeypatch.delenv("HEADRACE_POSTGRES_URI", raising=False)
    import psycopg2

    def run(folder: Path, statement: str) -> list[tuple[object, ...]]:
        uri = dev.locate(folder).postgres_uri
        assert uri is not None
        connection = psycopg2.connect(uri.replace("+psycopg2", ""))
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    name = f"t{os.getpid()}"
    run(stack.folder, f"create table {name} as select 7 as a")
    dev.stop_service(stack.folder, "postgres", kill=True)
    dev.start_service(stack.folder, "postgres")
    assert run(stack.folder, f"select a from {name}") == [(7,)]
