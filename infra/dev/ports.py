"""Loopback ports for services that must know them before they start."""

from __future__ import annotations

import os
import random
import socket
from typing import Final

from headrace.kernel.errors import ConfigError, DependencyError

HOST: Final = "127.0.0.1"

# weed puts gRPC 10,000 above each port. Both ranges stay below the ports that Linux gives to outgoing connections.
_RANGE: Final = range(11_000, 22_000)
GRPC_DISTANCE: Final = 10_000
_ATTEMPTS: Final = 1000


def is_free(port: int) -> bool:
    """Whether a loopback server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(taken: set[int]) -> int:
    """A port that is free now, together with the one ``GRPC_DISTANCE`` above it.

    Args:
        taken: Ports that are promised already; the new one is added.

    Raises:
        DependencyError: No free port was found.
    """
    chance = random.SystemRandom()
    for _ in range(_ATTEMPTS):
        port = chance.choice(_RANGE)
        if port not in taken and is_free(port) and is_free(port + GRPC_DISTANCE):
            taken.add(port)
            return port
    raise DependencyError("no free loopback port", detail=f"tried {_ATTEMPTS} in {_RANGE.start}-{_RANGE.stop - 1}")


def asked_port(variable: str) -> int | None:
    """The port that an environment variable asks for.

    Raises:
        ConfigError: It is no port number.
    """
    text = os.environ.get(variable, "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535 - GRPC_DISTANCE:
        raise ConfigError(
            f"{variable} is not a usable port: {text!r}",
            hint=f"give a number from 1 to {65535 - GRPC_DISTANCE}, or unset it to let a free port be chosen",
        )
    return int(text)


def require_free(port: int, variable: str) -> None:
    """Refuse a port that was asked for and is taken.

    Raises:
        DependencyError: Something listens there.
    """
    if not is_free(port):
        raise DependencyError(
            f"port {port} of {variable} is taken",
            code="PORT_TAKEN",
            detail=f"another program listens on {HOST}:{port}",
            hint=f"stop it, or unset {variable} to let a free port be chosen",
            context={"port": port, "variable": variable},
        )
