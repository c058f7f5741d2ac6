"""A rate beside its ceilings, as text: "42.0 of 50.0 GB/s (84 %), ring; hard bound 64.6"."""

from __future__ import annotations

from collbench.peak.ceiling import Ceiling, Model, model_of
from collbench.peak.collective import Ceilings, doubtful_input, like
from collbench.peak.job import Job
from collbench.units import format_percent, format_rate

_WORDS = {"ring": "ring", "bound": "hard bound"}


def chosen(measured: float | None, found: Ceilings) -> tuple[Model, Ceiling | None]:
    """The model for a rate (bytes per second) alone, and its ceiling; without a rate the ring if there is one."""
    ring, bound = _rate(found.ring), _rate(found.bound)
    if measured is None:
        return ("ring", found.ring) if ring is not None or found.bound is None else ("bound", found.bound)
    model = model_of([(measured, ring, bound)])
    return model, found.ring if model == "ring" else found.bound


def headline(measured: float | None, found: Ceilings) -> str:
    """One line: the rate, the ceiling of its model in GB/s, and the other ceiling."""
    model, ceiling = chosen(measured, found)
    if ceiling is None or ceiling.bytes_per_s is None:
        why = ceiling.limited_by if ceiling else "this operation moves no bytes"
        return f"{format_rate(measured)} GB/s, no ceiling: {why}" if measured is not None else f"no ceiling: {why}"
    if model == "doubtful":
        return (
            f"{format_rate(measured or 0.0)} GB/s is above the hard bound of {format_rate(ceiling.bytes_per_s)} GB/s: model inputs doubtful"
        )
    word = "given" if ceiling.kind == "given" else _WORDS[model]
    other = found.bound if model == "ring" else found.ring
    rest = f"; {_WORDS['bound' if model == 'ring' else 'ring']} {format_rate(other.bytes_per_s)}" if other and other.bytes_per_s else ""
    return f"{_beside(measured, ceiling.bytes_per_s)}, {word}{rest}"


def lines(operation: str, measured: float | None, found: Ceilings, job: Job) -> list[str]:
    """The headline, what limits, what NCCL's constants allow, what is doubtful, and what was assumed."""
    model, _ = chosen(measured, found)
    said = [headline(measured, found)]
    if model == "doubtful":
        said.append(f"look first at: {doubtful_input(operation, job)}")
    said += [f"{name} limited by {ceiling.limited_by} ({ceiling.source})" for name, ceiling in _named(found)]
    if found.achievable and found.achievable.bytes_per_s:
        said.append(f"NCCL's own constants allow {format_rate(found.achievable.bytes_per_s)} GB/s")
    return [*said, *(f"assumed: {sentence}" for sentence in assumed(operation, job)), *(f"doubt: {sentence}" for sentence in doubts(job))]


def assumed(operation: str, job: Job) -> list[str]:
    """What the ceilings take for granted, a sentence each."""
    if job.given is not None or operation == "barrier" or any(job.several and node.egress.bytes_per_s is None for node, _ in job.kinds):
        return []
    operation, nodes = like(operation), [node for node, _ in job.kinds]
    found = []
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


def _named(found: Ceilings) -> list[tuple[str, Ceiling]]:
    both = [("ring", found.ring), ("hard bound", found.bound)]
    return [(name, ceiling) for name, ceiling in both if ceiling and ceiling.bytes_per_s and ceiling.kind != "given"]


def _beside(measured: float | None, ceiling: float) -> str:
    if measured is None:
        return f"{format_rate(ceiling)} GB/s"
    return f"{format_rate(measured)} of {format_rate(ceiling)} GB/s ({format_percent(100 * measured / ceiling)})"


def _rate(ceiling: Ceiling | None) -> float | None:
    return ceiling.bytes_per_s if ceiling else None
