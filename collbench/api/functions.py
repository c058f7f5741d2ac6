"""The functions of the API besides `read` and `measure`: comparisons, verdicts, ceilings and machines, as typed values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date
from os import PathLike
from pathlib import Path

from msgspec.structs import replace

from collbench.analysis.compare import Comparison, compare_sides
from collbench.analysis.outcome import MARGIN
from collbench.api.runs import AnyPath, Runs, paths_of, read
from collbench.api.shown import ShownCeilings, ShownComparison, ShownVerdict, shown
from collbench.errors import UsageError
from collbench.gating.allocation import allocations_in
from collbench.gating.baseline import load
from collbench.gating.judge import judge, read_conditions
from collbench.gating.verdict import Verdict
from collbench.machine.here import this_machine
from collbench.machine.model import Machine
from collbench.machine.peak.collective import CollectiveCeilings, ceilings
from collbench.machine.peak.job import check_ranks, nodes_of
from collbench.machine.peak.node import Job, UserOverride, parse_nic, parse_pcie
from collbench.machine.peak.time_model import expected_times
from collbench.machine.sources import read_paths
from collbench.untrusted import uncollected


def compare(a: Runs | AnyPath | Sequence[AnyPath], b: Runs | AnyPath | Sequence[AnyPath], *, margin: float = MARGIN) -> Comparison:
    """Return B compared with A, case by case, as `collbench compare` does.

    a, b    runs, or what `read` accepts: a run, or launches of one allocation
    margin  largest difference that counts as no change: 0.05 is ±5 %

    `cases` has a `CaseRatio` for each common case: `outcome` ("slower", "faster", "no change", "inconclusive"), and `time`, the ratio of
    times with its 95 % interval. Raises UsageError for sides without a common case, and for launches that do not belong together.
    """
    if not 0 < margin < 1:
        raise UsageError(f"margin={margin}: not a valid fraction (use a number above 0 and below 1, such as 0.05)")
    sides = [runs_of(each) for each in (a, b)]
    first, second = sides
    found = compare_sides(list(first), list(second), (_name(a), _name(b)), margin)
    return shown(found, ShownComparison)


def gate(
    baseline: AnyPath, runs: Runs | AnyPath | Sequence[AnyPath], *, expect: AnyPath | None = None, min_percent: Sequence[str] = ()
) -> Verdict:
    """Return the verdict on runs against a baseline of good allocations, as `collbench gate` does.

    baseline     the folder that `collbench baseline add` wrote
    runs         those of one fresh allocation, or of three, to confirm or clear suspects
    expect       a TOML file with expected changes
    min_percent  floors, each as "MODEL:PERCENT@SIZES", such as "ring:80@64M-"

    `result` is "passed", "regression", "no verdict" or "wrong data". Raises UsageError for files that cannot be read, and for runs that
    cannot be judged with this baseline.
    """
    texts = [min_percent] if isinstance(min_percent, str) else list(min_percent)
    with uncollected():
        changes, floors = read_conditions(None if expect is None else _path(expect), texts)
        found = judge(load(_path(baseline)), allocations_in(_folders(runs)), changes, date.today(), floors)
    return shown(found, ShownVerdict)


def peak(
    operation: str,
    *,
    machines: AnyPath | Iterable[AnyPath | Machine] = (),
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    nic: str | None = None,
    nvlink_bytes_per_s: float | None = None,
    pcie: str | None = None,
    nvlink_domain: int | None = None,
    nvls: bool | None = None,
    sharp: bool = False,
    oversubscription: float = 1.0,
    ceiling_bytes_per_s: float | None = None,
    ring_edges: int = 1,
    pairs: int | None = None,
    sizes: Sequence[int] = (),
) -> CollectiveCeilings:
    """Return what an operation could reach on a job, as `collbench peak` does: `expected`, `bound` and `ring`, in bytes per second.

    operation            "allreduce", "broadcast", "alltoall" …
    machines             what `probe` returned, or files that describe the nodes: one machine for all nodes, or one each
    nodes                their number (None: 1, or as many as there are machines)
    gpus_per_node        GPUs that take part on each node (None: all)
    nic, pcie            as "4x100Gb/s" (bits) or "4x12.5GB/s" (bytes), and "gen4x16"
    nvlink_bytes_per_s   NVLink or xGMI of one GPU, one direction
    nvlink_domain        GPUs that one NVLink fabric joins across nodes
    nvls                 whether NVSwitches reduce data (None: with 5 GPUs or more on NVLinks of 450 GB/s or more each)
    sharp                whether the switches between nodes reduce data
    oversubscription     the fabric carries a node's rate divided by this
    ceiling_bytes_per_s  take this as the ceiling
    ring_edges           sendrecv: edges that leave the busiest node
    pairs                p2p: pairs at once between nodes (None: 1); multipair: pairs in all (None: half of the ranks)
    sizes                bytes for which to return the expected times, as `sizes` of the result

    Raises UsageError for an unknown operation, invalid hardware, files that cannot be read, a job of one rank, more pairs than the ranks
    make, and sizes of an operation without a model of its time.
    """
    rates = {"nvlink_bytes_per_s": nvlink_bytes_per_s, "ceiling_bytes_per_s": ceiling_bytes_per_s}
    for name, value in {**rates, "oversubscription": oversubscription}.items():
        if value is not None and not (0 < value < math.inf):
            raise UsageError(f"{name}={value}: not a valid number (use one above 0)")
    for name, number in {"nodes": nodes, "gpus_per_node": gpus_per_node, "nvlink_domain": nvlink_domain, "ring_edges": ring_edges,
                         "pairs": pairs}.items():  # fmt: skip
        if number is not None and number < 1:
            raise UsageError(f"{name}={number}: not a valid number (use 1 or more)")
    known = _machines(machines)
    override = UserOverride(
        parse_nic(nic) if nic is not None else None, nvlink_bytes_per_s, parse_pcie(pcie) if pcie is not None else None, nvls
    )
    of_nodes = nodes_of(known, override, nodes, gpus_per_node, nvlink_domain)
    job = Job(of_nodes, oversubscription, sharp, ring_edges, pairs, ceiling_bytes_per_s)
    found = ceilings(operation, job)
    check_ranks(operation, job)
    if any(size < 1 for size in sizes):
        raise UsageError(f"sizes={list(sizes)}: not valid sizes (use 1 byte or more)")
    times = expected_times(operation, job, sizes) if sizes else ()
    return shown(replace(found, sizes=tuple(times)), ShownCeilings)


def probe(*paths: AnyPath) -> list[Machine]:
    """Return this machine, or the machines that files describe: GPUs, their links, the PCIe tree, NICs and NUMA nodes.

    paths  what `collbench probe --from` reads: NCCL topology XML, hwloc XML, `nvidia-smi topo -m`, a folder or tarball of such files …

    A value that is not known is None. Raises UsageError for a path without a machine.
    """
    return read_paths([_path(each) for each in paths]) if paths else [this_machine()]


def runs_of(of: Runs | AnyPath | Sequence[AnyPath]) -> Runs:
    """Return the runs, or what `read` finds in the paths."""
    return of if isinstance(of, Runs) else read(of)


def _name(of: Runs | AnyPath | Sequence[AnyPath]) -> str:
    if isinstance(of, str | PathLike):
        return str(of)
    paths = of.paths if isinstance(of, Runs) else [Path(path) for path in of]
    if not paths:
        return "no runs"
    return str(paths[0] if len(paths) == 1 else paths[0].parent)


def _folders(runs: Runs | AnyPath | Sequence[AnyPath]) -> list[Path]:
    """Return the folders for the gate, which notices launches that are missing in one."""
    if isinstance(runs, str | PathLike):
        return [_path(runs)]
    if isinstance(runs, Runs):
        return list(paths_of(runs))
    return [_path(each) for each in runs]


def _machines(machines: AnyPath | Iterable[AnyPath | Machine]) -> list[Machine]:
    each = [machines] if isinstance(machines, str | PathLike) else list(machines)
    paths = [_path(one) for one in each if not isinstance(one, Machine)]
    return [*(one for one in each if isinstance(one, Machine)), *(read_paths(paths) if paths else ())]


def _path(path: AnyPath) -> Path:
    try:
        return Path(path)
    except TypeError as error:
        raise UsageError(f"{path!r:.200} is not a valid path: use a text or a pathlib.Path") from error
