"""What every test may ask for, and in which order the tests run; the fixtures stand in the modules named here."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["tests.services", "tests.jobs", "tests.kafka_target", "tests.lake"]

_FIRST = ("recovery", "golden", "integration", "contract")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first: workers that share the files then end together."""
    here = Path(__file__).parent
    turns = {here / folder: turn for turn, folder in enumerate(_FIRST)}
    items.sort(key=lambda item: turns.get(item.path.parent, len(turns)))
