"""What happens before a route sees a request: foreign hosts and bodies that are too large are refused, HEAD is GET."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import respond
from headrace.kernel.errors import UserError

MAX_BODY: Final = 1 << 20
LOOPBACK_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Guard:
    """ASGI middleware.

    Args:
        app: What it guards.
        hosts: Host names (without port) that requests may be sent to; None: any. A page in a browser can make its own
            name point to this machine (DNS rebinding); the ``Host`` header shows it.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = self._refusal(headers)
        if refused is not None:
            await respond(scope["path"], refused)(scope, receive, send)
            return
        body = await _read(receive)
        if body is None:
            await respond(scope["path"], _too_large())(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server sends no body of what was asked for with HEAD
        await self._app(scope, _replay(body, receive), send)

    def _refusal(self, headers: Headers) -> UserError | None:
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        if self._hosts is not None and name.lower() not in self._hosts:
            return UserError(
                f"host {name!r} is not served here",
                hint=f"use {' or '.join(sorted(self._hosts))}",
                code="HOST_REFUSED",
            )
        length = headers.get("content-length", "0")
        return _too_large() if not length.isdecimal() or int(length) > MAX_BODY else None


def _too_large() -> UserError:
    return UserError(f"request body is larger than {MAX_BODY} bytes", code="BODY_TOO_LARGE")


async def _read(receive: Receive) -> list[Message] | None:
    """All messages of a body; None when it is too large."""
    messages: list[Message] = []
    size = 0
    while True:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        if size > MAX_BODY:
            return None
        if message["type"] != "http.request" or not message.get("more_body", False):
            return messages


def _replay(messages: list[Message], receive: Receive) -> Receive:
    pending = iter(messages)

    async def replayed() -> Message:
        for message in pending:
            return message
        return await receive()

    return replayed
