"""What a reader makes of another tool's output: one `PeerRun` per table, with rows in our form and sentences on what is missing.

A row's time is the tool's own statistic, and its bandwidths follow from size and time by our definitions; what the tool printed for
them is compared, not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collbench.results.record import Row

IMPORTED = "imported"  # the flag on every such row


@dataclass(frozen=True)
class PeerRun:
    """One table of a tool's output.

    tool        "nccl-tests", "rccl-tests", "osu", "imb", "perftest", "param", "gloo-benchmark"
    version     as the output says it, None: it does not
    program     "all_reduce_perf", "osu_allreduce", "IMB-MPI1 Allreduce", "ib_write_bw"
    statistic   what a time is: "mean over 20 iterations, averaged over the ranks"
    rows        in the order of the output
    hosts       names by rank, as far as they are told; else empty
    facts       what else the output says, JSON-ready: {"warmup": 5, "iterations": 20, "devices": [...]}
    missing     what our rows have and the output has not, a short phrase each: "no interval", "no per-rank data"
    doubts      what does not fit, a sentence each: a rank count that busbw / algbw contradicts, figures that do not agree
    """

    tool: str
    version: str | None
    program: str
    statistic: str
    rows: list[Row]
    hosts: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    missing: Sequence[str] = ()
    doubts: Sequence[str] = ()


@dataclass(frozen=True)
class Given:
    """What the user says of an output that does not say it itself; None: nothing. A contradiction to the output is a UsageError.

    file    the file's name without its folder, a hint alone: "nccl_allgather.log" decides between operations that print the same
    """

    ranks: int | None = None
    nodes: int | None = None
    operation: str | None = None
    dtype: str | None = None
    file: str = ""


@dataclass(frozen=True)
class Reader:
    """One format.

    name    the word for --as: "nccl-tests", "osu", "imb", "perftest", "param", "gloo"
    knows   whether the first lines (at most 400, without line ends) look like it
    read    all lines -> the runs in it. Raises UsageError, naming line and remedy, where nothing can be read
    """

    name: str
    knows: Callable[[Sequence[str]], bool]
    read: Callable[[Sequence[str], Given], list[PeerRun]]
