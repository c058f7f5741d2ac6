"""Facts about a launch that rank 0 prints once: what the launcher does not do, and what this process does instead."""

from __future__ import annotations

from collbench.reason import Fact


class SingleTask(Fact, frozen=True):
    """The Slurm step has one task, and so collbench has one rank."""

    text = "this Slurm step has one task: use srun -n N to start N ranks, or --ranks N to start them on this host"


class RanksNotEnded(Fact, frozen=True):
    """Slurm may not end the other ranks when one fails: a task cannot see srun's option, only its variable."""

    text = (
        "without srun's --kill-on-bad-exit=1, Slurm does not end the other ranks when one fails (export SLURM_KILL_BAD_EXIT=1 has the same "
        "effect, and removes this note)"
    )


class ProcessPerGpu(Fact, frozen=True):
    """Each task of the launcher starts a process for each of its GPUs.

    launcher   "srun" or "kubernetes"; processes: of each task
    """

    launcher: str
    processes: int

    def render(self) -> str:
        """Return the sentence that users see."""
        each = {"srun": "each task of srun is the only one of its node and", "kubernetes": "each pod"}.get(self.launcher, "each task")
        return f"{each} starts {self.processes} processes, one for each of its GPUs (to avoid this: --ranks-per-node 1)"


ADVICE = SingleTask | RanksNotEnded | ProcessPerGpu
