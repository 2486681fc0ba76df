"""Bad input: a short error that names the thing and the cure, the documented exit code, and nothing half-committed.

The refusals of the handover itself are in ``test_refusals.py``.
"""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from tests.jobs import PLACES, START, Run, Site, assert_same, readings, source, windows_job

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.services


class Bench:
    """A good job in small, ways to spoil it, and a look at what it left behind."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.rows = readings(40)
        self.topic, self.target = site.kafka.topic(2), site.kafka.topic()
        site.produce(self.topic, self.rows, 2)
        self.history = site.table("history", self.rows[:20])
        read = source(self.topic, self.history, boundary={"offsets": {0: 10, 1: 10}})
        written = {"table": site.name("minutes"), "topic": self.target, "rows": site.name("present")}
        self.spec = windows_job("job", read, site.table("places", PLACES), **written)
        # What was read before a bad record is no mistake of the job: no epoch may end with it here.
        self.spec["checkpoint"] = {"interval": "10m"}

    @property
    def source(self) -> dict[str, Any]:
        found: dict[str, Any] = self.spec["sources"]["readings"]
        return found

    def refused(self, code: int, *names: str, error_code: str = "") -> str:
        """The job must end with this code and a text that names these things; nothing may be there afterwards."""
        job = self.site.job(self.spec)
        text = failed(self.site.start("run", job, "--until", "caught-up"), code, *names, error_code=error_code)
        self.nothing_is_there()
        return text

    def nothing_is_there(self) -> None:
        for table in ("minutes", "present"):
            if self.site.catalog.client.table_exists(self.site.catalog.identifier(table)):
                assert self.site.snapshots(table) == 0
        assert self.site.kafka.values(self.target) == []


@pytest.fixture
def bench(site: Site) -> Bench:
    return Bench(site)


def failed(run: Run, code: int, *names: str, error_code: str = "") -> str:
    """The text of a process that must end with this code: error, detail, hint, and no traceback."""
    found = run.end()
    text = run.text()
    assert found == code, f"exit code {found}, expected {code}\n{text[-3000:]}"
    assert "Traceback" not in text, text[-3000:]
    report = text[text.index("error[") :]
    assert re.match(rf"error\[{error_code or '[A-Z_]+'}\]: [^\n]+\n", report), report
    assert "\n  hint: " in report, report
    assert len(report.splitlines()[0]) < 300, report
    for name in names:
        assert name in report, f"{name!r} is not named in:\n{report}"
    return report


def test_unspoiled_the_job_runs(bench: Bench) -> None:
    bench.site.finish(bench.site.job(bench.spec))
    assert_same(bench.site.read("present"), bench.rows.filter(pl.col("v").is_not_null()), "rows")


# ------------------------------------------------------------------------------------------------------ unknown names


def test_unknown_catalog(bench: Bench) -> None:
    bench.source["history"]["table"] = "locale.flights.archive"
    bench.refused(2, "locale", "local", "headrace.toml", error_code="CATALOG_NOT_FOUND")


def test_unknown_history_table(bench: Bench) -> None:
    missing = bench.site.name("missing")
    bench.source["history"]["table"] = missing
    bench.refused(2, missing, error_code="TABLE_NOT_FOUND")


def test_unknown_namespace(bench: Bench) -> None:
    bench.source["history"]["table"] = "local.nowhere.archive"
    bench.refused(2, "'nowhere'", "'local'", error_code="NAMESPACE_NOT_FOUND")


def test_unknown_lookup_table(bench: Bench) -> None:
    missing = bench.site.name("missing")
    bench.spec["tables"]["places"]["table"] = missing
    bench.refused(2, missing, error_code="TABLE_NOT_FOUND")


def test_unknown_target_table(bench: Bench) -> None:
    bench.spec["sinks"][0]["iceberg"]["create"] = False
    bench.refused(2, bench.site.name("minutes"), "create: true", error_code="TABLE_NOT_FOUND")


def test_unknown_topic(bench: Bench) -> None:
    bench.source["tail"]["topic"] = "no-such-topic"
    bench.refused(2, "no-such-topic", error_code="TOPIC_NOT_FOUND")


def test_unknown_target_topic(bench: Bench) -> None:
    bench.spec["sinks"][1]["kafka"]["topic"] = "no-such-target"
    bench.refused(2, "no-such-target", error_code="TOPIC_NOT_FOUND")


def test_unknown_cluster(bench: Bench) -> None:
    bench.source["tail"]["cluster"] = "defualt"
    bench.refused(2, "defualt", "default", error_code="KAFKA_CLUSTER_UNKNOWN")


def test_unknown_column_in_a_filter(bench: Bench) -> None:
    bench.spec["steps"][0]["filter"] = "speed > 3"
    bench.refused(2, "speed", "job.yaml:", "steps[0]")


def test_unknown_column_in_a_lookup(bench: Bench) -> None:
    bench.spec["steps"][1]["lookup"]["on"] = "sensro"
    bench.refused(2, "sensro", "job.yaml:")


def test_unknown_column_of_a_lookup_table(bench: Bench) -> None:
    bench.spec["steps"][1]["lookup"]["columns"] = ["palce"]
    bench.refused(2, "palce", "job.yaml:")


def test_unknown_column_in_a_window(bench: Bench) -> None:
    bench.spec["steps"][2]["window"]["aggregate"] = {"n": "sum(amount)"}
    bench.refused(2, "amount", "job.yaml:")


def test_unknown_event_time_column(bench: Bench) -> None:
    bench.source["event_time"]["column"] = "when"
    bench.refused(2, "when", "job.yaml:")


def test_unknown_column_in_the_history_filter(bench: Bench) -> None:
    bench.source["history"]["where"] = "speed > 3"
    bench.refused(2, "speed")


def test_unknown_column_in_a_key(bench: Bench) -> None:
    bench.spec["sinks"][1]["kafka"]["key"] = ["nobody"]
    report = bench.refused(2, "nobody")
    assert "minutes" in report or bench.target in report or "kafka" in report


def test_unknown_snapshot(bench: Bench) -> None:
    bench.source["history"]["snapshot"] = 12345
    bench.refused(2, "12345", bench.history)


# -------------------------------------------------------------------------------------------------------- wrong types


def test_a_number_compared_with_text(bench: Bench) -> None:
    bench.spec["steps"][0]["filter"] = "v > 'x'"
    bench.refused(2, "job.yaml:", "steps[0]")


def test_a_sum_of_texts(bench: Bench) -> None:
    bench.spec["steps"][2]["window"]["aggregate"] = {"n": "sum(sensor)"}
    bench.refused(2, "sensor", "job.yaml:")


def test_an_event_time_that_is_no_time(bench: Bench) -> None:
    bench.source["event_time"]["column"] = "v"
    bench.refused(2, "'v'", "job.yaml:")


def test_a_lookup_key_of_another_type(bench: Bench) -> None:
    numbers = pl.DataFrame({"sensor": [1, 2], "place": ["a", "b"]})
    bench.spec["tables"]["places"]["table"] = bench.site.table("numbers", numbers)
    bench.refused(2, "sensor", "job.yaml:")


def test_a_target_table_with_other_types(bench: Bench) -> None:
    other = pl.DataFrame({"id": ["x"], "sensor": ["x"], "at": [START], "v": [1.5]})
    bench.site.table("present", other)
    job = bench.site.job(bench.spec)
    failed(bench.site.start("run", job, "--until", "caught-up"), 4, bench.site.name("present"), "id")
    assert bench.site.snapshots("present") == 1
    assert bench.site.kafka.values(bench.target) == []


def test_records_of_another_type(bench: Bench) -> None:
    bench.site.kafka.produce(
        bench.topic, [b'{"id": 41, "sensor": 7, "at": "2026-03-01T00:00:00Z", "v": 1}'], partition=1
    )
    bench.refused(4, f"{bench.topic}[1]@20", "sensor", "on_error: skip", error_code="DECODE_FAILED")


def test_a_malformed_record(bench: Bench) -> None:
    bench.site.kafka.produce(bench.topic, [b'{"id": 41, "sens'], partition=1)
    bench.refused(4, f"{bench.topic}[1]@20", "on_error: skip", error_code="DECODE_FAILED")


# -------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda path: path.write_bytes(b"PAR1 this is no parquet file at all PAR1"), 2),
        (lambda path: path.write_bytes(path.read_bytes()[:-20]), 2),
        (lambda path: path.write_bytes(b""), 2),
        (lambda path: path.unlink(), 2),
    ],
    ids=["not-parquet", "truncated", "empty", "missing"],
)
def test_a_parquet_history_that_cannot_be_read(bench: Bench, spoil: Callable[[Path], object], code: int) -> None:
    file = bench.site.folder / "history.parquet"
    bench.rows[:20].write_parquet(file)
    spoil(file)
    bench.source["history"] = {"parquet": str(file)}
    bench.refused(code, str(file))


def test_a_data_file_of_the_history_that_is_damaged(bench: Bench) -> None:
    table = bench.site.catalogs.load(bench.history)
    path = Path(next(iter(table.scan().plan_files())).file.file_path.removeprefix("file://"))
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\0" * (len(whole) - 4))
    bench.refused(4, path.name, error_code="FILE_DAMAGED")


def test_a_job_file_that_is_not_there(site: Site) -> None:
    failed(site.start("run", "nowhere.yaml"), 2, "nowhere.yaml")


def test_a_settings_file_that_is_not_there(bench: Bench) -> None:
    job = bench.site.job(bench.spec)
    failed(bench.site.start("run", job, "--config", "nowhere.toml"), 2, "nowhere.toml", error_code="CONFIG_INVALID")


def test_a_typo_in_the_spec(bench: Bench) -> None:
    bench.spec["checkpoint"] = {"intervall": "2s"}
    bench.refused(2, "intervall", "interval", "job.yaml:")


def test_a_typo_in_a_step(bench: Bench) -> None:
    bench.spec["steps"][0] = {"fliter": "v is not null"}
    bench.refused(2, "fliter", "filter", "job.yaml:")


def test_a_state_folder_that_cannot_be_written(bench: Bench) -> None:
    blocked = bench.site.folder / "blocked"
    blocked.write_text("a file where a folder should be")
    job = bench.site.job(bench.spec)
    failed(bench.site.start("run", job, "--until", "caught-up", "--state", blocked), 2, str(blocked))
    bench.nothing_is_there()


# ----------------------------------------------------------------------------------------------------------- boundary


def test_plan_says_the_same_as_run(bench: Bench) -> None:
    del bench.source["boundary"]
    job = bench.site.job(bench.spec)
    failed(bench.site.start("plan", job), 4, bench.history, bench.topic, error_code="BOUNDARY_MISSING")


# ----------------------------------------------------------------------------------------------------------- services


def settings_with(site: Site, section: str, **values: str) -> None:
    """Change values of a section of the settings file."""
    path = site.folder / "headrace.toml"
    text = path.read_text(encoding="utf-8")
    head, begin, rest = text.partition(f"[{section}]\n")
    assert begin
    block, end, after = rest.partition("\n[")
    for name, value in values.items():
        line = f"{json.dumps(name)} = {json.dumps(value)}"
        block, found = re.subn(rf'^"?{re.escape(name)}"? = .*$', lambda _, line=line: line, block, flags=re.MULTILINE)
        assert found == 1, name
    path.write_text(head + begin + block + end + after, encoding="utf-8")


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def test_a_broker_that_is_down(bench: Bench) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    settings_with(bench.site, "kafka.default", **{"bootstrap.servers": nobody})
    bench.refused(3, nobody)


def test_a_catalog_that_is_down(lake_site: Site) -> None:
    bench = Bench(lake_site)
    port = str(free_port())
    settings_with(lake_site, "catalogs.lake", uri=f"http://127.0.0.1:{port}")
    job = lake_site.job(bench.spec)
    failed(lake_site.start("run", job, "--until", "caught-up"), 3, "127.0.0.1", port, error_code="UNAVAILABLE")


def test_a_wrong_secret_of_the_table_storage(lake_site: Site) -> None:
    bench = Bench(lake_site)
    settings_with(lake_site, "catalogs.lake", **{"s3.secret-access-key": "wrong"})
    job = lake_site.job(bench.spec)
    failed(lake_site.start("run", job, "--until", "caught-up"), 2, "places", "credentials", error_code="ACCESS_DENIED")
    assert lake_site.kafka.values(bench.target) == []


def test_a_wrong_secret_of_the_checkpoint_store(lake_site: Site) -> None:
    bench = Bench(lake_site)
    settings_with(lake_site, "object_stores.s3", aws_secret_access_key="wrong")
    job = lake_site.job(bench.spec)
    failed(lake_site.start("run", job, "--until", "caught-up"), 2, str(lake_site.store), error_code="ACCESS_DENIED")
    bench.nothing_is_there()
