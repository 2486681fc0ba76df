"""The examples of docs/api.md, run against a real service."""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import polars as pl
import pytest
from pyiceberg.catalog import load_catalog

from headrace.jobs.config import load_config

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(r"^```bash\n(.*?)^```", (ROOT / "docs/api.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="the examples use curl and jq")
def test_the_examples_of_the_api_docs_work(tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text(f'[state]\npath = "{tmp_path}/state"\n')
    (tmp_path / "state").mkdir()
    hours = pl.datetime_range(
        dt.datetime(2013, 1, 1, tzinfo=dt.UTC), dt.datetime(2013, 1, 8, tzinfo=dt.UTC), "1h", eager=True, closed="left"
    )
    rows = pl.DataFrame({"ts": hours, "origin": ["O'Brien", "EWR"] * (len(hours) // 2)})
    catalog = load_catalog("local", **load_config(config).catalog("local"))
    catalog.create_namespace("demo")
    catalog.create_table("demo.trips", rows.to_arrow().schema).append(rows.to_arrow())
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    service = subprocess.Popen(
        [sys.executable, str(ROOT / "tests/real_service.py"), url.rsplit(":", 1)[1], str(config)]
    )
    try:
        deadline = time.monotonic() + 120
        with httpx.Client(base_url=url) as client:
            while True:
                try:
                    client.get("/readyz")
                except httpx.TransportError:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
                else:
                    break
            ran = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", "\n".join(EXAMPLES)],
                env={**os.environ, "HEADRACE_URL": url}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert ran.returncode == 0, ran.stdout + ran.stderr
            assert '"SPEC_INVALID"' in ran.stdout
            while {job["state"] for job in client.get("/v1/jobs").json()["items"]} - {"FINISHED"}:
                assert time.monotonic() < deadline + 60, client.get("/v1/jobs").text
                time.sleep(0.2)
        found = pl.from_arrow(catalog.load_table("demo.january_3_to_5").scan().to_arrow())
        assert isinstance(found, pl.DataFrame)
        assert found.sort("window_start").select("origin", "trips").rows() == [("O'Brien", 12), ("O'Brien", 12)]
    finally:
        service.terminate()
        service.wait(60)
        catalog.close()
