"""python -m tools.benchmarks.trials.groups FOLDER [SECONDS]   checks that a hunt with groups names a slow trunk, and no node.

Eight hosts (network namespaces) on two bridges that a trunk joins, four and four. The strategy of `collbench hunt --groups` requests the
rounds, and small processes on the hosts measure them: streams of plain TCP, both ways at once, 0.2 s each. So a hunt takes seconds.
Kinds of seeded trials:
    trunk    the trunk carries 0.4 to 1.4 times the rate of a host, in each direction  -> only the trunk is confirmed
    equal    the trunk has no limit                                                   -> nothing is confirmed
    node     the trunk has no limit, and the link of one host has half the rate       -> only that host is confirmed
Writes to FOLDER trials.jsonl (a line per trial) and README.md (a table). SECONDS: no trial begins later. A trial that has a line is not
repeated, so an interrupted series continues.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from collbench.plugins.groups.stage import group_stage
from collbench.plugins.hunt.protocol import CONFIRMED, INCONCLUSIVE, TRUNK, GroupFigure, HuntVerdict, Options, RoundRequest, RoundResult
from collbench.plugins.hunt.strategy import hunt
from tests.testbeds import Bottleneck
from tools.benchmarks.trials.series import bucket, keep, shape, span, trials_in

HOSTS, NEAR, RATE_MBIT, BURST = 8, 4, 100, "32kb"
SECONDS, PORT = 0.2, 7000
COUNTS = {"trunk": 40, "equal": 34, "node": 6}
WHAT = {
    "trunk": "the trunk carries 0.4 to 1.4 times the rate of a host",
    "equal": "none",
    "node": "the link of one host has half the rate",
}
# A receiver takes so many bytes before the sender must wait: then a queue of 200 ms never drops packets, whose repetition takes 200 ms,
# and streams that share a link take turns within milliseconds.
WINDOW, QUEUE_MS = 1 << 15, 200
# On each host: for a line with an address and seconds it sends to that address and receives from any, both for so many seconds, and prints
# the received bytes per second without the first third of the time.
AGENT = """
import socket, sys, threading, time
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, int(sys.argv[3]))
def send(address):
    try:
        with socket.create_connection((address, int(sys.argv[2])), 5) as connection:
            while True:
                connection.send(bytes(65536))
    except OSError:
        pass
print("ready", flush=True)
for line in sys.stdin:
    address, seconds = line.split()
    threading.Thread(target=send, args=(address,), daemon=True).start()
    listener.settimeout(5)
    with listener.accept()[0] as connection:
        connection.settimeout(5)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 8192)  # fewer system calls
        buffer = bytearray(65536)
        begin = now = time.monotonic()
        counted = 0
        since = None
        while now < begin + float(seconds):
            got = connection.recv_into(buffer)
            now = time.monotonic()
            if since is not None:
                counted += got
            elif now > begin + float(seconds) / 3:
                since = now
    print(counted / (now - since), flush=True)
"""


class TwoLeaves(Bottleneck):
    """Hosts with links of one rate on two bridges, and a trunk whose limit can be set."""

    def __init__(self) -> None:
        super().__init__(HOSTS)
        self.rate, self.burst = f"{RATE_MBIT}mbit", BURST
        self.rates: dict[int, int] = {}

    @property
    def trunk_ends(self) -> tuple[str, str]:
        return f"cb{self.number}h0p", f"cb{self.number}h00p"

    def _shape(self, device: str, senders: Sequence[str]) -> None:
        """Do not limit the trunk."""

    def set_up(self, trunk_mbit: int | None, slow: int | None = None) -> None:
        """Limit the trunk (None: not), and give one host half the rate (None: none)."""
        for index in range(self.count):
            rate = RATE_MBIT // 2 if index == slow else RATE_MBIT
            if self.rates.get(index) != rate:
                shape(self, index, rate, rate, BURST, queue_ms=QUEUE_MS)
                self.rates[index] = rate
        for device in self.trunk_ends:
            self.must("tc", "qdisc", "replace", "dev", device, *bucket(trunk_mbit or 100_000, BURST if trunk_mbit else "4mb", QUEUE_MS))


class Agents:
    """The processes on the hosts. They measure the rounds of a hunt."""

    def __init__(self, hosts: TwoLeaves, stack: ExitStack) -> None:
        self.hosts = hosts
        pipe = subprocess.PIPE
        self.processes = [
            subprocess.Popen(
                hosts.on(index, [sys.executable, "-S", "-c", AGENT, address, str(PORT), str(WINDOW)]),
                stdin=pipe, stdout=pipe, text=True, env=hosts.environment(),
            )
            for index, address in enumerate(hosts.addresses)
        ]  # fmt: skip
        for process in self.processes:
            stack.callback(self._end, process)
        assert [self._line(place) for place in range(hosts.count)] == ["ready"] * hosts.count

    def answer(self, request: RoundRequest) -> RoundResult:
        """Measure a round of pairs, both ways at once."""
        for a, b in request.groups:
            for place, other in ((a, b), (b, a)):
                pipe = self.processes[place].stdin
                assert pipe
                pipe.write(f"{self.hosts.addresses[other]} {SECONDS}\n")
                pipe.flush()
        rates = {place: float(self._line(place)) for group in request.groups for place in group}
        return RoundResult(tuple(GroupFigure(rates[b], rates[a]) for a, b in request.groups))

    def hunt(self, file: Path, seed: int) -> tuple[HuntVerdict, int]:
        """Return the verdict of a hunt with the groups of a file, and the number of its rounds."""
        names = self.hosts.names
        stage = group_stage(str(file), names, {}, None)
        rounds = hunt(names, Options(group_stage=stage, leaf_of=stage.leaf_of, growing=False, isolate=False, seed=seed))
        number = 0
        request = next(rounds)
        while True:
            number += 1
            try:
                request = rounds.send(self.answer(request))
            except StopIteration as stop:
                return stop.value, number

    def _line(self, place: int) -> str:
        pipe = self.processes[place].stdout
        assert pipe
        return pipe.readline().strip()

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Trial:
    """One hunt. trunk_mbit: the limit of the trunk, 0: none; suspects: [state, kind, places] of each that is not cleared."""

    kind: str
    seed: int
    trunk_mbit: int
    slow: str
    suspects: list[list[Any]]
    ratio: float | None
    rounds: int
    seconds: float
    load: float
    date: str

    @property
    def right(self) -> bool:
        """Whether exactly the fault was confirmed."""
        named = [[kind, places] for state, kind, places in self.suspects if state == CONFIRMED]
        truth = {"trunk": [[TRUNK, []]], "equal": [], "node": [["node", [self.slow]]]}[self.kind]
        return named == truth

    @property
    def accused(self) -> int:
        """How many healthy places were confirmed as slow."""
        return sum(kind not in (TRUNK, "path") and places != [self.slow] and state == CONFIRMED for state, kind, places in self.suspects)

    @property
    def doubts(self) -> int:
        """How many suspects are inconclusive."""
        return sum(state == INCONCLUSIVE for state, _, _ in self.suspects)


def run_trial(agents: Agents, kind: str, seed: int) -> Trial:
    """Set the links, hunt, and read the verdict."""
    hosts = agents.hosts
    drawn = random.Random(f"groups {kind} {seed}")
    trunk_mbit = round(RATE_MBIT * drawn.uniform(0.4, 1.4)) if kind == "trunk" else 0
    slow = drawn.randrange(HOSTS) if kind == "node" else None
    hosts.set_up(trunk_mbit or None, slow)
    names = hosts.names
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "topology.conf"
        leaves = [f"SwitchName=leaf1 Nodes={','.join(names[:NEAR])}", f"SwitchName=leaf2 Nodes={','.join(names[NEAR:])}"]
        file.write_text("\n".join([*leaves, "SwitchName=spine Switches=leaf[1-2]", ""]))
        verdict, rounds = agents.hunt(file, seed)
    suspects = [
        [suspect.state, suspect.kind, [] if suspect.kind == TRUNK else [names[place] for place in suspect.places]]
        for suspect in verdict.suspects
        if suspect.state in (CONFIRMED, INCONCLUSIVE)
    ]
    ratios = [suspect.ratio for suspect in verdict.suspects if suspect.kind == TRUNK]
    return Trial(
        kind, seed, trunk_mbit, "" if slow is None else names[slow], suspects, ratios[0] if ratios else None, rounds,
        round(time.monotonic() - began, 1), round(os.getloadavg()[0], 1), time.strftime("%Y-%m-%d"),
    )  # fmt: skip


def wanted() -> list[tuple[str, int]]:
    """Return the kinds in turn, so that other work on the machine affects all alike."""
    return [(kind, seed) for seed in range(max(COUNTS.values())) for kind, count in COUNTS.items() if seed < count]


def readme(trials: Sequence[Trial]) -> str:
    """Return the folder's README: the outcomes, with every wrong trial."""
    dates = sorted({trial.date for trial in trials})
    lines = [
        "# Faults between groups",
        "",
        "Made by `python -m tools.benchmarks.trials.groups FOLDER`: eight hosts (network namespaces) with links of 100 Mbit/s on two",
        "bridges, four and four, and a trunk between them. The strategy of `collbench hunt --groups topology.conf` requests rounds of",
        "pairs, which small processes on the hosts measure with streams of plain TCP (0.2 s). A path is confirmed with two pairs at once,",
        "so a trunk of 1.4 times a host's rate carries 70 % of theirs.",
        f"Measured {' to '.join(dict.fromkeys((dates[0], dates[-1])))} on a machine with 2 cores that other work used too.",
        "",
        "| fault | trials | exactly it was confirmed | healthy nodes confirmed | with an inconclusive suspect | rounds | seconds | load |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, what in WHAT.items():
        those = [trial for trial in trials if trial.kind == kind]
        cells = [
            what, len(those), sum(trial.right for trial in those), sum(trial.accused for trial in those),
            sum(trial.doubts > 0 for trial in those), span([trial.rounds for trial in those]), span([trial.seconds for trial in those]),
            span([trial.load for trial in those]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    wrong = [f"- {trial.kind}, seed {trial.seed}, trunk {trial.trunk_mbit} Mbit/s: {trial.suspects}" for trial in trials if not trial.right]
    return "\n".join([*lines, *([""] if wrong else []), *wrong, ""])


def main(folder: Path, seconds: float) -> None:
    """Run the missing trials, as many as begin in time."""
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    done = {(trial.kind, trial.seed) for trial in trials_in(folder, Trial)}
    with TwoLeaves() as hosts, ExitStack() as stack:
        agents = Agents(hosts, stack)
        for kind, seed in (case for case in wanted() if case not in done):
            if time.monotonic() > until:
                break
            trial = run_trial(agents, kind, seed)
            keep(folder, trial, readme)
            print(f"{kind} {seed}: {'right' if trial.right else 'WRONG'} {trial.suspects} {trial.seconds} s", flush=True)
    print(readme(trials_in(folder, Trial)))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), float(sys.argv[2]) if len(sys.argv) > 2 else 1e9)
