"""``headrace boundary``: what is printed, and how offsets are written."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from catalog.catalogs import Catalogs, TableName
from catalog.commit import set_boundary
from headrace.cli.app import run
from headrace.cli.boundary import parse_offset
from headrace.jobs.config import load_config
from headrace.kernel.boundary import Boundary, PartitionRange, TopicBoundary
from headrace.kernel.errors import ExitCode, UserError

TABLE = "local.shop.orders"


@pytest.fixture
def state(tmp_path: Path) -> list[str]:
    """Options that select a state folder with an empty table in its local catalog."""
    (tmp_path / "headrace.toml").touch()
    config = load_config(tmp_path / "headrace.toml", environ={})
    catalogs = Catalogs(config.catalogs)
    local = catalogs.catalog("local")
    local.create_namespace("shop")
    local.create_table("shop.orders", pa.schema([("id", pa.int64())]))
    catalogs.close()
    return ["--config", str(tmp_path / "headrace.toml")]


def record(options: list[str]) -> int:
    catalogs = Catalogs(load_config(options[1], environ={}).catalogs)
    covered = Boundary({"orders": TopicBoundary({0: PartitionRange(0, 12), 1: PartitionRange(3, 7)}, "id-1")})
    snapshot = set_boundary(catalogs, TableName.parse(TABLE), covered)
    catalogs.close()
    return snapshot


def test_table_without_record(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["boundary", "show", TABLE, *state]) == ExitCode.USER
    assert "error[BOUNDARY_NOT_FOUND]: table local.shop.orders has no boundary record" in capsys.readouterr().err


def test_unknown_table_and_snapshot(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["boundary", "show", "local.shop.order", *state]) == ExitCode.USER
    assert "error[TABLE_NOT_FOUND]" in capsys.readouterr().err
    assert run(["boundary", "show", TABLE, "--snapshot", "5", *state]) == ExitCode.USER
    assert "error[SNAPSHOT_NOT_FOUND]" in capsys.readouterr().err


def test_record_is_shown_with_its_evidence(state: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = record(state)
    assert run(["boundary", "show", TABLE, *state]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert f"recorded in snapshot {snapshot}" in lines[0]
    assert lines[1:] == [
        "topic orders (id id-1)",
        "  partition 0: offsets 0 up to 12, exclusive",
        "  partition 1: offsets 3 up to 7, exclusive",
    ]
    assert run(["boundary", "show", TABLE, "--json", "--snapshot", str(snapshot), *state]) == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)
    assert shown["recorded_in"] == snapshot
    assert shown["boundary"]["topics"]["orders"]["partitions"]["1"] == {"start": 3, "next": 7}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0:1834", (0, PartitionRange(0, 1834))),
        ("12:5-9", (12, PartitionRange(5, 9))),
        ("0:0", (0, PartitionRange(0, 0))),
    ],
)
def test_offsets(text: str, expected: tuple[int, PartitionRange]) -> None:
    assert parse_offset(text) == expected


@pytest.mark.parametrize("text", ["", "5", "a:1", "0:-1", "0:9-5", "0:1:2", "0:1.5"])
def test_wrong_offsets(text: str) -> None:
    with pytest.raises(UserError, match="is no offset of a partition"):
        parse_offset(text)
