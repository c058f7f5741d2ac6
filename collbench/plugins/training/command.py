"""`collbench workload`: its options, request and plan."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

from collbench.backends.registry import backend_defaults
from collbench.cli.dry_run import earlier_run, planned_hosts
from collbench.cli.help import HelpEntry
from collbench.cli.options import NOT_LIMITED, STEP_MAX_TIME_S, Layout, Option, add_options, in_folder, long_option, some
from collbench.cli.parser import Parser, add_command, duration
from collbench.cli.request import request_of
from collbench.cli.start import Command, begin, launch_of, missing_backend
from collbench.errors import UsageError
from collbench.operations.dtypes import dtype_named
from collbench.operations.sweep import Sweep
from collbench.units import format_duration, plural

if TYPE_CHECKING:
    from collbench.launch.info import LaunchInfo
    from collbench.measuring.request import Request
    from collbench.plugins.training.step_task import Training
    from collbench.plugins.training.task import WorkloadRequest
    from collbench.plugins.training.text import PlannedStep
    from collbench.plugins.training.workloads.step import Regime

NO_PARTS = "measure only the whole step; without it each exchange is measured too, in a fifth of the time"
CHECKED_STEPS = "steps that verify the data; 0: off (default: 1)"
_WORKLOAD_SUMMARY = "the exchanges of a training step: their bytes, their time here, and what limits them"
_WORKLOAD_ABOUT = (
    f"{_WORKLOAD_SUMMARY}: data-parallel, pipeline, sharded and other training of a model. The exchanges of a step are measured in their "
    "order, without the computation between them."
)
ALL = "all"  # the name of all trainings
_METAVARS = {
    "model": "MODEL", "dtype": "TYPE", "bucket": "SIZE", "update": "HOW", "imbalance": "X", "routing": "ROUTING",
    "dispatch_dtype": "TYPE", "combine_dtype": "TYPE",
}  # fmt: skip


def workload_options() -> Layout:
    """Return the arguments of `collbench workload`, of which some depend on the training."""
    from collbench.plugins.training.workloads.registry import every_regime

    names = Option("names", f"{', '.join(every_regime())}; several separated by commas, or {ALL}", "NAME")
    step_time = "computing time of a step without exchanges, e.g. 180ms; adds the scaling efficiency that the network allows"
    compute = Option(
        "--compute", "computing of a step: none; real: measure each step also with arithmetic that lasts --step-time (default: as long as "
        "its exchanges), for its overlap and scaling efficiency; takes up to --max-time more (default: none)", default="none",
        choices=("none", "real"),
    )  # fmt: skip
    steps = (
        "exactly N steps, unless --max-time ends first; asynchronous training: N rounds of each worker "
        "(default: until --precision is reached)"
    )
    return {
        "what to train": [names, *_of_trainings(), Option("--step-time", step_time, "SECONDS", duration), compute],
        "how to measure": [
            *some(
                "backend device iterations warmup precision max_time",
                backend={"help": "nccl, torch-nccl, mpi, gloo, simulated … (default: nccl with GPUs, else every installed CPU backend)"},
                iterations={"flags": "-n --steps", "help": steps, "dest": "iterations"},
                warmup={"help": "exactly N warm-up steps (default: until times are stable)"},
                max_time={"default": STEP_MAX_TIME_S, "help": f"time limit of the steps per training and backend; {NOT_LIMITED}"},
            ),
            Option("--no-parts", NO_PARTS),
            *some(
                "check stop_on_wrong ceiling oversubscription seed slowed",
                check={"help": CHECKED_STEPS},
                seed={"help": "seed of the inputs; expert-parallel: also of which expert is the busiest (default: 0)"},
            ),
        ],
        "launch and output": in_folder("workload", "the exchanges of a step, their bytes and the estimated time"),
    }


def _of_trainings() -> list[Option]:
    """Return the options of all trainings, with their default by training where they differ. Every command has --seed already."""
    from collbench.plugins.training.workloads.shape import DEFAULTS, help_of, words

    found = []
    for name, owners in options_of_trainings().items():
        if name == "seed":
            continue
        values: dict[str, list[str]] = {}
        for regime in owners:
            values.setdefault(words(regime)[name], []).append(regime.name)
        of_each = ", ".join(f"{value} for {' and '.join(names)}" for value, names in values.items())
        default = next(iter(values)) if len(values) == 1 else of_each
        only_for = "" if name in DEFAULTS else f"; only {', '.join(regime.name for regime in owners)}"
        text = f"{help_of(owners[0])[name]}{f' (default: {default})' if default else ''}{only_for}".replace("%", "%%")
        flags = f"{'-d ' if name == 'dtype' else ''}{long_option(name)}"
        found.append(Option(flags, text, _METAVARS.get(name, "N")))
    return found


def options_of_trainings() -> dict[str, list[Regime]]:
    """Return by option the trainings that have it."""
    from collbench.plugins.training.workloads.registry import every_regime
    from collbench.plugins.training.workloads.shape import words

    found: dict[str, list[Regime]] = {}
    for regime in every_regime().values():
        for name in words(regime):
            found.setdefault(name, []).append(regime)
    return found


_WORKLOAD_HELP = HelpEntry(
    group="Training",
    follows="",
    examples=(
        ("workload data-parallel --model resnet50", "the exchanges of a training step, measured"),
        ("workload all --dry-run", "what each kind of training sends, without measuring"),
        ("workload data-parallel --step-time 180ms", "add the scaling efficiency for this computing time"),
    ),
    expert="bucket update servers layers hidden sequence microbatch microbatches stages tensor experts top_k imbalance "
    "routing routings dispatch_dtype combine_dtype",
)


def add_workload(commands: Any) -> None:
    """Add the command."""

    def fill(parser: Parser) -> None:
        add_options(parser, workload_options())

    add_command(commands, "workload", _WORKLOAD_SUMMARY, call_workload, fill, entry=_WORKLOAD_HELP, description=_WORKLOAD_ABOUT)


def call_workload(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure in the launch of this process, or start ranks on this host. Return the exit code."""
    from collbench.plugins.training.task import run_workload

    workload, info = workload_request(arguments, argv), launch_of(arguments, argv)
    if arguments.dry_run:
        return show_workload(workload, arguments, info, os.environ)
    if info is None:
        planned_steps(workload.trainings, (0,) * len(planned_hosts(workload.launch, arguments, None, os.environ)))

    def measure(request: Request, *rank: Any) -> int:
        return run_workload(replace(workload, launch=request), *rank)

    return begin(
        workload.launch, Command(arguments, argv, measure, progress="collbench.plugins.training.progress:WorkloadProgressPrinter"), info
    )


def workload_request(arguments: argparse.Namespace, argv: Sequence[str]) -> WorkloadRequest:
    """Return the request of `collbench workload`. Raises UsageError for invalid options, and for those that no training has."""
    from collbench.device.present import visible_gpus
    from collbench.plugins.training.computing import unsupported
    from collbench.plugins.training.task import WorkloadRequest

    trainings = _trainings(arguments)
    dtype = dtype_named(trainings[0].shape((0,)).dtype)
    sweep = Sweep((), None, (dtype,), device=arguments.device, mode="isolated", seed=arguments.seed or 0, defaults=backend_defaults)
    request = request_of(arguments, sweep, argv)
    framework = next((training.regime.name for training in trainings if training.regime.models), None)
    if framework and not request.requested:
        request = replace(request, backends=("torch-nccl",) if visible_gpus(os.environ) else ("gloo",))
    if framework and "mpi" in request.backends:  # as libc's exit, which MPI needs, runs destructors of torch that fail without Python
        raise UsageError(f"{framework} runs PyTorch itself, which cannot run in one launch with mpi: use --backend gloo or torch-nccl")
    compute = arguments.compute == "real"
    for training in trainings if compute else ():
        if not training.optional and (reason := unsupported(training.regime)):
            raise UsageError(reason.render())
    return WorkloadRequest(request, trainings, not arguments.no_parts, arguments.step_time, compute)


def _trainings(arguments: argparse.Namespace) -> tuple[Training, ...]:
    """Return the requested trainings. Raises UsageError for invalid names or values, and for options that do not apply."""
    from collbench.plugins.training.step_task import Training
    from collbench.plugins.training.workloads.registry import regime_named, regimes
    from collbench.plugins.training.workloads.shape import shape_of, words

    everything = arguments.names.strip().lower() == ALL
    names = [name for name in arguments.names.split(",") if name.strip()] or [arguments.names]
    by_name = regimes() if everything else {regime.name: regime for regime in map(regime_named, names)}
    chosen = list(by_name.values())
    owners = options_of_trainings()
    typed = {name: str(value) for name in owners if (value := getattr(arguments, name)) is not None}
    if not any(regime in owners["seed"] for regime in chosen):
        typed.pop("seed", None)  # it belongs to the launch, too
    for name in typed if len(chosen) > 1 else ():  # for one training `shape_of` refuses it
        if not any(regime in owners[name] for regime in chosen):
            those, these = (", ".join(regime.name for regime in each) for each in (owners[name], chosen))
            raise UsageError(f"{long_option(name)} does not apply to {these}, only to {those}: remove it")
    found = []
    for regime in chosen:
        own = {name: text for name, text in typed.items() if len(chosen) == 1 or name in words(regime)}
        shape_of(regime, own, (0,))  # invalid text is rejected before any rank is started
        found.append(Training(regime, partial(shape_of, regime, own), own.get("model", words(regime)["model"]), optional=everything))
    return tuple(found)


def show_workload(workload: WorkloadRequest, arguments: argparse.Namespace, info: LaunchInfo | None, env: Mapping[str, str]) -> int:
    """Print the exchanges of each step and the estimated time, for ranks that fill one host after the other. Return 0.

    Raises UsageError for a training that does not fit.
    """
    from collbench.plugins.training.text import STEPS, write_plan
    from collbench.report.screen import write_line

    if info and info.rank:
        return 0
    request = workload.launch
    run = earlier_run(request, workload.options)
    planned, left_out = planned_steps(workload.trainings, planned_hosts(request, arguments, info, env))
    backends = [name for name in request.backends if not missing_backend(name)]
    stored = {(row.regime, row.backend) for row in STEPS.read(run.path)[0]} if run else set()
    left = sum((step.regime.name, name) not in stored for step in planned for name in backends)
    computing = sum((step.regime.name, name) not in stored and workload.compute and step.regime.with_computing is not None
                    for step in planned for name in backends)  # fmt: skip
    longest = format_duration(ceil((left + computing) * request.budget.max_time_s))
    remarks = [
        *left_out, *([f"{run.path} has {plural(len(stored), 'more row')}"] if run and stored else []),
        *([f"{plural(computing, 'row')} also measured with computing, which takes the same time again"] if computing else []),
        f"at most {longest} of samples: {plural(left, 'row')} × {request.budget.max_time_s:g} s of --max-time; start-up, references and "
        "verification come on top",
    ]  # fmt: skip
    write_plan(planned, arguments.format, sys.stdout)
    for sentence in () if arguments.quiet else remarks:
        write_line(sys.stderr, sentence)
    return 0


def planned_steps(trainings: Sequence[Training], hosts: tuple[int, ...]) -> tuple[list[PlannedStep], list[str]]:
    """Return the steps for these hosts, and the reasons for those without one. Raises UsageError for a training that is not optional."""
    from collbench.plugins.training.step_task import check_number
    from collbench.plugins.training.text import PlannedStep

    planned, left_out = [], []
    for training in trainings:
        try:
            shape = training.shape(hosts)
            step = training.regime.step(shape)
            check_number(step)
            planned.append(PlannedStep(training.regime, shape, step, training.model))
        except UsageError as error:
            if not training.optional:
                raise
            left_out.append(f"{training.regime.name} is skipped: {error}")
    return planned, left_out


def completed_words() -> dict[str, Iterable[str]]:
    """Return the possible values of the command's argument, for the completion of shells."""
    from collbench.plugins.training.workloads.registry import every_regime

    return {"workload NAME": every_regime()}
