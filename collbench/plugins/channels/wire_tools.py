"""External network tools between ranks: the target's end waits, the source's end starts, and every rank gets the results."""

from __future__ import annotations

import math
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from msgspec.structs import replace

from collbench.addresses import LOOPBACK, free_port
from collbench.control.members import Member
from collbench.control.world import World
from collbench.errors import RunFailed, UsageError
from collbench.measuring import counters, instruments
from collbench.plugins.channels.tcp_streams import COUNTED, PATIENCE_S, Reply, attempt
from collbench.units import first_of
from collbench.untrusted import dict_of, parse_json

# The interface of a wire tool: its two command lines, and the parser of its output.
#
# The output is not trusted: a parser returns a plausible figure or raises RunFailed, and quotes at most one line.

LATENCY, BANDWIDTH = "p2p_latency", "p2p_bandwidth"
_LONGEST_QUOTE = 160
_SHORTEST_S, _LONGEST_S = 1e-9, 1e5
_WINDOW_BYTES = 256 * 2**20  # of one run that counts messages: 2 s at 1 Gb/s, 20 ms at 100 Gb/s
_FEWEST, _MOST = 20, 5000


class ToolRequest(msgspec.Struct, frozen=True):
    """One run of a tool: LATENCY or BANDWIDTH of messages of so many bytes. Tools that run by time run for about `seconds`.

    count   the number of messages, for tools that run by number; None: by their size
    """

    operation: str
    size_bytes: int
    seconds: float = 1.0
    count: int | None = None

    @property
    def messages(self) -> int:
        """The number of messages, for tools that run by number."""
        return self.count or max(_FEWEST, min(_MOST, _WINDOW_BYTES // self.size_bytes))


class ToolFigure(msgspec.Struct, frozen=True):
    """The figure that a tool prints.

    time_s      of one message
    n           messages in it; 0: the tool does not count them
    sent_bytes  that the client must have sent at least
    statistic   the kind of figure, as text
    facts       other values that it prints, JSON-ready
    """

    time_s: float
    n: int
    sent_bytes: int
    statistic: str
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)


Command = Callable[[ToolRequest, str, int], list[str]]


class WireTool(msgspec.Struct, frozen=True):
    """One tool. Its commands end by themselves after one run.

    name        of the tool's program, and of the rows' backend
    api         the interface that moves the bytes: "tcp", "libfabric", "ucp", "verbs"
    package     the command that installs it, for messages: "apt-get install iperf3"
    operations  LATENCY, BANDWIDTH or both, in the order in which they are measured
    version_command, version_line   the command that prints its version, and the line that has it
    server      (request, address, port) -> the command of the waiting end, at a TCP port of this address
    client      (request, address, port) -> the command of the starting end, which connects to that port
    parse       (request, printed) -> the figure in the client's output. Raises RunFailed if it is missing or not plausible
    """

    name: str
    api: str
    package: str
    operations: tuple[str, ...]
    version_command: tuple[str, ...]
    version_line: str
    server: Command
    client: Command
    parse: Callable[[ToolRequest, str], ToolFigure]

    def version(self, printed: str) -> str | None:
        """Return the version in the output of `version_command`; None: not found."""
        match = re.search(rf"{self.version_line}(\d[\w.+-]{{0,20}})", printed, re.MULTILINE)
        return match[1] if match else None


def figure_of(tool: str, seconds: float | None, printed: str) -> float:
    """Return the time of a message, if it is plausible. Otherwise raise RunFailed with the last line of the tool's output."""
    if seconds is None or not math.isfinite(seconds) or not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise RunFailed(f"{tool} printed no figure: {last_line(printed)}")
    return seconds


def number(word: str) -> float | None:
    """Return a plain decimal number, not negative; None for anything else."""
    if len(word) > 40 or not word.replace(".", "", 1).isascii() or not word.replace(".", "", 1).isdigit():
        return None
    return float(word)


def last_line(printed: str) -> str:
    """Return the last line with text, printable and short; "no message" without one."""
    lines = (line.strip(" -+|*\t\r") for line in reversed(printed.splitlines()))
    last = next(filter(None, lines), "")
    text = "".join(letter if letter.isprintable() else "?" for letter in last[:_LONGEST_QUOTE])
    return text or "no message"


# fi_pingpong of libfabric (https://ofiwg.github.io/libfabric/main/man/fi_pingpong.1.html): half the round trip of a message.
#
# It runs a number of messages, the same at both ends, and has no option for a time.

_PINGPONG_BYTES, _FEWEST_TRIPS, _MOST_TRIPS = 16 * 2**20, 16, 2000


def _trips(request: ToolRequest) -> int:
    return max(_FEWEST_TRIPS, min(_MOST_TRIPS, _PINGPONG_BYTES // request.size_bytes))


def _fi_pingpong(request: ToolRequest, address: str, *port: str) -> list[str]:
    family = ["-6"] if ":" in address else []
    return ["fi_pingpong", *port, "-I", str(_trips(request)), "-S", str(request.size_bytes), "-e", "rdm", *family]


def _parse_fi_pingpong(request: ToolRequest, printed: str) -> ToolFigure:
    """Return the column usec/xfer of the only line of figures."""
    times_us = [time_us for time_us in map(_microseconds, printed.splitlines()) if time_us is not None]
    time_s = figure_of("fi_pingpong", times_us[0] * 1e-6 if len(times_us) == 1 else None, printed)
    trips = _trips(request)
    statistic = f"mean of half the round trip over {trips} (usec/xfer), without a warm-up"
    return ToolFigure(time_s, 2 * trips, trips * request.size_bytes, statistic)


def _microseconds(line: str) -> float | None:
    """Return the seventh value of "8 2k =2k 31k 0.05s 0.69 11.61 0.09". The size in front is rounded, so it is not checked."""
    words = line.split()
    return number(words[6]) if len(words) == 8 and words[4].endswith("s") and number(words[4][:-1]) is not None else None


FI_PINGPONG = WireTool(  # reliable datagrams over libfabric's first provider; FI_PROVIDER selects another one
    "fi_pingpong", "libfabric", "apt-get install libfabric-bin, or your distribution's libfabric", (LATENCY,),
    ("fi_info", "--version"), "^libfabric: ",
    server=lambda request, address, port: _fi_pingpong(request, address, "-B", str(port)),
    client=lambda request, address, port: [*_fi_pingpong(request, address, "-P", str(port)), address],
    parse=_parse_fi_pingpong,
)  # fmt: skip


# ib_write_bw of perftest (https://github.com/linux-rdma/perftest): RDMA writes between two NICs, by default the first device of each host.
#
# It does not compare the received data; its rows have a flag for that.

_IPV6 = "--ipv6-addr"  # both ends exchange their parameters over IPv6; versions without it know IPv4 only
# " 65536      5000             97.62              97.61              0.186174": size, iterations, peak, average, messages
_FIGURES = re.compile(r"^\s*\d+\s+\d+\s+(?:\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s+\d+(?:\.\d+)?\s*$", re.MULTILINE)
_DEVICE = re.compile(r"^\s*Device\s*:\s*(\w{1,40})\s*$|\bDevice\s*:\s*(\w{1,40})\s", re.MULTILINE)


def why_not(cuda: bool = False, ipv6: bool = False) -> str | None:
    """Return why perftest cannot be used here, not on GPU memory, or not between IPv6 addresses; None when it can."""
    if shutil.which("ib_write_bw") is None:
        return "perftest (ib_write_bw) is not installed: apt-get install perftest, or your distribution's"
    if cuda and "--use_cuda" not in _help():
        return "the perftest installed here was built without CUDA"
    if ipv6 and _IPV6 not in _help():
        return f"the perftest installed here connects over IPv4 only: install a version with {_IPV6}, or give the hosts IPv4 addresses"
    return None


def rate_in(output: str) -> float | None:
    """Return the average rate in the output of ib_write_bw --report_gbits, in bytes per second; None if there is none."""
    figures = _FIGURES.search(output)
    return float(figures[1]) * 1e9 / 8 if figures else None


@cache
def _help() -> str:
    with suppress(RunFailed):
        done = once(["ib_write_bw", "--help"], 10)
        return f"{done.out}\n{done.err}"
    return ""


def _ib_write_bw(request: ToolRequest, address: str, port: int, *words: str) -> list[str]:
    family = [_IPV6] if ":" in address else []
    run = ["-s", str(request.size_bytes), "-n", str(request.messages)]
    return ["ib_write_bw", *run, "-F", "--report_gbits", *family, "-p", str(port), *words]


def _parse_ib_write_bw(request: ToolRequest, printed: str) -> ToolFigure:
    """Return the column BW average."""
    rate = rate_in(printed)
    n = request.messages
    time_s = figure_of("ib_write_bw", request.size_bytes / rate if rate else None, printed)
    device = _DEVICE.search(printed)
    facts = {"device": device[1] or device[2]} if device else {}
    return ToolFigure(time_s, n, n * request.size_bytes, f"mean over {n} writes (BW average)", facts)


IB_WRITE_BW = WireTool(
    "ib_write_bw", "verbs", "apt-get install perftest, or your distribution's", (BANDWIDTH,),
    ("ib_write_bw", "--version"), r"^\s*(?:\w+ )?[Vv]ersion ?: ",
    server=_ib_write_bw,
    client=lambda request, address, port: [*_ib_write_bw(request, address, port), address],
    parse=_parse_ib_write_bw,
)  # fmt: skip


def between_devices(source: Sequence[str], target: Sequence[str]) -> WireTool:
    """Return ib_write_bw with further options of its two ends: the device and its port, the GPU whose memory is read or written."""
    return replace(
        IB_WRITE_BW,
        server=lambda request, address, port: _ib_write_bw(request, address, port, *target),
        client=lambda request, address, port: _ib_write_bw(request, address, port, *source, address),
    )


# iperf3 (https://github.com/esnet/iperf): one TCP stream, its rate as the receiver counts it.


def _parse_iperf3(request: ToolRequest, printed: str) -> ToolFigure:
    """Return the time of a message at the mean rate of the data that arrived (`end.sum_received` of its JSON)."""
    try:
        document = parse_json(printed)
    except (ValueError, RecursionError) as error:
        raise RunFailed(f"iperf3 printed no JSON: {last_line(printed)}") from error
    if not isinstance(document, dict):
        raise RunFailed(f"iperf3 printed no JSON object: {last_line(printed)}")
    received = _part(document, "end", "sum_received")
    n_bytes = _number(received.get("bytes"))
    seconds = _number(received.get("seconds"))
    if "error" in document or not n_bytes or not seconds:
        raise RunFailed(f"iperf3 printed no figure: {last_line(str(document.get('error', '')))}")
    time_s = figure_of("iperf3", request.size_bytes * seconds / n_bytes, printed)
    retransmits = _number(_part(document, "end", "sum_sent").get("retransmits"))
    statistic = f"mean over {seconds:.2f} s of what arrived (sum_received), as the time of {request.size_bytes} bytes of the stream"
    return ToolFigure(time_s, 0, int(n_bytes), statistic, {} if retransmits is None else {"retransmits": int(retransmits)})


def _part(document: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        document = dict_of(document.get(name))
    return document


def _number(value: object) -> float | None:
    """Return a value that can be a count or a time; None for NaN, infinity and negative values."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18 else None


IPERF3 = WireTool(  # it runs for whole seconds, at least one
    "iperf3", "tcp", "apt-get install iperf3, or your distribution's", (BANDWIDTH,), ("iperf3", "--version"), "^iperf ",
    server=lambda request, address, port: ["iperf3", "--server", "--one-off", "--bind", address, "--port", str(port)],
    client=lambda request, address, port: ["iperf3", "--client", address, "--port", str(port),
                                           "--time", str(max(1, round(request.seconds))), "--json"],
    parse=_parse_iperf3,
)  # fmt: skip


_MOST_BYTES = 4 << 20  # iperf3 prints 5 KB per run
_CHUNK = 1 << 16
_PROCESS_PAUSE_S = 0.02
_LISTENING = "0A"  # the state of a socket in /proc/net/tcp
_SPARE_S = 5  # the tool's own time limit ends after collbench's


class ToolExit(msgspec.Struct, frozen=True):
    """The exit code of a tool (None: still running) and its output."""

    code: int | None
    out: str
    err: str


class Tool:
    """A tool process that runs until the `with` block ends, for `limit_s` seconds at most, even if this process is stopped or killed.

    Raises RunFailed if it cannot be started.
    """

    def __init__(self, command: Sequence[str], limit_s: float) -> None:
        self._command = command
        self._limit_s = limit_s

    def __enter__(self) -> Tool:
        pipe = subprocess.PIPE
        line = [*_ending_with_us(self._limit_s), *self._command]
        try:
            self._running = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True)
        except OSError as error:
            raise RunFailed(f"{self._command[0]} cannot be started: {error.strerror or error}") from error
        self._end = time.monotonic() + self._limit_s
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._running.pid, signal.SIGKILL)  # not reaped yet, so the PID still belongs to it
        self._running.wait()
        for stream in (self._running.stdout, self._running.stderr):
            if stream:
                stream.close()

    def ended(self) -> ToolExit:
        """Wait for its end and return it. Raises RunFailed for endless output, or if it does not end within its time."""
        printed = self._read(self._end)
        if printed is None:
            raise RunFailed(f"{self._command[0]} did not end within {self._limit_s:.0f} s")
        while self.code() is None and time.monotonic() < self._end:
            time.sleep(_PROCESS_PAUSE_S)
        return ToolExit(self.code(), *printed)

    def await_listening(self, port: int, limit_s: float) -> None:
        """Wait until the tool listens at a TCP port. Raises RunFailed if it ends before, or does not listen within so many seconds."""
        end = time.monotonic() + limit_s
        while not _listens(port):
            if self.code() is not None:
                out, err = self._read(time.monotonic() + 1) or ("", "")
                raise RunFailed(f"{self._command[0]} ended before it listened: {last_line(f'{out}{chr(10)}{err}')}")
            if time.monotonic() >= end:
                raise RunFailed(f"{self._command[0]} does not listen at port {port} within {limit_s:.0f} s")
            time.sleep(_PROCESS_PAUSE_S)

    def code(self) -> int | None:
        """Return the exit code, None while it runs.

        The process is not reaped: its PID and group must stay reserved until they have been ended.
        """
        ended = os.waitid(os.P_PID, self._running.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None if ended is None else ended.si_status

    def _read(self, end: float) -> tuple[str, str] | None:
        """Return (stdout, stderr) to their ends; None if these do not come in time."""
        parts: dict[int, bytearray] = {}
        with selectors.DefaultSelector() as waiting:
            for stream in (self._running.stdout, self._running.stderr):
                assert stream
                parts[stream.fileno()] = bytearray()
                waiting.register(stream, selectors.EVENT_READ)
            while waiting.get_map():
                left_s = end - time.monotonic()
                if left_s <= 0:
                    return None
                for key, _ in waiting.select(left_s):
                    chunk = os.read(key.fd, _CHUNK)
                    if not chunk:
                        waiting.unregister(key.fd)
                    parts[key.fd] += chunk
                    if len(parts[key.fd]) > _MOST_BYTES:
                        raise RunFailed(f"{self._command[0]} printed more than {_MOST_BYTES >> 20} MiB, which is not a valid result")
        out, err = (bytes(part).decode(errors="replace") for part in parts.values())
        return out, err


def once(command: Sequence[str], limit_s: float) -> ToolExit:
    """Run a command to its end. Raises RunFailed if it cannot be started, has endless output, or does not end in time."""
    with Tool(command, limit_s) as tool:
        return tool.ended()


def _listens(port: int) -> bool:
    """Return whether a process in this network namespace listens at the port, by the kernel's table.

    A connection would use up the only one that the tool accepts.
    """
    port_text = f"{port:04X}"
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            lines = Path("/proc/self/net", name).read_text().splitlines()[1:]
            if any(words[1].rpartition(":")[2] == port_text and words[3] == _LISTENING for words in map(str.split, lines)):
                return True
    return False


def _ending_with_us(limit_s: float) -> list[str]:
    """Return the command prefixes that end a tool when its parent is killed (util-linux) or stopped (coreutils).

    Each prefix ends the one after it.
    """
    if shutil.which("setpriv") is None or shutil.which("timeout") is None:
        raise RunFailed(
            "setpriv (util-linux) or timeout (coreutils) is not installed here: without them a tool could run on after collbench"
        )
    with_parent = ["setpriv", "--pdeathsig", "KILL"]
    return [*with_parent, "timeout", "-s", "KILL", str(math.ceil(limit_s) + _SPARE_S), *with_parent]


# ucx_perftest of UCX (https://openucx.readthedocs.io): tag-matched messages over the way that UCX chooses.

_TESTS = {LATENCY: "tag_lat", BANDWIDTH: "tag_bw"}
_TRIPS, _UCX_PERFTEST_MOST_BYTES = 2000, 64 * 2**20
_TITLE = "overall_lat"


def _count(request: ToolRequest) -> int:
    return max(20, min(_TRIPS, _UCX_PERFTEST_MOST_BYTES // request.size_bytes)) if request.operation == LATENCY else request.messages


def _warmup(request: ToolRequest) -> int:
    return max(1, _count(request) // 10)


def _ucx_perftest(request: ToolRequest, address: str, port: int) -> list[str]:
    words = ["-t", _TESTS[request.operation], "-s", str(request.size_bytes), "-n", str(_count(request)), "-w", str(_warmup(request))]
    return ["ucx_perftest", "-p", str(port), *words, "-f", "-v", *(["-6"] if ":" in address else []), address]


def _parse_ucx_perftest(request: ToolRequest, printed: str) -> ToolFigure:
    """Return the median of a latency, or the mean of a rate. The median that is printed with a rate is of the posting times."""
    columns = _columns(printed)
    median = next((columns[name] for name in columns if name.startswith("50.0_percentile")), None)
    latency = request.operation == LATENCY
    count = _count(request)
    time_us = median if latency else columns.get(_TITLE)
    time_s = figure_of("ucx_perftest", None if time_us is None else time_us * 1e-6, printed)
    what = f"median of half the round trip over {count} (50.0 %ile)" if latency else f"mean over {count} messages (overall)"
    return ToolFigure(time_s, count, count * request.size_bytes, f"{what}, after {_warmup(request)} to warm up")


def _columns(printed: str) -> dict[str, float]:
    """Return title -> figure of the last line of figures below a line with as many titles; {} where there is none."""
    titles: list[str] = []
    columns: dict[str, float] = {}
    for line in printed.splitlines():
        words = line.strip().split(",")
        if _TITLE in words:
            titles = words
        elif len(words) == len(titles):
            figures = [number(word) for word in words]
            columns = {title: value for title, value in zip(titles, figures, strict=True) if value is not None}
    return columns


UCX_PERFTEST = WireTool(  # it runs a number of messages; UCX_TLS and UCX_NET_DEVICES select the transport, as in the measured backends
    "ucx_perftest", "ucp", "apt-get install ucx-utils, or your distribution's ucx", (LATENCY, BANDWIDTH),
    ("ucx_info", "-v"), "^# (?:Library version: |Version )",
    server=lambda request, address, port: ["ucx_perftest", "-p", str(port), *(["-6"] if ":" in address else [])],
    client=_ucx_perftest,
    parse=_parse_ucx_perftest,
)  # fmt: skip


WIRE_TOOLS = {tool.name: tool for tool in (IPERF3, FI_PINGPONG, UCX_PERFTEST, IB_WRITE_BW)}
_VERSION_S = 10.0


def tools_named(names: Sequence[str]) -> tuple[WireTool, ...]:
    """Return the tools with these names, each once. Raises UsageError for an unknown name."""
    unknown = next((name for name in names if name not in WIRE_TOOLS), None)
    if unknown is not None:
        raise UsageError(f"--tools '{unknown[:40]}' is unknown: choose from {', '.join(WIRE_TOOLS)}")
    return tuple(WIRE_TOOLS[name] for name in dict.fromkeys(names))


def version_here(tool: WireTool) -> str | None:
    """Return the version of the tool on this host, "" where it prints none; None: not installed."""
    if shutil.which(tool.name) is None:
        return None
    with suppress(RunFailed):
        done = once(tool.version_command, _VERSION_S)
        return tool.version(f"{done.out}\n{done.err}") or ""
    return ""


EXTERNAL = "their_tool"  # the flag on every such row
FLAGS = (EXTERNAL, "unverified")
_MOST_NAMED = 4
_OF_THE_DEADLINE = 0.75  # a rank without progress for the whole deadline counts as a hang


class ToolPair(msgspec.Struct, frozen=True):
    """The source and the target rank of one run."""

    source: Member
    target: Member

    @property
    def inside(self) -> bool:
        """Return whether both are on one host, where the tool uses loopback."""
        return self.source.host == self.target.host

    @property
    def address(self) -> str:
        """Return the address at which the target waits."""
        return LOOPBACK if self.inside else self.target.address


class ToolResult(msgspec.Struct, frozen=True):
    """The result of one run: a figure with its commands, or why there is none.

    version     of the tool on the source's host
    other_path  whether bytes that had to leave the source's host are on none of its NICs
    left_bytes  payload that these NICs counted meanwhile, including other traffic; None: not known
    """

    figure: ToolFigure | None
    why: str | None
    server: str
    client: str
    version: str = ""
    other_path: bool = False
    left_bytes: int | None = None

    def evidence(self, tool: WireTool) -> dict[str, object]:
        """Return the evidence for the row, JSON-ready."""
        run: dict[str, object] = {"name": tool.name, "version": self.version or None, "client": self.client, "server": self.server}
        if self.figure is None:
            return {"tool": run}
        return {"tool": {**self.figure.facts, **run}, "statistic": self.figure.statistic, "left_host_bytes": self.left_bytes}


class Tools(msgspec.Struct, frozen=True):
    """The tools of a launch, installed on every host with a rank; versions: of each tool, by rank."""

    tools: Sequence[WireTool]
    versions: Mapping[str, Sequence[str]]


def installed_tools(world: World, names: Sequence[str]) -> Tools:
    """Return the requested tools. All ranks must call it. Raises UsageError on all of them if one is not installed on a host."""
    tools = tools_named(names)
    if not tools:
        return Tools((), {})
    with world.watchdog.phase("asking tools for their versions"):
        here = {tool.name: version_here(tool) for tool in tools}
    versions = world.allgather(here, "asking tools for their versions")
    for tool in tools:
        lacking = dict.fromkeys(member.host for member in world.members if versions[member.rank][tool.name] is None)
        if lacking:
            raise UsageError(f"--tools {tool.name}: it is not installed on {first_of(lacking, _MOST_NAMED)}: {tool.package}")
    return Tools(tools, {tool.name: [str(of_rank[tool.name]) for of_rank in versions] for tool in tools})


def run_tool(world: World, tool: WireTool, request: ToolRequest, courses: Sequence[ToolPair], versions: Sequence[str]) -> list[ToolResult]:
    """Run the tool on all courses at the same time, and return the result of each, at all ranks. All ranks must call it.

    A process that drives several ranks may be the source of several courses; it starts these one after the other.
    """
    limit_s = min(request.seconds + PATIENCE_S, _OF_THE_DEADLINE * world.timeout_s)
    most_s = limit_s * (1 + max(Counter(course.source.rank for course in courses).values()))
    with ExitStack() as waiting, world.extend_timeout(most_s):

        def start(course: ToolPair) -> int:
            """Start the waiting end, which runs to the end of `waiting`, and return its port."""
            port = free_port(course.address)
            server = waiting.enter_context(Tool(tool.server(request, course.address, port), most_s))
            server.await_listening(port, limit_s)
            return port

        def gathered(replies: dict[str, Reply], phase: str) -> dict[str, Reply]:
            return {number: reply for of_rank in world.allgather(replies, phase) for number, reply in of_rank.items()}

        numbered = {str(number): course for number, course in enumerate(courses)}
        offers = {number: attempt(partial(start, course)) for number, course in numbered.items() if course.target == world.me}
        offers = gathered(offers, f"starting {tool.name}")
        replies: dict[str, Reply] = {}
        for number, course in numbered.items():
            if course.source == world.me:
                offer = offers[number]
                replies[number] = {"why": f"{course.target.host}: {offer.get('why')}"}
                if "value" in offer:
                    replies[number] = attempt(partial(_client, tool, request, course, offer["value"], limit_s))
        replies = gathered(replies, f"running {tool.name}")
    results = []
    for number, course in numbered.items():
        port = offers[number].get("value")
        version = versions[course.source.rank]
        server, client = (shlex.join(command(request, course.address, port)) if port else "" for command in (tool.server, tool.client))
        document = replies[number].get("value")
        if not document:
            results.append(ToolResult(None, str(replies[number].get("why", f"{tool.name} printed nothing")), server, client, version))
            continue
        figure = ToolFigure(**document["figure"])
        left = document["left"]
        strayed = left is not None and not course.inside and left < COUNTED * figure.sent_bytes
        results.append(ToolResult(figure, None, server, client, version, other_path=strayed, left_bytes=left))
    return results


def _client(tool: WireTool, request: ToolRequest, course: ToolPair, port: int, limit_s: float) -> dict[str, object]:
    """Run the client to its end. Return its figure, and the payload that left this host by its NICs; None if these do not count it.

    Raises RunFailed if it fails.
    """
    before = instruments.read()
    done = once(tool.client(request, course.address, port), limit_s)
    after = instruments.read()
    if done.code and not done.out:
        raise RunFailed(f"{tool.name} failed: {last_line(done.err)}")
    figure = tool.parse(request, done.out)
    if done.code:
        raise RunFailed(f"{tool.name} failed with code {done.code}: {last_line(done.err or done.out)}")
    moved = instruments.moved(before, after)
    left = None
    if not (moved["silent"] or moved["came_or_went"]) and (moved["leaving"] or after.ports):
        parts = [counters.payload(moved["interfaces"].get(name, {}), "tx") for name in moved["leaving"]]
        parts += [counters.moved(moved["ports"].get(name, {}), "tx") for name in after.ports]
        left = None if None in parts else sum(part for part in parts if part)
    return {"figure": msgspec.to_builtins(figure), "left": left}


def requested_tools(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the requested external tools. Raises UsageError for an unknown name."""
    return tuple(tool.name for tool in tools_named(names or ()))
