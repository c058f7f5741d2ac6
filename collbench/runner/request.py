"""What a user asked to measure, complete and checked as far as one process can check it alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collbench.operations.plan import Sweep
from collbench.timing.budget import Budget


@dataclass(frozen=True)
class Request:
    """One launch.

    command        the subcommand ("allreduce"), for the folder's name
    backends       names in the order they are measured; asked: those that the user named (the rest are only defaulted to)
    ranks          --ranks, which a backend of virtual ranks takes for their number
    check          verification calls per cell; 0 is off
    ceiling        GB/s that the user gave, or None
    oversubscription  the fabric between hosts carries a host's rate divided by this
    timeout_s      deadline of every wait
    seed           of the inputs; order_seed: of the order of the cells, None: drawn anew by each launch
    out            the run folder, or None for runs/<time>-<operation>-<id>
    allocation     name of the allocation, or None
    launch_index   which one of how many `launches` of the same command this is, from 0
    gpus_per_process  how many GPUs, and so ranks, each process drives
    evidence       "on": counters and logs are read around each cell; "off": not; "tuning": NCCL writes a line per call, too
    telemetry_hz   how often clocks, power and temperatures are read meanwhile; 0: never
    argv           what was typed
    """

    command: str
    sweep: Sweep
    backends: tuple[str, ...]
    asked: frozenset[str] = frozenset()
    budget: Budget = field(default_factory=Budget)
    ranks: int | None = None
    check: int = 1
    ceiling: float | None = None
    oversubscription: float = 1.0
    timeout_s: float = 60.0
    seed: int = 0
    order_seed: int | None = None
    out: Path | None = None
    allocation: str | None = None
    launch_index: int = 0
    launches: int = 1
    gpus_per_process: int = 1
    evidence: str = "on"
    telemetry_hz: float = 0.0
    argv: Sequence[str] = ()
