"""`collbench replay`: its options, request and plan."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.backends.registry import backend_defaults
from collbench.cli.help import HelpEntry
from collbench.cli.options import NOT_LIMITED, OUTPUT, STEP_MAX_TIME_S, Layout, Option, add_options, in_folder, some
from collbench.cli.parser import add_command, amount, positive
from collbench.cli.request import request_of
from collbench.cli.start import Command, begin, launch_of
from collbench.errors import UsageError
from collbench.operations.dtypes import dtype_named
from collbench.operations.sweep import Sweep
from collbench.plugins.training.command import CHECKED_STEPS, NO_PARTS

if TYPE_CHECKING:
    from collbench.measuring.request import Request
    from collbench.plugins.traces.recording import Recording
    from collbench.plugins.traces.replay_task import ReplayRequest

_REPLAY_SUMMARY = "the communication of a recorded job's step: its time here, and what limits it"
_REPLAY_ABOUT = (
    f"{_REPLAY_SUMMARY}. Reads Flight Recorder dumps, Chakra and Kineto traces, NCCL Inspector files and NCCL_DEBUG logs. The "
    "operations of a step run in their recorded order with verified data, on the recorded number of ranks or fewer."
)
_STEP_OPTIONS = some(
    "backend device iterations warmup precision max_time",
    backend={"help": "nccl, torch-nccl, mpi, gloo, simulated … (default: nccl with GPUs, else every installed CPU backend)"},
    iterations={"flags": "-n --steps", "help": "exactly N steps, unless --max-time ends first (default: until --precision is reached)",
                "dest": "iterations"},
    warmup={"help": "exactly N warm-up steps (default: until times are stable)"},
    max_time={"default": STEP_MAX_TIME_S, "help": f"time limit of the steps per backend; {NOT_LIMITED}"},
)  # fmt: skip


def step_choice(text: str) -> str:
    """Return the step of a trace: "3", "first", "median" or "all"."""
    if text in ("first", "median", "all") or (text.isascii() and text.isdecimal() and len(text) < 10):
        return text
    raise argparse.ArgumentTypeError(f"'{text}' is not a valid step: use a number from 0, first, median or all")


def compute_scale(text: str) -> float | None:
    """Return the factor of the recorded computing: None for "none", 1 for "gaps", 0.5 for "scale=0.5"."""
    if text == "none":
        return None
    if text == "gaps":
        return 1.0
    name, _, value = text.partition("=")
    if name != "scale":
        raise argparse.ArgumentTypeError(f"'{text}' is not valid: use none, gaps or scale=X, e.g. scale=0.5")
    return amount(value)


REPLAY: Layout = {
    "what to replay": [
        Option("traces", "files of a trace, or folders with them: those of all ranks", "TRACE", Path, more={"nargs": "+"}),
        Option("--step", "number of the step from 0, first, median (by recorded time), or all: the whole trace (default: median, where the "
               "trace has step boundaries or repeats exactly)", "N", step_choice),
        Option("--compute", "computing between and during operations: none; gaps: as recorded, else the gaps between operations; scale=X: "
               "X times gaps (default: none)", "HOW", compute_scale),
        Option("--suite", "write the operations, sizes and groups of the step as a suite for `collbench run`, and exit", "FILE", Path),
    ],
    "how to measure": [
        *_STEP_OPTIONS,
        Option("--no-parts", NO_PARTS),
        *some("check stop_on_wrong ceiling oversubscription seed slowed", check={"help": CHECKED_STEPS}),
    ],
    "launch and output": [
        Option("--ranks", "replay on N ranks, which must divide the recorded number: the data-parallel dimension shrinks (default: as "
               "recorded)", "N", positive, fills="ranks"),
        *in_folder("replay", "the exchanges of the step and the number of ranks", f"oversubscribe ranks_per_node {OUTPUT}"),
    ],
}  # fmt: skip


_REPLAY_HELP = HelpEntry(
    group="Training",
    follows="workload",
    examples=(
        ("replay traces/", "the step of a recorded job on every available backend"),
        ("replay traces/ --backend mpi --compute gaps", "over MPI, with the recorded computing"),
        ("replay traces/ --ranks 8", "on 8 ranks instead of the recorded number"),
    ),
)


def add_replay(commands: Any) -> None:
    """Add the command."""
    add_command(
        commands, "replay", _REPLAY_SUMMARY, call_replay, partial(add_options, layout=REPLAY), entry=_REPLAY_HELP, description=_REPLAY_ABOUT
    )


def call_replay(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure in the launch of this process, or start the recorded number of ranks on this host. Return the exit code."""
    from collbench.plugins.traces.replay_task import recording_of, run_replay

    replay, info = replay_request(arguments, argv), launch_of(arguments, argv)
    if info is None or arguments.dry_run or arguments.suite:  # before ranks are started, the trace gives their number
        if info is not None and info.rank:
            return 0
        recording = recording_of(replay.paths, replay.options, replay.ranks)
        if arguments.dry_run:
            return show_replay(replay, recording, arguments)
        if arguments.suite:
            return _write_suite(recording, arguments)
        replay = replace(replay, launch=replace(replay.launch, ranks=recording.ranks))

    def measure(request: Request, *rank: Any) -> int:
        return run_replay(replace(replay, launch=request), *rank)

    return begin(
        replay.launch, Command(arguments, argv, measure, progress="collbench.plugins.training.progress:WorkloadProgressPrinter"), info
    )


def _write_suite(recording: Recording, arguments: argparse.Namespace) -> int:
    """Write the file of --suite. Return 0. Raises UsageError if it cannot be written."""
    from collbench.plugins.traces.suite import suite_text
    from collbench.report.screen import announce

    text = suite_text(recording, f"the operations of a recorded step ({recording.form}, {recording.ranks} ranks)")
    try:
        arguments.suite.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--suite {arguments.suite}: {error.strerror or error}: choose another file") from error
    announce(f"wrote {arguments.suite}", arguments.quiet)
    return 0


def replay_request(arguments: argparse.Namespace, argv: Sequence[str]) -> ReplayRequest:
    """Return the request of `collbench replay`. Raises UsageError for invalid options."""
    from collbench.plugins.traces.replay_task import ReplayRequest
    from collbench.plugins.traces.step import ReplayOptions

    sweep = Sweep((), None, (dtype_named("float32"),), device=arguments.device, mode="isolated", seed=arguments.seed or 0,
                  defaults=backend_defaults)  # fmt: skip
    options = ReplayOptions(arguments.step or "", arguments.compute)
    return ReplayRequest(request_of(arguments, sweep, argv), tuple(arguments.traces), options, arguments.ranks, not arguments.no_parts)


def show_replay(replay: ReplayRequest, recording: Recording, arguments: argparse.Namespace) -> int:
    """Print the exchanges of the step, the ranks that it needs, and what the trace does not contain. Return 0."""
    from collbench.plugins.traces.replay_task import training_of
    from collbench.plugins.traces.replay_text import trace_sentences
    from collbench.plugins.training.command import planned_steps
    from collbench.plugins.training.records import ReplayedTrace
    from collbench.plugins.training.text import write_plan
    from collbench.report.screen import write_line

    planned, _ = planned_steps([training_of(recording, replay.paths)], (0,) * recording.ranks)
    write_plan(planned, arguments.format, sys.stdout)
    for sentence in () if arguments.quiet else trace_sentences(ReplayedTrace.of(recording)):
        write_line(sys.stderr, sentence)
    return 0
