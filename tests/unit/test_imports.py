"""What importing Headrace does: nothing that a forked process could not live with."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib, pathlib, pkgutil, re
for name in ("catalog", "headrace", "hybrid_source", "operators"):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
names = [path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
print([name for name in names if re.fullmatch(r"polars-[0-9]+", name)])
"""


def test_no_query_runs_while_modules_are_imported() -> None:
    """The worker threads of Polars do not survive a fork: a forked process would hang at its first query."""
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.strip() == "[]", found.stdout
