"""`collbench workload`: its options, request and plan."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, Self

import msgspec

from collbench.backends.registry import backend_defaults, missing_backend
from collbench.cli.command import CommandSpec
from collbench.cli.help import HelpEntry
from collbench.cli.options import NOT_LIMITED, STEP_MAX_TIME_S, Layout, MeasuringOptions, Option, in_folder, long_option, option, some
from collbench.cli.parser import duration
from collbench.cli.request import request_of
from collbench.errors import UsageError
from collbench.measuring.request import Placement
from collbench.operations.dtypes import dtype_named
from collbench.operations.sweep import Sweep
from collbench.units import format_duration, plural

if TYPE_CHECKING:
    from collbench.launch.info import LaunchInfo
    from collbench.plugins.training.step_task import Training
    from collbench.plugins.training.task import WorkloadRequest
    from collbench.plugins.training.text import PlannedSteps
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


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions(MeasuringOptions):
    """The options of `collbench workload`.

    of_trainings  the options of trainings that are set, as text, by name; --seed belongs to the launch, too
    """

    # fmt: off
    names: str = option("names", "trainings", "NAME")
    step_time: float | None = option("--step-time", "computing time of a step without exchanges, e.g. 180ms; adds the scaling efficiency "
        "that the network allows", "SECONDS", duration)
    compute: str = option("--compute", "computing of a step: none; real: measure each step also with arithmetic that lasts --step-time "
        "(default: as long as its exchanges), for its overlap and scaling efficiency; takes up to --max-time more (default: none)",
        default="none", choices=("none", "real"))
    no_parts: bool = option("--no-parts", NO_PARTS)
    # fmt: on
    of_trainings: Mapping[str, str] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Self:
        """Return the values of a parsed command line. --dtype is that of trainings, not of cases."""
        values = vars(arguments)
        typed = {name: str(values[name]) for name in options_of_trainings() if values.get(name) is not None}
        return replace(super().of(arguments), dtype=[], of_trainings=typed)


def workload_options() -> Layout:
    """Return the arguments of `collbench workload`, of which some depend on the training."""
    from collbench.plugins.training.workloads.registry import every_regime

    steps = (
        "exactly N steps, unless --max-time ends first; asynchronous training: N rounds of each worker "
        "(default: until --precision is reached)"
    )
    names = {"help": f"{', '.join(every_regime())}; several separated by commas, or {ALL}"}
    return {
        "what to train": [*some("names", WorkloadOptions, names=names), *_of_trainings(), *some("step_time compute", WorkloadOptions)],
        "how to measure": some(
            "backend device iterations warmup precision max_time no_parts check stop_on_wrong ceiling oversubscription seed slowed",
            WorkloadOptions,
            backend={"help": "nccl, torch-nccl, mpi, gloo, simulated … (default: nccl with GPUs, else every installed CPU backend)"},
            iterations={"flags": "-n --steps", "help": steps},
            warmup={"help": "exactly N warm-up steps (default: until times are stable)"},
            max_time={"default": STEP_MAX_TIME_S, "help": f"time limit of the steps per training and backend; {NOT_LIMITED}"},
            check={"help": CHECKED_STEPS},
            seed={"help": "seed of the inputs; expert-parallel: also of which expert is the busiest (default: 0)"},
        ),
        "launch and output": in_folder("workload", "the exchanges of a step, their bytes and the estimated time"),
    }


def _of_trainings() -> list[Option]:
    """Return the options of all trainings, with their default by training where they differ. Every command has --seed already."""
    from collbench.plugins.training.workloads.shape import DEFAULTS, help_of, words

    options = []
    for name, owners in options_of_trainings().items():
        if name == "seed":
            continue
        regimes_of: dict[str, list[str]] = {}
        for regime in owners:
            regimes_of.setdefault(words(regime)[name], []).append(regime.name)
        by_regime = ", ".join(f"{value} for {' and '.join(names)}" for value, names in regimes_of.items())
        default = next(iter(regimes_of)) if len(regimes_of) == 1 else by_regime
        only_for = "" if name in DEFAULTS else f"; only {', '.join(regime.name for regime in owners)}"
        text = f"{help_of(owners[0])[name]}{f' (default: {default})' if default else ''}{only_for}".replace("%", "%%")
        flags = f"{'-d ' if name == 'dtype' else ''}{long_option(name)}"
        options.append(Option(flags, text, _METAVARS.get(name, "N"), name=name))
    return options


def options_of_trainings() -> dict[str, list[Regime]]:
    """Return by option the trainings that have it."""
    from collbench.plugins.training.workloads.registry import every_regime
    from collbench.plugins.training.workloads.shape import words

    owners: dict[str, list[Regime]] = {}
    for regime in every_regime().values():
        for name in words(regime):
            owners.setdefault(name, []).append(regime)
    return owners


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


def workload_request(options: WorkloadOptions, argv: Sequence[str], info: LaunchInfo | None) -> WorkloadRequest:
    """Return the request of `collbench workload`. Raises UsageError for invalid options, and for those that no training has."""
    from collbench.device.present import visible_gpus
    from collbench.plugins.training.computing import unsupported
    from collbench.plugins.training.task import WorkloadRequest

    trainings = _trainings(options)
    dtype = dtype_named(trainings[0].shape((0,)).dtype)
    sweep = Sweep((), None, (dtype,), device=options.device, mode="isolated", seed=options.seed or 0, defaults=backend_defaults)
    framework = next((training.regime.name for training in trainings if training.regime.models), None)
    more: dict[str, Any] = {}
    if framework and not options.backend:
        more["backends"] = ("torch-nccl",) if visible_gpus(os.environ) else ("gloo",)
    request = request_of(options, sweep, argv, info, **more)
    if framework and "mpi" in request.backends:  # as libc's exit, which MPI needs, runs destructors of torch that fail without Python
        raise UsageError(f"{framework} runs PyTorch itself, which cannot run in one launch with mpi: use --backend gloo or torch-nccl")
    compute = options.compute == "real"
    for training in trainings:
        reason = unsupported(training.regime)
        if compute and reason and not training.optional:
            raise UsageError(reason.render())
    return WorkloadRequest(request, trainings, not options.no_parts, options.step_time, compute)


def _trainings(options: WorkloadOptions) -> tuple[Training, ...]:
    """Return the requested trainings. Raises UsageError for invalid names or values, and for options that do not apply."""
    from collbench.plugins.training.step_task import Training
    from collbench.plugins.training.workloads.registry import regime_named, regimes
    from collbench.plugins.training.workloads.shape import shape_of, words

    everything = options.names.strip().lower() == ALL
    names = [name for name in options.names.split(",") if name.strip()] or [options.names]
    by_name = regimes() if everything else {regime.name: regime for regime in map(regime_named, names)}
    chosen = list(by_name.values())
    owners = options_of_trainings()
    typed = dict(options.of_trainings)
    if not any(regime in owners["seed"] for regime in chosen):
        typed.pop("seed", None)  # it belongs to the launch, too
    for name in typed if len(chosen) > 1 else ():  # for one training `shape_of` refuses it
        if not any(regime in owners[name] for regime in chosen):
            owning, requested = (", ".join(regime.name for regime in regimes) for regimes in (owners[name], chosen))
            raise UsageError(f"{long_option(name)} does not apply to {requested}, only to {owning}: remove it")
    trainings = []
    for regime in chosen:
        values = {name: text for name, text in typed.items() if len(chosen) == 1 or name in words(regime)}
        shape_of(regime, values, (0,))  # invalid text is rejected before any rank is started
        model = values.get("model", words(regime)["model"])
        trainings.append(Training(regime, partial(shape_of, regime, values), model, optional=everything))
    return tuple(trainings)


def planned_workload(workload: WorkloadRequest, placement: Placement) -> PlannedSteps:
    """Return the exchanges of each step and the estimated time. Raises UsageError for a training that does not fit."""
    from collbench.cli.early import earlier_run
    from collbench.plugins.training.text import STEPS, PlannedSteps

    request = workload.launch
    run = earlier_run(request, workload.options)
    planned, left_out = workload.planned(placement.host_of)
    backends = [name for name in request.backends if not missing_backend(name)]
    stored = {(row.regime, row.backend) for row in STEPS.read(run.path)[0]} if run else set()
    steps = [step for step in planned for name in backends if (step.regime.name, name) not in stored]
    computing = sum(workload.compute and step.regime.with_computing is not None for step in steps)
    longest = format_duration(ceil((len(steps) + computing) * request.budget.max_time_s))
    remarks = list(left_out)
    if run and stored:
        remarks.append(f"{run.path} has {plural(len(stored), 'more row')}")
    if computing:
        remarks.append(f"{plural(computing, 'row')} also measured with computing, which takes the same time again")
    remarks.append(
        f"at most {longest} of samples: {plural(len(steps), 'row')} × {request.budget.max_time_s:g} s of --max-time; start-up, references "
        "and verification come on top"
    )
    return PlannedSteps(planned, remarks)


WORKLOAD_COMMAND = CommandSpec(
    name="workload", summary=_WORKLOAD_SUMMARY, about=_WORKLOAD_ABOUT, options=WorkloadOptions, layout=workload_options,
    request=workload_request, plan=planned_workload, task="collbench.plugins.training.task:WorkloadTask",
    progress="collbench.plugins.training.progress:WorkloadProgressPrinter", help=_WORKLOAD_HELP,
)  # fmt: skip


def completed_words() -> dict[str, Iterable[str]]:
    """Return the possible values of the command's argument, for the completion of shells."""
    from collbench.plugins.training.workloads.registry import every_regime

    return {"workload NAME": every_regime()}
