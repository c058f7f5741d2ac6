"""The time that NCCL's own model expects of an operation of a size: latency of the algorithm, and the bytes at its rate.

NCCL selects algorithm and protocol by this model. Measured rates of small and medium sizes are lower: with 16 MiB, 8 H100 reach 234 GB/s
where it expects 359 GB/s. A floor therefore needs a size close to the plateau (floors.py). The source of the 234 GB/s:
https://github.com/Azure/AI-benchmarking-guide/blob/f350e7e65b82cfcb9220b32b582bc34342d9c1a6/Azure%20Results/ND_H100_v5_results.md

Not counted: limits per channel, the latency of the NICs, CPUs of AMD and POWER, PAT, and reductions in InfiniBand switches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log2
from typing import TYPE_CHECKING

import msgspec

from collbench.errors import UsageError
from collbench.machine.peak.algorithms import ALL_REDUCE, Algorithm, Throughput, ring
from collbench.machine.peak.ceiling import name_of_model
from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.limits import GpuLinkLimit
from collbench.machine.peak.links import NCCL
from collbench.machine.peak.node import BUS_FACTOR, Job
from collbench.machine.peak.rates import AlgorithmLatency, NvLink, nvlink_of_rate, rates

if TYPE_CHECKING:
    from collbench.machine.readers.nccl_facts import TunedRate

OPERATIONS = ("allreduce", "allgather", "reducescatter")
PROTOCOLS = ("LL", "LL128", "Simple")
_LL, _LL128, _SIMPLE = range(3)
_AMPERE = 3  # the NVLink generation of the first GPUs with the shorter latency of a ring's plateau
_BLACKWELL = 5


class ExpectedTime(msgspec.Struct, frozen=True):
    """What NCCL's model expects of a size; `size_bytes` as nccl-tests counts it.

    seconds            the time of the fastest algorithm and protocol
    busbw_bytes_per_s  the bus bandwidth of that time
    plateau_percent    its percentage of the expected rate, which the largest sizes approach
    algorithm          "ring", "tree", "nvls" or "nvls_tree"
    protocol           "LL", "LL128" or "Simple"
    ring_percent       what a ring reaches at this size, as a percentage of its rate of large sizes
    """

    size_bytes: int
    seconds: float
    busbw_bytes_per_s: float
    plateau_percent: float
    algorithm: Algorithm
    protocol: str
    ring_percent: float = 100.0

    @property
    def how(self) -> str:
        """Return "NVLS tree/Simple"."""
        return f"{name_of_model(self.algorithm)}/{self.protocol}"


def why_no_model(operation: str, job: Job) -> str | None:
    """Return why the time of a size is not known; None if it is."""
    if operation not in OPERATIONS:
        return f"no model: NCCL has latencies of {', '.join(OPERATIONS)}, not of {operation}. Leave out --sizes for the rate of large sizes"
    if job.ceiling_from_user is not None:
        return "no model: the ceiling was given with --ceiling, so that the algorithm is not known. Leave out one of them"
    links = [node.injection for node, _ in job.kinds if node.gpus > 1]
    if job.several:
        links += [node.egress for node, _ in job.kinds]
    if any(link.library != NCCL for link in links):
        return "no model: RCCL's latencies are not known. Leave out --sizes for the rate of large sizes"
    if any(link.nccl_bytes_per_s is None for link in links):
        return "no model: NCCL has no constants for these links. Leave out --sizes for the rate of large sizes"
    return None


Forced = tuple[str | None, str | None]  # algorithm and protocol that a call must use; None: any


def expected_times(operation: str, job: Job, sizes: Sequence[int], forced: Forced = (None, None)) -> list[ExpectedTime]:
    """Return what NCCL's model expects of each size.

    Raises UsageError where it has no constants (`why_no_model`), and for a forced choice that the job cannot use.
    """
    why = why_no_model(operation, job)
    if why is not None:
        raise UsageError(f"peak {operation}: {why}")
    expected = ceilings(operation, job).expected
    plateau = expected.bytes_per_s if expected else None
    if plateau is None:
        raise UsageError(f"peak {operation}: {expected.limited_by if expected else 'no rate is expected'}")
    choices = list(_choices(operation, job))
    allowed = [choice for choice in choices if _fits(forced, choice.algorithm, PROTOCOLS[choice.protocol])]
    if not allowed:
        raise UsageError(f"peak {operation}: no model: NCCL's constants have no {'/'.join(filter(None, forced))} here")
    rings = [choice for choice in choices if choice.algorithm == "ring"]
    times = []
    for size in sizes:
        moved = BUS_FACTOR[operation](job.ranks) * size
        seconds, fastest = min(((_seconds(choice, operation, job, size), choice) for choice in allowed), key=lambda pair: pair[0])
        busbw = moved / seconds
        ring_busbw = moved / min(_seconds(choice, operation, job, size) for choice in rings)
        ring_percent = 100 * ring_busbw / max(choice.busbw for choice in rings)
        protocol = PROTOCOLS[fastest.protocol]
        times.append(ExpectedTime(size, seconds, busbw, 100 * busbw / plateau, fastest.algorithm, protocol, ring_percent))
    return times


def _fits(forced: Forced, algorithm: str, protocol: str) -> bool:
    """Return whether an algorithm and protocol are the forced ones, in any of NCCL's spellings."""
    pairs = zip(forced, (algorithm, protocol), strict=True)
    return all(wanted is None or plain_name(wanted) == plain_name(name) for wanted, name in pairs)


def plain_name(name: str) -> str:
    """Return NCCL's name in the spelling by which names are compared: "nvlstree" for "NVLSTree" and "nvls_tree"."""
    return name.replace("_", "").lower()


class _AlgorithmChoice(msgspec.Struct, frozen=True):
    """An algorithm with a protocol: its latency in seconds, and its bus bandwidth in bytes per second."""

    algorithm: Algorithm
    protocol: int
    latency_s: float
    busbw: float


def _seconds(choice: _AlgorithmChoice, operation: str, job: Job, size: int) -> float:
    moved = BUS_FACTOR[operation](job.ranks) * size
    return _latency_s(choice, operation, job, size) + moved / (choice.busbw * _correction(choice, job, size))


def _choices(operation: str, job: Job) -> Iterator[_AlgorithmChoice]:
    reached = job.as_nccl_takes_it()
    algorithms: Mapping[Algorithm, Callable[[Job, bool], Throughput | None]] = ALL_REDUCE if operation == "allreduce" else {"ring": ring}
    protocols = (_LL, _LL128, _SIMPLE) if _on_nvlink(job) else (_LL, _SIMPLE)
    for algorithm, throughput_of in algorithms.items():
        throughput = throughput_of(reached, True)
        if throughput is None:
            continue
        for protocol in (_SIMPLE,) if algorithm in ("nvls", "nvls_tree") else protocols:
            rate = _rate(algorithm, protocol, job, throughput.bytes_per_s)
            yield _AlgorithmChoice(algorithm, protocol, _latency_us(algorithm, protocol, operation, job) / 1e6, rate)


def _rate(algorithm: Algorithm, protocol: int, job: Job, simple: float) -> float:
    """Return the bus bandwidth of a protocol; simple: that of the algorithm with Simple. NCCL's limits per channel are not counted."""
    constants = rates().time
    if algorithm == "ring":
        return min(simple * constants.ring_share[protocol], _most_of_ll(job) if protocol == _LL else simple)
    if algorithm == "tree":
        inside = protocol == _LL128 and not job.several
        share = constants.tree_share_inside if inside else constants.tree_share[protocol]
        moved = (job.ranks - 1) / job.ranks
        return min(simple * share, _most_of_ll(job) * moved if protocol == _LL else simple)
    return simple


def _most_of_ll(job: Job) -> float:
    """Return the largest rate of LL: on one node by the GPU, on several as for CPUs that are not AMD's."""
    if job.several:
        on_two_nodes, on_more_nodes = rates().time.ll_gb_per_s
        return (on_two_nodes if len(job.nodes) == 2 else on_more_nodes) * 1e9
    generations = _nvlinks(job) if _on_nvlink(job) else rates().nvlink
    return min(row.ll_gb_per_s for row in generations) * 1e9


def _nvlinks(job: Job) -> list[NvLink]:
    """Return the NVLink generation of each kind of node, by the rate of its links."""
    return [nvlink_of_rate(node.injection.rate / 1e9, node.reduces) for node, _ in job.kinds]


def _on_nvlink(job: Job) -> bool:
    parts = [node.injection.part for node, _ in job.kinds]
    return all(isinstance(part, GpuLinkLimit) and part.link == "NVLink" for part in parts)


def _latency_us(algorithm: Algorithm, protocol: int, operation: str, job: Job) -> float:
    """Return the latency in microseconds: the base, and each hop inside the nodes and between them."""
    constants = rates().time
    tables = {"ring": constants.ring, "tree": constants.tree, "nvls": constants.nvls, "nvls_tree": constants.nvls_tree}
    table: AlgorithmLatency = tables[algorithm]
    column = protocol if len(table.base) > 1 else 0
    inside = (table.nvlink if _on_nvlink(job) else table.pcie)[column]
    nodes = len(job.nodes)
    one_rank_per_node = job.ranks == nodes
    between = constants.tree.network[protocol] if one_rank_per_node and algorithm == "ring" else table.network[column]
    if algorithm == "nvls":
        return inside
    depth = int(log2(nodes))
    if algorithm == "nvls_tree":
        return table.base[column] + inside + 2 * depth * between
    if algorithm == "tree":
        return table.base[column] + 2 * ((job.ranks // nodes - 1) * inside + depth * between)
    passes = 2 if operation == "allreduce" else 1
    if job.several:
        inside = max(inside, constants.overhead[protocol])
    steps_between = passes * (nodes - 1)
    return table.base[column] + (passes * (job.ranks - 1) - steps_between) * inside + steps_between * between


def _latency_s(choice: _AlgorithmChoice, operation: str, job: Job, size: int) -> float:
    """Return the latency at a size: a ring with Simple between nodes has a longer one from some bytes per rank on."""
    constants = rates().time
    ring_between = choice.algorithm == "ring" and choice.protocol == _SIMPLE and job.several and operation == "allreduce"
    if not ring_between or size < constants.plateau_bytes * job.ranks:
        return choice.latency_s
    from_ampere, older = constants.plateau
    is_older = _on_nvlink(job) and any(row.generation < _AMPERE for row in _nvlinks(job))
    return choice.latency_s * (older if is_older else from_ampere)


def _correction(choice: _AlgorithmChoice, job: Job, size: int) -> float:
    """Return the share of a tree's rate that NCCL reaches at a size; between the table's powers of two, by the logarithm of the size.

    It also applies to an NVLS tree on Blackwell GPUs with x86 CPUs. Nodes that NVLink joins have ARM CPUs.
    """
    of_nvls = choice.algorithm == "nvls_tree" and all(node.machines == 1 for node in job.nodes)
    if choice.algorithm != "tree" and not (of_nvls and all(row.generation >= _BLACKWELL for row in _nvlinks(job))):
        return 1.0
    return _tree_share(choice.protocol, size)


def _tree_share(protocol: int, size: int) -> float:
    table = [*rates().time.tree_correction[protocol], 1.0]
    position = min(max(log2(size / 64), 0.0), len(table) - 1.0)
    lower = min(int(position), len(table) - 2)
    return table[lower] + (table[lower + 1] - table[lower]) * (position - lower)


# The same by the table that NCCL prints for a communicator (NCCL_DEBUG_SUBSYS=TUNING): latency and algorithm bandwidth of each choice,
# without the corrections by size, which NCCL applies when it selects (ncclTopoGetAlgoTime in src/graph/tuning.cc).

_IN_TABLE = {
    "allreduce": "AllReduce",
    "allgather": "AllGather",
    "reducescatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}
_LEAST_GB_PER_S = 1.0  # the table has one digit after the point: of smaller values it is more than 5 % off


class TableTime(msgspec.Struct, frozen=True):
    """What NCCL's table expects of a size: the time in seconds, and the algorithm and protocol: "Ring/LL"."""

    seconds: float
    choice: str


def time_of_table(
    entries: Sequence[TunedRate], operation: str, ranks: int, nodes: int, size: int, *, forced: Forced = (None, None)
) -> TableTime | None:
    """Return the time of the fastest choice for a size; None if the table has none, or only a rate with too few digits.

    forced: as the user forced them, or as NCCL chose them for the call
    """
    times = [
        (_seconds_of_entry(entry, operation, ranks, nodes, size), entry)
        for entry in entries
        if entry.collective == _IN_TABLE.get(operation) and entry.gb_per_s > 0
        if _fits(forced, entry.algorithm, entry.protocol)
    ]
    if not times:
        return None
    seconds, fastest = min(times, key=lambda pair: pair[0])
    if fastest.gb_per_s < _LEAST_GB_PER_S:
        return None
    return TableTime(seconds, f"{fastest.algorithm}/{fastest.protocol}")


def _seconds_of_entry(entry: TunedRate, operation: str, ranks: int, nodes: int, size: int) -> float:
    constants = rates().time
    latency_us = entry.latency_us
    share = 1.0
    if operation == "allreduce" and plain_name(entry.algorithm) == "tree":
        share = _tree_share(PROTOCOLS.index(entry.protocol), size)
    is_long = plain_name(entry.algorithm) == "ring" and entry.protocol == "Simple" and nodes > 1 and operation == "allreduce"
    if is_long and size >= constants.plateau_bytes * ranks:
        latency_us *= constants.plateau[0]
    return latency_us / 1e6 + size / (entry.gb_per_s * 1e9 * share)
