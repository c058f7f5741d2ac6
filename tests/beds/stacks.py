"""python -m tests.beds.stacks DIR   the same all-reduce through each stack, two ranks on this machine: a run folder each, and a page.

MPI and Gloo of this environment, and what `make plugin-environments` made; a stack that is missing is left as the folder has it, and
said. DIR/README.md is made of the folders alone: a test makes it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from collbench.report.frame import in_print_order
from collbench.results.reader import Run, read_run
from collbench.results.row import Row
from collbench.units import format_size
from tests.conftest import ROOT
from tests.plugins.stack import ENVIRONMENTS

WORDS = ("allreduce", "--ranks", "2", "--sizes", "64,4K,64K,1M,16M", "--max-time", "3", "--warmup", "50")


@dataclass(frozen=True)
class Stack:
    """One run: the backend, what a timed call includes, the variables that it is measured under, and its environment's folder."""

    backend: str
    includes: str
    env: dict[str, str] = field(default_factory=dict)
    environment: str = ".venv"


_OFF_SHARED_MEMORY = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
STACKS = {
    "mpi": Stack(
        "mpi",
        "MPI_Allreduce, called by the C loop, from a send into a receive buffer. The two ranks share memory: no byte goes over TCP.",
    ),
    "mpi-tcp": Stack(
        "mpi",
        "The same of another MPI, kept off shared memory: TCP over loopback, as the stacks below have it.",
        _OFF_SHARED_MEMORY,
        ".venv-openmpi",
    ),
    "gloo": Stack("gloo", "`torch.distributed.all_reduce` in place, called from Python, until it returns. TCP over loopback."),
    "jax": Stack(
        "jax",
        "One call of the compiled `psum` under `shard_map`, from Python, until `block_until_ready`; XLA allocates a new array for its "
        "result. Not in it: compiling, and copies between the host's buffers and jax's arrays. TCP over loopback, by the Gloo inside XLA.",
        environment=ENVIRONMENTS["jax"],
    ),
    "horovod": Stack(
        "horovod",
        "`hvd.allreduce_` on a torch tensor, in place, from Python, until it returns: in it is the wait for Horovod's thread, which looks "
        "for work once per `horovod_cycle_time` (ms), and its agreement with the other rank. TCP over loopback, by Horovod's Gloo.",
        environment=ENVIRONMENTS["horovod"],
    ),
    "tensorflow": Stack(
        "tensorflow",
        "One eager `CollectiveReduceV2` (ring) from Python, up to its result in the host's receive buffer: in it are eager dispatch, and "
        "the copy that `.numpy()` makes, too. gRPC over loopback.",
        environment=ENVIRONMENTS["tensorflow"],
    ),
}


def measure(target: Path) -> list[str]:
    """A run folder per stack; sentences about those that are not there or failed."""
    return [said for name in STACKS if (said := _measure_one(name, target / name))]


def _measure_one(name: str, folder: Path) -> str:
    stack = STACKS[name]
    python = ROOT / stack.environment / "bin/python"
    if not python.exists():
        return f"{name}: no environment {stack.environment}: make plugin-environments openmpi-environment"
    words = [*WORDS, "--backend", stack.backend, "--out", str(folder), "--quiet"]
    line = ["timeout", "-k", "5", "180", str(python), "-m", "collbench", *words]
    done = subprocess.run(line, env={**os.environ, **stack.env}, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{name}: ended with code {done.returncode}: {done.stderr.strip()[-300:]}"


def page(target: Path) -> str:
    """The text of README.md: what each number includes, and the medians with their intervals by size and stack."""
    runs = {name: read_run(target / name) for name in STACKS if (target / name / "run.json").exists()}
    line = " ".join(("collbench", *WORDS, "--backend STACK"))
    how = (
        f"`{line}`, float32 and sum, two ranks on one\nshared machine with 2 cores, one launch each, by `python -m tests.beds.stacks "
        "reports/stacks`, which made this page of the run folders, too.\nEvery sample is the slower rank's, after a meeting of both; "
        "another launch may differ by more than an interval says. Neither do the stacks\ntake the same path, nor do their calls "
        "include the same:"
    )
    doubt = (
        "A `?` before an interval: the row's flags say why it is not to be taken at its word (`collbench report reports/stacks/NAME`). At\n"
        "small sizes the price of a call decides, at large ones that of moving and summing: what is best here says nothing of a network."
    )
    stacks = [f"- **{name}** ({_versions(run)}): {STACKS[name].includes}" for name, run in runs.items()]
    return "\n".join(["# The same all-reduce through each stack", "", how, "", *stacks, "", *_table(runs), "", doubt, ""])


def _versions(run: Run) -> str:
    """What the rows say of the library and its settings."""
    told = next(row.evidence["libraries"] for row in run.rows if row.evidence)
    return ", ".join(f"{name} {value}" for name, value in told.items() if value)


def _table(runs: dict[str, Run]) -> Iterable[str]:
    """Median time in µs and its interval; a line per size, a column per stack."""
    columns = {name: {row.size_bytes: row for row in in_print_order(run.rows)} for name, run in runs.items()}
    yield f"| size | {' | '.join(f'{name} µs' for name in columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for size in sorted({size for column in columns.values() for size in column}):
        yield f"| {format_size(size)} | {' | '.join(_cell(column.get(size)) for column in columns.values())} |"


def _cell(row: Row | None) -> str:
    if row is None or row.na or row.time_s is None or row.time_s.p50 is None:
        return f"n/a ({row.na})" if row else "–"
    low, high = row.time_s.ci_low, row.time_s.ci_high
    doubt = "? " if row.flags else ""
    interval = f"{doubt}{_us(low)}–{_us(high)}" if low is not None and high is not None else "no interval"
    return f"{_us(row.time_s.p50)} ({interval})"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}" if seconds >= 1e-3 else f"{seconds * 1e6:.4g}"


def main() -> int:
    """Measures, writes the page, says what is missing."""
    target = Path(sys.argv[1])
    missing = measure(target)
    (target / "README.md").write_text(page(target))
    print("\n".join(missing) or "all stacks measured")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
