"""What a rank of a Slurm step pays for its step's host list: detection of the launch on 10,000 nodes with 8 ranks each."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from collbench.launch.slurm import detect
from tools.benchmarks.figures import Figure, Outcome, Unit, timed

NODES = 10_000
PER_NODE = 8
_FAST_ENOUGH_S = 0.05
_MILLISECONDS = Unit("ms", 1e3, 2)


def one_range(nodes: int) -> str:
    """All of a cluster."""
    return f"gpu[00001-{nodes:05d}]"


def racks(nodes: int) -> str:
    """Names of two numbers: as Slurm folds them, a range for each rack of 40."""
    full, rest = divmod(nodes, 40)
    return ",".join([*(f"r{rack:03d}n[01-40]" for rack in range(full)), *([f"r{full:03d}n[01-{rest:02d}]"] if rest else [])])


def ragged(nodes: int) -> str:
    """What a busy cluster has left: no two neighbours."""
    return f"gpu[{','.join(f'{number:05d}' for number in sorted(random.Random(11).sample(range(100_000), nodes)))}]"


def names(nodes: int) -> str:
    """Names without numbers at their end, which nothing can fold."""
    return ",".join(f"n{number}-ib" for number in range(nodes))


SHAPES: dict[str, Callable[[int], str]] = {"one range": one_range, "racks": racks, "every other node": ragged, "names alone": names}


def step(host_list: str, rank: int, nodes: int, per_node: int = PER_NODE) -> dict[str, str]:
    """The variables that srun gives to this rank."""
    return {
        "SLURM_CLUSTER_NAME": "big", "SLURM_JOB_ID": "8", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % per_node), "SLURM_NODEID": str(rank // per_node), "SLURM_NTASKS": str(nodes * per_node),
        "SLURM_STEP_NUM_TASKS": str(nodes * per_node), "SLURM_STEP_NUM_NODES": str(nodes), "SLURM_STEP_NODELIST": host_list,
        "SLURM_STEP_TASKS_PER_NODE": f"{per_node}(x{nodes})", "SLURM_MPI_TYPE": "pmix", "SLURM_KILL_BAD_EXIT": "1",
        "MASTER_ADDR": "10.0.0.1",
    }  # fmt: skip


def measure(n: int = 20, nodes: int = NODES) -> Outcome:
    """n detections of each shape of list."""
    figures: list[Figure] = []
    raw = []
    for shape, made in SHAPES.items():
        env = step(made(nodes), nodes * PER_NODE - 1, nodes)
        spent = [_seconds(env, nodes) for _ in range(n)]
        length = len(env["SLURM_STEP_NODELIST"])
        figures.append(timed(f"{shape}, {nodes:,} nodes in {length:,} characters", spent, _MILLISECONDS, below=_FAST_ENOUGH_S))
        raw += [{"shape": shape, "nodes": nodes, "characters": length, "seconds": each} for each in spent]
    how = (
        f"The detection of the last rank of {nodes:,} × {PER_NODE} from made-up variables of srun, in one process, after the first import: "
        "the host list expanded, the tasks of its node counted, nothing looked up in the network."
    )
    return Outcome("host_list", how, figures, raw)


def _seconds(env: dict[str, str], nodes: int) -> float:
    before = time.perf_counter()
    found = detect(env)
    spent = time.perf_counter() - before
    assert found is not None and len(found.hosts) == nodes
    return spent
