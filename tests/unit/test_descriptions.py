"""The API and the job spec describe themselves: nothing in their schemas is left without a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from api import Settings, create_app
from headrace.jobs.config import load_config
from headrace.jobs.spec import json_schema


def undescribed(models: Mapping[str, Any]) -> Iterator[str]:
    """Models and their properties without a description; one that is a model has that model's."""
    for name, model in models.items():
        if not model.get("description"):
            yield name
        for key, value in model.get("properties", {}).items():
            if not value.get("description") and "$ref" not in value:
                yield f"{name}.{key}"


def test_the_api_is_described(tmp_path: Path) -> None:
    described = create_app(Settings(load_config(state_path=tmp_path, cwd=tmp_path))).openapi()
    missing = list(undescribed(described["components"]["schemas"]))
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            missing += [] if operation.get("description") else [f"{method} {path}"]
            missing += [f"{method} {path} {at['name']}" for at in operation.get("parameters", ()) if not described_(at)]
    assert missing == []


def described_(parameter: Mapping[str, Any]) -> bool:
    return bool(parameter.get("description") or parameter["schema"].get("description"))


def test_the_job_spec_is_described() -> None:
    schema = json_schema()
    assert list(undescribed({"Job": schema, **schema["$defs"]})) == []
