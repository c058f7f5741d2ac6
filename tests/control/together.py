"""Starts real processes that join one world, and collects what each returned or how it ended."""

import json
import secrets
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from collbench.launch.info import LaunchInfo

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 60  # of the whole group, far above what any test needs
KINDS = ("ipc", "host", "tcp", "nodes")

# One rank: joins, runs main(world), prints the result; a failure is sent to the others as the command line does.
RANK = """
import json, os, sys, time
import numpy as np
from collbench.errors import *
from collbench.launch.info import LaunchInfo
from collbench.control.world import World
info, timeout_s = json.loads(sys.argv[1])
{body}
world = None
try:
    time.sleep(globals().get("LATE_S", 0))
    world = World(LaunchInfo(**info), timeout_s)
    print(json.dumps(main(world)))
    code = 0
except CollbenchError as error:
    if world:
        world.abort(error)
    print(json.dumps([type(error).__name__, str(error)]))
    code = error.exit_code
if world:
    world.close()
sys.exit(code)
"""


@dataclass(frozen=True)
class RankExit:
    """How one rank ended: exit code, what main returned (or [error, sentence]), stderr."""

    code: int
    said: Any
    stderr: str


class Meeting:
    """Where ranks meet, by `kind`.

    ipc    a socket file in `folder`
    host   loopback, all ranks on one host: they find one another without a port
    tcp    loopback TCP on ports that a fresh token chooses (or `port`), each rank a node of its own
    nodes  the same, two ranks a node
    """

    def __init__(self, kind: str, folder: Path, port: int | None = None) -> None:
        self.kind, self.token, self.port = kind, secrets.token_hex(8), port
        self.place = f"ipc://{folder}/control" if kind == "ipc" else "tcp://127.0.0.1"

    def info(self, rank: int, n: int, token: str | None = None) -> LaunchInfo:
        """Return the environment that the launcher of such a launch sets for a rank."""
        each = {"tcp": 1, "nodes": 2}.get(self.kind, n)
        node, local_rank = divmod(rank, each)
        local_ranks = min(each, n - node * each)
        return LaunchInfo(
            "local", rank, n, local_rank, local_ranks, self.place, token or self.token, self.port, node=str(node), secret="token"
        )


def start(body: str, rank: int, n: int, meeting: Meeting, *, timeout_s: float = 20.0, token: str | None = None) -> subprocess.Popen[str]:
    actual = json.dumps([asdict(meeting.info(rank, n, token)), timeout_s])
    line = [sys.executable, "-c", RANK.replace("{body}", body), actual]
    return subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ends(processes: Sequence[subprocess.Popen[str]]) -> list[RankExit]:
    """Waits for all of them; kills what is left after the deadline, which fails the test."""
    try:
        return [_ended(process) for process in processes]
    finally:
        for process in processes:
            process.kill()


def _ended(process: subprocess.Popen[str]) -> RankExit:
    out, err = process.communicate(timeout=DEADLINE_S)
    return RankExit(process.returncode, json.loads(out.splitlines()[-1]) if out else None, err)


def together(body: str, n: int, meeting: Meeting, *, timeout_s: float = 20.0, order: Sequence[int] | None = None) -> list[RankExit]:
    """All ranks at once (started in `order`); how they ended, by rank."""
    started = {rank: start(body, rank, n, meeting, timeout_s=timeout_s) for rank in order or range(n)}
    return ends([started[rank] for rank in range(n)])
