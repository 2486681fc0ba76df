"""``headrace serve``: the REST API."""

from __future__ import annotations

import signal
from contextlib import suppress

from api import serve
from headrace.cli.settings import Settings


def run_server(host: str, port: int, store: str | None, settings: Settings, *, allow_remote: bool) -> None:
    """Serve until SIGTERM or SIGINT, which are the regular ends; workers go on after that.

    Raises:
        DependencyError: The extra ``server`` is not installed, or the port is taken.
        ConfigError: The address is not allowed.
    """
    # The server shuts down gracefully, then raises the signal once more for whoever listened before.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        serve(host, port, settings.load(), store, allow_remote=allow_remote)
