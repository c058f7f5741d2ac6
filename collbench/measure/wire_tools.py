"""External network tools between ranks: the target's end waits, the source's end starts, and every rank gets the
results.
"""

from __future__ import annotations

import json
import math
import os
import re
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from collbench.addresses import LOOPBACK, listen_at
from collbench.control.members import Member
from collbench.control.world import World
from collbench.errors import RunFailed, UsageError
from collbench.measure import counters as ethernet_counters
from collbench.measure import counters as infiniband_counters
from collbench.measure import instruments as counters
from collbench.measure.tcp_streams import COUNTED, PATIENCE_S, Reply, attempt

# The interface of a wire tool: its two command lines, and the parser of its output.
#
# The output is not trusted: a parser returns a plausible figure or raises RunFailed, and quotes at most one line.

LATENCY, BANDWIDTH = "p2p_latency", "p2p_bandwidth"
_LONGEST_QUOTE = 160
_SHORTEST_S, _LONGEST_S = 1e-9, 1e5
_WINDOW_BYTES = 256 * 2**20  # of one run that counts messages: 2 s at 1 Gb/s, 20 ms at 100 Gb/s
_FEWEST, _MOST = 20, 5000


@dataclass(frozen=True)
class ToolRequest:
    """One run of a tool: LATENCY or BANDWIDTH of messages of so many bytes. Tools that run by time run for about `seconds`."""

    operation: str
    size_bytes: int
    seconds: float = 1.0

    @property
    def messages(self) -> int:
        """The number of messages, for tools that run by number."""
        return max(_FEWEST, min(_MOST, _WINDOW_BYTES // self.size_bytes))


@dataclass(frozen=True)
class ToolFigure:
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
    facts: Mapping[str, Any] = field(default_factory=dict)


class WireTool(Protocol):
    """One tool. Its commands end by themselves after one run."""

    @property
    def name(self) -> str:
        """The name of the tool's program, and of the rows' backend."""
        ...

    @property
    def api(self) -> str:
        """The interface that moves the bytes: "tcp", "libfabric", "ucp", "verbs"."""
        ...

    @property
    def package(self) -> str:
        """The command that installs it, for messages: "apt-get install iperf3"."""
        ...

    @property
    def operations(self) -> Sequence[str]:
        """LATENCY, BANDWIDTH or both, in the order in which they are measured."""
        ...

    @property
    def version_command(self) -> Sequence[str]:
        """The command that prints its version."""
        ...

    def version(self, printed: str) -> str | None:
        """Return the version in the output of `version_command`; None: not found."""
        ...

    def server(self, request: ToolRequest, address: str, port: int) -> list[str]:
        """Return the command of the waiting end, at a TCP port of this address."""
        ...

    def client(self, request: ToolRequest, address: str, port: int) -> list[str]:
        """Return the command of the starting end, which connects to that port."""
        ...

    def parse(self, request: ToolRequest, printed: str) -> ToolFigure:
        """Return the figure in the client's output. Raises RunFailed if it is missing or not plausible."""
        ...


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
    found = next((line for line in lines if line), "")
    text = "".join(letter if letter.isprintable() else "?" for letter in found[:_LONGEST_QUOTE])
    return text or "no message"


# fi_pingpong of libfabric (https://ofiwg.github.io/libfabric/main/man/fi_pingpong.1.html): half the round trip of a message.

_VERSION = re.compile(r"^libfabric: (\d[\w.+-]{0,20})", re.MULTILINE)
_BYTES, _FI_PINGPONG_FEWEST, _FI_PINGPONG_MOST = (
    16 * 2**20,
    16,
    2000,
)  # it runs a number of messages, the same at both ends, and has no option for a time


class FiPingpong:
    """fi_pingpong: reliable datagrams over libfabric's first provider. FI_PROVIDER selects another one."""

    name, api, package = "fi_pingpong", "libfabric", "apt-get install libfabric-bin, or your distribution's libfabric"
    operations = (LATENCY,)
    version_command = ("fi_info", "--version")

    def version(self, printed: str) -> str | None:
        """Return the library's version: the program has none of its own."""
        found = _VERSION.search(printed)
        return found[1] if found else None

    def server(self, request: ToolRequest, address: str, port: int) -> list[str]:
        """Return the command that waits for one client."""
        return ["fi_pingpong", "-B", str(port), *_same(request, address)]

    def client(self, request: ToolRequest, address: str, port: int) -> list[str]:
        """Return the command of the client."""
        return ["fi_pingpong", "-P", str(port), *_same(request, address), address]

    def parse(self, request: ToolRequest, printed: str) -> ToolFigure:
        """Return the column usec/xfer of the only line of figures."""
        found = [value for line in printed.splitlines() if (value := _microseconds(line)) is not None]
        time_s = figure_of(self.name, found[0] * 1e-6 if len(found) == 1 else None, printed)
        trips = _trips(request)
        return ToolFigure(
            time_s, 2 * trips, trips * request.size_bytes, f"mean of half the round trip over {trips} (usec/xfer), without a warm-up"
        )


def _same(request: ToolRequest, address: str) -> list[str]:
    return ["-I", str(_trips(request)), "-S", str(request.size_bytes), "-e", "rdm", *(["-6"] if ":" in address else [])]


def _trips(request: ToolRequest) -> int:
    return max(_FI_PINGPONG_FEWEST, min(_FI_PINGPONG_MOST, _BYTES // request.size_bytes))


def _microseconds(line: str) -> float | None:
    """Return the seventh value of "8  2k  =2k  31k  0.05s  0.69  11.61  0.09". The size in front is rounded, so it is
    not checked.
    """
    words = line.split()
    return number(words[6]) if len(words) == 8 and words[4].endswith("s") and number(words[4][:-1]) is not None else None


# RDMA writes between two NICs by perftest's ib_write_bw, if it is installed (https://github.com/linux-rdma/perftest).
#
# It does not compare the received data; its rows have a flag for that.

_TOOL = "ib_write_bw"
_IPV6 = "--ipv6-addr"  # both ends exchange their parameters over IPv6; versions without it know IPv4 only
_SIZE_BYTES = 65536
_NOT_YET = "Couldn't connect"
_PAUSE_S = 0.05
_NOTHING = subprocess.DEVNULL
_MOST_RUNS = 24
# " 65536      5000             97.62              97.61              0.186174": size, iterations, peak, average, messages
_FIGURES = re.compile(r"^\s*\d+\s+\d+\s+(?:\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s+\d+(?:\.\d+)?\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Writes:
    """The parameters of a perftest run. Both ends start with the same ones.

    device, port   the RDMA device and its port (from 1)
    gpu            write from the memory of this GPU, by CUDA's number; None: from host memory
    iterations     writes of 64 KiB per run
    ipv6           whether the two ends exchange their parameters over IPv6
    """

    device: str
    port: int = 1
    gpu: int | None = None
    iterations: int = 5000
    ipv6: bool = False

    @property
    def n_bytes(self) -> int:
        """Return the bytes that one run writes."""
        return self.iterations * _SIZE_BYTES

    def command(self, tcp_port: int) -> list[str]:
        """Return the command of the waiting end. With that end's address appended it is the command of the writing end."""
        words = [*_with_us(), _TOOL, "-d", self.device, "-i", str(self.port), "-s", str(_SIZE_BYTES), "-n", str(self.iterations)]
        gpu = [] if self.gpu is None else [f"--use_cuda={self.gpu}"]
        return [*words, "-p", str(tcp_port), "-F", "--report_gbits", *([_IPV6] if self.ipv6 else []), *gpu]


def why_not(cuda: bool = False, ipv6: bool = False) -> str | None:
    """Return why perftest cannot be used here, not on GPU memory, or not between IPv6 addresses; None when it can."""
    if shutil.which(_TOOL) is None:
        return "perftest (ib_write_bw) is not installed: apt-get install perftest, or your distribution's"
    if cuda and "--use_cuda" not in _help():
        return "the perftest installed here was built without CUDA"
    if ipv6 and _IPV6 not in _help():
        return f"the perftest installed here connects over IPv4 only: install a version with {_IPV6}, or give the hosts IPv4 addresses"
    return None


def rate_in(output: str) -> float | None:
    """Return the average rate in the output of ib_write_bw --report_gbits, in bytes per second; None if there is none."""
    found = _FIGURES.search(output)
    return float(found[1]) * 1e9 / 8 if found else None


def complaint(output: str) -> str:
    """Return the last line in which perftest gives the reason of a failure."""
    lines = [line.strip() for line in output.splitlines() if line.strip(" -*\t")]
    return f"perftest: {lines[-1]}" if lines else "perftest failed without a message"


def free_port() -> int:
    """Return a TCP port that is free now."""
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])


class ToolServer:
    """A perftest server that is restarted after each run, until the `with` block ends."""

    def __init__(self, writes: Writes, tcp_port: int) -> None:
        self._command, self._over = writes.command(tcp_port), threading.Event()
        self._running: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> ToolServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        while self._thread.is_alive():
            if self._running:
                self._running.kill()
            self._thread.join(_PAUSE_S)

    def _serve(self) -> None:
        while not self._over.is_set():
            with suppress(OSError):
                self._running = subprocess.Popen(self._command, stdin=_NOTHING, stdout=_NOTHING, stderr=_NOTHING, text=True)
                self._running.wait()
            self._over.wait(_PAUSE_S)


def write_to(address: str, writes: Writes, tcp_port: int, seconds: float, patience_s: float) -> NDArray[np.float64]:
    """Return the bytes per second of each run to the server at `address`: at least one run, and as many as fit into `seconds`.

    The first run is warm-up. Raises RunFailed with perftest's message if it fails, or if the server cannot be
    reached within `patience_s`.
    """
    rates: list[float] = []
    end = time.monotonic() + seconds
    while len(rates) <= _MOST_RUNS and (not rates or time.monotonic() < end):
        rates.append(_one(address, writes, tcp_port, patience_s))
    return np.array(rates)


def _one(address: str, writes: Writes, tcp_port: int, patience_s: float) -> float:
    end = time.monotonic() + patience_s
    while True:
        done = _run([*writes.command(tcp_port), address], max(end - time.monotonic(), _PAUSE_S))
        rate = rate_in(done)
        if rate is not None:
            return rate
        if _NOT_YET not in done or time.monotonic() >= end:
            raise RunFailed(complaint(done))
        time.sleep(_PAUSE_S)


def _run(command: list[str], timeout_s: float) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=_NOTHING,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"perftest did not end within {timeout_s:.0f} s") from error
    except OSError as error:
        raise RunFailed(f"perftest cannot be started: {error}") from error
    return f"{done.stdout}\n{done.stderr}"


def _with_us() -> list[str]:
    """Return the command prefix that ends a server when its parent is killed (util-linux)."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


@cache
def _help() -> str:
    with suppress(RunFailed):
        return _run([_TOOL, "--help"], 10)
    return ""


# ib_write_bw of perftest (https://github.com/linux-rdma/perftest): RDMA writes between the first devices of two hosts.

_IB_WRITE_BW_VERSION = re.compile(r"^\s*(?:\w+ )?[Vv]ersion ?: (\d[\w.+-]{0,20})", re.MULTILINE)
_DEVICE = re.compile(r"^\s*Device\s*:\s*(\w{1,40})\s*$|\bDevice\s*:\s*(\w{1,40})\s", re.MULTILINE)


class IbWriteBw:
    """ib_write_bw of perftest. It runs a number of writes on the first RDMA device, perftest's default."""

    name, api, package = "ib_write_bw", "verbs", "apt-get install perftest, or your distribution's"
    operations = (BANDWIDTH,)
    version_command = ("ib_write_bw", "--version")

    def version(self, printed: str) -> str | None:
        """Return the version in "Version: 6.06"."""
        found = _IB_WRITE_BW_VERSION.search(printed)
        return found[1] if found else None

    def server(self, request: ToolRequest, address: str, port: int) -> list[str]:
        """Return the command that waits for one client."""
        return [*_same_ib_write_bw(request, address), "-p", str(port)]

    def client(self, request: ToolRequest, address: str, port: int) -> list[str]:
        """Return the command that writes."""
        return [*_same_ib_write_bw(request, address), "-p", str(port), address]

    def parse(self, request: ToolRequest, printed: str) -> ToolFigure:
        """Return the column BW average."""
        rate = rate_in(printed)
        time_s = figure_of(self.name, request.size_bytes / rate if rate else None, printed)
        found = _DEVICE.search(printed)
        facts = {"device": found[1] or found[2]} if found else {}
        return ToolFigure(
            time_s, request.messages, request.messages * request.size_bytes, f"mean over {request.messages} writes (BW average)", facts
        )


def _same_ib_write_bw(request: ToolRequest, address: str) -> list[str]:
    family = [_IPV6] if ":" in address else []
    return ["ib_write_bw", "-s", str(request.size_bytes), "-n", str(request.messages), "-F", "--report_gbits", *family]


# iperf3 (https://github.com/esnet/iperf): one TCP stream, its rate as the receiver counts it.

_IPERF3_VERSION = re.compile(r"^iperf (\d[\w.+-]{0,20})", re.MULTILINE)


class Iperf3:
    """iperf3, which runs for whole seconds. `end.sum_received` of its JSON is the data that arrived."""

    name, api, package = "iperf3", "tcp", "apt-get install iperf3, or your distribution's"
    operations = (BANDWIDTH,)
    version_command = ("iperf3", "--version")

    def version(self, printed: str) -> str | None:
        """Return the version in "iperf 3.12 (cJSON 1.7.15)"."""
        found = _IPERF3_VERSION.search(printed)
        return found[1] if found else None

    def server(self, request: ToolRequest, address: str, port: int) -> list[str]:
        """Return the command that waits for one client."""
        return ["iperf3", "--server", "--one-off", "--bind", address, "--port", str(port)]

    def client(self, request: ToolRequest, address: str, port: int) -> list[str]:
        """Return the command that sends for the requested time, at least a second."""
        return ["iperf3", "--client", address, "--port", str(port), "--time", str(max(1, round(request.seconds))), "--json"]

    def parse(self, request: ToolRequest, printed: str) -> ToolFigure:
        """Return the time of a message at the mean rate of the data that arrived."""
        document = _object(printed)
        received = _part(document, "end", "sum_received")
        n_bytes, seconds = _number(received.get("bytes")), _number(received.get("seconds"))
        if "error" in document or not n_bytes or not seconds:
            raise RunFailed(f"iperf3 printed no figure: {last_line(str(document.get('error', '')))}")
        time_s = figure_of(self.name, request.size_bytes * seconds / n_bytes, printed)
        again = _number(_part(document, "end", "sum_sent").get("retransmits"))
        statistic = f"mean over {seconds:.2f} s of what arrived (sum_received), as the time of {request.size_bytes} bytes of the stream"
        return ToolFigure(time_s, 0, int(n_bytes), statistic, {} if again is None else {"retransmits": int(again)})


def _object(printed: str) -> dict[str, Any]:
    try:
        document = json.loads(printed)
    except (ValueError, RecursionError) as error:
        raise RunFailed(f"iperf3 printed no JSON: {last_line(printed)}") from error
    if not isinstance(document, dict):
        raise RunFailed(f"iperf3 printed no JSON object: {last_line(printed)}")
    return document


def _part(document: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        found = document.get(name)
        document = found if isinstance(found, dict) else {}
    return document


def _number(value: object) -> float | None:
    """Return a value that can be a count or a time; None for NaN, infinity and negative values."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18
    return float(value) if known and isinstance(value, int | float) else None


# Wire tools as processes: limited in time and output. The kernel ends them when this process ends.

_MOST_BYTES = 4 << 20  # iperf3 prints 5 KB per run
_CHUNK = 1 << 16
_PROCESS_PAUSE_S = 0.02
_LISTENING = "0A"  # the state of a socket in /proc/net/tcp
_SPARE_S = 5  # the tool's own time limit ends after collbench's


@dataclass(frozen=True)
class ToolExit:
    """The exit code of a tool (None: still running) and its output."""

    code: int | None
    out: str
    err: str


class Tool:
    """A tool process that runs until the `with` block ends, for `limit_s` seconds at most, even if this process is stopped or killed.

    Raises RunFailed if it cannot be started.
    """

    def __init__(self, command: Sequence[str], limit_s: float) -> None:
        self._command, self._limit_s = command, limit_s

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
        while self._code() is None and time.monotonic() < self._end:
            time.sleep(_PROCESS_PAUSE_S)
        return ToolExit(self._code(), *printed)

    def await_listening(self, port: int, limit_s: float) -> None:
        """Wait until the tool listens at a TCP port. Raises RunFailed if it ends before, or does not listen within so many seconds."""
        end = time.monotonic() + limit_s
        while not _listens(port):
            if self._code() is not None:
                out, err = self._read(time.monotonic() + 1) or ("", "")
                raise RunFailed(f"{self._command[0]} ended before it listened: {last_line(f'{out}{chr(10)}{err}')}")
            if time.monotonic() >= end:
                raise RunFailed(f"{self._command[0]} does not listen at port {port} within {limit_s:.0f} s")
            time.sleep(_PROCESS_PAUSE_S)

    def _code(self) -> int | None:
        """Return the exit code without reaping the process: its PID and group must stay reserved until they have been ended."""
        found = os.waitid(os.P_PID, self._running.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None if found is None else found.si_status

    def _read(self, end: float) -> tuple[str, str] | None:
        """Return (stdout, stderr) to their ends; None if these do not come in time."""
        parts: dict[int, bytearray] = {}
        with selectors.DefaultSelector() as waiting:
            for stream in (self._running.stdout, self._running.stderr):
                assert stream
                parts[stream.fileno()] = bytearray()
                waiting.register(stream, selectors.EVENT_READ)
            while waiting.get_map():
                left = end - time.monotonic()
                if left <= 0:
                    return None
                for key, _ in waiting.select(left):
                    self._take(waiting, key.fd, parts)
        out, err = (bytes(part).decode(errors="replace") for part in parts.values())
        return out, err

    def _take(self, waiting: selectors.BaseSelector, fd: int, parts: dict[int, bytearray]) -> None:
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            waiting.unregister(fd)
        parts[fd] += chunk
        if len(parts[fd]) > _MOST_BYTES:
            raise RunFailed(f"{self._command[0]} printed more than {_MOST_BYTES >> 20} MiB, which is not a valid result")


def once(command: Sequence[str], limit_s: float) -> ToolExit:
    """Run a command to its end. Raises RunFailed if it cannot be started, has endless output, or does not end in time."""
    with Tool(command, limit_s) as tool:
        return tool.ended()


def free_port_process(address: str) -> int:
    """Return a TCP port of this address that is free now. The tools cannot report a port of their own choice. Raises OSError."""
    with listen_at(address) as listener:
        return int(listener.getsockname()[1])


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

_UCX_PERFTEST_VERSION = re.compile(r"^# (?:Library version: |Version )(\d[\w.+-]{0,20})", re.MULTILINE)
_TESTS = {LATENCY: "tag_lat", BANDWIDTH: "tag_bw"}
_TRIPS, _UCX_PERFTEST_MOST_BYTES = 2000, 64 * 2**20
_TITLE = "overall_lat"


class UcxPerftest:
    """ucx_perftest, which runs a number of messages. UCX_TLS and UCX_NET_DEVICES select the transport, as in the measured backends."""

    name, api, package = "ucx_perftest", "ucp", "apt-get install ucx-utils, or your distribution's ucx"
    operations = (LATENCY, BANDWIDTH)
    version_command = ("ucx_info", "-v")

    def version(self, printed: str) -> str | None:
        """Return the version in "# Version 1.13.1", or of newer ones "# Library version: 1.17.0"."""
        found = _UCX_PERFTEST_VERSION.search(printed)
        return found[1] if found else None

    def server(self, request: ToolRequest, address: str, port: int) -> list[str]:
        """Return the command that waits for one client, which sends the parameters."""
        return ["ucx_perftest", "-p", str(port), *_family(address)]

    def client(self, request: ToolRequest, address: str, port: int) -> list[str]:
        """Return the command of the client, with figures as CSV."""
        count = _count(request)
        words = [
            "-p",
            str(port),
            "-t",
            _TESTS[request.operation],
            "-s",
            str(request.size_bytes),
            "-n",
            str(count),
            "-w",
            str(_warmup(count)),
        ]
        return ["ucx_perftest", *words, "-f", "-v", *_family(address), address]

    def parse(self, request: ToolRequest, printed: str) -> ToolFigure:
        """Return the median of a latency, or the mean of a rate. The median that is printed with a rate is of the posting times."""
        columns = _columns(printed)
        median = next((columns[name] for name in columns if name.startswith("50.0_percentile")), None)
        latency, count = request.operation == LATENCY, _count(request)
        time_us = median if latency else columns.get(_TITLE)
        time_s = figure_of(self.name, None if time_us is None else time_us * 1e-6, printed)
        what = f"median of half the round trip over {count} (50.0 %ile)" if latency else f"mean over {count} messages (overall)"
        return ToolFigure(time_s, count, count * request.size_bytes, f"{what}, after {_warmup(count)} to warm up")


def _count(request: ToolRequest) -> int:
    return max(20, min(_TRIPS, _UCX_PERFTEST_MOST_BYTES // request.size_bytes)) if request.operation == LATENCY else request.messages


def _warmup(count: int) -> int:
    return max(1, count // 10)


def _family(address: str) -> list[str]:
    return ["-6"] if ":" in address else []


def _columns(printed: str) -> dict[str, float]:
    """Return title -> figure of the last line of figures below a line with as many titles; {} where there is none."""
    titles: list[str] = []
    found: dict[str, float] = {}
    for line in printed.splitlines():
        words = line.strip().split(",")
        if _TITLE in words:
            titles = words
        elif len(words) == len(titles):
            figures = [number(word) for word in words]
            found = {title: value for title, value in zip(titles, figures, strict=True) if value is not None}
    return found


# The wire tools by name. A requested tool must be installed on every host that runs it.

_BUILT_IN: tuple[WireTool, ...] = (Iperf3(), FiPingpong(), UcxPerftest(), IbWriteBw())
WIRE_TOOLS = {tool.name: tool for tool in _BUILT_IN}
PERFTEST = IbWriteBw.name
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


@dataclass(frozen=True)
class ToolPair:
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


@dataclass(frozen=True)
class ToolResult:
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
        about: dict[str, object] = {"name": tool.name, "version": self.version or None, "client": self.client, "server": self.server}
        if self.figure is None:
            return {"tool": about}
        return {"tool": {**self.figure.facts, **about}, "statistic": self.figure.statistic, "left_host_bytes": self.left_bytes}


@dataclass(frozen=True)
class Tools:
    """The tools of a launch, installed on every host with a rank; versions: of each tool, by rank."""

    tools: Sequence[WireTool]
    versions: Mapping[str, Sequence[str]]


def installed_tools(world: World, names: Sequence[str]) -> Tools:
    """Return the requested tools. All ranks must call it. Raises UsageError on all of them if one is not installed on a host."""
    tools = tools_named(names)
    if not tools:
        return Tools((), {})
    with world.watchdog.phase("asking tools for their versions"):
        own = {tool.name: version_here(tool) for tool in tools}
    versions = world.allgather(own, "asking tools for their versions")
    for tool in tools:
        lacking = dict.fromkeys(member.host for member in world.members if versions[member.rank][tool.name] is None)
        if lacking:
            raise UsageError(f"--tools {tool.name}: it is not installed on {_some(list(lacking))}: {tool.package}")
    return Tools(tools, {tool.name: [str(each[tool.name]) for each in versions] for tool in tools})


def run_tool(world: World, tool: WireTool, request: ToolRequest, courses: Sequence[ToolPair], versions: Sequence[str]) -> list[ToolResult]:
    """Run the tool on all courses at the same time, and return the result of each, at all ranks. All ranks must call it.

    A process that drives several ranks may be the source of several courses; it starts these one after the other.
    """
    limit_s = min(request.seconds + PATIENCE_S, _OF_THE_DEADLINE * world.timeout_s)
    most_s = limit_s * (1 + max(Counter(each.source.rank for each in courses).values()))
    with ExitStack() as waiting, world.extend_timeout(most_s):
        own = {
            str(at): _waits(tool, request, each, waiting, (limit_s, most_s)) for at, each in enumerate(courses) if each.target == world.me
        }
        offers = _by_course(world.allgather(own, f"starting {tool.name}"))
        begun = {
            str(at): _begins(tool, request, each, offers[str(at)], limit_s) for at, each in enumerate(courses) if each.source == world.me
        }
        replies = _by_course(world.allgather(begun, f"running {tool.name}"))
    came = [_came(tool, request, each, offers[str(at)].get("value"), replies[str(at)]) for at, each in enumerate(courses)]
    return [replace(ran, version=versions[each.source.rank]) for ran, each in zip(came, courses, strict=True)]


def _some(hosts: Sequence[str]) -> str:
    more = len(hosts) - _MOST_NAMED
    return ", ".join(hosts[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _by_course(replies: Sequence[Mapping[str, Reply]]) -> dict[str, Reply]:
    return {at: each for one in replies for at, each in one.items()}


def _waits(tool: WireTool, request: ToolRequest, course: ToolPair, waiting: ExitStack, limits_s: tuple[float, float]) -> Reply:
    """Start the waiting end, which runs to the end of `waiting`, and return its port.

    limits_s: until it listens, and until it ends.
    """

    def start() -> int:
        port = free_port_process(course.address)
        server = waiting.enter_context(Tool(tool.server(request, course.address, port), limits_s[1]))
        server.await_listening(port, limits_s[0])
        return port

    return attempt(start)


def _begins(tool: WireTool, request: ToolRequest, course: ToolPair, offer: Reply, limit_s: float) -> Reply:
    """Run the client and return its output, and the bytes that left this host meanwhile."""
    if "value" not in offer:
        return {"why": f"{course.target.host}: {offer.get('why')}"}

    def begin() -> dict[str, object]:
        """Run the client to its end. Raises RunFailed if it fails."""
        before = counters.read()
        done = once(tool.client(request, course.address, offer["value"]), limit_s)
        left = _left(before, counters.read())
        if done.code and not done.out:
            raise RunFailed(f"{tool.name} failed: {last_line(done.err)}")
        figure = tool.parse(request, done.out)
        if done.code:
            raise RunFailed(f"{tool.name} failed with code {done.code}: {last_line(done.err or done.out)}")
        return {"figure": asdict(figure), "left": left}

    return attempt(begin)


def _left(before: counters.Counters, after: counters.Counters) -> int | None:
    """Return the payload bytes that left this host by its NICs; None if these do not count them."""
    seen = counters.moved(before, after)
    if seen["silent"] or seen["came_or_went"] or not (seen["leaving"] or after.ports):
        return None
    parts = [ethernet_counters.payload(seen["interfaces"].get(name, {}), "tx") for name in seen["leaving"]]
    parts += [infiniband_counters.moved(seen["ports"].get(name, {}), "tx") for name in after.ports]
    return None if None in parts else sum(part for part in parts if part)


def _came(tool: WireTool, request: ToolRequest, course: ToolPair, port: int | None, reply: Reply) -> ToolResult:
    server = shlex.join(tool.server(request, course.address, port)) if port else ""
    client = shlex.join(tool.client(request, course.address, port)) if port else ""
    document = reply.get("value")
    if not document:
        return ToolResult(None, str(reply.get("why", f"{tool.name} printed nothing")), server, client)
    figure, left = ToolFigure(**document["figure"]), document["left"]
    strayed = left is not None and not course.inside and left < COUNTED * figure.sent_bytes
    return ToolResult(figure, None, server, client, other_path=strayed, left_bytes=left)
