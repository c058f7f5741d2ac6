"""collbench trace -- COMMAND: record what the ranks of a user's own PyTorch job do, for `replay` and `autopsy`."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli.help import HelpEntry
from collbench.cli.parser import Parser, add_command, amount, natural, positive
from collbench.errors import FINE, USAGE, UsageError

if TYPE_CHECKING:
    from collbench.plugins.traces.record import JobRecording, RecordRequest

_SUMMARY = "record the communication of your own PyTorch job, for replay and autopsy"
_ABOUT = (
    "Run a PyTorch job, and record the operations of each rank: a Flight Recorder dump and an execution trace (Chakra). The job needs no "
    "changes: COMMAND is what you start it with, such as torchrun or srun. Its nodes must share the folder of the traces. The exit code is "
    "that of the job. The option --trace of measuring commands is another thing: the timeline of a measurement."
)

_HELP = HelpEntry(
    group="Training",
    follows="replay",
    examples=(
        ("trace -- torchrun --nproc-per-node 2 train.py", "record three steps of a job on this host"),
        ("trace --out /shared/traces -- srun -N2 python train.py", "of a job under Slurm, into a folder that the nodes share"),
        ("trace --hang 30 -- torchrun --nproc-per-node 2 train.py", "write the dumps of all ranks after 30 s without progress"),
    ),
)


def add_trace(commands: Any) -> None:
    """Add the command."""
    add_command(commands, "trace", _SUMMARY, call_trace, _add_options, entry=_HELP, description=_ABOUT).keep_rest("job")


def _add_options(parser: Parser) -> None:
    parser.usage = "collbench trace [OPTIONS] -- COMMAND …"
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder of the traces (default: a new one in traces/)")
    parser.add_argument("--steps", metavar="N", type=positive, default=3, help="optimizer steps to record (default: 3)")
    skip = "optimizer steps before those; the first steps of a job differ from later ones (default: 2)"
    parser.add_argument("--skip", metavar="N", type=natural, default=2, help=skip)
    parser.add_argument("--seconds", metavar="S", type=amount, default=60.0, help="longest recording (default: 60)")
    hang = "all ranks write their dump after so many seconds without progress of an operation; 0: never (default: 60)"
    parser.add_argument("--hang", metavar="S", type=lambda text: 0.0 if text.strip() == "0" else amount(text), default=60.0, help=hang)
    parser.add_argument("--kineto", action="store_true", help="record a Kineto trace too (Perfetto, chrome://tracing); it is large")


def call_trace(arguments: argparse.Namespace, _argv: list[str]) -> int:
    """Run the job, and print where its traces are. Return the job's exit code; 2 if a job that succeeded has recorded nothing.

    Raises UsageError without a command, inside a launch, and for a folder that cannot be used.
    """
    from collbench.cli.start import write_error
    from collbench.plugins.traces.record import record

    request = _request(arguments)
    recording = record(request)
    write_error(f"collbench: {_described(recording, request)}\n")
    return recording.code or (FINE if recording.ranks else USAGE)


def _request(arguments: argparse.Namespace) -> RecordRequest:
    from collbench.launch.detect import detect
    from collbench.plugins.traces.record import RecordRequest
    from collbench.results.folder import run_name

    if not arguments.job:
        raise UsageError("the command of a job is missing: collbench trace -- torchrun --nproc-per-node 2 train.py")
    info = detect(os.environ)
    if info and info.ranks > 1:
        raise UsageError(f"this is one of {info.ranks} ranks: put the launcher after the --, as in collbench trace -- srun python train.py")
    folder = arguments.out or Path("traces", run_name("job"))
    return RecordRequest(
        tuple(arguments.job), folder, skip=arguments.skip, steps=arguments.steps, seconds=arguments.seconds, hang=arguments.hang,
        kineto=arguments.kineto,
    )  # fmt: skip


def _described(recording: JobRecording, request: RecordRequest) -> str:
    """Return where the traces are, and the next commands; or why there are none."""
    from collbench.units import first_of, format_duration, plural

    if not recording.ranks:
        return (
            f"nothing was recorded: no Python process of `{shlex.join(request.command)}` called torch.distributed.init_process_group "
            "(or PYTHONPATH did not reach it, as with python -I or -E)"
        )
    folder = shlex.quote(str(recording.folder))
    lines = [f"{plural(len(recording.ranks), 'rank')} recorded in {format_duration(recording.seconds)}: {folder}"]
    if recording.absent:
        ranks = f"{len(recording.absent)} of {plural(recording.world, 'rank')} ({first_of(map(str, recording.absent), 8)})"
        lines.append(
            f"no trace of {ranks}: killed, or without the variables PYTHONPATH and COLLBENCH_RECORDING. For Open MPI on several hosts: "
            "mpirun -x PYTHONPATH -x COLLBENCH_RECORDING"
        )
    if recording.hung:
        lines.append(f"a rank waited in an operation for more than {request.hang:g} s without progress")
    if recording.execution and not recording.hung:
        lines.append(f"replay:  collbench replay {folder}")
    if recording.flight:
        lines.append(f"autopsy: collbench autopsy {folder}")
    return "\n  ".join(lines)
