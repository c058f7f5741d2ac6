"""5,000 simulated nodes join rank 0 over loopback and gather 1 MB each, reduced on arrival: wall times, and memory of rank 0's process.

The nodes are in two processes, each with a connection for every node. Rank 0 is a process of its own, with the real `World`: its
I/O thread, keys and deadlines.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import zmq

from collbench.addresses import LOOPBACK
from collbench.control.addresses import hub_places
from collbench.control.members import Member
from collbench.control.security import Keys, secret_of
from collbench.control.tree import LARGE_BYTES
from collbench.control.wire import Bye, Entry, Grant, Hello, Message, Offer, StepAnswer, Values, encoded, frames, parsed
from collbench.control.world import World
from collbench.launch.info import LaunchInfo
from tools.benchmarks.figures import MEBIBYTES, SECONDS, Figure, Outcome, timed
from tools.benchmarks.launches import LaunchFailed, module
from tools.benchmarks.ranks import peak_bytes

NODES, VALUES = 5000, 131_072  # of 8 bytes: 1 MiB
_PROCESSES = 2
_WALL_S, _BYTES = 60.0, 2e9
_DEADLINE_S = 300.0
_SHORT_BYTES = 2000  # a longer message has the members


@dataclass(frozen=True)
class Gathered:
    """One launch: seconds to join, to gather, and in all with the start of rank 0; its peak memory; how much it has added up."""

    nodes: int
    bytes_each: int
    join_s: float
    gather_s: float
    wall_s: float
    peak_bytes: int
    cpu_s: float
    complete: bool


def measure(n: int = 3, nodes: int = NODES, values: int = VALUES) -> Outcome:
    """n launches."""
    found = [gathered(nodes, values) for _ in range(n)]
    how = (
        f"{nodes:,} connections from {_PROCESSES} processes over loopback, with keys and encryption. Each joins, receives all members, and "
        f"sends {values * 8 / 2**20:g} MiB in a `gather_into` that adds them up as they arrive; then a decision goes to all. "
        "Memory: the peak of rank 0's process. "
        f"All on this machine of {os.cpu_count()} cores, including the simulated nodes' own work."
    )
    figures = [
        timed("join, gather and decide", (one.wall_s for one in found), SECONDS, below=_WALL_S),
        timed("of it: join", (one.join_s for one in found), SECONDS),
        timed("of it: gather", (one.gather_s for one in found), SECONDS),
        timed("peak memory of rank 0", (float(one.peak_bytes) for one in found), MEBIBYTES, below=_BYTES),
        timed("processor time of rank 0", (one.cpu_s for one in found), SECONDS),
        Figure("sums that are right", f"{sum(one.complete for one in found)} of {n}", "", "all", all(one.complete for one in found)),
    ]
    return Outcome("control_5000", how, figures, [asdict(one) for one in found])


def gathered(nodes: int, values: int) -> Gathered:
    """One launch. Raises LaunchFailed."""
    token = secrets.token_hex(16)
    actual = [str(nodes), str(values), token]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": env}
    hub = subprocess.Popen(module("control_5000", "hub", *actual), **pipes)
    parts = [subprocess.Popen(module("control_5000", "nodes", *actual, str(part)), **pipes) for part in range(_PROCESSES)]
    try:
        out, err = hub.communicate(timeout=_DEADLINE_S)
        if hub.returncode:
            raise LaunchFailed(f"rank 0 ended with code {hub.returncode}: {err[-600:]}")
        for part in parts:
            _, err = part.communicate(timeout=60)
            if part.returncode:
                raise LaunchFailed(f"the nodes ended with code {part.returncode}: {err[-600:]}")
    finally:
        for one in (hub, *parts):
            one.kill()
    return Gathered(**json.loads(out.splitlines()[-1]))


def _info(rank: int, nodes: int, token: str) -> LaunchInfo:
    return LaunchInfo("local", rank, nodes + 1, 0, 1, "tcp://127.0.0.1", token, secret="token")


def hub(nodes: int, values: int, token: str) -> None:
    """Rank 0; prints what it measured."""
    began = time.perf_counter()
    world = World(_info(0, nodes, token), _DEADLINE_S)
    joined = time.perf_counter()
    total = np.zeros(values)
    world.gather_into(total, "gathering", lambda _, array: np.add(total, array, out=total))
    took = time.perf_counter()
    world.broadcast("thanks", "deciding")
    world.close()
    ended = time.perf_counter()
    complete = bool(np.all(total == nodes * (nodes + 1) / 2))
    print(
        json.dumps(
            asdict(Gathered(nodes, 8 * values, joined - began, took - joined, ended - began, peak_bytes(), time.process_time(), complete))
        )
    )


class Nodes:
    """Every second node: a connection each, by name, and the next message of each."""

    def __init__(self, part: int, nodes: int, values: int, token: str) -> None:
        self.mine = range(1 + part, nodes + 1, _PROCESSES)
        self._values, self._info = values, _info(1 + part, nodes, token)
        _raise_limit(len(self.mine))
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self._secret = secret_of(self._info, {})
        Keys.of(self._secret).secure_caller(self.socket)
        self.socket.setsockopt(zmq.LINGER, 10_000)
        self._hwm()
        self._left = len(self.mine)

    def _hwm(self) -> None:
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 50)

    def join(self) -> None:
        """Connect all nodes at once, and send their first messages."""
        for rank in self.mine:
            self.socket.setsockopt(zmq.CONNECT_ROUTING_ID, _name(rank))
            self.socket.connect(hub_places(self._info, self._secret)[0])
        for rank in self.mine:
            member = Member(rank, f"node{rank:05}", 0, rank, tuple(range(64)), routes=((LOOPBACK, LOOPBACK),))
            self._say(rank, Hello(member))

    def _say(self, rank: int, message: Message) -> None:
        self.socket.send_multipart([_name(rank), *frames(message)], copy=False)

    def serve(self) -> None:
        """Serve until every node has received the decision."""
        while self._left:
            name, *pieces = self.socket.recv_multipart()
            self._heard(int(name[1:]), pieces)
        for rank in self.mine:
            self._say(rank, Bye(rank))
        self.socket.close()
        self.context.term()

    def _heard(self, rank: int, pieces: list[bytes]) -> None:
        """Receive the members without decoding: thousands of nodes would decode thousands of members each, on rank 0's cores."""
        message = parsed(pieces) if sum(map(len, pieces)) < _SHORT_BYTES else StepAnswer(0, "", b"")
        if isinstance(message, StepAnswer) and message.step == 0:
            size = 8 * self._values
            self._say(rank, Offer(1, size) if size > LARGE_BYTES else self._array(rank))
        elif isinstance(message, Grant):
            self._say(rank, self._array(rank))
        elif isinstance(message, StepAnswer):
            self._left -= 1

    def _array(self, rank: int) -> Message:
        array = memoryview(np.full(self._values, float(rank)).tobytes())
        return Values(1, [Entry(rank, "gathering", encoded([self._values]), [array])])


def _name(rank: int) -> bytes:
    return b"n%d" % rank


def _raise_limit(connections: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < connections + 256:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, connections + 256), hard))


def _nodes(nodes: int, values: int, token: str, part: int) -> None:
    simulated = Nodes(part, nodes, values, token)
    simulated.join()
    simulated.serve()


def _as_part(words: Sequence[str]) -> None:
    nodes, values, token, *part = words[1:]
    if words[0] == "hub":
        hub(int(nodes), int(values), token)
    else:
        _nodes(int(nodes), int(values), token, int(part[0]))


if __name__ == "__main__":
    _as_part(sys.argv[1:])
