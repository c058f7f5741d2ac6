"""alltoallv with a known matrix: the busiest node's bytes through its NICs, the busiest GPU's through its links."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from collbench.errors import UsageError
from collbench.machine.peak.cut import Side
from collbench.machine.peak.job import Job


def uneven(job: Job) -> tuple[float, Side | None]:
    """The bound of the busbw and what sets it; infinite, and None, where no byte crosses a link that is known.

    The busbw is (n-1)/n of the size in a second, and the size what the busiest rank sends or receives, its own part included.
    Raises UsageError for a matrix that is not ranks × ranks of numbers from 0 on.
    """
    bytes_between = _matrix(job)
    size = max(bytes_between.sum(axis=0).max(), bytes_between.sum(axis=1).max())
    np.fill_diagonal(bytes_between, 0)
    node_of = np.repeat(np.arange(len(job.nodes)), [node.gpus for node in job.nodes])
    needs = []
    for index, node in enumerate(job.nodes):
        mine = node_of == index
        if job.several:
            crossing = max(bytes_between[mine][:, ~mine].sum(), bytes_between[~mine][:, mine].sum())
            needs.append((crossing / job.egress(node).known, Side(node.gpus, job.egress(node).known, job.egress(node).name)))
        needs += _of_gpus(job.of_gpus(node), bytes_between[mine].sum(axis=1), bytes_between[:, mine].sum(axis=0))
    time, side = max(needs, key=lambda need: need[0])
    return (float((job.ranks - 1) / job.ranks * size / time), side) if time > 0 else (inf, None)


def _of_gpus(sides: Sequence[Side], sent: np.ndarray, received: np.ndarray) -> list[tuple[float, Side]]:
    """The busiest of a node's GPUs, and all of them together, in seconds; `sides` in the order of the ranks."""
    busiest = [(max(one, other) / side.bytes_per_s, side) for side, one, other in zip(sides, sent, received, strict=True)]
    return [*busiest, (max(sent.sum(), received.sum()) / sum(side.all_at_once for side in sides), sides[0])]


def _matrix(job: Job) -> np.ndarray:
    found = np.array(job.traffic, dtype=float)
    if found.shape != (job.ranks, job.ranks) or not np.isfinite(found).all() or (found < 0).any():
        raise UsageError(f"alltoallv's traffic must be {job.ranks} × {job.ranks} numbers of bytes from 0 on, by sending and receiving rank")
    return found
