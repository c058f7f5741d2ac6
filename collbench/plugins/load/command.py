"""`collbench load`: its options, request and plan."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from collbench.backends.registry import backend_defaults
from collbench.cli.dry_run import planned_hosts, show_rounds
from collbench.cli.help import HelpEntry
from collbench.cli.options import ONE_BACKEND, OUTPUT, Layout, Option, add_options, in_folder, some
from collbench.cli.parser import add_command, positive, words
from collbench.cli.request import request_of
from collbench.cli.start import Command, begin, check_installed, launch_of
from collbench.errors import UsageError
from collbench.operations.case import parse_split
from collbench.operations.dtypes import dtype_named
from collbench.operations.registry import commands
from collbench.operations.registry import operations as known_operations
from collbench.operations.sweep import Sweep
from collbench.units import parse_size, plural

if TYPE_CHECKING:
    from collbench.launch.info import LaunchInfo
    from collbench.measuring.request import Request
    from collbench.plugins.load.task import LoadRequest

_LOAD_SUMMARY = "how much slower an operation is while other ranks use the same links"
_LOAD_ABOUT = (
    f"{_LOAD_SUMMARY}. Victims time their operation in blocks with aggressors off and on, in random order. The factor between the two has "
    "an interval, and the row shows the aggressors' rate. By default victims and aggressors are on different nodes."
)
_LOAD_MAX_TIME_S = 10.0
LOAD: Layout = {
    "what to measure": [
        Option("--victim", "operation that is timed (default: allreduce); p2p: p2p_latency", "OPERATION", default="allreduce"),
        Option("--size", "size of the victims' operation (default: 8)", "SIZE", default="8"),
        Option("--against", "patterns of the aggressors: incast, alltoall, broadcast, random-pairs, ring; a row for each, or at the same "
               "time with +: incast+ring (default: incast)", "PATTERNS", words, ["incast"]),
        Option("--message", "size of the aggressors' messages (default: 128K)", "SIZE", default="128K"),
        Option("--levels", "target rates of the aggressors in percent of their full rate; 0: none, a control (default: 100)", "PCT",
               words, ["100"]),
        Option("--ramp", "the levels 0, 25, 50, 75 and 100"),
        Option("--preset", "victim and aggressors of a published test: gpcnet-latency, gpcnet-bandwidth or gpcnet-allreduce", "NAME",
               choices=("gpcnet-latency", "gpcnet-bandwidth", "gpcnet-allreduce")),
        *some("split", split={"help": "the first group are victims, the others aggressors: 'MOD 2' with two ranks per node (default: by "
                              "node)", "needs": None}),
        Option("--aggressors", "number of nodes with aggressors (default: half of them)", "N", positive),
        *some("backend device", backend=ONE_BACKEND),
    ],
    "how to measure": [
        Option("--blocks", "pairs of blocks, with aggressors off and on, of each row (default: 8)", "N", positive, 8),
        *some("max_time check stop_on_wrong seed", max_time={"default": _LOAD_MAX_TIME_S, "help": "time limit of all samples of a row "
              f"(default: {_LOAD_MAX_TIME_S:g})"}, check={"help": "calls of each operation that verify the data; 0: off (default: 1)"},
              seed={"help": "seed of the inputs, of the order of the blocks and of the random pairs (default: 0, random order)"}),
        *some("slowed"),
    ],
    "launch and output": in_folder(
        "load", "the victims, the aggressors and the estimated time", f"ranks oversubscribe ranks_per_node {OUTPUT}"
    ),
}  # fmt: skip


_LOAD_HELP = HelpEntry(
    group="Training",
    follows="workload",
    examples=(
        ("load --split 'MOD 2'", "8-byte all-reduce against incast, on the same nodes"),
        ("load --against incast,alltoall --ramp", "two patterns at five rates, by node"),
        ("load --preset gpcnet-latency", "victims and aggressors as in GPCNeT"),
    ),
)


def add_load(commands: Any) -> None:
    """Add the command."""
    add_command(commands, "load", _LOAD_SUMMARY, call_load, partial(add_options, layout=LOAD), entry=_LOAD_HELP, description=_LOAD_ABOUT)


def call_load(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure in the launch of this process, or start ranks on this host. Return the exit code."""
    from collbench.plugins.load.task import run_load

    load, info = load_request(arguments, argv), launch_of(arguments, argv)
    if info is None or arguments.dry_run:
        return show_load(load, arguments, info, os.environ)

    def measure(request: Request, *rank: Any) -> int:
        return run_load(replace(load, launch=request), *rank)

    return begin(load.launch, Command(arguments, argv, measure, progress="collbench.plugins.load.progress:LoadProgressPrinter"), info)


_PRESETS = {  # GPCNeT 1.3, network_load_test.c: 8-byte messages, or 131,072; congestors of 4,096 bytes on 80 % of the nodes
    "gpcnet-latency": ("sendrecv", 8), "gpcnet-bandwidth": ("sendrecv", 131_072), "gpcnet-allreduce": ("allreduce", 8),
}  # fmt: skip
_CONGESTORS, _CONGESTOR_BYTES = (("alltoall", "incast", "broadcast"),), 4096
_RAMP = (0.0, 0.25, 0.5, 0.75, 1.0)


def load_request(arguments: argparse.Namespace, argv: Sequence[str]) -> LoadRequest:
    """Return the request of `collbench load`. Raises UsageError for invalid options."""
    from collbench.plugins.load.task import PATTERNS, LoadRequest
    from collbench.results.row import stored_operation

    if len(names := tuple(dict.fromkeys(arguments.backend or ()))) > 1:
        raise UsageError(f"load measures one backend, but --backend has {' and '.join(names)}: use one")
    sweep = Sweep((), None, (dtype_named("uint8"),), device=arguments.device, buffers="fixed", seed=arguments.seed or 0,
                  window=1, defaults=backend_defaults)  # fmt: skip
    request = request_of(arguments, sweep, argv, evidence="off")
    victim, size = stored_operation(arguments.victim), parse_size(arguments.size)
    mixes, message = tuple(dict.fromkeys(tuple(mix.split("+")) for mix in arguments.against)), parse_size(arguments.message)
    if arguments.preset:
        (victim, size), mixes, message = _PRESETS[arguments.preset], _CONGESTORS, _CONGESTOR_BYTES
    known = {name: found for name, found in known_operations().items() if not found.is_barrier}
    if victim in commands():
        victim = commands()[victim][0].name  # of p2p, put and get the latency
    if victim not in known:
        raise UsageError(f"--victim '{arguments.victim}' is unknown: choose from {', '.join(sorted(known))}")
    for pattern in (pattern for mix in mixes for pattern in mix):
        if pattern not in PATTERNS:
            raise UsageError(f"--against '{pattern}' is not a valid pattern: choose from {', '.join(PATTERNS)}")
    if arguments.split and arguments.aggressors:
        raise UsageError("--split and --aggressors both choose the aggressors: use one of them")
    if arguments.ramp and arguments.levels != ["100"]:
        raise UsageError("--ramp and --levels both set the aggressors' rates: use one of them")
    levels = _RAMP if arguments.ramp else tuple(dict.fromkeys(map(_level, arguments.levels)))
    split = None if arguments.split is None else parse_split(arguments.split)
    return LoadRequest(
        request, known[victim], size, mixes, message, levels, arguments.blocks, split, arguments.aggressors, arguments.preset or ""
    )


def _level(text: str) -> float:
    """Return the fraction of "25" or "25%". Raises UsageError for another text."""
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / 100 if number.isascii() else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise UsageError(f"--levels '{text}' is not a valid rate: use percentages from 0 to 100, e.g. 0,50,100")
    return value


def show_load(load: LoadRequest, arguments: argparse.Namespace, info: LaunchInfo | None, env: Mapping[str, str]) -> int:
    """Print the victims, the aggressors and the estimated time, at rank 0 of a launch. Return 0. Raises UsageError for bad sides."""
    from collbench.plugins.load.task import sides_of
    from collbench.report.dry_run import PlannedRounds

    check_installed(load.launch)
    hosts = planned_hosts(load.launch, arguments, info, env)
    names = list(info.hosts) if info and len(info.hosts) == max(hosts) + 1 else [f"node {place}" for place in range(max(hosts) + 1)]
    sides = sides_of(load, [names[place] for place in hosts])
    parts = [
        {
            "aggressors": "+".join(mix),
            "percent": round(100 * level, 3),
            "victim_ranks": list(sides.victims),
            "aggressor_ranks": list(sides.others),
        }
        for mix, level in load.rows
    ]
    notes = [f"{load.victim.name} is timed in {plural(load.blocks, 'pair')} of blocks per row; finding the full rates comes on top"]
    title = f"load of {plural(len(parts), 'row')}"
    return show_rounds(PlannedRounds(title, parts, len(parts), load.launch.budget.max_time_s, notes), arguments, info)
