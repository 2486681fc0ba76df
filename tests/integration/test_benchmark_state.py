"""The benchmark of keyed state runs and says what it found; nothing is said here about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_short_form_gives_every_figure(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.state", "--quick", "--work", str(tmp_path)]
    subprocess.run([*command, "--output", str(tmp_path / "found.json")], cwd=ROOT, check=True, timeout=280)
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["state_held_keys"]["value"] >= 40_000
    assert {
        "state_update_ms",
        "state_update_p99_ms",
        "state_checkpoint_of_change",
        "state_held_heap_mib",
    } <= found.keys()
