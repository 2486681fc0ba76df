"""Every refusal of the handover: what it names, wherever it comes, and that nothing is committed after it.

Each code that a source or its planning raises has a case in ``tests/refusals.py``, or stands in ``ELSEWHERE`` with the
test that covers it and a word that it looks for. A code that is raised and in neither fails
``test_every_code_has_its_case``.
"""

from __future__ import annotations

import ast
import importlib
import json
from typing import TYPE_CHECKING

import pytest

from headrace.kernel import errors
from tests.jobs import ROOT, Site
from tests.refusal_bench import Bench, Expect
from tests.refusals import PLANNED, RESTARTED, RUNNING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

RAISED_IN = (
    "hybrid_source/**/*.py",
    "headrace/jobs/planning*.py",
    "headrace/jobs/compile_sources.py",
    "headrace/jobs/compile_boundary.py",
    "headrace/jobs/leases.py",
    "headrace/kafka/metadata.py",
    "catalog/boundary_record.py",
    "catalog/leases.py",
)
ELSEWHERE: Mapping[str, tuple[str, str]] = {
    # What no topic and no boundary is wrong with: files, rows, the spec, services.
    "FILE_DAMAGED": ("tests/integration/test_bad_input.py", "FILE_DAMAGED"),
    "FILES_NOT_FOUND": ("tests/unit/test_history_parquet.py", "no Parquet files match"),
    "TABLE_UNSUPPORTED": ("tests/unit/test_equality_deletes.py", "TABLE_UNSUPPORTED"),
    "DECODE_FAILED": ("tests/integration/test_bad_input.py", "DECODE_FAILED"),
    "SCHEMA_MISMATCH": ("tests/unit/test_history_parquet.py", "SchemaError"),
    "COLUMN_NOT_FOUND": ("tests/integration/test_tail_records.py", "COLUMN_NOT_FOUND"),
    "COLUMN_CLASH": ("tests/unit/test_hybrid_changed.py", "COLUMN_CLASH"),
    "UNAVAILABLE": ("tests/integration/test_bad_input.py", "UNAVAILABLE"),
    "ACCESS_DENIED": ("tests/integration/test_bad_input.py", "ACCESS_DENIED"),
}
LOOKUPS = {f"hybrid_source/{name}.py" for name in ("lookup", "refreshed_table", "postgres_lookup", "postgres_errors")}
"""Tables that are looked up in are no part of the handover."""

NO_REFUSALS = {"INTERNAL"}
"""Faults of Headrace, which no input brings about."""

MET_WHILE_READING = {
    "a_gap_since_the_checkpoint",  # the plan shows it, as the lake may close it
    "a_gap_since_the_checkpoint_of_a_tail_alone",
    "files_that_are_gone",
    "a_table_that_was_changed",
    "a_table_that_was_rolled_back",
}
"""What a plan does not refuse."""

KILLED_AGAIN = {"a_gap_while_the_history_is_read", "a_version_of_the_table_that_does_not_close_a_gap"}


# ------------------------------------------------------------------------------------------------------- the registry


def raised_codes() -> dict[str, set[str]]:
    """The codes that the source and its planning raise, with the files that do."""
    found: dict[str, set[str]] = {}
    for pattern in RAISED_IN:
        for path in ROOT.glob(pattern):
            if str(path.relative_to(ROOT)) in LOOKUPS:
                continue
            tree = ast.parse(path.read_text(encoding="utf-8"))
            module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
            for code in _codes(tree, module):
                found.setdefault(code, set()).add(str(path.relative_to(ROOT)))
    return found


def _codes(tree: ast.Module, module: ModuleType) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        kind = getattr(errors, name, None)
        if name == "problem":  # of the spec, with file and line
            kind = errors.SpecError
        if not (isinstance(kind, type) and issubclass(kind, errors.HeadraceError)):
            continue
        given = next((keyword.value for keyword in node.keywords if keyword.arg == "code"), None)
        if isinstance(given, ast.Name):
            yield str(getattr(module, given.id))
        elif isinstance(given, ast.Constant):
            yield str(given.value)
        else:
            yield kind.default_code


def test_every_code_has_its_case() -> None:
    raised = raised_codes()
    cases = ast.walk(ast.parse((ROOT / "tests/refusals.py").read_text(encoding="utf-8")))
    calls = [node for node in cases if isinstance(node, ast.Call) and ast.unparse(node.func) == "Expect"]
    here = {ast.literal_eval(call.args[0]) for call in calls}
    assert here <= raised.keys(), "a case of a code that is raised no more"
    missing = raised.keys() - here - ELSEWHERE.keys() - NO_REFUSALS
    assert not missing, {code: raised[code] for code in missing}
    assert not here & ELSEWHERE.keys()
    assert ELSEWHERE.keys() <= raised.keys(), "a code that is raised no more"
    for code, (test, word) in ELSEWHERE.items():
        assert word in (ROOT / test).read_text(encoding="utf-8"), f"{code} is not covered by {test}"


# ---------------------------------------------------------------------------------------------------------- the cases


@pytest.fixture
def bench(site: Site) -> Bench:
    return Bench(site)


def check(error: errors.HeadraceError, expect: Expect) -> None:
    """The refusal names what it must, in its text and, for machines, in its context."""
    text, facts = str(error), json.loads(json.dumps(error.context))
    assert error.code == expect.code, text
    assert error.hint, f"no cure in:\n{text}"
    assert len(error.message) < 300
    for name in ("topic", "partition", "wanted", "available", "rule"):
        value = getattr(expect, name)
        if value in (None, ""):
            continue
        if name in facts or name not in ("topic", "rule"):
            named = facts[name] if name != "topic" or isinstance(facts[name], str) else value
            assert named == json.loads(json.dumps(value)), (name, facts)
        for word in _words(value):
            assert word in text, f"{name} {word!r} is not named in:\n{text}"
    if expect.rule:
        assert facts["rule"] == expect.rule
        assert f"by rule {expect.rule!r}" in text or f"rule tried: {expect.rule}" in text, text
        assert text.count("boundary by rule") <= 1, text
    elif expect.code == "BOUNDARY_MISSING":
        assert len(facts["tried"]) > 1
    for word in expect.says:
        assert word in text, f"{word!r} is not said in:\n{text}"


def _words(value: object) -> list[str]:
    if isinstance(value, dict):
        return [str(part) for pair in value.items() for part in pair]
    return [str(part) for part in value] if isinstance(value, list) else [str(value)]


def refused(bench: Bench, expect: Expect) -> None:
    with bench.during, pytest.raises(errors.HeadraceError) as caught:
        bench.run()
    check(caught.value, expect)


@pytest.mark.services
@pytest.mark.parametrize("spoil", [*PLANNED, *RESTARTED], ids=lambda spoil: spoil.__name__)
def test_a_refusal_names_everything_and_commits_nothing(bench: Bench, spoil: Callable[[Bench], Expect]) -> None:
    expect = spoil(bench)
    refused(bench, expect)
    assert bench.visible() == bench.seen
    if spoil.__name__ not in MET_WHILE_READING:
        with pytest.raises(errors.HeadraceError) as planned:
            bench.plan()
        check(planned.value, expect)


@pytest.mark.services
@pytest.mark.parametrize("spoil", RUNNING, ids=lambda spoil: spoil.__name__)
def test_a_refusal_of_a_running_job_names_everything_and_commits_nothing_more(
    bench: Bench, spoil: Callable[[Bench], Expect]
) -> None:
    expect = spoil(bench)
    refused(bench, expect)
    snapshots, records = bench.visible()
    # Both sinks stand at the last epoch before it: none has a part of a later one.
    assert sorted(bench.site.read("out")["id"]) == sorted(json.loads(value or b"")["id"] for value in records)
    if spoil.__name__ in KILLED_AGAIN:
        with pytest.raises(errors.HeadraceError) as again:
            bench.run()
        assert (again.value.code, again.value.context["rule"]) == (expect.code, expect.rule)
        assert bench.visible() == (snapshots, records)
