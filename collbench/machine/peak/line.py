"""A rate against its ceilings, as text: "42.0 of 50.0 GB/s: 84 % of the ring reference, 65 % of the hard limit (64.6 GB/s)"."""

from __future__ import annotations

from typing import Literal

from collbench.machine.peak.ceiling import TOLERANCE, Ceiling, percent_of
from collbench.machine.peak.collective import Ceilings, doubtful_input, like
from collbench.machine.peak.job import Job
from collbench.machine.peak.node import Node
from collbench.machine.peak.published import published
from collbench.units import format_percent, format_rate

Model = Literal["ring", "bound", "doubtful"]
_NAMES = {"ring": "ring reference", "bound": "hard limit"}


def chosen(measured: float | None, found: Ceilings) -> tuple[Model, Ceiling | None]:
    """Return the first ceiling of an operation, the ring reference where it has one; "doubtful" for a rate above the hard limit."""
    ring, bound = found.ring, found.bound
    if measured is not None and bound is not None and bound.bytes_per_s is not None and measured > bound.bytes_per_s * TOLERANCE:
        return "doubtful", bound
    return ("ring", ring) if ring is not None and (ring.bytes_per_s is not None or bound is None) else ("bound", bound)


def percents(measured: float | None, found: Ceilings) -> tuple[float | None, float | None]:
    """Return the percentages of the ring reference and of the hard limit; none for a rate above the hard limit."""
    if chosen(measured, found)[0] == "doubtful":
        return None, None
    return percent_of(measured, found.ring), percent_of(measured, found.bound)


def headline(measured: float | None, found: Ceilings) -> str:
    """Return one line: the rate, and its percentages of the ring reference and of the hard limit, whatever the rate is."""
    model, ceiling = chosen(measured, found)
    if ceiling is None or ceiling.bytes_per_s is None:
        why = ceiling.limited_by if ceiling else "this operation moves no bytes"
        return f"{format_rate(measured)} GB/s, no ceiling: {why}" if measured is not None else f"no ceiling: {why}"
    if model == "doubtful":
        return (
            f"{format_rate(measured or 0.0)} GB/s is above the hard limit of {format_rate(ceiling.bytes_per_s)} GB/s: model inputs doubtful"
        )
    known = _known(found)
    if measured is None:
        return ", ".join(f"{format_rate(each.bytes_per_s or 0.0)} GB/s {name}" for name, each in known)
    (name, first), *rest = known
    shares = [f"{_percent(measured, first)} of the {name}"]
    shares += [f"{_percent(measured, each)} of the {name} ({format_rate(each.bytes_per_s or 0.0)} GB/s)" for name, each in rest]
    return f"{format_rate(measured)} of {format_rate(first.bytes_per_s or 0.0)} GB/s: {', '.join(shares)}"


def lines(operation: str, measured: float | None, found: Ceilings, job: Job) -> list[str]:
    """Return the headline, what limits, what the library's constants allow, what others published, what is doubtful or assumed."""
    model, _ = chosen(measured, found)
    shown = [headline(measured, found)]
    if model == "doubtful":
        shown.append(f"check first: {doubtful_input(operation, job)}")
    shown += [f"{name} limited by {each.limited_by} ({each.source})" for name, each in _known(found) if each.kind != "given"]
    if found.achievable and found.achievable.bytes_per_s:
        shown.append(f"{found.library}'s own constants allow {format_rate(found.achievable.bytes_per_s)} GB/s")
    shown += [f"published: {figure.render()}" for figure in published(operation, job)]
    return [*shown, *(f"assumed: {sentence}" for sentence in assumed(operation, job)), *(f"doubt: {sentence}" for sentence in doubts(job))]


def assumed(operation: str, job: Job) -> list[str]:
    """Return what the ceilings assume, a sentence each."""
    if job.given is not None or operation == "barrier" or any(job.several and node.egress.bytes_per_s is None for node, _ in job.kinds):
        return []
    operation, nodes = like(operation), [node for node, _ in job.kinds]
    found = [
        f"one NVLink domain joins {node.machines} nodes of {node.gpus // node.machines} GPUs{_clique(node)}"
        for node in nodes
        if node.machines > 1
    ]
    if job.several and job.oversubscription == 1:
        found.append("a non-blocking fabric between the nodes (else --oversubscription)")
    if job.several and job.oversubscription != 1 and operation != "p2p":
        found.append(f"every node gets 1/{job.oversubscription:g} of its rate from the fabric, wherever it is (--oversubscription)")
    if job.several and any(node.injection.bytes_per_s is None for node in nodes):
        found.append(
            "links inside the nodes that are no slower than the NICs: "
            + next(n.injection.name for n in nodes if n.injection.bytes_per_s is None)
        )
    if job.several and any(node.pcie.bytes_per_s is None for node in nodes):
        found.append("PCIe links that are no slower than the NICs: " + next(n.pcie.name for n in nodes if n.pcie.bytes_per_s is None))
    if operation == "alltoallv" and job.traffic is None:
        found.append("the same number of bytes between all ranks")
    if operation == "sendrecv" and any(node.neighbours.known < node.injection.known for node in nodes):
        found.append("ranks in the order of the GPUs")
    if operation == "sendrecv" and job.several and job.ring_edges == 1:
        found.append("ranks in blocks, so that one edge of the ring leaves a node (else --ring-edges)")
    return found


def doubts(job: Job) -> list[str]:
    """What the readings of the nodes should not be relied on for; the same sentence once."""
    return list(dict.fromkeys(doubt for node, _ in job.kinds for doubt in node.doubts))


def _known(found: Ceilings) -> list[tuple[str, Ceiling]]:
    """Return the ceilings that have a rate, with their names, the ring reference first."""
    both = [(_NAMES["ring"], found.ring), (_NAMES["bound"], found.bound)]
    return [("given ceiling" if each.kind == "given" else name, each) for name, each in both if each and each.bytes_per_s]


def _percent(measured: float, ceiling: Ceiling) -> str:
    return format_percent(percent_of(measured, ceiling) or 0.0)


def _clique(node: Node) -> str:
    return f" (clique {node.clique})" if node.clique else ""
