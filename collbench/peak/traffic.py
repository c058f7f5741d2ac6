"""alltoallv with a known matrix: the busiest node's bytes through its NICs, the busiest GPU's through its links."""

from __future__ import annotations

from math import inf

import numpy as np

from collbench.errors import UsageError
from collbench.peak.cut import Side
from collbench.peak.job import Job


def uneven(job: Job) -> tuple[float, Side | None]:
    """The bound of the busbw and what sets it; the busbw counts the bytes that a rank sends to others, on average over the ranks.

    Raises UsageError for a matrix that is not ranks × ranks of numbers from 0 on.
    """
    bytes_between = _matrix(job)
    node_of = np.repeat(np.arange(len(job.nodes)), [node.gpus for node in job.nodes])
    same = node_of[:, None] == node_of[None, :]
    needs = []
    for index, node in enumerate(job.nodes):
        mine = node_of == index
        if job.several:
            crossing = max(bytes_between[mine][:, ~mine].sum(), bytes_between[~mine][:, mine].sum())
            needs.append((crossing / job.egress(node).known, Side(node.gpus, job.egress(node).known, job.egress(node).name)))
        counted = np.where(same, bytes_between, 0) if node.apart else bytes_between
        busiest = max(counted[mine].sum(axis=1).max(), counted[:, mine].sum(axis=0).max())
        needs.append((busiest / node.injection.known, Side(1, node.injection.known, node.injection.name)))
    time, side = max(needs, key=lambda need: need[0])
    return (float(bytes_between.sum() / job.ranks / time), side) if time > 0 else (inf, None)


def _matrix(job: Job) -> np.ndarray:
    found = np.array(job.traffic, dtype=float)
    if found.shape != (job.ranks, job.ranks) or not np.isfinite(found).all() or (found < 0).any():
        raise UsageError(f"alltoallv's traffic must be {job.ranks} × {job.ranks} numbers of bytes from 0 on, by sending and receiving rank")
    np.fill_diagonal(found, 0)
    return found
