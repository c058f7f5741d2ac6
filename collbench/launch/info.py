"""What a launcher told this process: who it is among how many, and where rank 0 listens."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class LaunchInfo:
    """One process as its launcher started it. Ranks, local ranks and nodes count from 0.

    launcher      "local", "torchrun", "mpirun", "srun" or "kubernetes"
    meeting       where the control plane meets: "ipc:///path" on one host, or "tcp://host" across hosts
    port          a port that the user or launcher fixed for us, else None (derived from `token`)
    token         text that all ranks of this launch share and no other launch has
    node          what the ranks of one node have in common and no other node has, where the host's name is not enough
    secret        how the launch's secret is had: "token", the token is one; a path, the file that holds it; "": the user's own
    mpi           the process manager that can start MPI here: "pmi" (PMI 1 or 2), "pmix", or None
    advice        a sentence worth telling the user once, or ""
    """

    launcher: str
    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    meeting: str
    token: str
    port: int | None = None
    mpi: str | None = None
    hosts: tuple[str, ...] = ()
    advice: str = ""
    node: str = ""
    secret: str = ""
    facts: dict[str, str] = field(default_factory=dict)
