"""The environment variables that are not options of a command: their names, meanings, and where their values come from."""

from __future__ import annotations

from typing import NamedTuple

YOU = "you"
JOB = "a job of `emit`"
COLLBENCH = "collbench"


class Variable(NamedTuple):
    """A variable that collbench reads.

    means   what its value is or does
    set_by  YOU, JOB, or COLLBENCH: for the ranks that it starts itself; do not set those
    """

    name: str
    means: str
    set_by: str = YOU


VARIABLES = (
    Variable("COLLBENCH_CONFIG", "the configuration file, instead of ~/.config/collbench/config.toml"),
    Variable("COLLBENCH_SECRET", "the secret of the launch, at least 16 characters, the same for all ranks"),
    Variable("COLLBENCH_SECRET_FILE", "a file with the secret, which only its owner can read"),
    Variable("COLLBENCH_MPI", "the MPI to load: the path of its libmpi.so, or the folder in which it is installed"),
    Variable("COLLBENCH_NCCL", "the NCCL library to load, instead of the installed one"),
    Variable("COLLBENCH_UCC", "the path of the UCC library to load"),
    Variable("COLLBENCH_ONECCL", "the folder with `lib` and `include` of the oneCCL to load, instead of CCL_ROOT or the wheel"),
    Variable("COLLBENCH_CACHE", "the folder of compiled code (GPU kernels, the interface to oneCCL), instead of ~/.cache/collbench"),
    Variable("NO_COLOR", "no colors"),
    Variable("COLLBENCH_PODS", "the number of pods of a Kubernetes Job", JOB),
    Variable("COLLBENCH_LOCAL", "the folder of a start on this host", COLLBENCH),
    Variable("COLLBENCH_BEGAN", "when the command began, in seconds on CLOCK_MONOTONIC, for a start on this host", COLLBENCH),
    Variable("COLLBENCH_RANK", "the rank in a start on this host", COLLBENCH),
    Variable("COLLBENCH_RANKS", "the number of ranks in a start on this host; also the variable of `--ranks`", COLLBENCH),
    Variable("COLLBENCH_WORKER", "the rank of a further process of this task", COLLBENCH),
    Variable("COLLBENCH_CRASHED_BACKEND", "the backend with which ranks ended while they opened it, in the start without it", COLLBENCH),
    Variable("COLLBENCH_EXAMINED", "the process that a tool of a hang diagnosis examines, and its state before, in the tool", COLLBENCH),
    Variable("COLLBENCH_RECORDING", "what the ranks of a job under `collbench trace` record, as JSON", COLLBENCH),
    Variable("COLLBENCH_LAUNCH_INDEX", "the number of this launch among those of `--launches`, from 0", COLLBENCH),
    Variable("COLLBENCH_TTY", "which output of the parent process is a terminal: `stdout`, `stderr`, both, or `0`", COLLBENCH),
)
