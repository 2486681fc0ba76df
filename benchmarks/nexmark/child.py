"""Entry of a measuring process: ``python -m benchmarks.nexmark.child QUERY DATA WORK``. Prints one line of JSON."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.measure import measured, to_json
from benchmarks.nexmark import jobs

if __name__ == "__main__":
    query, data, work = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    print(to_json(measured(lambda: jobs.run(query, data, work)[0].records)))
