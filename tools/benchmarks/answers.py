"""How long a user waits for an answer of `collbench check` and `collbench allreduce` on a terminal: first status line, and end."""

from __future__ import annotations

import os
import pty
import subprocess
import tempfile
import time
from contextlib import suppress

from tools.benchmarks.figures import SECONDS, Outcome, timed
from tools.benchmarks.launches import LaunchFailed, collbench, environment_of_launch

_COMMANDS = ("check", "allreduce")
_DEADLINE_S = "120"
_VERDICTS = {"check": (0, 1, 3), "allreduce": (0,)}


def measure(n: int = 10) -> Outcome:
    """n launches of each, in turn."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in _COMMANDS}
    for _ in range(n):
        for name in _COMMANDS:
            found[name].append(_on_terminal(name))
    return Outcome(
        "answers",
        "Wall time of a command without options on a terminal: to the first characters, and to its end.",
        [
            figure
            for name in _COMMANDS
            for figure in (
                timed(f"collbench {name}: first status line", (first for first, _ in found[name]), SECONDS, below=0.5),
                timed(f"collbench {name}: end", (end for _, end in found[name]), SECONDS, below=15.0),
            )
        ],
        [{"command": name, "first_s": first, "end_s": end} for name in _COMMANDS for first, end in found[name]],
    )


def _on_terminal(name: str) -> tuple[float, float]:
    """Return the seconds to the first characters, and to the end. Raises LaunchFailed."""
    ours, theirs = pty.openpty()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        environment = {**environment_of_launch(), "TERM": "xterm", "COLUMNS": "120"}
        line = ["timeout", "--foreground", _DEADLINE_S, *collbench(name)]
        begun = time.perf_counter()
        process = subprocess.Popen(line, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        first = 0.0
        with suppress(OSError):  # EIO: the last process has left the terminal
            while os.read(ours, 65536):
                first = first or time.perf_counter() - begun
        code, end = process.wait(), time.perf_counter() - begun
        os.close(ours)
    if code not in _VERDICTS[name] or not first:
        raise LaunchFailed(f"collbench {name} ended with code {code}")
    return first, end
