"""Serves the application over HTTP."""

from __future__ import annotations

import ipaddress
import logging
import socket
from dataclasses import replace
from typing import Final

import uvicorn

from api.app import Settings, create_app
from headrace.jobs.config import Config
from headrace.jobs.store import JobStore
from headrace.kernel.errors import ConfigError, DependencyError

_log: Final = logging.getLogger("uvicorn.error")
DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8470
_BACKLOG: Final = 2048


def serve(
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    config: Config | None = None,
    store_url: str | None = None,
    *,
    allow_remote: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT. Workers go on after that.

    Args:
        host: Address to listen on.
        port: Port; 0 takes a free one. The address is printed once the service answers.
        config: Connections; the defaults when not given.
        store_url: The job store; SQLite in the state folder when not given.
        allow_remote: Listen on addresses that other machines reach. There is no authentication: whoever reaches the
            port may run jobs with the service's rights.

    Raises:
        ConfigError: A non-loopback address without ``allow_remote``, an address this machine does not have, or a URL of
            a job store that is none.
        UnavailableError: The job store does not answer.
        DependencyError: ``PORT_TAKEN``.
    """
    run(host, port, Settings(config or Config(), store_url), allow_remote=allow_remote)


def run(host: str, port: int, settings: Settings, *, allow_remote: bool = False) -> None:
    """As :func:`serve`, with all settings."""
    address = _resolve(host)
    if not allow_remote and not address.is_loopback:
        raise ConfigError(
            f"address {host} is reachable from other machines",
            detail="the service has no authentication",
            hint="listen on 127.0.0.1, or allow it explicitly (--allow-remote)",
            code="BIND_REFUSED",
        )
    # Here its errors are the command's own; within the server they would be a traceback in its log.
    JobStore.connect(settings.store).database.close()
    listener = _listen(address, port)
    app = create_app(replace(settings, remote=settings.remote or not address.is_loopback))
    _Server(uvicorn.Config(app, log_level="info", access_log=False, server_header=False)).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Says where it answers; the library does so only for sockets that it has opened itself."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See :class:`uvicorn.Server`."""
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            _log.info("serving http://%s:%d", f"[{host}]" if ":" in host else host, port)


def _resolve(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise ConfigError(f"host {host!r} is not known", detail=str(error)) from error
    return ipaddress.ip_address(str(found[0][4][0]).split("%", 1)[0])


def _listen(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> socket.socket:
    """A listening socket. Listening at once, not only binding, is what makes a second service fail."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET  # noqa: PLR2004
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), port))
        listener.listen(_BACKLOG)
    except PermissionError as error:
        listener.close()
        raise DependencyError(
            f"port {port} needs more rights", detail=str(error), hint="choose a port of 1024 or more"
        ) from error
    except OSError as error:
        listener.close()
        raise DependencyError(
            f"port {port} of {address} cannot be listened on",
            detail=str(error),
            hint="another program has it: stop that one, or choose another port (--port)",
            code="PORT_TAKEN",
        ) from error
    return listener
