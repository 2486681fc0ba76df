"""Entry of a measuring process: ``python -m benchmarks.child SIDE ARGUMENTS``. Prints one line of JSON."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Final

from benchmarks.measure import to_json

SIDES: Final = {
    "headrace history": ("with_headrace", "history"),
    "headrace tail": ("with_headrace", "tail"),
    "hand-written history": ("by_hand", "history"),
    "bare tail": ("by_hand", "tail"),
    "headrace boundary": ("with_headrace", "boundary"),
    "bare manifests": ("by_hand", "manifests"),
}

if __name__ == "__main__":
    module, function = SIDES[sys.argv[1]]
    side = getattr(import_module(f"benchmarks.{module}"), function)
    print(to_json(side(**json.loads(sys.argv[2]))))
