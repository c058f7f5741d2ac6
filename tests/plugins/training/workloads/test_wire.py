"""The bytes on the links between three hosts in a training step, by their own counters, agree with `bytes` within 2 %.

Two launches of each training differ in their number of steps alone: what lies between their counts is the steps' own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.measuring.counters import payload
from tests.cli.command import BIN, PROGRAM, ROOT, environment
from tests.launchers.test_bytes_across_hosts import MPICH
from tests.plugins.training.reading import read_workload
from tests.plugins.training.workloads.crossing import GLOO, moved_in_step
from tests.plugins.training.workloads.laid import laid_out
from tests.testbeds import Hosts

RANK = str(ROOT / "tests/plugins/training/measure/workload_rank.py")
NEAR = 0.02
FEW, MORE = 1, 9
SIZES = {"layers": "4", "hidden": "256", "sequence": "512"}
GRADIENTS = 3_000_000 * 4
# By what is shown: regime, what is typed, ranks per host.
TRAININGS: dict[str, tuple[str, dict[str, str], int]] = {
    "data-parallel": ("data-parallel", {"bucket": "5M"}, 1),
    "data-parallel, two ranks per host": ("data-parallel", {"bucket": "5M"}, 2),
    "hierarchical": ("hierarchical", {"bucket": "5M"}, 2),
    "one server": ("parameter-server", {"bucket": "5M"}, 1),
    "two servers": ("parameter-server", {"bucket": "5M", "update": "sharded"}, 1),
    "asynchronous": ("parameter-server", {"bucket": "5M", "update": "asynchronous"}, 1),
    "pipeline": ("pipeline", {**SIZES, "microbatches": "6"}, 1),
    "tensor-parallel": ("tensor-parallel", {**SIZES, "tensor": "3"}, 1),
    "expert-parallel": ("expert-parallel", {**SIZES, "imbalance": "1.5"}, 1),
    "fsdp": ("fsdp", {"layers": "4"}, 1),
}

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(not (BIN / "mpiexec").exists(), reason="no MPICH in this environment: pip install collbench[mpich]"),
]


def counts(bed: Hosts) -> list[dict[str, int]]:
    """By host what its link counted so far."""
    names = ("tx_bytes", "tx_packets", "rx_bytes", "rx_packets")
    read = [bed.run(host, ["cat", *(f"/sys/class/net/eth0/statistics/{name}" for name in names)]) for host in bed.names]
    return [dict(zip(names, map(int, done.stdout.split()), strict=True)) for done in read]


def carried(bed: Hosts, backend: str, shown: str, steps: int, folder: Path) -> list[dict[str, int]]:
    """Return by host the bytes on its link in one launch of so many steps; None if its steps were measured twice."""
    for number in range(3):
        out = folder / f"{steps}-{number}"
        found = launched(bed, backend, shown, steps, out)
        _, rows, _ = read_workload(out)
        if not {flag for row in rows for flag in row.flags} & {"remeasured", "state_flip"}:
            return found
    pytest.skip("the machine's state changed in three launches out of three")


def launched(bed: Hosts, backend: str, shown: str, steps: int, out: Path) -> list[dict[str, int]]:
    """By host what its link counted in one launch."""
    regime, typed, each = TRAININGS[shown]
    training = {"regime": regime, "typed": {"model": "3M", **typed}}
    asked = json.dumps({
        "backends": [backend], "ranks": 3 * each, "out": str(out), "trainings": [training], "parts": False, "check": 0,
        "iterations": steps, "warmup": 1, "max_time_s": 60,
    })  # fmt: skip
    reach = ["-launcher", "ssh", "-launcher-exec", bed.rsh, "-hosts", ",".join(bed.names), "-ppn", str(each), "-iface", "eth0"]
    passed = [word for name, value in MPICH.items() for word in ("-genv", name, value)]
    before = counts(bed)
    line = [str(BIN / "mpiexec"), *reach, "-n", str(3 * each), *passed, PROGRAM[0], RANK, asked]
    done = bed.run(0, line, 90, environment({}))
    assert done.returncode == 0, done.stdout + done.stderr
    return [{name: now[name] - was[name] for name in now} for now, was in zip(counts(bed), before, strict=True)]


def wanted(backend: str, shown: str) -> tuple[dict[int, float], dict[int, float]]:
    """By host what it sends and receives in a step; asynchronously in a round of every worker."""
    if shown == "asynchronous":  # the step is one worker's round: the other one exchanges as much with the server, host 0
        return ({0: 2 * GRADIENTS, 1: GRADIENTS, 2: GRADIENTS},) * 2
    regime, typed, each = TRAININGS[shown]
    places = tuple(host for host in range(3) for _ in range(each))
    step = laid_out(regime, {"model": "3M", **typed}, places)
    moved = moved_in_step(step.exchanges, places, GLOO if backend == "gloo" else None)
    return moved.sent, moved.received


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("backend", ["mpi", "gloo"])
@pytest.mark.parametrize("shown", TRAININGS)
def test_links_carry_what_a_step_moves(shown: str, backend: str, hosts: Callable[..., Hosts], tmp_path: Path) -> None:
    bed = hosts(3, None)
    few, more = (carried(bed, backend, shown, steps, tmp_path) for steps in (FEW, MORE))
    sent, received = wanted(backend, shown)
    for way, by_host in (("tx", sent), ("rx", received)):
        found = [(payload(b, way) - payload(a, way)) / (MORE - FEW) for a, b in zip(few, more, strict=True)]
        assert found == pytest.approx([by_host[host] for host in range(3)], rel=NEAR), way
