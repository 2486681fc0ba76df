"""The pinned requirements against what pyproject.toml asks for."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PINS = (ROOT / "requirements.txt").read_text(encoding="utf-8")


def wanted() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [
        *project["dependencies"],
        *(text for extra in project["optional-dependencies"].values() for text in extra),
    ]
    found = {canonicalize_name(Requirement(text).name): Requirement(text) for text in extras}
    del found["headrace"]
    return found


def test_every_dependency_is_pinned_within_its_bounds() -> None:
    pinned = dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", PINS, re.MULTILINE))
    wrong = {name: pinned.get(name) for name, asked in wanted().items() if pinned.get(name) not in asked.specifier}
    assert not wrong, "run: make requirements"


def test_every_pin_has_hashes_and_names_no_host() -> None:
    pins = re.split(r"\n(?=\S)", PINS.strip())
    assert all("--hash=sha256:" in pin for pin in pins)
    assert "://" not in PINS
