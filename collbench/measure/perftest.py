"""RDMA writes between two NICs by perftest's ib_write_bw, where it is installed (https://github.com/linux-rdma/perftest).

It does not compare what arrived: rows that rest on it say so.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from collbench.errors import RunFailed

_TOOL = "ib_write_bw"
_SIZE_BYTES = 65536
_NOT_YET = "Couldn't connect"
_PAUSE_S = 0.05
_NOTHING = subprocess.DEVNULL
_MOST_RUNS = 24
# " 65536      5000             97.62              97.61              0.186174": size, iterations, peak, average, messages
_FIGURES = re.compile(r"^\s*\d+\s+\d+\s+(?:\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s+\d+(?:\.\d+)?\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Writes:
    """What is asked of perftest: both ends are started with the same.

    device, port   the RDMA device and its port (from 1)
    gpu            write from the memory of this GPU, by CUDA's number; None: from host memory
    iterations     writes of 64 KiB per run
    """

    device: str
    port: int = 1
    gpu: int | None = None
    iterations: int = 5000

    @property
    def n_bytes(self) -> int:
        """What one run writes."""
        return self.iterations * _SIZE_BYTES

    def command(self, tcp_port: int) -> list[str]:
        """The command that waits for its other end; with that end's address appended, the one that writes."""
        words = [*_with_us(), _TOOL, "-d", self.device, "-i", str(self.port), "-s", str(_SIZE_BYTES), "-n", str(self.iterations)]
        gpu = [] if self.gpu is None else [f"--use_cuda={self.gpu}"]
        return [*words, "-p", str(tcp_port), "-F", "--report_gbits", *gpu]


def why_not(cuda: bool = False) -> str | None:
    """Why perftest cannot be used here, or not on GPU memory; None when it can."""
    if shutil.which(_TOOL) is None:
        return "perftest (ib_write_bw) is not installed: apt-get install perftest, or your distribution's"
    if cuda and "--use_cuda" not in _help():
        return "the perftest installed here was built without CUDA"
    return None


def rate_in(output: str) -> float | None:
    """The average rate that ib_write_bw --report_gbits printed, in bytes per second; None where it printed none."""
    found = _FIGURES.search(output)
    return float(found[1]) * 1e9 / 8 if found else None


def complaint(output: str) -> str:
    """The last line in which perftest says why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip(" -*\t")]
    return f"perftest: {lines[-1]}" if lines else "perftest failed and did not say why"


def free_port() -> int:
    """A TCP port that nobody listens at now."""
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])


class Server:
    """Keeps the end that is written to waiting, one run after the other, until the `with` ends."""

    def __init__(self, writes: Writes, tcp_port: int) -> None:
        self._command, self._over = writes.command(tcp_port), threading.Event()
        self._running: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Server:
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
    """Bytes per second of run after run to the server at `address`, for so many seconds, one at least; the first one warms up.

    Raises RunFailed with perftest's own words where it fails, and where the server cannot be reached within `patience_s`.
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
    """What ends a server whose parent was killed (util-linux)."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


@cache
def _help() -> str:
    with suppress(RunFailed):
        return _run([_TOOL, "--help"], 10)
    return ""
