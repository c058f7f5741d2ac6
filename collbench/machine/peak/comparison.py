"""A rate compared with its references, as text: percentages, limits, published results, assumptions, and the input to doubt."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.machine.peak.algorithms import pairs_by_node
from collbench.machine.peak.ceiling import TOLERANCE, Ceiling, name_of_model, percent_of
from collbench.machine.peak.collective import BY_RANK, MESSAGES, CollectiveCeilings, ceilings, like
from collbench.machine.peak.limits import GpuLinkLimit, NicLimit
from collbench.machine.peak.links import OPTIONS
from collbench.machine.peak.node import Job
from collbench.machine.peak.published import published
from collbench.machine.peak.time_model import ExpectedTime
from collbench.units import format_bytes, format_percent, format_rate, format_size, format_time, plural

# Texts: "42.0 of 48.0 GB/s: 88 % of expected (ring), 65 % of the hard limit (64.6 GB/s)".


def exceeds_bound(measured: float | None, references: CollectiveCeilings) -> bool:
    """Return whether a rate is above the hard limit, so that an input of it is doubtful."""
    limit = references.bound.bytes_per_s if references.bound else None
    return measured is not None and limit is not None and measured > limit * TOLERANCE


def percents(measured: float | None, references: CollectiveCeilings) -> tuple[float | None, float | None]:
    """Return the percentages of the expected rate and of the hard limit; none for a rate above the hard limit."""
    if exceeds_bound(measured, references):
        return None, None
    return percent_of(measured, references.expected), percent_of(measured, references.bound)


def headline(measured: float | None, references: CollectiveCeilings) -> str:
    """Return one line: the rate, and its percentages of the expected rate and of the hard limit, for any rate."""
    ceiling = references.expected
    if ceiling is None or ceiling.bytes_per_s is None:
        why = ceiling.limited_by if ceiling else "this operation moves no bytes"
        return f"{format_rate(measured)} GB/s, no ceiling: {why}" if measured is not None else f"no ceiling: {why}"
    if measured is not None and references.bound is not None and exceeds_bound(measured, references):
        bound = format_rate(references.bound.bytes_per_s or 0.0)
        return f"{format_rate(measured)} GB/s is above the hard limit of {bound} GB/s: model inputs doubtful"
    named = _named_ceilings(references)
    if measured is None:
        return ", ".join(f"{format_rate(limit.bytes_per_s or 0.0)} GB/s {name}" for name, limit in named)
    first = named[0][1]
    shares = []
    for name, limit in named:
        rate = "" if limit is first else f" ({format_rate(limit.bytes_per_s or 0.0)} GB/s)"
        article = "" if name.startswith("expected") else "the "
        shares.append(f"{format_percent(percent_of(measured, limit) or 0.0)} of {article}{name}{rate}")
    return f"{format_rate(measured)} of {format_rate(first.bytes_per_s or 0.0)} GB/s: {', '.join(shares)}"


def lines(operation: str, measured: float | None, references: CollectiveCeilings, job: Job) -> list[str]:
    """Return the headline, what limits, what a ring reaches (if it is not the fastest), published results, assumptions, and doubts."""
    shown = [headline(measured, references)]
    if exceeds_bound(measured, references):
        shown.append(f"check first: {doubtful_input(operation, job)}")
    shown += limits(references)
    shown += [f"published: {figure.render()}" for figure in published(operation, job)]
    return [*shown, *(f"assumed: {sentence}" for sentence in assumed(operation, job)), *(f"doubt: {sentence}" for sentence in doubts(job))]


def limits(references: CollectiveCeilings) -> list[str]:
    """Return what limits each rate, and what a ring reaches (if it is not the fastest)."""
    shown = [f"{name} limited by {limit_of(limit)}" for name, limit in _named_ceilings(references) if limit.kind != "given"]
    ring = references.ring
    if ring and ring.bytes_per_s and references.expected and references.expected.model != "ring":
        shown.append(f"a ring reaches {format_rate(ring.bytes_per_s)} GB/s, limited by {limit_of(ring)}")
    return shown


OF_SIZES = "by the model with which NCCL selects algorithm and protocol; healthy machines are slower at small and medium sizes"
_COLUMNS = ("size_bytes", "expected_time_s", "expected_busbw_bytes_per_s", "plateau_percent", "algorithm", "protocol")


def csv_lines(times: Sequence[ExpectedTime]) -> list[str]:
    """Return a header, and one line for each size."""
    rows = [(row.size_bytes, row.seconds, row.busbw_bytes_per_s, row.plateau_percent, row.algorithm, row.protocol) for row in times]
    return [",".join(map(str, row)) for row in (_COLUMNS, *rows)]


_SATURATED_PERCENT = 95.0  # of the rate of large sizes


def lines_of_sizes(times: Sequence[ExpectedTime], ranks: int, measured: float | None = None) -> list[str]:
    """Return a table of the sizes with their expected times, and the measured rate of the only size compared with it."""
    if not times:
        return []
    shown = [f"{'size':>10} {'time (µs)':>12} {'busbw (GB/s)':>13} {'of plateau':>11}  algorithm/protocol"]
    for row in times:
        rate = format_rate(row.busbw_bytes_per_s)
        share = format_percent(row.plateau_percent)
        shown.append(f"{format_size(row.size_bytes):>10} {format_time(row.seconds):>12} {rate:>13} {share:>11}  {row.how}")
    return [*shown, *sentences_of_sizes(times, ranks, measured)]


def sentences_of_sizes(times: Sequence[ExpectedTime], ranks: int, measured: float | None) -> list[str]:
    """Return the measured rate of the only size compared with its expected one, and by which model that is."""
    if measured is None:
        return [OF_SIZES]
    share = format_percent(100 * measured / times[0].busbw_bytes_per_s)
    size = times[0].size_bytes
    sentences = [f"{format_rate(measured)} GB/s is {share} of what NCCL's model expects of {format_size(size)}"]
    if times[0].ring_percent < _SATURATED_PERCENT:  # whatever algorithm NCCL's model selects
        part = f"{format_size(size)} is {format_bytes(size / ranks)} for each of {ranks:,} ranks"
        ring = format_percent(times[0].ring_percent)
        sentences.append(f"not saturated: {part}, with which a ring reaches {ring} of its rate by NCCL's model")
    return [*sentences, OF_SIZES]


def limit_of(ceiling: Ceiling) -> str:
    """Return "NVLink 450 GB/s (--nvlink), at 82 % of the wires' rate by NCCL's constants"."""
    limit = f"{ceiling.limited_by} ({ceiling.source})"
    if ceiling.efficiency is None:
        return limit
    return f"{limit}, at {format_percent(100 * ceiling.efficiency)} of the wires' rate by {ceiling.constants}"


def assumed(operation: str, job: Job) -> list[str]:
    """Return what the reference rates assume, one sentence each."""
    operation = like(operation)
    nodes = [node for node, _ in job.kinds]
    unknown = job.several and any(node.egress.bytes_per_s is None for node in nodes)
    if job.ceiling_from_user is not None or operation == "barrier" or unknown:
        return []
    sentences = []
    for node in (node for node in nodes if node.machines > 1):
        clique = f" (clique {node.clique})" if node.clique else ""
        sentences.append(f"one NVLink domain joins {node.machines} nodes of {node.gpus // node.machines} GPUs{clique}")
    sentences += _of_fabric(operation, job)
    if operation == "allreduce" and any(node.uses_nvls and node.nvls != "given" for node in nodes):
        sentences.append("NCCL lets the NVSwitches reduce data, as it does for 5 GPUs or more (NVLink SHARP; else --nvls no)")
    for kind, links in (("links inside the nodes", [node.injection for node in nodes]), ("PCIe links", [node.pcie for node in nodes])):
        why = next((link.name for link in links if link.bytes_per_s is None), None)
        if job.several and why is not None:
            sentences.append(f"{kind} that are no slower than the NICs: {why}")
    if operation == "alltoallv" and job.traffic is None:
        sentences.append("the same number of bytes between all ranks")
    if operation == "multipair":
        by_node = pairs_by_node(job)
        blocks = ", ranks in blocks" if job.several else ""
        sentences.append(f"{plural(by_node.total, 'pair')}: rank i and rank i + {job.ranks // 2:,}{blocks}")
        if (by_node.out + by_node.into).max() > max(by_node.out.max(), by_node.into.max()):
            sentences.append("messages one way (both ways at once, pairs share the NICs of some nodes)")
    if operation in BY_RANK and job.traffic is None:
        sentences.append("a part of the same size for each rank")
    return [*sentences, *_of_placement(operation, job)]


def _of_placement(operation: str, job: Job) -> list[str]:
    """Return what the rates assume of the order of the ranks, and of the NICs that they use."""
    nodes = [node for node, _ in job.kinds]
    sentences = []
    if operation in ("sendrecv", "neighbors") and any(node.neighbours.rate < node.injection.rate for node in nodes):
        sentences.append("ranks in the order of the GPUs")
    if not job.several:
        return sentences
    if operation in MESSAGES and any(node.own_nic and node.own_nic.rate < node.egress.rate for node in nodes):
        sentences.append("each GPU has its own NIC, so that a message between nodes gets its part of the NICs' rate")
    if operation == "scan":
        sentences.append("ranks in blocks, so that the sums enter and leave a node once")
    if operation == "hypercube" and job.placement is None:
        sentences.append("ranks in blocks, so that the last steps leave the nodes")
    if operation in ("sendrecv", "neighbors") and job.ring_edges == 1:
        sentences.append("ranks in blocks, so that one edge of the ring leaves a node (else --ring-edges)")
    return sentences


def _of_fabric(operation: str, job: Job) -> list[str]:
    """Return what the rates assume of the fabric between the nodes."""
    if not job.several:
        return []
    if job.oversubscription == 1:
        return ["a non-blocking fabric between the nodes (else --oversubscription)"]
    if operation == "multipair":
        return ["pairs that do not share the fabric's links, so that --oversubscription does not lower the rate"]
    if operation == "p2p":
        return []
    return [f"every node gets 1/{job.oversubscription:g} of its rate from the fabric, wherever it is (--oversubscription)"]


def doubts(job: Job) -> list[str]:
    """Return what is unreliable in the readings of the nodes, without duplicates."""
    return list(dict.fromkeys(doubt for node, _ in job.kinds for doubt in node.doubts))


def _named_ceilings(references: CollectiveCeilings) -> list[tuple[str, Ceiling]]:
    """Return the ceilings that have a rate, with their names, the expected rate first."""
    named: list[tuple[str, Ceiling]] = []
    expected = references.expected
    if expected:
        name = name_of_model(expected.model)
        if expected.model != "bound":
            name = f"expected ({name})"
        named.append(("given ceiling" if expected.kind == "given" else name, expected))
    if references.bound and references.bound is not expected:
        named.append((name_of_model("bound"), references.bound))
    return [(name, ceiling) for name, ceiling in named if ceiling.bytes_per_s]


# The input to check first when a rate exceeds the hard limit.


def doubtful_input(operation: str, job: Job) -> str:
    """Return the input to check first when a rate exceeds the hard limit: first what is not counted from hardware."""
    bound = ceilings(operation, job).bound
    parts = bound.limited_by_parts if bound else ()
    links = [link for node, _ in job.kinds for link in (node.egress, node.injection, node.pcie)]
    limiting = [link for link in links if parts and link.part is not None and link.part.alone() == parts[0].alone()]
    if any(part.fabric != 1 for part in parts):
        return f"a fabric of {job.oversubscription:g}:1 was given with --oversubscription"
    on_nvlink = any(isinstance(part, GpuLinkLimit) and part.link == "NVLink" for part in parts)
    if operation == "allreduce" and on_nvlink and not all(node.reduces for node, _ in job.kinds):
        return "reductions inside switches (NVLink SHARP) are not counted: add --nvls if they are in use"
    for link in limiting:
        if link.source in OPTIONS:
            return f"{link.name} was given with {link.source}"
    if operation == "allreduce" and job.several and not job.sharp and any(isinstance(link.part, NicLimit) for link in limiting):
        return (
            f"{limiting[0].name} is from {limiting[0].source}, and reductions inside switches (InfiniBand SHARP) are not counted: add "
            "--sharp if they are in use"
        )
    doubt = next((doubt for node, _ in job.kinds for doubt in node.doubts), None)
    if doubt is not None:
        return doubt
    return f"{limiting[0].name} is from {limiting[0].source}" if limiting else "the number of ranks, or the measured rate"
