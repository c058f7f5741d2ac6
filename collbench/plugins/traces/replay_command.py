"""`collbench replay`: its options, request and plan."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from collbench.backends.registry import backend_defaults
from collbench.cli.command import CommandSpec
from collbench.cli.help import HelpEntry
from collbench.cli.options import NOT_LIMITED, OUTPUT, STEP_MAX_TIME_S, Layout, MeasuringOptions, in_folder, option, some
from collbench.cli.parser import amount
from collbench.cli.request import request_of
from collbench.errors import UsageError
from collbench.measuring.request import Placement
from collbench.operations.dtypes import dtype_named
from collbench.operations.sweep import Sweep
from collbench.plugins.training.command import CHECKED_STEPS, NO_PARTS
from collbench.report.dry_run import PlannedWork

if TYPE_CHECKING:
    from collbench.launch.info import LaunchInfo
    from collbench.plugins.traces.replay_task import ReplayRequest

_REPLAY_SUMMARY = "the communication of a recorded job's step: its time here, and what limits it"
_REPLAY_ABOUT = (
    f"{_REPLAY_SUMMARY}. Reads Flight Recorder dumps, Chakra and Kineto traces, NCCL Inspector files and NCCL_DEBUG logs. The "
    "operations of a step run in their recorded order with verified data, on the recorded number of ranks or fewer."
)


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


@dataclass(frozen=True, kw_only=True)
class ReplayCommandOptions(MeasuringOptions):
    """The options of `collbench replay`."""

    # fmt: off
    traces: list[Path] = option("traces", "files of a trace, or folders with them: those of all ranks", "TRACE", Path, more={"nargs": "+"})
    step: str | None = option("--step", "number of the step from 0, first, median (by recorded time), or all: the whole trace (default: "
        "median, where the trace has step boundaries or repeats exactly)", "N", step_choice)
    compute: float | None = option("--compute", "computing between and during operations: none; gaps: as recorded, else the gaps between "
        "operations; scale=X: X times gaps (default: none)", "HOW", compute_scale)
    suite: Path | None = option("--suite", "write the operations, sizes and groups of the step as a suite for `collbench run`, and exit",
        "FILE", Path)
    no_parts: bool = option("--no-parts", NO_PARTS)
    # fmt: on

    @property
    def shows_plan(self) -> bool:
        """Return whether the plan is shown, or written as a suite."""
        return self.dry_run or self.suite is not None


REPLAY: Layout = {
    "what to replay": some("traces step compute suite", ReplayCommandOptions),
    "how to measure": some(
        "backend device iterations warmup precision max_time no_parts check stop_on_wrong ceiling oversubscription seed slowed",
        ReplayCommandOptions,
        backend={"help": "nccl, torch-nccl, mpi, gloo, simulated … (default: nccl with GPUs, else every installed CPU backend)"},
        iterations={"flags": "-n --steps", "help": "exactly N steps, unless --max-time ends first (default: until --precision is reached)"},
        warmup={"help": "exactly N warm-up steps (default: until times are stable)"},
        max_time={"default": STEP_MAX_TIME_S, "help": f"time limit of the steps per backend; {NOT_LIMITED}"},
        check={"help": CHECKED_STEPS},
    ),
    "launch and output": [
        *some("ranks", ranks={"help": "replay on N ranks, which must divide the recorded number: the data-parallel dimension shrinks "
                              "(default: as recorded)"}),
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


def replay_request(options: ReplayCommandOptions, argv: Sequence[str], info: LaunchInfo | None) -> ReplayRequest:
    """Return the request of `collbench replay`. Raises UsageError for invalid options, and for a trace that cannot be replayed.

    Before ranks are started, the trace gives their number. In a launch rank 0 reads it when all have joined.
    """
    from collbench.plugins.traces.replay_task import ReplayRequest, recording_of
    from collbench.plugins.traces.step import ReplayOptions

    sweep = Sweep((), None, (dtype_named("float32"),), device=options.device, mode="isolated", seed=options.seed or 0,
                  defaults=backend_defaults)  # fmt: skip
    choice, paths = ReplayOptions(options.step or "", options.compute), tuple(options.traces)
    recording, ranks = None, options.ranks
    if info is None or (options.shows_plan and info.rank == 0):
        recording = recording_of(paths, choice, options.ranks)
        ranks = recording.ranks
    launch = request_of(options, sweep, argv, info, ranks=ranks)
    suite = None if options.dry_run else options.suite
    return ReplayRequest(launch, paths, choice, options.ranks, not options.no_parts, recording, suite)


def planned_replay(replay: ReplayRequest, placement: Placement) -> PlannedWork:
    """Return the exchanges of the step, and what the trace does not contain; with --suite the suite of the step."""
    from collbench.plugins.traces.replay_task import training_of
    from collbench.plugins.traces.replay_text import trace_sentences
    from collbench.plugins.training.records import ReplayedTrace
    from collbench.plugins.training.task import WorkloadRequest
    from collbench.plugins.training.text import PlannedSteps

    recording = replay.recording
    assert recording is not None
    if replay.suite:
        from collbench.plugins.traces.suite import suite_text

        what = f"the operations of a recorded step ({recording.form}, {recording.ranks} ranks)"
        return SuiteOfStep(suite_text(recording, what), replay.suite)
    training = training_of(recording, replay.paths)
    steps, _ = WorkloadRequest(replay.launch, (training,)).planned((0,) * recording.ranks)
    return PlannedSteps(steps, trace_sentences(ReplayedTrace.of(recording)))


@dataclass(frozen=True)
class SuiteOfStep(PlannedWork):
    """The suite of --suite, and its file."""

    text: str
    file: Path

    def write(self, format: str, out: TextIO, talk: TextIO | None) -> None:
        """Write the file. Raises UsageError if it cannot be written."""
        from collbench.report.screen import announce

        try:
            self.file.write_text(self.text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--suite {self.file}: {error.strerror or error}: choose another file") from error
        announce(f"wrote {self.file}", quiet=talk is None)


REPLAY_COMMAND = CommandSpec(
    name="replay", summary=_REPLAY_SUMMARY, about=_REPLAY_ABOUT, options=ReplayCommandOptions, layout=REPLAY, request=replay_request,
    plan=planned_replay, task="collbench.plugins.traces.replay_task:ReplayTask",
    progress="collbench.plugins.training.progress:WorkloadProgressPrinter", help=_REPLAY_HELP,
)  # fmt: skip
