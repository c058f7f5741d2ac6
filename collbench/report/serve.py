"""`collbench report DIR --serve`: the runs of a folder in a browser on this host, read-only: an index, and one page for each run.

Only the index and the pages exist: an address is looked up in the list of runs, and never becomes a path. `ReadOnlyServer` is also that of
`collbench store serve-metrics`.
"""

from __future__ import annotations

import socket
import threading
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import TextIO
from urllib.parse import parse_qs, quote, unquote, urlsplit

from collbench.addresses import is_loopback
from collbench.errors import FINE, INTERRUPTED, UsageError
from collbench.report.headlines import short
from collbench.report.html.drawing import Picture, Scale, linear_scale
from collbench.report.html.material import Material
from collbench.report.html.page import check_page_file, html, index_page
from collbench.report.run_list import ListedRun, best_figure, runs_below, started
from collbench.report.runs import readable
from collbench.report.screen import write_line
from collbench.results.row import Row
from collbench.units import format_rate, plural

PORT = 8323
LOCALHOST = "127.0.0.1"
_RUN = "/run/"  # before the name of a run
_MOST_LISTED, _MOST_CHARTS, _MOST_TICKS = 500, 12, 5
_WIDTH, _HEIGHT = 460, 220  # pixels
_HEADS = ("run", "started (UTC)", "command", "ranks", "cases", "best bus bandwidth")
_HTML, _PLAIN = "text/html; charset=utf-8", "text/plain; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


# A server that only reads.


@dataclass(frozen=True)
class HttpReply:
    """What a request gets."""

    status: HTTPStatus
    text: str
    kind: str = _PLAIN


class ReadOnlyServer(ThreadingHTTPServer):
    """A server that answers GET and HEAD. At a loopback address, requests for other host names are refused.

    Raises UsageError for an address or a port that cannot be used.
    """

    daemon_threads = True

    def __init__(self, port: int, address: str = LOCALHOST) -> None:
        if ":" in address:
            self.address_family = socket.AF_INET6
        self._host = address
        try:
            super().__init__((address, port), _Handler)
        except OverflowError as error:
            raise UsageError(f"--port {port}: not a valid port (use 0 to 65535)") from error
        except OSError as error:
            where = f"--port {port}" if address == LOCALHOST else f"--address {address} --port {port}"
            raise UsageError(f"{where} cannot be used ({error.strerror or error}): choose another one, or port 0 for a free one") from error

    def server_bind(self) -> None:
        """Bind without looking up the name of this host, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self._host, self.server_address[1]

    @property
    def address(self) -> str:
        """Return the address of the start page."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self.server_port}/"

    def is_own(self, host: str) -> bool:
        """Return whether a request was for this server by one of its names: other names are of pages that use a browser to get here."""
        if not is_loopback(self._host):
            return True
        return host in (self.address.removeprefix("http://").rstrip("/"), f"localhost:{self.server_port}")

    @abstractmethod
    def answer(self, target: str, accept: str) -> HttpReply:
        """Return what a request for an address gets; `accept` has the formats that the client reads."""


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; http.server refuses other methods."""

    server: ReadOnlyServer
    timeout = 30

    def version_string(self) -> str:
        """Return the name of the server without the version of Python."""
        return "collbench"

    def do_GET(self) -> None:
        """Send the page."""
        self._send(with_body=True)

    def do_HEAD(self) -> None:
        """Send the head of the page."""
        self._send(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the address is in the browser."""

    def _send(self, with_body: bool) -> None:
        if self.server.is_own(self.headers.get("Host", "")):
            answer = self.server.answer(self.path, self.headers.get("Accept", ""))
        else:
            answer = HttpReply(HTTPStatus.FORBIDDEN, f"Use {self.server.address}")
        body = answer.text.encode("utf-8", "replace")
        self.send_response(answer.status)
        for name, value in {"Content-Type": answer.kind, **_HEADERS, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def serve_until_interrupted(server: ReadOnlyServer, line: str, out: TextIO) -> int:
    """Print a line, and answer requests until Ctrl+C; return 0. Other signals end it as they end any command."""
    try:
        write_line(out, line)
        out.flush()
        server.serve_forever()
    except KeyboardInterrupt as error:
        if getattr(error, "exit_code", INTERRUPTED) != INTERRUPTED:
            raise
    return FINE


# The runs of a folder.


def serve(folder: Path, port: int, out: TextIO) -> int:
    """Serve the runs of a folder until Ctrl+C; return 0. Port 0: any free one. Raises UsageError without a run, and for a used port."""
    check_page_file(Path("index.html"))
    with RunServer(folder, port) as server:
        line = f"{plural(len(server.runs()), 'run')} of {short(str(folder))}: {server.address} (Ctrl+C ends)"
        return serve_until_interrupted(server, line, out)


class RunServer(ReadOnlyServer):
    """The server of one folder, reachable from this host only."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self._known: dict[Path, tuple[float, ListedRun]] = {}
        if not self.runs():
            raise UsageError(f"no run in {folder}: name the folder that has the folders of the runs")
        self._one_page = threading.Lock()  # a page takes memory, and switches the garbage collection off meanwhile
        super().__init__(port)

    def runs(self) -> list[ListedRun]:
        """Return the runs of the folder, newest first."""
        return runs_below(self.folder, self._known)

    def answer(self, target: str, accept: str) -> HttpReply:
        """Return the page at an address: the index at "/", a run at "/run/NAME"; else a sentence with the status of the error."""
        parts = urlsplit(target)
        with self._one_page:
            if parts.path == "/":
                return HttpReply(HTTPStatus.OK, index(self.folder, self.runs(), parse_qs(parts.query).get("q", [""])[0]), _HTML)
            path = self._run(parts.path)
            if path is None:
                return HttpReply(HTTPStatus.NOT_FOUND, "There is no such run.")
            try:
                found = readable([path])
                return HttpReply(HTTPStatus.OK, html(Material(found.runs, path / "page.html", found.warnings, linked=False)), _HTML)
            except UsageError as error:
                return HttpReply(HTTPStatus.NOT_FOUND, short(str(error), 600))

    def _run(self, address: str) -> Path | None:
        """Return the folder of the run at an address; None if no listed run has that name."""
        if not address.startswith(_RUN):
            return None
        name = unquote(address.removeprefix(_RUN), errors="surrogateescape")
        return next((each.path for each in self.runs() if each.path.name == name), None)


# The index: the runs that fit the search, and how the best figure of each operation changed.


def index(folder: Path, runs: Sequence[ListedRun], query: str = "") -> str:
    """Return the index page: the runs with every word of the query in their name, command or operations, and the trends over them."""
    shown = [each for each in runs if _fits(each, query)]
    rows = [(f"{_RUN}{quote(each.path.name, safe='', errors='surrogateescape')}", _cells(each)) for each in shown[:_MOST_LISTED]]
    cut = f"; the first {_MOST_LISTED} are listed" if len(shown) > _MOST_LISTED else ""
    foot = f"{len(shown)} of {plural(len(runs), 'run')}, newest first{cut}."
    title = f"{plural(len(runs), 'run')} of {short(folder.resolve().name, 80)}"
    return index_page(title=title, query=short(query, 200), heads=_HEADS, rows=rows, foot=foot, charts=list(_trends(shown)))


def _fits(run: ListedRun, query: str) -> bool:
    text = " ".join([run.path.name, run.operation, run.command, started(run), *run.bests]).lower()
    return all(word in text for word in query.lower().split())


def _cells(run: ListedRun) -> list[str]:
    ranks = "" if run.ranks is None else str(run.ranks)
    return [short(run.path.name, 80), started(run), short(run.command, 120), ranks, str(run.cases), short(best_figure(run.best), 120)]


def _trends(runs: Sequence[ListedRun]) -> Iterator[tuple[str, str, str]]:
    """Yield (operation, caption, drawing) for each operation that two runs or more have, the most frequent ones first."""
    points: defaultdict[str, list[tuple[ListedRun, Row]]] = defaultdict(list)
    for run in reversed(runs):  # oldest first
        for operation, row in run.bests.items():
            points[operation].append((run, row))
    several = sorted((each for each in points.items() if len(each[1]) > 1), key=lambda each: -len(each[1]))
    for operation, found in several[:_MOST_CHARTS]:
        best_run, best = max(found, key=lambda each: each[1].busbw_bytes_per_s or 0.0)
        last = format_rate(found[-1][1].busbw_bytes_per_s or 0.0)
        caption = f"Last {last} GB/s; best {format_rate(best.busbw_bytes_per_s or 0.0)} GB/s in {short(best_run.path.name, 60)}."
        yield short(operation, 60), caption, _trend(operation, found)


def _trend(operation: str, found: Sequence[tuple[ListedRun, Row]]) -> str:
    picture = Picture(_WIDTH, _HEIGHT)
    rates = [(row.busbw_bytes_per_s or 0.0) / 1e9 for _, row in found]
    every = max(1, -(-len(found) // _MOST_TICKS))
    ticks = [(float(place), started(run)[5:10]) for place, (run, _) in enumerate(found) if place % every == 0]
    x = Scale(-0.5, len(found) - 0.5, 54, _WIDTH - 12, ticks)
    y = linear_scale(0.0, max(rates) or 1.0, _HEIGHT - 30, 30, "best bus bandwidth, GB/s")
    picture.axes(x, y)
    places = [(x.at(place), y.at(rate)) for place, rate in enumerate(rates)]
    picture.line(places, "s0")
    for place in places:
        picture.marker(*place, 0, "s0")
    return picture.markup(f"{operation}: best bus bandwidth of each run")
