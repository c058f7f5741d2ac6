"""Clocks, power, temperature and slow-downs of this host's GPUs, sampled a few times a second by a separate process.

python -P -m collbench.measuring.telemetry HZ

The process samples while the last byte on its standard input is "1". It writes one line of JSON per sample, and ends
when that input ends, and so with its parent. NVML calls may take milliseconds, so they do not run in the measured
process.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collbench.measuring.counters import Gpus

FASTEST_HZ = 5.0
_ON = b"1"
_OFF = b"0"
_PATIENCE_S = 2.0


class Telemetry:
    """The sampling process, as its parent uses it. It starts switched off. If it has died, it returns no samples."""

    def __init__(self, hz: float) -> None:
        self._lines = tempfile.TemporaryFile()  # noqa: SIM115 - not a pipe: no process waits until it is read
        self._seen = 0
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, f"{hz:g}"],
            stdin=subprocess.PIPE, stdout=self._lines, stderr=subprocess.DEVNULL, bufsize=0,
        )  # fmt: skip

    def switch(self, on: bool) -> None:
        """Start or stop sampling."""
        if self._process.stdin:
            with suppress(OSError):
                self._process.stdin.write(_ON if on else _OFF)

    def taken(self) -> list[dict[str, Any]]:
        """Return the samples since the last call: {"monotonic_s", "gpus": by PCI address}."""
        text = os.pread(self._lines.fileno(), os.fstat(self._lines.fileno()).st_size - self._seen, self._seen)
        whole = text[: text.rfind(b"\n") + 1]
        self._seen += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def close(self) -> None:
        """End the process."""
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._lines.close()


def sample(gauges: Gpus, hz: float, commands: int, lines: int) -> None:
    """Sample `hz` times a second while switched on; return when the descriptor `commands` ends.

    Lines of JSON go to the descriptor `lines`.
    """
    on = False
    waiting = select.poll()  # select() rejects descriptors above 1023
    waiting.register(commands, select.POLLIN)
    while True:
        if waiting.poll(1000 / hz if on else None):
            switches = os.read(commands, 64)
            if not switches:
                return
            on = switches.endswith(_ON)
        if on:
            line = {"monotonic_s": time.monotonic(), "gpus": gauges.clocks()}
            os.write(lines, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def main() -> int:
    """Run the sampling process; return exit code 1 without NVML."""
    from collbench.measuring.counters import Gpus

    gpus = Gpus.open()
    if gpus is None:
        return 1
    sample(gpus, min(float(sys.argv[1]), FASTEST_HZ), sys.stdin.fileno(), sys.stdout.fileno())
    gpus.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
