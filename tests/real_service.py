"""A service process with everything real, for tests: ``python real_service.py PORT CONFIG``."""

from __future__ import annotations

import sys

from api.app import Settings
from api.server import run
from headrace.jobs.config import load_config
from headrace.jobs.supervisor import Policy

if __name__ == "__main__":
    run("127.0.0.1", int(sys.argv[1]), Settings(load_config(sys.argv[2]), policy=Policy(poll_s=0.1, backoff_s=0.1)))
