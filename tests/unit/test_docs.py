"""The documents say what is so: commands, options, links and examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer

from headrace.cli.app import app
from headrace.jobs.config import load_config
from headrace.jobs.loading import load_job_text
from headrace.kernel.boundary import Boundary

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
COMMON = {"--config", "--state", "--debug", "--help"}
"""Options of all commands that take them; documented once."""

TESTED_IN = {
    ("README.md", "yaml"): "tests/unit/test_three_forms.py",
    ("README.md", "python"): "tests/unit/test_three_forms.py",
    ("docs/api.md", "bash"): "tests/integration/test_api_docs.py",
    ("docs/custom-operators.md", "python"): "tests/unit/test_custom_jobs.py",
    ("docs/job-spec.md", "python"): "tests/unit/test_job_spec.py",
    ("docs/sql.md", "yaml"): "tests/unit/test_sql.py",
}
"""Blocks that another file runs; it names the page."""
HERE = {"console", "sh", "json", "toml", "yaml"}
"""Languages of which this file tests every other block."""

AROUND = {"README.md": ("flights", "time_hour"), "job-spec.md": ("orders", "at")}
"""The source, and its event time, that parts of a job speak of."""
FOR_TESTS = {"HEADRACE_CRASH"}
"""Variables that are not for users."""


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each block in fences, those in lists included."""
    found = re.findall(r"^( *)```(\w+)\n(.*?)^\1```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [(language, text) for _, language, text in found]


def commands() -> dict[str, set[str]]:
    """The options of each command."""

    def walk(command: Any, path: list[str]) -> Iterator[tuple[str, set[str]]]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, [*path, name])
        if not hasattr(command, "commands"):
            yield " ".join(path), {option for parameter in command.params for option in parameter.opts if "-" in option}

    return dict(walk(typer.main.get_command(app), []))


COMMANDS = commands()


def test_every_option_of_every_command_is_documented_and_no_other() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text()
    sections = dict(re.findall(r"^## headrace ([a-z ]+[a-z])[^\n]*\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert sections.keys() == COMMANDS.keys()
    shown = {name: set(re.findall(r"`(--[a-z-]+)", section)) for name, section in sections.items()}
    assert shown == {name: options - COMMON for name, options in COMMANDS.items()}
    general = re.search(r"^## Everywhere\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    assert general is not None
    assert all(f"`{option}" in general[1] for option in COMMON - {"--help"})


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_that_are_named_exist(page: Path) -> None:
    lines = [line for _, text in blocks(page) for line in text.splitlines()]
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    lines += [" ".join(inline.split()) for inline in re.findall(r"`([^`]+)`", text)]
    wrong = []
    for line in lines:
        called = re.match(r"(?:\$ )?headrace ([a-z].*)", line.split("  #")[0])
        if called is None or called[1].startswith("="):
            continue
        words = re.split(r"[ |]", called[1])
        name = next((" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in COMMANDS), None)
        group = any(command.startswith(words[0] + " ") for command in COMMANDS)
        options = set(re.findall(r"(?<= )--[a-z-]+", called[1]))
        known = COMMANDS.get(name or "", set()) | COMMON
        if (name is None and not group) or options - known:
            wrong.append(line)
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text.replace("\n", "")):
        path, _, anchor = target.partition("#")
        if ":" in path:
            continue
        there = (page.parent / path) if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert not broken


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_is_tested_somewhere(page: Path) -> None:
    name = page.relative_to(ROOT).as_posix()
    for language in {language for language, _ in blocks(page)}:
        tested_in = TESTED_IN.get((name, language))
        if tested_in is None:
            assert language in HERE, f"a block in {language} that no test runs"
        else:
            assert page.name in (ROOT / tested_in).read_text()


@pytest.mark.parametrize(
    ("page", "text"),
    [(page, text) for page in PAGES for language, text in blocks(page) if language == "yaml"],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_yaml_blocks_are_jobs_or_parts_of_one(page: Path, text: str) -> None:
    if "sources:" in text and "sinks:" in text:
        assert load_job_text(text, page.name, environ={}).sources
        return
    name, event_time = AROUND.get(page.name, ("rows", "at"))
    head = (
        f"name: j\nsources: {{{name}: {{history: {{parquet: rows.parquet}}, event_time: {{column: {event_time}}}}}}}\n"
    )
    head += "tables: {airlines: {parquet: airlines.parquet}}\n"
    job = head + ("steps:\n" if text.startswith("- ") else "") + text
    if "sinks:" not in text:
        job += "sinks: [{kafka: {topic: out}}]\n"
    assert load_job_text(job, page.name, environ={}).sinks


@pytest.mark.parametrize(
    ("page", "text"),
    [(page, text) for page in PAGES for language, text in blocks(page) if language == "toml"],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_toml_blocks_are_configurations(page: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"\$\{(\w+)", text):
        monkeypatch.setenv(name, "x")
    # One block shows two files side by side.
    left = "\n".join(line.split("   #")[0] for line in text.splitlines())
    (tmp_path / "headrace.toml").write_text(left)
    config = load_config(tmp_path / "headrace.toml")
    assert config.kafka or config.operators, page


def test_the_boundary_record_that_is_shown_is_one() -> None:
    [shown] = [text for language, text in blocks(ROOT / "docs" / "boundary-format.md") if language == "json"]
    schema = json.loads((ROOT / "docs" / "boundary-format.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(shown))
    assert Boundary.from_json(json.loads(shown)).topics["bids"].partitions[0].next == 1834


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_targets_of_make_and_options_of_benchmarks_exist(page: Path) -> None:
    text = page.read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = re.findall(r"(?:^(?:\$ | {4})?|`)make ([a-z-]+)", text, re.MULTILINE)
    assert set(called) <= targets
    for module, options in re.findall(r"python -m (benchmarks[.\w]*)([^\n`#]*)", text):
        path = ROOT / Path(*module.split("."))
        source = (path / "__main__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
        assert all(f'"{option}"' in source for option in re.findall(r"--[a-z-]+", options))


def test_variables_of_the_environment_are_documented() -> None:
    product = [*ROOT.glob("headrace/**/*.py"), *ROOT.glob("api/**/*.py")]
    used = {name for file in product for name in re.findall(r'"(HEADRACE_[A-Z_]*[A-Z])"', file.read_text())}
    text = "".join(page.read_text() for page in PAGES)
    assert {name for name in used - FOR_TESTS if f"`{name}" not in text} == set()
