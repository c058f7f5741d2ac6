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
    runs_a = runs_of(a)
    runs_b = runs_of(b)
    return shown(compare_sides(list(runs_a), list(runs_b), (_name(a), _name(b)), margin), ShownComparison)


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
        verdict = judge(load(_path(baseline)), allocations_in(_folders(runs)), changes, date.today(), floors)
    return shown(verdict, ShownVerdict)


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
    factors = {"nvlink_bytes_per_s": nvlink_bytes_per_s, "ceiling_bytes_per_s": ceiling_bytes_per_s, "oversubscription": oversubscription}
    for name, value in factors.items():
        if value is not None and not (0 < value < math.inf):
            raise UsageError(f"{name}={value}: not a valid number (use one above 0)")
    counts = {"nodes": nodes, "gpus_per_node": gpus_per_node, "nvlink_domain": nvlink_domain, "ring_edges": ring_edges, "pairs": pairs}
    for name, number in counts.items():
        if number is not None and number < 1:
            raise UsageError(f"{name}={number}: not a valid number (use 1 or more)")
    described = _machines(machines)
    nics = None if nic is None else parse_nic(nic)
    gpu_link = None if pcie is None else parse_pcie(pcie)
    job_nodes = nodes_of(described, UserOverride(nics, nvlink_bytes_per_s, gpu_link, nvls), nodes, gpus_per_node, nvlink_domain)
    job = Job(job_nodes, oversubscription, sharp, ring_edges, pairs, ceiling_bytes_per_s)
    job_ceilings = ceilings(operation, job)
    check_ranks(operation, job)
    if any(size < 1 for size in sizes):
        raise UsageError(f"sizes={list(sizes)}: not valid sizes (use 1 byte or more)")
    times = expected_times(operation, job, sizes) if sizes else ()
    return shown(replace(job_ceilings, sizes=tuple(times)), ShownCeilings)


def probe(*paths: AnyPath) -> list[Machine]:
    """Return this machine, or the machines that files describe: GPUs, their links, the PCIe tree, NICs and NUMA nodes.

    paths  what `collbench probe --from` reads: NCCL topology XML, hwloc XML, `nvidia-smi topo -m`, a folder or tarball of such files …

    A value that is not known is None. Raises UsageError for a path without a machine.
    """
    return read_paths([_path(path) for path in paths]) if paths else [this_machine()]


def runs_of(runs: Runs | AnyPath | Sequence[AnyPath]) -> Runs:
    """Return the runs, or what `read` finds in the paths."""
    return runs if isinstance(runs, Runs) else read(runs)


def _name(runs: Runs | AnyPath | Sequence[AnyPath]) -> str:
    if isinstance(runs, str | PathLike):
        return str(runs)
    paths = runs.paths if isinstance(runs, Runs) else [Path(path) for path in runs]
    if not paths:
        return "no runs"
    return str(paths[0] if len(paths) == 1 else paths[0].parent)


def _folders(runs: Runs | AnyPath | Sequence[AnyPath]) -> list[Path]:
    """Return the folders for the gate, which notices launches that are missing in one."""
    if isinstance(runs, str | PathLike):
        return [_path(runs)]
    if isinstance(runs, Runs):
        return list(paths_of(runs))
    return [_path(path) for path in runs]


def _machines(machines: AnyPath | Iterable[AnyPath | Machine]) -> list[Machine]:
    sources = [machines] if isinstance(machines, str | PathLike) else list(machines)
    described = [source for source in sources if isinstance(source, Machine)]
    paths = [_path(source) for source in sources if not isinstance(source, Machine)]
    return described + read_paths(paths) if paths else described


def _path(path: AnyPath) -> Path:
    try:
        return Path(path)
    except TypeError as error:
        raise UsageError(f"{path!r:.200} is not a valid path: use a text or a pathlib.Path") from error
