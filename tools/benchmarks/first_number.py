"""From the command to its end: the smallest measurement of collbench against the same in C, both started by the same mpiexec."""

from __future__ import annotations

import sys

from tools.benchmarks.figures import SECONDS, Outcome, counted, timed
from tools.benchmarks.launches import c_program, collbench, launch, mpiexec, pairs
from tools.benchmarks.ranks import inspect

_ARGUMENTS = ("allreduce", "--backend", "mpi", "--sizes", "8", "--max-time", "0.1")
_HEAVY = frozenset({"torch", "pandas"})


def measure(n: int = 20) -> Outcome:
    """n pairs."""
    direct = mpiexec(c_program(), "8", "0", "0", "0.1")
    found = pairs(lambda: launch(collbench(*_ARGUMENTS)).wall_s, lambda: launch(direct).wall_s, n)
    bare = [launch([sys.executable, "-c", "import numpy, mpi4py.MPI"]).wall_s for _ in range(n)]
    heavy = {name for rank in inspect(_ARGUMENTS) for name in rank.modules} & _HEAVY
    return Outcome(
        "first_number",
        f"Wall time of `collbench {' '.join(_ARGUMENTS)}` to its end, in pairs with `mpiexec -n 2 direct` (MPI_Init, all-reduces of 8 B "
        "for 0.1 s with a barrier before each, MPI_Finalize).",
        [
            timed("collbench", (ours for ours, _ in found), SECONDS),
            timed("C program", (theirs for _, theirs in found), SECONDS),
            timed("difference within pairs", (ours - theirs for ours, theirs in found), SECONDS, below=0.5),
            timed("of it: `python -c 'import numpy, mpi4py.MPI'`, not in pairs", bare, SECONDS),
            counted(f"imported in the ranks of {', '.join(sorted(_HEAVY))}", heavy),
        ],
        [{"collbench_s": ours, "c_s": theirs} for ours, theirs in found],
    )
