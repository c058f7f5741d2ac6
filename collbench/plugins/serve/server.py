"""`collbench report DIR --serve`: the runs of a folder in a browser on this host, read-only: an index, and pages of one or several runs.

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
from collections.abc import Collection, Iterator, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from types import MappingProxyType
from typing import Any, TextIO
from urllib.parse import parse_qs, quote, unquote

import msgspec

from collbench.addresses import is_loopback
from collbench.analysis.launches import case_of
from collbench.errors import FINE, INTERRUPTED, UsageError
from collbench.machine.cluster import folded
from collbench.plugins.serve.folder import run_named, served_runs
from collbench.report.figures import set_names
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Table
from collbench.report.html.first_screen import first_screen
from collbench.report.html.page import html, static_page
from collbench.report.html.picture import NARROW, PAGE, Picture, drawn
from collbench.report.material import MOST_CANDIDATES, Material
from collbench.report.run_list import ListedRun, runs_frame, started
from collbench.report.runs import readable
from collbench.report.screen import write_line
from collbench.results.row import CaseKey, Row
from collbench.units import format_rate, format_size, plural

PORT = 8323
LOCALHOST = "127.0.0.1"
_TEMPLATE = Path(__file__).parent / "index.html.j2"
_RUN = "/run/"  # before the name of a run
_COMPARE = "/compare"  # ?run=NAME&run=NAME, the names percent-encoded, as in the addresses of runs
_INDEX = "/"
_MOST_COMPARED = 1 + MOST_CANDIDATES
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


class HttpReply(msgspec.Struct, frozen=True):
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
        self._badges: dict[Path, tuple[ListedRun, Badge]] = {}
        if not self.runs():
            raise UsageError(f"no run in {folder}: name the folder that has the folders of the runs")
        self._one_page = threading.Lock()  # a page takes memory, and switches the garbage collection off meanwhile
        super().__init__(port)

    def runs(self) -> list[ListedRun]:
        """Return the runs of the folder, newest first: the newest 500."""
        return served_runs(self.folder, self._known, _MOST_RUNS)

    def answer(self, target: str, accept: str) -> HttpReply:
        """Return the page at an address; else a sentence with the status of the error.

        The index is at "/", a run at "/run/NAME", and a comparison of runs at "/compare?run=NAME&run=NAME".
        """
        address, _, query = target.partition("?")
        fields = parse_qs(query)
        with self._one_page:
            try:
                if address == _INDEX:
                    return HttpReply(HTTPStatus.OK, self._index(fields.get("q", [""])[0]), _HTML)
                if address == _COMPARE:
                    return self._comparison(fields.get("run", []))
                return self._page([address.removeprefix(_RUN)] if address.startswith(_RUN) else [""])
            except UsageError as error:
                return HttpReply(HTTPStatus.NOT_FOUND, short(str(error), 600))

    def _index(self, query: str) -> str:
        runs = self.runs()
        badges = {}
        for run in runs:
            if run.path not in self._badges or self._badges[run.path][0] is not run:
                self._badges[run.path] = run, badge_of(run)
            badges[run.path] = self._badges[run.path][1]
        return index(self.folder, runs, query, badges)

    def _comparison(self, names: Sequence[str]) -> HttpReply:
        """Return the page of the named runs; the last one, which is the oldest in the index, is the baseline."""
        if not 2 <= len(set(names)) <= _MOST_COMPARED:
            return HttpReply(HTTPStatus.BAD_REQUEST, f"Select 2 to {_MOST_COMPARED} runs in the list of runs.")
        return self._page(list(dict.fromkeys(reversed(names))))

    def _page(self, names: Sequence[str]) -> HttpReply:
        """Return the page of these runs, which are named as in addresses."""
        paths = [run_named(self.folder, unquote(name, errors="surrogateescape")) for name in names]
        known = [path for path in paths if path is not None]
        if len(known) < len(paths):
            return HttpReply(HTTPStatus.NOT_FOUND, "The run is not in this folder.")
        found = readable(known)
        material = Material(found.runs, known[0] / "page.html", found.warnings, linked=False)
        return HttpReply(HTTPStatus.OK, html(material, _INDEX), _HTML)


# The index: the runs that fit the search, and how the best figure of each operation changed.

Badge = tuple[str, str] | None  # as of `FirstScreen`: its look and its word
_NAMED = frozenset({"operation", "backend", "device", "size_bytes", "ranks", "nodes"})  # fields of a case that each name of a trend has


class RunLine(msgspec.Struct, frozen=True):
    """A run in the table of the index: its name as in its address, its name as text, the badge of its page, and the further columns."""

    address: str
    name: str
    badge: Badge
    cells: Sequence[str]


def badge_of(run: ListedRun) -> Badge:
    """Return the badge on the page of a run; None without an answer, or where nothing was judged."""
    try:
        found = readable([run.path])
        screen = first_screen(Material(found.runs, run.path / "page.html", found.warnings, linked=False))
    except UsageError:
        return None
    return None if screen is None else screen.badge


def index(folder: Path, runs: Sequence[ListedRun], query: str = "", badges: Mapping[Path, Badge] = MappingProxyType({})) -> str:
    """Return the index page: the runs with every word of the query in their name, command or operations, and the trends over them.

    badges    of the pages of the runs, by their folders
    """
    shown = [each for each in runs if _fits(each, query)]
    table = Table.of(runs_frame(shown))
    names = [quote(each.path.name, safe="", errors="surrogateescape") for each in shown]
    lines = [
        RunLine(name, short(each.path.name, 80), badges.get(each.path), cells[1:])
        for name, each, cells in zip(names, shown, table.rows, strict=True)
    ]
    cut = f"; older runs than the newest {_MOST_RUNS} are not listed" if len(runs) == _MOST_RUNS else ""
    foot = f"{len(shown)} of {plural(len(runs), 'run')}, newest first{cut}."
    title = f"{plural(len(runs), 'run')} of {short(folder.resolve().name, 80)}"
    content = {"query": short(query, 200), "table": table, "lines": lines, "foot": foot, "charts": list(_trends(shown))}
    return static_page(_TEMPLATE, title, **content)


def _fits(run: ListedRun, query: str) -> bool:
    text = " ".join([run.path.name, run.operation, run.command, started(run), *(row.operation for row in run.peaks)]).lower()
    return all(word in text for word in query.lower().split())


def _trends(runs: Sequence[ListedRun]) -> Iterator[tuple[str, str, str]]:
    """Yield (name, caption, drawing) for each case that two runs or more have among their peaks, the most frequent ones first.

    A line joins only comparable runs: those of the same case (operation, size, backend, ranks, in place, …) on the same hosts.
    """
    points: defaultdict[tuple[CaseKey, frozenset[str]], list[tuple[ListedRun, Row]]] = defaultdict(list)
    for run in reversed(runs):  # oldest first
        for row in run.peaks:
            points[case_of(row), frozenset(run.hosts)].append((run, row))
    several = sorted((each for each in points.items() if len(each[1]) > 1), key=lambda each: -len(each[1]))
    keys = [key for (key, _), _ in several]
    for (key, hosts), found in several[:_MOST_CHARTS]:
        best_run, best = max(found, key=lambda each: each[1].busbw_bytes_per_s or 0.0)
        last = format_rate(found[-1][1].busbw_bytes_per_s or 0.0)
        caption = f"Last {last} GB/s; best {format_rate(best.busbw_bytes_per_s or 0.0)} GB/s in {short(best_run.path.name, 60)}."
        name = _series_name(key, keys, hosts)
        yield name, caption, _trend(name, found)


def _series_name(key: CaseKey, others: Sequence[CaseKey], hosts: Collection[str]) -> str:
    """Return "allreduce over gloo (cpu), 64 MiB, 2 ranks on 1 node", then in which other fields and hosts the cases of the page differ."""
    where = f"{plural(key.ranks, 'rank')} on {'an unknown number of nodes' if key.nodes is None else plural(key.nodes, 'node')}"
    name = f"{key.operation} over {key.backend} ({key.device}), {format_size(key.size_bytes)}, {where}"
    for field in CaseKey._fields:
        value = getattr(key, field)
        differs = len({getattr(other, field) for other in others}) > 1
        if not differs or field in _NAMED or value is None:
            continue
        words = field.replace("_", " ")
        if isinstance(value, bool):
            name += f", {'' if value else 'not '}{words}"
        else:
            name += f", {words} {value}"
    if others.count(key) > 1 and hosts:
        name += f", {folded(sorted(hosts))}"
    return short(name, 160)


def _labels(runs: Sequence[ListedRun]) -> list[str]:
    """Return when each run began, as short as the runs differ: its day, else its time, else both."""
    starts = [started(run) for run in runs]
    days = [text[5:10] for text in starts]
    if len(set(days)) == len(days):
        return days
    return [text[11:16] for text in starts] if len(set(days)) == 1 else [text[5:16] for text in starts]


def _trend(name: str, found: Sequence[tuple[ListedRun, Row]]) -> str:
    rates = [(row.busbw_bytes_per_s or 0.0) / 1e9 for _, row in found]
    labels = _labels([run for run, _ in found])

    def draw_rates(picture: Picture) -> None:
        axes = picture.axes()
        axes.plot(range(len(rates)), rates, color=PAGE.series[0], gid="line")
        axes.plot(range(len(rates)), rates, color=PAGE.series[0], marker="o", linestyle="none", gid="runs")
        axes.set_ylim(0, 1.1 * (max(rates) or 1.0))
        set_names(axes, labels, _MOST_TICKS)
        axes.set_ylabel("best bus bandwidth, GB/s")

    title = f"{name}: best bus bandwidth of each run"
    return drawn(Chart(name, title, "", "", Table((), ())), draw_rates, NARROW, _HEIGHT).drawing
