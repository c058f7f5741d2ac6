"""`collbench.measure`: the command that measures, with typed arguments, exceptions for its errors, and the stored run as its result."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

from collbench.api.runs import AnyPath, Runs, read
from collbench.cli.options import OperationOptions, Option, declared_options
from collbench.errors import FINE, NO_VERDICT, USAGE, CollbenchError, NoVerdict, RunFailed, UsageError, nearest
from collbench.launch.detect import LocalRequest, detect
from collbench.launch.spawn import PROGRAM
from collbench.operations.registry import commands
from collbench.report.answer import answers
from collbench.results.folder import run_name

Names = str | Sequence[str]
Sizes = int | str | Sequence[int | str]
_END_S = 10.0  # for the ranks to end after an interruption
_PREFIX = "collbench: "
OPTIONS_OF_OPERATIONS = declared_options(OperationOptions)
# Options that only the command has: `measure` prints nothing, and has `sizes` and `in_place` for several of them.
OF_THE_COMMAND_LINE = frozenset(
    {
        "suite", "ranks_per_node", "gdr_check", "html", "resume", "resume_if_exists", "format", "color", "quiet", "columns", "verbose",
        "dry_run", "minimum", "maximum", "factor", "increment", "out_of_place",
    }
)  # fmt: skip


def measure(
    operation: str,
    *,
    only: str | None = None,
    sizes: Sizes | None = None,
    backend: Names | None = None,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    dtype: Names | None = None,
    redop: Names | None = None,
    root: int | Sequence[int] | None = None,
    split: str | None = None,
    skew: float | None = None,
    traffic: AnyPath | None = None,
    mode: Literal["isolated", "pipelined", "batched", "graph", "overlap"] | None = None,
    overlap: bool = False,
    calls: Names | None = None,
    buffers: Literal["fixed", "rotating"] | None = None,
    in_place: bool | None = None,
    window: int | None = None,
    streams: int | None = None,
    pairs: int | Literal["all"] | Sequence[int] | None = None,
    algorithms: Names | None = None,
    protocols: Names | None = None,
    registration: Names | None = None,
    iterations: int | None = None,
    warmup: int | None = None,
    precision: float | None = None,
    max_time: float | None = None,
    total_time: float | None = None,
    check: int | None = None,
    stop_on_wrong: bool = False,
    ceiling: float | None = None,
    oversubscription: float | None = None,
    seed: int | None = None,
    evidence: Literal["on", "off", "tuning"] | None = None,
    telemetry: float | None = None,
    slowed: Names | None = None,
    ranks: int | None = None,
    oversubscribe: bool = False,
    gpus_per_process: int | None = None,
    launches: int | None = None,
    timeout: float | None = None,
    allocation: str | None = None,
    out: AnyPath | None = None,
    trace: AnyPath | None = None,
    nvtx: bool = False,
    full: bool = False,
    **others: Any,
) -> Runs:
    """Start ranks on this host, measure an operation, and return the stored run; with `launches` one run for each launch.

    operation  the command: "allreduce", "broadcast", "alltoall", "p2p" …
    only       of a command with several operations: "latency", "bandwidth" …

    others     options of the command that are not listed here, such as those of a plug-in, by name

    The other arguments are the options of the command, with their units and defaults: `sizes="1K-1M"` or `[8, 1024]`, `backend="mpi"`,
    `ranks=2`, `max_time=2` (seconds per case), `precision=1` (percent), `ceiling=12.5` (GB/s). COLLBENCH_* variables and the
    configuration file apply, as for the command. The run is stored in `out`, else in runs/<time>-<operation>-<id>.

    Raises TypeError for an unknown argument, UsageError for an invalid value or a missing backend, and RunFailed for wrong data, a hang
    or a crash, with the sentence that the command prints; rows that were measured stay in the folder. Also raises UsageError in a process
    that a launcher started (srun, mpirun, torchrun): there, use the command, then `read`.
    """
    options = {name: value for name, value in locals().items() if name not in ("operation", "out", "others")}
    allowed = OPTIONS_OF_OPERATIONS.keys() - OF_THE_COMMAND_LINE
    for name in others:
        if name not in allowed:
            raise TypeError(f"measure() has no argument {name!r:.60}: {nearest(name, sorted(allowed))}")
    options |= others
    if operation not in commands():
        raise UsageError(f"unknown operation {operation!r:.60}: {nearest(operation, sorted(commands()))}")
    refuse_launcher(operation, ranks)
    folder = Path("runs") / run_name(operation) if out is None else Path(out)
    words = [word for name, value in options.items() for word in option_words(name, value)]
    run_command([operation, *words, f"--out={folder}", "--format=jsonl", "--quiet"], folder)
    return read(folder)


def option_words(name: str, value: Any, options: Mapping[str, Option] = OPTIONS_OF_OPERATIONS) -> list[str]:
    """Return the words of the command line for an argument; none for None and False. options: those of its command, by name."""
    if name == "in_place" and value is not None:
        return ["--in-place" if value else "--out-of-place"]
    option = options[name].flags.split()[-1]
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    values = [value] if isinstance(value, str | os.PathLike) or not isinstance(value, Sequence) else list(value)
    if name == "slowed":
        return [f"{option}={pair}" for pair in values]
    return [f"{option}={','.join(map(str, values))}"]


def refuse_launcher(operation: str, ranks: int | None) -> None:
    """Raise UsageError in a process that a launcher started: each of its processes would start ranks of its own."""
    info = detect(os.environ, LocalRequest(ranks, ("collbench", operation)))
    if info is not None:
        raise UsageError(
            f"collbench.measure starts ranks itself, but {info.launcher} has started this process: run `collbench {operation} --out DIR` "
            "under the launcher, then use collbench.read(DIR)"
        )


def run_command(argv: Sequence[str], folder: Path) -> None:
    """Run the command to its end. Raises the error of its exit code, with the sentence that it printed."""
    with TemporaryFile("w+", encoding="utf-8", errors="replace") as err:
        try:
            # in a session of its own: an interruption of this process reaches it once, through `_wait`
            process = subprocess.Popen(
                [*PROGRAM, *argv],
                env=dict(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=err,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise UsageError(f"collbench cannot be started ({error}): check the arguments") from error
        code = _wait(process)
        err.seek(0)
        if code != FINE:
            raise _error(code, err.read(), folder)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code. If this process is interrupted, end the command first."""
    try:
        return process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def _error(code: int, printed: str, folder: Path) -> CollbenchError:
    """Return the exception for the exit code of the command, with the errors that it printed, else with what its rows lack."""
    lines = [line for line in printed.splitlines() if line.strip()]
    sentences = [line.removeprefix(_PREFIX) for line in lines if line.startswith(_PREFIX)] or _failures(folder)
    text = "; ".join(dict.fromkeys(sentences)) or f"the command ended with exit code {code}{f': {lines[-1]}' if lines else ''}"
    kind = {USAGE: UsageError, NO_VERDICT: NoVerdict}.get(code, RunFailed)
    error = kind(text)
    if folder.exists():
        error.add_note(f"what was measured is in {folder}")
    return error


def _failures(folder: Path) -> list[str]:
    """Return the answers of the stored rows that were not measured or have wrong data, of which the command prints a table."""
    try:
        stored = answers(read(folder, strict=False).rows)
    except UsageError:  # nothing was stored
        return []
    return [answer.render() for answer in stored if answer.missing or (answer.verification is not None and answer.verification.wrong)]
