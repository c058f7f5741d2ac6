"""Reading NCCL's log: MB/s and the most memory for 1 GB of made-up lines as large jobs print them, and for one line per call."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.benchmarks.figures import MEBIBYTES, Figure, Outcome

GIGABYTE = 10**9
_FASTEST_ENOUGH = 50.0  # MB/s
_MOST_MEMORY = 128 * 2**20  # bytes, Python and numpy included
_ONE_READING = """
import re, sys, time
from pathlib import Path
from collbench.machine.readers.nccl_log import read_file
began = time.perf_counter()
read_file(Path(sys.argv[1]))
seconds = time.perf_counter() - began
print(seconds, 1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]))
"""


@dataclass(frozen=True)
class Kind:
    """A kind of log: what one rank of a job prints, as messages; `ranks` of them are written again and again."""

    messages: Callable[[int, int], Iterator[str]]

    def write(self, file: Path, size: int, ranks: int) -> None:
        """At least `size` bytes of a log of that many ranks, eight on a host."""
        with file.open("w") as out:
            while out.tell() < size:
                for rank in range(ranks):
                    head = f"node{rank // 8:04d}:{20000 + rank % 8}:{20100 + rank % 8} [{rank % 8}] NCCL INFO "
                    out.writelines(f"{head}{message}\n" for message in self.messages(rank, ranks))
                    if out.tell() >= size:
                        break


def starting(rank: int, ranks: int) -> Iterator[str]:
    """INIT, NET and GRAPH: what a rank prints once for each communicator."""
    gpu = rank % 8
    yield f"Bootstrap : Using eth0:10.0.{rank // 256}.{rank % 256}<0>"
    yield f"NET/IB : Using {' '.join(f'[{i}]mlx5_{i}:1/IB' for i in range(8))} [RO]; OOB eth0:10.0.0.1<0>"
    yield f"ncclCommInitRank comm 0x55d{rank:09x} rank {rank} nranks {ranks} cudaDev {gpu} nvmlDev {gpu} busId {gpu}b000 - Init START"
    yield from (f"NET/IB : GPU Direct RDMA Enabled for HCA {i} 'mlx5_{i}'" for i in range(8))
    yield from _graph(rank)
    yield f"Channel 00/16 : {' '.join(str((gpu + k) % ranks) for k in range(16))} ..."
    yield f"Trees [0] {rank + 1}/-1/-1->{rank}->{rank - 1} [1] 2/-1/-1->1->0"
    for channel, (other, way, path) in itertools.product(range(16), _peers(rank, ranks)):
        ends = f"{other}[{other % 8}] -> {rank}[{gpu}]" if way == "[receive] " else f"{rank}[{gpu}] -> {other}[{other % 8}]"
        yield f"Channel {channel:02d}/0 : {ends} {way}via {path}"
    yield "16 coll channels, 16 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer"


def calling(rank: int, ranks: int) -> Iterator[str]:
    """TUNING: a line for each call."""
    for power, algorithm in itertools.product(range(3, 30), ("RING", "TREE")):
        yield f"AllReduce: {1 << power} Bytes -> Algo {algorithm} proto SIMPLE channel{{Lo..Hi}}={{0..{rank % 16}}}"


def _graph(rank: int) -> Iterator[str]:
    gpus = "".join(f"GPU/0-{j}b000 (2/370.0/NVL) " for j in range(8)) + "".join(f"NET/0-{j} (4/48.0/PXB) " for j in range(8))
    for place in range(8):
        yield f"+ PCI[48.0] - PCI/0-{place}8000 (11f810e3)"
        yield f"              + PCI[48.0] - GPU/0-{place}b000 ({rank})"
        yield "                            + NVL[370.0] - NVS/0"
        yield f"GPU/0-{place}b000 :{gpus}CPU/0-0 (3/24.0/PHB) CPU/0-1 (4/16.0/SYS)"


def _peers(rank: int, ranks: int) -> list[tuple[int, str, str]]:
    inside = [((rank + step) % ranks, "", "P2P/CUMEM/read") for step in (1, ranks - 1)]
    net = f"NET/IB/{rank % 8}/GDRDMA"
    return [*inside, ((rank + 8) % ranks, "[send] ", net), ((rank - 8) % ranks, "[receive] ", net)]


KINDS = {"starting": Kind(starting), "calling": Kind(calling)}


def measure(n: int = 3, size: int = GIGABYTE) -> Outcome:
    """The best of n readings of each kind, each in a process of its own."""
    figures, raw = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in KINDS.items():
            file = Path(folder) / "nccl.log"
            kind.write(file, size, ranks=8192)
            readings = [_reading(file) for _ in range(n)]
            best, most = min(seconds for seconds, _ in readings), max(memory for _, memory in readings)
            figures += _figures(name, file.stat().st_size / 1e6 / best, most)
            raw += [{"kind": name, "bytes": file.stat().st_size, "read_s": seconds, "peak_bytes": memory} for seconds, memory in readings]
    lines = "starting: INIT, NET and GRAPH; calling: TUNING"
    how = f"`nccl_log.read_file` of {size / 1e6:,.0f} MB of made-up lines, best of {n} (memory: the most); {lines}."
    return Outcome("nccl_log", how, figures, raw, ("figure", "best", "", "target", "verdict"))


def _figures(name: str, rate: float, most: float) -> list[Figure]:
    return [
        Figure(f"{name}: speed", f"{rate:.0f} MB/s", "", f"> {_FASTEST_ENOUGH:.0f} MB/s", rate > _FASTEST_ENOUGH),
        Figure(f"{name}: peak memory", f"{MEBIBYTES.show(most)} MiB", "", f"< {MEBIBYTES.show(_MOST_MEMORY)} MiB", most < _MOST_MEMORY),
    ]


def _reading(file: Path) -> tuple[float, float]:
    """Seconds, and the process's peak memory in bytes."""
    done = subprocess.run([sys.executable, "-c", _ONE_READING, str(file)], capture_output=True, text=True, check=True)
    seconds, memory = done.stdout.split()
    return float(seconds), float(memory)
