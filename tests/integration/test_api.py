"""The HTTP service in this process: answers, problems, idempotency, pages."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from api import create_app
from api.guard import MAX_BODY
from tests.double_service import settings

TERMINAL = {"STOPPED", "FINISHED", "FAILED", "FENCED"}


def spec(name: str = "j", words: str = "forever", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "description": words,
        "sources": {"s": {"history": {"table": "lake.a.b"}, "event_time": {"column": "ts"}}},
        "steps": [
            {"filter": "n > 0", "id": "positive"},
            {"window": {"tumbling": "1h", "by": ["origin"], "aggregate": {"rows": "count(*)"}}},
        ],
        "sinks": [{"iceberg": {"table": "lake.a.out", "create": True}}],
        **more,
    }


def backfill(job: Any, **more: Any) -> dict[str, Any]:
    return {"job": job, "from": "2013-01-01T00:00:00Z", "to": "2013-02-01T00:00:00Z", "target": "lake.a.jan", **more}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    app = create_app(settings(tmp_path))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=60) as opened:
            deadline = time.monotonic() + 60
            while opened.get("/readyz").json()["role"] != "active":
                assert time.monotonic() < deadline, "the service does not supervise"
                time.sleep(0.05)
            yield opened
            for job in opened.get("/v1/jobs").json()["items"]:
                opened.delete(f"/v1/jobs/{job['id']}")
            deadline = time.monotonic() + 60
            while opened.get("/v1/jobs").json()["items"]:
                assert time.monotonic() < deadline, "jobs are not deleted"
                time.sleep(0.1)
            for child in app.state.supervisor._children:
                child.wait(60)
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()


def wait(client: httpx.Client, job_id: str, *states: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        job: dict[str, Any] = client.get(f"/v1/jobs/{job_id}").json()
        if job["state"] in states:
            return job
        assert time.monotonic() < deadline, job
        time.sleep(0.1)


def problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert (body["status"], body["code"], body["type"]) == (status, code, f"urn:headrace:problem:{code}")
    assert body["detail"]
    assert body["detail"][0].islower() or not body["detail"][0].isalpha()
    assert "Traceback" not in answer.text
    return body


def test_create_show_list_stop_delete(client: httpx.Client) -> None:
    made = client.post("/v1/jobs", json={"spec": spec("one")})
    assert made.status_code == 201
    job_id = made.json()["id"]
    assert made.headers["location"] == f"/v1/jobs/{job_id}"
    assert made.json()["uid"] == "one"
    running = wait(client, job_id, "RUNNING")
    assert running["worker"]["attempt"] == 1
    assert running["spec"]["name"] == "one"
    assert [item["id"] for item in client.get("/v1/jobs").json()["items"]] == [job_id]
    assert client.get("/v1/jobs", params={"state": "FAILED"}).json()["items"] == []
    assert client.get(f"/v1/jobs/{job_id}").json()["transitions"][0]["state"] == "CREATED"
    problem(client.post("/v1/jobs", json={"spec": spec("one")}), 409, "UID_IN_USE")
    future = {"spec": spec("two"), "until": "2999-01-01T00:00:00Z"}
    problem(client.post("/v1/jobs", json=future), 422, "UNTIL_INVALID")
    problem(client.post("/v1/jobs", json=future | {"until": "2026-01-01"}), 422, "REQUEST_INVALID")
    assert client.post(f"/v1/jobs/{job_id}/stop").status_code == 202
    stopped = wait(client, job_id, *TERMINAL)
    assert stopped["state"] == "STOPPED"
    assert stopped["stop"]["mode"] == "suspend"
    assert stopped["worker"] is None
    assert client.post(f"/v1/jobs/{job_id}/stop").status_code == 200
    again = client.post("/v1/jobs", json={"spec": spec("one", "end"), "until": "2026-01-01T00:00:00Z"})
    assert again.status_code == 201
    assert again.json()["until"] == "2026-01-01T00:00:00+00:00"
    assert client.delete(f"/v1/jobs/{job_id}").status_code == 204
    problem(client.get(f"/v1/jobs/{job_id}"), 410, "JOB_DELETED")
    wait(client, again.json()["id"], "FINISHED")


def test_a_job_that_is_over_is_resumed_as_a_new_one(client: httpx.Client) -> None:
    problem(client.post("/v1/jobs/job_nope/resume"), 404, "JOB_NOT_FOUND")
    made = client.post("/v1/backfills", json=backfill(spec(words="forever")))
    first = made.json()["id"]
    problem(client.post(f"/v1/jobs/{first}/resume"), 409, "JOB_ACTIVE")
    wait(client, first, "RUNNING")
    client.post(f"/v1/jobs/{first}/stop")
    wait(client, first, "STOPPED")
    with ThreadPoolExecutor(4) as pool:
        key = {"Idempotency-Key": "resume-1"}
        answers = list(pool.map(lambda _: client.post(f"/v1/jobs/{first}/resume", headers=key), range(4)))
    assert [answer.status_code for answer in answers] == [201] * 4
    assert len({answer.json()["id"] for answer in answers}) == 1
    resumed = answers[0].json()
    assert answers[0].headers["location"] == f"/v1/backfills/{resumed['id']}"
    assert (resumed["id"] != first, resumed["uid"]) == (True, made.json()["uid"])
    assert client.get(f"/v1/backfills/{resumed['id']}").json()["transitions"][0]["reason"] == f"goes on after {first}"
    over = client.post("/v1/jobs", json={"spec": spec("done", words="end")}).json()["id"]
    wait(client, over, "FINISHED")
    problem(client.post(f"/v1/jobs/{over}/resume"), 409, "JOB_OVER")


def test_the_seam_of_a_job(client: httpx.Client) -> None:
    problem(client.get("/v1/jobs/job_nope/seam"), 404, "JOB_NOT_FOUND")
    made = [client.post("/v1/jobs", json={"spec": spec(name, "end")}).json()["id"] for name in ("one", "seamless")]
    proof = client.get(f"/v1/jobs/{made[0]}/seam").json()
    assert proof == {"job": "one", "epoch": str(2**60), "exact": True, "sources": []}
    problem(client.get(f"/v1/jobs/{made[1]}/seam"), 404, "SEAM_NOT_FOUND")


def test_integers_are_exact(client: httpx.Client) -> None:
    job_id = client.post("/v1/jobs", json={"spec": spec(words="end")}).json()["id"]
    done = wait(client, job_id, "FINISHED")
    assert done["progress"]["records"] == str(2**62)
    assert done["progress"]["committed"]["run_s"] == 0.1
    made = client.post("/v1/backfills", json=backfill(spec("b"), snapshot=str(2**63 - 1)))
    assert made.status_code == 201
    assert made.json()["plan"]["bytes"] == str(2**60)
    assert made.json()["backfill"]["snapshot"] == str(2**63 - 1)
    shown = client.get(f"/v1/backfills/{made.json()['id']}").json()
    assert shown["spec"]["sources"]["s"]["history"]["snapshot"] == 2**63 - 1


def test_api_01_one_key_makes_one_job(client: httpx.Client, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    key = {"Idempotency-Key": "5f7c1c9e"}
    body = backfill(spec("b"))
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/backfills", json=body, headers=key), range(20)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
    made = answers[0].json()
    other = {**body, "to": "2013-03-01T00:00:00Z"}
    assert problem(client.post("/v1/backfills", json=other, headers=key), 409, "IDEMPOTENCY_KEY_REUSED")["context"] == {
        "job_id": made["id"]
    }
    clash = problem(client.post("/v1/backfills", json=body), 409, "BACKFILL_OVERLAPS")
    assert clash["context"]["job_id"] == made["id"]
    problem(client.post("/v1/jobs", json={"spec": spec("b")}, headers=key), 409, "IDEMPOTENCY_KEY_REUSED")
    problem(client.post("/v1/backfills", json=body, headers={"Idempotency-Key": "a b"}), 400, "IDEMPOTENCY_KEY_INVALID")
    assert len(client.get("/v1/backfills").json()["items"]) == 1
    hold.unlink()
    wait(client, made["id"], "FINISHED")
    assert client.post("/v1/backfills", json=body, headers=key).json()["id"] == made["id"]
    assert client.post("/v1/backfills", json=body).json()["id"] != made["id"]


def test_a_backfill_is_planned_and_bounded(client: httpx.Client) -> None:
    job_id = client.post("/v1/jobs", json={"spec": spec("live")}).json()["id"]
    made = client.post("/v1/backfills", json=backfill(job_id, **{"from": "2013-01-01T00:30:00Z"})).json()
    assert made["plan"]["files"] == "2"
    assert "window" in made["plan"]["warnings"][0]
    shown = client.get(f"/v1/backfills/{made['id']}").json()
    assert shown["spec"]["uid"] == shown["uid"] != "live"
    assert shown["spec"]["sinks"] == [{"from": "window", "iceberg": {"table": "lake.a.jan"}}]
    assert [step["id"] for step in shown["spec"]["steps"]] == ["positive", "window"]
    assert shown["transitions"][0]["state"] == "PLANNED"
    problem(client.get(f"/v1/backfills/{job_id}"), 404, "JOB_NOT_FOUND")


@pytest.mark.parametrize(
    ("change", "code", "pointer"),
    [
        ({"sources": {}}, "SPEC_INVALID", "#/spec/sources"),
        ({"stepz": []}, "SPEC_INVALID", "#/spec/stepz"),
        ({"steps": [{"filter": "n >"}]}, "EXPRESSION_INVALID", "#/spec/steps/0/filter"),
        ({"steps": [{"filter": "n in (select n from read_csv('/etc/passwd'))"}]}, "EXPRESSION_NOT_ALLOWED",
         "#/spec/steps/0/filter"),
        ({"steps": [{"filter": "n > 0; drop table s"}]}, "EXPRESSION_NOT_ALLOWED", "#/spec/steps/0/filter"),
        ({"steps": [{"filtr": "n > 0"}]}, "SPEC_INVALID", "#/spec/steps/0/filtr"),
        ({"name": "a b"}, "SPEC_INVALID", "#/spec/name"),
    ],
)  # fmt: skip
def test_api_04_a_wrong_spec_is_refused_at_creation(
    client: httpx.Client, change: dict[str, Any], code: str, pointer: str
) -> None:
    body = problem(client.post("/v1/jobs", json={"spec": {**spec(), **change}}), 422, code)
    assert body["errors"][0]["pointer"] == pointer
    assert client.get("/v1/jobs").json()["items"] == []


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"from": None, "to": None}, "#/from"),
        ({"to": "2013-01-01T00:00:00Z"}, "#/to"),
        ({"to": "2013-01-01T00:00:00"}, "#/to"),
        ({"target": "nowhere"}, "#/target"),
        ({"mode": "overwrite"}, "#/mode"),
        ({"sink": "nope"}, "#/sink"),
        ({"extra": 1}, "#/extra"),
        ({"filter": [{"column": 'a" OR 1=1', "value": "x"}]}, "#/filter/0/column"),
        ({"filter": [{"column": "n", "value": "1 OR 1=1"}]}, "#/filter/0/value"),
        ({"filter": [{"column": "n", "value": True}]}, "#/filter/0/value"),
        ({"filter": [{"column": "n", "op": "in", "value": 1}]}, "#/filter/0/value"),
        ({"filter": [{"column": "ts", "value": "noon"}]}, "#/filter/0/value"),
        ({"filter": [{"column": "n", "op": "in", "value": list(range(10_001))}]}, "#/filter/0/value"),
    ],
)  # fmt: skip
def test_api_04_a_wrong_backfill_is_refused_at_creation(
    client: httpx.Client, change: dict[str, Any], pointer: str
) -> None:
    answer = client.post("/v1/backfills", json=backfill(spec(), **change))
    assert answer.status_code == 422, answer.text
    assert any(fault["pointer"].startswith(pointer) for fault in answer.json()["errors"]), answer.text
    assert client.get("/v1/jobs").json()["items"] == []


def test_what_does_not_plan_is_not_stored(client: httpx.Client) -> None:
    problem(client.post("/v1/jobs", json={"spec": spec("nowhere")}), 422, "TABLE_NOT_FOUND")
    body = problem(client.post("/v1/backfills", json=backfill("job_nope")), 404, "JOB_NOT_FOUND")
    assert body["context"] == {"job_id": "job_nope"}
    assert client.get("/v1/jobs").json()["items"] == []


def test_connections_are_the_services_own(client: httpx.Client) -> None:
    tail = {"topic": "t", "schema": {"n": "int64"}, "options": {"plugin.library.paths": "/tmp/evil.so"}}
    wanted = spec(sources={"s": {"tail": tail}}, steps=[{"filter": "n > 0"}])
    body = problem(client.post("/v1/jobs", json={"spec": wanted}), 422, "OPTION_REFUSED")
    assert body["errors"][0]["pointer"] == "#/spec/sources/s/tail/options/plugin.library.paths"


def test_operators_are_the_services_own(client: httpx.Client) -> None:
    step = {"custom": {"operator": "antigravity:X", "by": ["origin"]}}
    body = problem(client.post("/v1/jobs", json={"spec": spec(steps=[step])}), 422, "OPERATOR_NOT_REGISTERED")
    assert body["errors"][0]["pointer"] == "#/spec/steps/0/custom/operator"
    problem(client.post("/v1/backfills", json=backfill(spec(steps=[step]))), 422, "OPERATOR_NOT_REGISTERED")
    step["custom"]["operator"] = "mine"
    assert client.post("/v1/jobs", json={"spec": spec(steps=[step])}).status_code == 201


def test_the_environment_is_the_services_own(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TEST_SECRET", "hunter2")
    answer = client.post("/v1/jobs", json={"spec": spec("x", "end ${HEADRACE_TEST_SECRET}")})
    assert "hunter2" not in client.get(answer.headers["location"]).text


def test_messages_of_the_framework_keep_the_letters_of_abbreviations(client: httpx.Client) -> None:
    json = {"content-type": "application/json"}
    unread = client.post("/v1/jobs", content=b"{", headers=json).json()
    assert unread["detail"] == "request is not valid: JSON decode error"
    assert client.put("/v1/jobs").json()["detail"] == "method not allowed"
    assert client.get("/v1/nothing").json()["detail"] == "not found"


def test_every_refusal_is_a_problem(client: httpx.Client) -> None:
    problem(client.get("/nope"), 404, "HTTP_NOT_FOUND")
    problem(client.put("/v1/jobs"), 405, "HTTP_METHOD_NOT_ALLOWED")
    problem(client.get("/v1/jobs/job_nope"), 404, "JOB_NOT_FOUND")
    problem(client.post("/v1/jobs/job_nope/stop"), 404, "JOB_NOT_FOUND")
    problem(client.delete("/v1/jobs/job_nope"), 404, "JOB_NOT_FOUND")
    problem(client.get("/v1/jobs", params={"limit": 0}), 422, "REQUEST_INVALID")
    problem(client.get("/v1/jobs", params={"cursor": "ü"}), 422, "CURSOR_INVALID")
    problem(client.post("/v1/jobs", content=b"{", headers={"content-type": "application/json"}), 422, "REQUEST_INVALID")
    problem(client.post("/v1/jobs", content=b"{}", headers={"content-type": "text/plain"}), 422, "REQUEST_INVALID")
    nested = b'{"spec":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001
    problem(
        client.post("/v1/jobs", content=nested, headers={"content-type": "application/json"}), 400, "HTTP_BAD_REQUEST"
    )
    problem(client.post("/v1/jobs", json={"spec": {"a": "x" * MAX_BODY}}), 413, "BODY_TOO_LARGE")
    chunks = (b" " * 65536 for _ in range(20))
    problem(client.post("/v1/jobs", content=chunks), 413, "BODY_TOO_LARGE")
    problem(client.get("/v1/jobs", headers={"host": "evil.example"}), 421, "HOST_REFUSED")
    assert client.get("/healthz", headers={"host": "localhost:8470"}).status_code == 200


def test_what_is_not_allowed_names_what_is_and_head_is_get(client: httpx.Client) -> None:
    refused = client.put("/v1/jobs")
    problem(refused, 405, "HTTP_METHOD_NOT_ALLOWED")
    assert refused.headers["allow"] == "GET, HEAD, POST"
    assert client.patch("/v1/jobs/job_nope").headers["allow"] == "DELETE, GET, HEAD"
    for path in ("/healthz", "/v1/jobs", "/openapi.json"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
    assert client.head("/v1/jobs/job_nope").status_code == 404
    assert client.head("/v1/jobs/job_nope/stop").status_code == 405


def test_texts_that_are_no_unicode_are_refused_before_they_are_stored(client: httpx.Client) -> None:
    json_type = {"content-type": "application/json"}
    made = json.dumps({"spec": spec("texts", "forever WORD")})
    for path in ("/v1/jobs", "/v1/backfills"):
        half = made.replace("WORD", "\\ud83d").encode()
        body = problem(client.post(path, content=half, headers=json_type), 422, "REQUEST_INVALID")
        assert "surrogate" in body["seen"]
    whole = made.replace("WORD", "\\ud83d\\ude00 \\u0000 \\uffff").encode()
    job_id = client.post("/v1/jobs", content=whole, headers=json_type).json()["id"]
    assert client.get(f"/v1/jobs/{job_id}").json()["spec"]["description"] == "forever \U0001f600 \0 \uffff"


def test_passwords_in_urls_are_not_shown_again(client: httpx.Client) -> None:
    url = "postgresql://reader:pa55@db/rates"
    made = client.post("/v1/jobs", json={"spec": spec(tables={"t": {"postgres": {"url": url, "table": "a.b"}}})})
    shown = client.get(f"/v1/jobs/{made.json()['id']}")
    assert shown.json()["spec"]["tables"]["t"]["postgres"]["url"] == "postgresql://reader:***@db/rates"
    assert "pa55" not in made.text + shown.text + client.get("/v1/jobs").text


def test_a_list_refuses_what_it_does_not_understand(client: httpx.Client) -> None:
    for wanted in ({"states": "FAILED"}, {"State": "FAILED"}, {"state": "failed"}, {"offset": 1}):
        problem(client.get("/v1/jobs", params=wanted), 422, "REQUEST_INVALID")
        problem(client.get("/v1/backfills", params=wanted), 422, "REQUEST_INVALID")
    for cursor in ("", "AA==", "w6k="):
        problem(client.get("/v1/jobs", params={"cursor": cursor}), 422, "CURSOR_INVALID")
    assert client.get("/v1/jobs", params={"state": ["FAILED", "RUNNING"]}).json()["items"] == []


def test_pages(client: httpx.Client) -> None:
    made = [client.post("/v1/jobs", json={"spec": spec(f"j{n}", "end")}).json()["id"] for n in range(5)]
    seen: list[str] = []
    cursor = None
    while True:
        page = client.get("/v1/jobs", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert sorted(seen) == sorted(made)
    assert len(seen) == 5


def test_health_and_openapi(client: httpx.Client) -> None:
    assert client.get("/healthz").json()["status"] == "ok"
    assert client.get("/readyz").json() == {"status": "ready", "role": "active"}
    described = client.get("/openapi.json").json()
    assert set(described["paths"]) == {
        "/v1/jobs", "/v1/jobs/{job_id}", "/v1/jobs/{job_id}/stop", "/v1/jobs/{job_id}/resume", "/v1/jobs/{job_id}/seam",
        "/v1/backfills", "/v1/backfills/{job_id}",
        "/healthz", "/readyz",
    }  # fmt: skip
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], (method, path)
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    assert list(answer["content"]) == ["application/problem+json"], (method, path, status)
    assert described["components"]["schemas"]["JobRequest"]["examples"]
    assert set(described["components"]["schemas"]["Problem"]["properties"]) >= {"type", "title", "status", "detail"}
