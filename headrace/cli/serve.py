"""``headrace serve``: the REST API."""

from __future__ import annotations

from api import serve
from headrace.cli.settings import Settings


def run_server(host: str, port: int, store: str | None, settings: Settings, *, allow_remote: bool) -> None:
    """Serve until SIGTERM or SIGINT; workers go on after that.

    Raises:
        DependencyError: The extra ``server`` is not installed, or the port is taken.
        ConfigError: The address is not allowed.
    """
    serve(host, port, settings.load(), store, allow_remote=allow_remote)
