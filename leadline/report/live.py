"""A page that follows trainings, served to this machine alone: `leadline report --live RUN…`.

`GET /` is the report with live.js, `GET /content` its sections as JSON, which live.js asks for again and again. Nothing
else is answered, and no path is one of the file system.
"""

from __future__ import annotations

import errno
import hashlib
import sys
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from leadline.diagnose.inspection import Inspection
from leadline.errors import UserError
from leadline.files import reason, to_json
from leadline.report import inspections, now, page, runs

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")  # what a browser may call this server: another name is another site's (DNS rebinding)
PORTS_TRIED = 20
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Followed:
    """The sections of a report as the folders are now."""

    def __init__(self, folders: Sequence[Path], inspected: Sequence[Inspection] = ()) -> None:
        self.folders = runs.named(folders)
        self.inspected = inspected  # does not change
        self.title = "Report of " + ", ".join([*self.folders.values(), *(each.name for each in inspected)])
        self._one_at_a_time = threading.Lock()

    def sections(self) -> list[page.Section]:
        with self._one_at_a_time:
            standings = [now.standing(folder, name) for folder, name in self.folders.items()]
            measured = [each.run for each in standings if each.run]
            shown = [section for each in self.inspected for section in inspections.sections_of(each)]
            compared = runs.compared(measured) if measured else []
            return [*([now.section(standings)] if standings else []), *compared, *shown]

    def html(self) -> str:
        return page.render(self.title, self.sections(), live=True)

    def content(self) -> str:
        sections = self.sections()
        return to_json({"main": page.body_of(sections), "charts": page.charts_of(sections)})


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, followed: Followed) -> None:
        self.followed = followed
        super().__init__((HOST, port), Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's asks the network for this machine's name

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):  # a browser that has left
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 30
    server_version, sys_version = "leadline", ""

    def do_GET(self) -> None:
        if self.headers.get("Host", "").partition(":")[0].lower() not in NAMES:
            return self._refuse(HTTPStatus.FORBIDDEN, f"this page is served to {' and '.join(NAMES)} alone")
        if self.path == "/":
            return self._answer(HTTPStatus.OK, "text/html", self.server.followed.html())
        if self.path != "/content":
            return self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here but / and /content")
        content = self.server.followed.content()
        version = f'"{hashlib.sha256(content.encode(errors="replace")).hexdigest()}"'
        if self.headers.get("If-None-Match") == version:
            return self._answer(HTTPStatus.NOT_MODIFIED, "application/json", "", version)
        return self._answer(HTTPStatus.OK, "application/json", content, version)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._answer(status, "text/plain", f"{why}\n")

    def _answer(self, status: HTTPStatus, kind: str, text: str, version: str = "") -> None:
        body = text.encode(errors="replace")  # the name of a folder may not be UTF-8
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if version:
            self.send_header("ETag", version)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests come every two seconds: they are not told."""


def open_server(followed: Followed, port: int) -> Server:
    """At `port`, or the next that is free; 0: at any."""
    for candidate in range(port, min(port + PORTS_TRIED, 65536)) if port else [0]:
        try:
            return Server(candidate, followed)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UserError(f"--port {candidate}: {reason(error)}; choose one above 1023") from None
    raise UserError(f"--port {port}: it and the next {PORTS_TRIED - 1} are taken; --port 0 takes any that is free")
