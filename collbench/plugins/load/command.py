"""`collbench load`: its options, request and plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from collbench.backends.registry import backend_defaults
from collbench.cli.command import CommandSpec
from collbench.cli.help import HelpEntry
from collbench.cli.options import ONE_BACKEND, OUTPUT, Layout, MeasuringOptions, in_folder, option, some
from collbench.cli.parser import positive, words
from collbench.cli.request import request_of
from collbench.errors import UsageError
from collbench.measuring.request import Placement
from collbench.operations.case import parse_split
from collbench.operations.dtypes import dtype_named
from collbench.operations.registry import commands
from collbench.operations.registry import operations as known_operations
from collbench.operations.sweep import Sweep
from collbench.units import parse_size, plural

if TYPE_CHECKING:
    from collbench.launch.info import LaunchInfo
    from collbench.plugins.load.task import LoadRequest
    from collbench.report.dry_run import PlannedRounds

_LOAD_SUMMARY = "how much slower an operation is while other ranks use the same links"
_LOAD_ABOUT = (
    f"{_LOAD_SUMMARY}. Victims time their operation in blocks with aggressors off and on, in random order. The factor between the two has "
    "an interval, and the row shows the aggressors' rate. By default victims and aggressors are on different nodes."
)
_LOAD_MAX_TIME_S = 10.0


@dataclass(frozen=True, kw_only=True)
class LoadOptions(MeasuringOptions):
    """The options of `collbench load`."""

    # fmt: off
    victim: str = option("--victim", "operation that is timed (default: allreduce); p2p: p2p_latency", "OPERATION", default="allreduce")
    size: str = option("--size", "size of the victims' operation (default: 8)", "SIZE", default="8")
    against: list[str] = option("--against", "patterns of the aggressors: incast, alltoall, broadcast, random-pairs, ring; a row for each, "
        "or at the same time with +: incast+ring (default: incast)", "PATTERNS", words, ["incast"])
    message: str = option("--message", "size of the aggressors' messages (default: 128K)", "SIZE", default="128K")
    levels: list[str] = option("--levels", "target rates of the aggressors in percent of their full rate; 0: none, a control (default: "
        "100)", "PCT", words, ["100"])
    ramp: bool = option("--ramp", "the levels 0, 25, 50, 75 and 100")
    preset: str | None = option("--preset", "victim and aggressors of a published test: gpcnet-latency, gpcnet-bandwidth or "
        "gpcnet-allreduce", "NAME", choices=("gpcnet-latency", "gpcnet-bandwidth", "gpcnet-allreduce"))
    aggressors: int | None = option("--aggressors", "number of nodes with aggressors (default: half of them)", "N", positive)
    blocks: int = option("--blocks", "pairs of blocks, with aggressors off and on, of each row (default: 8)", "N", positive, 8)
    # fmt: on


LOAD: Layout = {
    "what to measure": some(
        "victim size against message levels ramp preset split aggressors backend device", LoadOptions, backend=ONE_BACKEND,
        split={"help": "the first group are victims, the others aggressors: 'MOD 2' with two ranks per node (default: by node)",
               "needs": None},
    ),
    "how to measure": some(
        "blocks max_time check stop_on_wrong seed slowed", LoadOptions,
        max_time={"default": _LOAD_MAX_TIME_S, "help": f"time limit of all samples of a row (default: {_LOAD_MAX_TIME_S:g})"},
        check={"help": "calls of each operation that verify the data; 0: off (default: 1)"},
        seed={"help": "seed of the inputs, of the order of the blocks and of the random pairs (default: 0, random order)"},
    ),
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


_PRESETS = {  # GPCNeT 1.3, network_load_test.c: 8-byte messages, or 131,072; congestors of 4,096 bytes on 80 % of the nodes
    "gpcnet-latency": ("sendrecv", 8), "gpcnet-bandwidth": ("sendrecv", 131_072), "gpcnet-allreduce": ("allreduce", 8),
}  # fmt: skip
_CONGESTORS, _CONGESTOR_BYTES = (("alltoall", "incast", "broadcast"),), 4096
_RAMP = (0.0, 0.25, 0.5, 0.75, 1.0)


def load_request(options: LoadOptions, argv: Sequence[str], info: LaunchInfo | None) -> LoadRequest:
    """Return the request of `collbench load`. Raises UsageError for invalid options."""
    from collbench.plugins.load.task import PATTERNS, LoadRequest
    from collbench.results.row import stored_operation

    names = tuple(dict.fromkeys(options.backend or ()))
    if len(names) > 1:
        raise UsageError(f"load measures one backend, but --backend has {' and '.join(names)}: use one")
    sweep = Sweep((), None, (dtype_named("uint8"),), device=options.device, buffers="fixed", seed=options.seed or 0,
                  window=1, defaults=backend_defaults)  # fmt: skip
    request = request_of(options, sweep, argv, info, evidence="off")
    victim = stored_operation(options.victim)
    size = parse_size(options.size)
    mixes = tuple(dict.fromkeys(tuple(mix.split("+")) for mix in options.against))
    message = parse_size(options.message)
    if options.preset:
        victim, size = _PRESETS[options.preset]
        mixes = _CONGESTORS
        message = _CONGESTOR_BYTES
    measurable = {name: operation for name, operation in known_operations().items() if not operation.is_barrier}
    if victim in commands():
        victim = commands()[victim][0].name  # of p2p, put and get the latency
    if victim not in measurable:
        raise UsageError(f"--victim '{options.victim}' is unknown: choose from {', '.join(sorted(measurable))}")
    for pattern in chain(*mixes):
        if pattern not in PATTERNS:
            raise UsageError(f"--against '{pattern}' is not a valid pattern: choose from {', '.join(PATTERNS)}")
    if options.split and options.aggressors:
        raise UsageError("--split and --aggressors both choose the aggressors: use one of them")
    if options.ramp and options.levels != ["100"]:
        raise UsageError("--ramp and --levels both set the aggressors' rates: use one of them")
    levels = _RAMP if options.ramp else tuple(dict.fromkeys(map(_level, options.levels)))
    split = None if options.split is None else parse_split(options.split)
    return LoadRequest(
        request, measurable[victim], size, mixes, message, levels, options.blocks, split, options.aggressors, options.preset or ""
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


def planned_load(load: LoadRequest, placement: Placement) -> PlannedRounds:
    """Return the victims, the aggressors and the estimated time. Raises UsageError for bad sides."""
    from collbench.report.dry_run import PlannedRounds

    load.launch.check_installed()
    sides = load.sides(placement)
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
    return PlannedRounds(f"load of {plural(len(parts), 'row')}", parts, len(parts), load.launch.budget.max_time_s, notes)


LOAD_COMMAND = CommandSpec(
    name="load", summary=_LOAD_SUMMARY, about=_LOAD_ABOUT, options=LoadOptions, layout=LOAD, request=load_request, plan=planned_load,
    task="collbench.plugins.load.task:LoadTask", progress="collbench.plugins.load.progress:LoadProgressPrinter", help=_LOAD_HELP,
)  # fmt: skip
