"""The service as a process that is killed; its workers are real processes whose jobs are doubles (API-02)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.jobs.processes import ProcessId, find, is_alive

DOUBLE = Path(__file__).parents[1] / "double_service.py"
OVER = {"STOPPED", "FINISHED", "FAILED", "FENCED"}


class Service:
    """A service process on one port and one state folder, started and killed at will."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)
        self.workers: set[ProcessId] = set()
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> subprocess.Popen[bytes]:
        log = (self.folder / "service.log").open("ab")
        with log:
            return subprocess.Popen(
                [sys.executable, str(DOUBLE), str(self.port), str(self.folder)], stdout=log, stderr=subprocess.STDOUT
            )

    def start(self) -> None:
        self.process = self.launch()
        deadline = time.monotonic() + 60
        while True:
            try:
                assert self.client.get("/readyz").status_code == 200
            except httpx.TransportError:
                assert self.process.poll() is None, (self.folder / "service.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return

    def kill(self, signum: signal.Signals = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(signum)
        self.process.wait(60)
        self.process = None

    def create(self, words: str, name: str = "j", **headers: str) -> str:
        spec = {
            "name": name,
            "description": words,
            "sources": {"s": {"history": {"table": "lake.a.b"}}},
            "sinks": [{"iceberg": {"table": "lake.a.out"}}],
        }
        made = self.client.post("/v1/jobs", json={"spec": spec}, headers=headers)
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    def get(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = self.client.get(f"/v1/jobs/{job_id}").json()
        if job.get("worker"):
            there = find(job["worker"]["pid"])
            self.workers |= {there} if there else set()
        return job

    def wait(self, job_id: str, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while True:
            job = self.get(job_id)
            if what(job):
                return job
            assert time.monotonic() < deadline, (job, (self.folder / "service.log").read_text()[-3000:])
            time.sleep(0.05)

    def running(self, job_id: str) -> dict[str, Any]:
        return self.wait(job_id, lambda job: job["state"] == "RUNNING" and job["progress"] is not None)

    def over(self, job_id: str) -> dict[str, Any]:
        return self.wait(job_id, lambda job: job["state"] in OVER)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    if made.process is not None:
        made.kill()
    for worker in made.workers:
        if is_alive(worker):
            os.kill(worker.pid, signal.SIGKILL)
    made.client.close()


def states(job: dict[str, Any]) -> list[str]:
    return [step["state"] for step in job["transitions"]]


def test_api_02_workers_outlive_the_service_and_are_adopted(service: Service) -> None:
    service.start()
    job_id = service.create("forever")
    before = service.running(job_id)
    service.kill()
    assert find(before["worker"]["pid"]) is not None
    service.start()
    after = service.running(job_id)
    assert (after["worker"]["pid"], after["worker"]["attempt"]) == (before["worker"]["pid"], 1)
    epoch = int(after["progress"]["epoch"])
    service.wait(job_id, lambda job: int(job["progress"]["epoch"]) > epoch)
    assert service.client.post(f"/v1/jobs/{job_id}/stop").status_code == 202
    assert service.over(job_id)["state"] == "STOPPED"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_end_of_the_service_leaves_the_workers_too(service: Service, signum: signal.Signals) -> None:
    service.start()
    job_id = service.create("forever")
    before = service.running(job_id)
    service.kill(signum)
    service.start()
    assert service.running(job_id)["worker"]["pid"] == before["worker"]["pid"]


def test_api_02_what_died_while_the_service_was_down(service: Service) -> None:
    """A worker that died is restarted; one that ended has ended; one that was to stop is stopped, never run again."""
    service.start()
    lost, ending, leaving = (service.create(words, name) for name, words in
                             (("lost", "forever"), ("ending", "end"), ("leaving", "forever deaf")))  # fmt: skip
    pids = {job_id: service.running(job_id)["worker"]["pid"] for job_id in (lost, leaving)}
    assert service.client.post(f"/v1/jobs/{leaving}/stop").status_code == 202
    service.kill()
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    service.start()
    again = service.wait(lost, lambda job: job["state"] == "RUNNING" and job["worker"]["attempt"] == 2)
    assert again["worker"]["pid"] != pids[lost]
    assert service.over(ending)["state"] == "FINISHED"
    stopped = service.over(leaving)
    assert stopped["state"] == "STOPPED"
    assert "STARTING" not in states(stopped)[states(stopped).index("RUNNING") :]


def test_api_02_stop_and_delete_then_kill(service: Service) -> None:
    service.start()
    job_id = service.create("forever")
    pid = service.running(job_id)["worker"]["pid"]
    assert service.client.post(f"/v1/jobs/{job_id}/stop").status_code == 202
    assert service.client.delete(f"/v1/jobs/{job_id}").status_code in {202, 204}
    service.kill()
    service.start()
    deadline = time.monotonic() + 60
    while service.client.get(f"/v1/jobs/{job_id}").status_code != 410:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    service.kill()
    service.start()
    assert service.client.get(f"/v1/jobs/{job_id}").status_code == 410
    assert service.client.get("/v1/jobs").json()["items"] == []
    assert find(pid) is None
    service.create("end")


def test_api_02_concurrent_stops_make_one_transition(service: Service) -> None:
    service.start()
    job_id = service.create("forever")
    service.running(job_id)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: service.client.post(f"/v1/jobs/{job_id}/stop").status_code, range(4)))
    assert set(answers) <= {200, 202}
    stopped = service.over(job_id)
    assert sum(state in OVER for state in states(stopped)) == 1
    assert states(stopped).count("STOPPING") <= 1


def test_api_02_a_stop_meets_a_natural_end(service: Service) -> None:
    service.start()
    jobs = [service.create("end", f"j{number}") for number in range(4)]
    for number, job_id in enumerate(jobs):
        if number:
            service.wait(job_id, lambda job: job["state"] == "RUNNING" or job["state"] in OVER)
        assert service.client.post(f"/v1/jobs/{job_id}/stop").status_code in {200, 202, 409}
    for job_id in jobs:
        over = service.over(job_id)
        assert over["state"] in {"STOPPED", "FINISHED"}
        assert sum(state in OVER for state in states(over)) == 1
        late = service.client.post(f"/v1/jobs/{job_id}/stop")
        assert late.status_code == (200 if over["state"] == "STOPPED" else 409)
        assert service.get(job_id)["state"] == over["state"]


def test_api_01_a_key_holds_over_a_restart(service: Service) -> None:
    service.start()
    job_id = service.create("end", **{"Idempotency-Key": "k"})
    service.kill()
    service.start()
    assert service.create("end", **{"Idempotency-Key": "k"}) == job_id
    service.over(job_id)
    service.kill()
    service.start()
    assert service.create("end", **{"Idempotency-Key": "k"}) == job_id
    assert len(service.client.get("/v1/jobs").json()["items"]) == 1


def test_kills_at_any_moment_leave_no_job_behind(service: Service) -> None:
    service.start()
    jobs = []
    for number in range(6):
        jobs.append(service.create("end", f"j{number}"))
        time.sleep(0.13 * number)
        service.kill()
        service.start()
    for job_id in jobs:
        assert service.over(job_id)["state"] == "FINISHED"


def test_a_second_service(service: Service, tmp_path: Path) -> None:
    service.start()
    assert f"serving http://127.0.0.1:{service.port}" in (tmp_path / "service.log").read_text()
    taken = service.launch()
    assert taken.wait(60) == 2
    assert "cannot be listened on" in (tmp_path / "service.log").read_text()
    other = Service(tmp_path)
    other.start()
    assert service.client.get("/readyz").json()["role"] == "active"
    assert other.client.get("/readyz").json()["role"] == "standby"
    job_id = other.create("end")
    assert service.over(job_id)["worker"] is None
    service.kill()
    job_id = other.create("end", "second")
    assert other.over(job_id)["state"] == "FINISHED"
    assert other.client.get("/readyz").json()["role"] == "active"
    other.kill()
    other.client.close()
