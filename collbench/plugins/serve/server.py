"""`collbench report DIR --serve`: the runs of a folder in a browser on this host, read-only: an index, and one page for each run.

Only the index and the pages exist: an address is looked up in the list of runs, and never becomes a path. Runs with a symbolic link to a
place outside the folder are left out: every user of this host can open the pages. `ReadOnlyServer` is also that of
`collbench store serve-metrics`.
"""

from __future__ import annotations

import socket
import sys
import threading
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, TextIO
from urllib.parse import parse_qs, quote, unquote

from collbench.addresses import is_loopback
from collbench.errors import FINE, INTERRUPTED, UsageError
from collbench.report.figures import set_names
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Table
from collbench.report.html.page import html, static_page
from collbench.report.html.picture import PAGE, Picture, drawn
from collbench.report.material import Material
from collbench.report.run_list import ListedRun, run_named, runs_below, runs_frame, started
from collbench.report.runs import readable
from collbench.report.screen import write_line
from collbench.results.row import Row
from collbench.units import format_rate, plural

PORT = 8323
LOCALHOST = "127.0.0.1"
_TEMPLATE = Path(__file__).parent / "index.html.j2"
_RUN = "/run/"  # before the name of a run
_MOST_RUNS, _MOST_CHARTS, _MOST_TICKS = 500, 12, 5  # of a larger folder the newest runs are read
_HTTP_PORT = 80  # browsers leave it out
_HEIGHT = 240  # pixels of a trend
_HTML, _PLAIN = "text/html; charset=utf-8", "text/plain; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
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
        port = "" if self.server_port == _HTTP_PORT else f":{self.server_port}"
        return host in (f"[{self._host}]{port}" if ":" in self._host else f"{self._host}{port}", f"localhost{port}")

    @abstractmethod
    def answer(self, target: str, accept: str) -> HttpReply:
        """Return what a request for an address gets; `accept` has the formats that the client reads."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a failed page as one line on stderr; nothing where the browser went away."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            write_line(sys.stderr, short(f"collbench: a page failed: {error!r}"))


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
        """Return the runs of the folder, newest first: the newest 500."""
        return runs_below(self.folder, self._known, _MOST_RUNS, linked=False)

    def answer(self, target: str, accept: str) -> HttpReply:
        """Return the page at an address: the index at "/", a run at "/run/NAME"; else a sentence with the status of the error."""
        address, _, query = target.partition("?")
        name = unquote(address.removeprefix(_RUN), errors="surrogateescape") if address.startswith(_RUN) else ""
        with self._one_page:
            try:
                if address == "/":
                    return HttpReply(HTTPStatus.OK, index(self.folder, self.runs(), parse_qs(query).get("q", [""])[0]), _HTML)
                if (path := run_named(self.folder, name)) is None:
                    return HttpReply(HTTPStatus.NOT_FOUND, "There is no such run.")
                found = readable([path])
                return HttpReply(HTTPStatus.OK, html(Material(found.runs, path / "page.html", found.warnings, linked=False)), _HTML)
            except UsageError as error:
                return HttpReply(HTTPStatus.NOT_FOUND, short(str(error), 600))


# The index: the runs that fit the search, and how the best figure of each operation changed.


def index(folder: Path, runs: Sequence[ListedRun], query: str = "") -> str:
    """Return the index page: the runs with every word of the query in their name, command or operations, and the trends over them."""
    shown = [each for each in runs if _fits(each, query)]
    table = Table.of(runs_frame(shown))
    table = replace(table, rows=[[short(each.path.name, 80), *cells[1:]] for each, cells in zip(shown, table.rows, strict=True)])
    addresses = [f"{_RUN}{quote(each.path.name, safe='', errors='surrogateescape')}" for each in shown]
    cut = f"; older runs than the newest {_MOST_RUNS} are not listed" if len(runs) == _MOST_RUNS else ""
    foot = f"{len(shown)} of {plural(len(runs), 'run')}, newest first{cut}."
    title = f"{plural(len(runs), 'run')} of {short(folder.resolve().name, 80)}"
    content = {"query": short(query, 200), "table": table, "addresses": addresses, "foot": foot, "charts": list(_trends(shown))}
    return static_page(_TEMPLATE, title, **content)


def _fits(run: ListedRun, query: str) -> bool:
    text = " ".join([run.path.name, run.operation, run.command, started(run), *run.bests]).lower()
    return all(word in text for word in query.lower().split())


def _trends(runs: Sequence[ListedRun]) -> Iterator[tuple[str, str, str]]:
    """Yield (name, caption, drawing) for each operation that two comparable runs or more have, the most frequent ones first.

    Runs on other backends, devices or numbers of ranks and nodes are not comparable.
    """
    points: defaultdict[str, list[tuple[ListedRun, Row]]] = defaultdict(list)
    for run in reversed(runs):  # oldest first
        for operation, row in run.bests.items():
            where = f"{plural(row.ranks, 'rank')} on {'an unknown number of nodes' if row.nodes is None else plural(row.nodes, 'node')}"
            points[f"{operation} over {row.backend} ({row.device}), {where}"].append((run, row))
    several = sorted((each for each in points.items() if len(each[1]) > 1), key=lambda each: -len(each[1]))
    for name, found in several[:_MOST_CHARTS]:
        best_run, best = max(found, key=lambda each: each[1].busbw_bytes_per_s or 0.0)
        last = format_rate(found[-1][1].busbw_bytes_per_s or 0.0)
        caption = f"Last {last} GB/s; best {format_rate(best.busbw_bytes_per_s or 0.0)} GB/s in {short(best_run.path.name, 60)}."
        yield short(name, 100), caption, _trend(name, found)


def _trend(name: str, found: Sequence[tuple[ListedRun, Row]]) -> str:
    rates = [(row.busbw_bytes_per_s or 0.0) / 1e9 for _, row in found]
    days = [started(run)[5:10] for run, _ in found]
    labels = days if len(set(days)) > 1 else [started(run)[11:16] for run, _ in found]

    def draw_rates(picture: Picture) -> None:
        axes = picture.axes()
        axes.plot(range(len(rates)), rates, color=PAGE.series[0], marker="o")
        axes.set_ylim(0, 1.1 * (max(rates) or 1.0))
        set_names(axes, labels, _MOST_TICKS)
        axes.set_ylabel("best bus bandwidth, GB/s")

    title = f"{name}: best bus bandwidth of each run"
    return drawn(Chart(name, title, "", "", Table((), ())), draw_rates, height=_HEIGHT).drawing
