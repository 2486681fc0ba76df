"""An HTTP proxy in front of a REST catalog that loses, delays and doubles commits on demand."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import urlsplit

Fault = Literal[
    "504 after commit", "close after commit", "commit twice", "close before commit", "504 before commit", "late commit"
]
_UPSTREAM_SECONDS = 30


class FaultyProxy:
    """Forwards to ``upstream``; the faults in ``plan`` are used up by commits (POST to a table), one each.

    ``down`` lets every request end in a closed socket.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        self.plan: list[Fault] = []
        self.down = False
        self.down_after_fault = False
        self.commits = 0
        self.late: list[threading.Timer] = []
        self.answers: list[int] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.uri = f"http://127.0.0.1:{self._server.server_address[1]}{self._upstream.path}"

    @contextmanager
    def running(self) -> Iterator[FaultyProxy]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            for timer in self.late:
                timer.join()
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        assert self._upstream.hostname
        connection = http.client.HTTPConnection(
            self._upstream.hostname, self._upstream.port or 80, timeout=_UPSTREAM_SECONDS
        )
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, dict(answer.getheaders()), content
        finally:
            connection.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
                request = (self.command, self.path, headers, body)
                if proxy.down:
                    self._drop()
                    return
                is_commit = self.command == "POST" and "/tables/" in self.path
                proxy.commits += is_commit
                fault = proxy.plan.pop(0) if is_commit and proxy.plan else None
                if fault is None:
                    self._answer(*proxy.forward(*request))
                    return
                proxy.down = proxy.down_after_fault
                self._fail(fault, request)

            def _fail(self, fault: Fault, request: Any) -> None:
                if fault in {"504 after commit", "close after commit", "commit twice"}:
                    proxy.answers.append(proxy.forward(*request)[0])
                if fault == "late commit":
                    timer = threading.Timer(1.0, lambda: proxy.answers.append(proxy.forward(*request)[0]))
                    proxy.late.append(timer)
                    timer.start()
                if fault == "commit twice":
                    self._answer(*proxy.forward(*request))
                elif fault.startswith("close"):
                    self._drop()
                else:
                    self._answer(504, {}, b"")

            def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
                self.send_response(status)
                if "Content-Type" in headers:
                    self.send_header("Content-Type", headers["Content-Type"])
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def _drop(self) -> None:
                self.close_connection = True

            do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = _serve  # noqa: N815 - the server's own names

            def log_message(self, *args: Any) -> None:
                pass

        return Handler
