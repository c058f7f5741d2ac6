"""`collbench pairs` and `collbench hunt`: their options, requests and plans."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.backends.registry import backend_defaults
from collbench.cli.command import CommandSpec
from collbench.cli.help import HelpEntry
from collbench.cli.options import ONE_BACKEND, Layout, MeasuringOptions, declare, in_folder, option, some
from collbench.cli.parser import duration, natural, positive
from collbench.cli.request import request_of
from collbench.errors import UsageError
from collbench.measuring.request import Placement
from collbench.operations.sweep import Sweep
from collbench.plugin import plugins
from collbench.plugins.channels.probe import tools_option
from collbench.units import parse_size, plural

if TYPE_CHECKING:
    from collbench.launch.info import LaunchInfo
    from collbench.measuring.request import Request
    from collbench.plugins.hunt.places import HuntRequest, PairsRequest
    from collbench.report.dry_run import PlannedRounds

_PAIR_MAX_TIME_S = 0.5
_PAIR_WINDOW = 16  # a sample must be so short that six fit into half a second on a link of 2 Gb/s
_BUDGET_S = 600.0
_BY = "{}; a pair of nodes uses all their ranks at the same time (default: node if there are several, else rank)"


@dataclass(frozen=True, kw_only=True)
class SomePairsOptions(MeasuringOptions):
    """The options that pairs and hunt share."""

    # fmt: off
    by: str | None = option("--by", _BY.format("what to pair"), choices=("rank", "node"))
    size: str = option("--size", "size of the bandwidth messages (default: 1M)", "SIZE", default="1M")
    latency_size: str = option("--latency-size", "size of the latency messages (default: 8)", "SIZE", default="8")
    # fmt: on


@dataclass(frozen=True, kw_only=True)
class PairsOptions(SomePairsOptions):
    """The options of `collbench pairs`."""

    # fmt: off
    one_to_all: int | None = option("--one-to-all", "only the pairs of this rank, or of its node, one at a time (RANK: 0)", "RANK", natural,
        more={"nargs": "?", "const": 0})
    sample: int | None = option("--sample", "number of partners of each rank or node; for an odd number some have one more (default: all)",
        "N", positive)
    concurrent: int | None = option("--concurrent", "most pairs at the same time (default: all of a round)", "K", positive)
    budget: float = option("--budget", f"time limit of the whole matrix: if not all pairs fit, measure a sample in which each rank or node "
        f"has at least one partner (default: {_BUDGET_S:g}: all pairs of 400 nodes)", "SECONDS", duration, _BUDGET_S)
    tools: list[str] | None = declare(tools_option("that run between the same pairs as well, as separate rows"))
    # fmt: on


@dataclass(frozen=True, kw_only=True)
class HuntOptions(SomePairsOptions):
    """The options of `collbench hunt`."""

    # fmt: off
    method: str = option("--method", "rounds of pairs, or O(log N) of collectives over groups that overlap (default: auto, pairs where so "
        "many rounds fit into the budget)", choices=("auto", "pairs", "groups"), default="auto")
    rounds: int | None = option("--rounds", "most rounds of the sweep (default: by the number of endpoints)", "N", positive)
    cover_links: Path | None = option("--cover-links", "choose pairs that cross every link of the fabric; FILE: what ibnetdiscover printed",
        "FILE", Path)
    groups: str | None = option("--groups", "also judge the paths between groups of hosts, such as leaf switches: slurm, nvlink, latency, "
        "or a FILE (topology.conf, topology.yaml, kubectl's JSON, or lines NAME: HOSTS)", "SOURCE")
    no_isolation: bool = option("--no-isolation", "do not measure confirmed suspects alone (inside, per interface, per TCP source port)")
    no_growing: bool = option("--no-growing", "do not search for faults that only larger groups show")
    apply: bool = option("--apply", "drain the nodes that are confirmed (scontrol update, kubectl cordon), and print how to undo it "
        "(default: print and store the lines only)")
    max_drain: str = option("--max-drain", "--apply: so many nodes at most are out of use by collbench at a time, else none is drained "
        "(default: 2%%, and one at least)", "N|PCT%", default="2%")
    budget: float = option("--budget", f"for all rounds (default: {_BUDGET_S:g})", "SECONDS", duration, _BUDGET_S)
    # fmt: on


_SAMPLES = some(
    "iterations warmup precision max_time",
    warmup={"help": "exactly N warm-up calls (default: 10 ping-pongs, 1 window)"},
    max_time={"default": _PAIR_MAX_TIME_S, "help": f"time limit per measurement; a round has three (default: {_PAIR_MAX_TIME_S:g})"},
)
_CHECKS = some("check stop_on_wrong", check={"help": "calls per measurement that verify the data; 0: off (default: 1)"})


_MESSAGES = "by size latency_size window"
_WINDOW = {"default": _PAIR_WINDOW, "help": f"messages in flight (default: {_PAIR_WINDOW})"}
PAIRS: Layout = {
    "what to measure": some(
        f"{_MESSAGES} one_to_all sample backend device tools streams", PairsOptions, window=_WINDOW, backend=ONE_BACKEND,
        streams={"help": "socket: TCP connections per pair of ranks (default: 1)"},
    ),
    "how to measure": [
        *some("concurrent", PairsOptions),
        *_SAMPLES,
        *some("budget", PairsOptions),
        *_CHECKS,
        *some("seed slowed", seed={"help": "seed of the inputs and of the order of rounds (default: 0, random order)"}),
    ],
    "launch and output": in_folder("pairs", "the rounds, their pairs and the estimated time"),
}  # fmt: skip
_GROUPS = "groups" if "groups" in plugins() else ""
HUNT: Layout = {
    "what to measure": some(
        f"{_MESSAGES} backend device", HuntOptions, window=_WINDOW, backend=ONE_BACKEND,
        by={"help": _BY.format("what is compared")},
    ),
    "how to hunt": some(f"method rounds budget cover_links {_GROUPS} no_isolation no_growing", HuntOptions),
    "how to measure": [
        *_SAMPLES,
        *_CHECKS,
        *some("seed slowed", seed={"help": "seed of the inputs and of the pairs (default: 0)"}),
    ],
    "what to do about it": some("apply max_drain", HuntOptions),
    "launch and output": in_folder("hunt", "the stages, their most rounds and the estimated time"),
}  # fmt: skip

# collbench pairs: latency and bandwidth between all pairs of ranks or nodes, and the slow ones.
_PAIRS_SUMMARY = "latency and bandwidth between all pairs of ranks or nodes, and which of them are slow"
_PAIRS_ABOUT = (
    f"{_PAIRS_SUMMARY}. All pairs of a round are measured at the same time, each rank with one partner. Suspects are measured again "
    "next to control pairs before a node or pair is reported. To find one faulty node, use `hunt`: it measures fewer pairs, repeats each "
    "suspect with more partners, tries groups that grow, and prints how to drain it. Exit code 1: a node or pair is slow; 3: inconclusive."
)


_PAIRS_HELP = HelpEntry(
    follows="",
    examples=(
        ("pairs", "all pairs of ranks on this host"),
        ("pairs --by node --sample 4", "four partners per node"),
        ("emit slurm --nodes 8 -- pairs", "write a Slurm script for eight nodes"),
    ),
    expert="latency_size concurrent",
)


def pairs_request(options: PairsOptions, argv: Sequence[str], info: LaunchInfo | None) -> PairsRequest:
    """Return the request of pairs. Raises UsageError for invalid options."""
    from collbench.plugins.channels.wire_tools import requested_tools
    from collbench.plugins.hunt.places import PairsRequest

    launch = _launch(options, argv, info, options.streams)
    return PairsRequest(
        launch, options.by, parse_size(options.size), parse_size(options.latency_size), options.concurrent, options.one_to_all,
        options.sample, options.budget, requested_tools(options.tools),
    )  # fmt: skip


def _launch(options: SomePairsOptions, argv: Sequence[str], info: LaunchInfo | None, streams: int | None = None) -> Request:
    """Return the request of the launch: bytes, of any number, and fixed buffers, since every round creates new ones."""
    from collbench.operations.dtypes import dtype_named

    names = tuple(dict.fromkeys(options.backend or ()))
    if len(names) > 1:
        raise UsageError(f"{options.command} measures one backend, but --backend has {' and '.join(names)}: use one")
    sweep = Sweep((), None, (dtype_named("uint8"),), device=options.device, buffers="fixed", window=options.window,
                  seed=options.seed or 0, streams=streams, defaults=backend_defaults)  # fmt: skip
    return request_of(options, sweep, argv, info, evidence="off")


def planned_pairs(request: PairsRequest, placement: Placement) -> PlannedRounds:
    """Return the rounds of a pairs run. Raises UsageError for options that do not fit."""
    from collbench.cli.early import earlier_run
    from collbench.measuring.resume import stored_order_seed
    from collbench.plugins.hunt.places import sampled
    from collbench.plugins.hunt.records import read_pairs
    from collbench.report.dry_run import PlannedRounds

    run = earlier_run(request.launch, request.options)
    seed = stored_order_seed(run.path) if run else request.launch.order_seed
    places, schedule = request.planned(placement, seed or 0)
    stored = read_pairs(run) if run else None
    met = {pair for pair_round in stored.rounds for pair in pair_round.pairs} if stored else set()
    parts: list[dict[str, Any]] = []
    for number, pairs in enumerate(schedule.rounds()):
        unmeasured = [pair for pair in pairs if pair not in met]
        if unmeasured:
            parts.append({"round": number + 1, "pairs": len(unmeasured), f"{places.by}s": unmeasured})
    sample = sampled(request, schedule, schedule.pairs)
    notes = [sample.render()] if sample else []
    if places.idle:
        notes.append(places.idle)
    if run is None and seed is None:
        notes.append("without --seed, which pairs meet in which round is drawn at the start")
    if run and met:
        notes.append(f"{run.path} has {plural(len(met), 'more pair')}")
    notes.append("suspects are measured again in further rounds")
    count = plural(sum(part["pairs"] for part in parts), "pair")
    title = f"pairs of {places.n} {places.by}s: {count} in {plural(len(parts), 'round')}"
    return PlannedRounds(title, parts, len(parts), request.launch.budget.max_time_s, notes)


PAIRS_COMMAND = CommandSpec(
    name="pairs", summary=_PAIRS_SUMMARY, about=_PAIRS_ABOUT, options=PairsOptions, layout=PAIRS, request=pairs_request,
    plan=planned_pairs, task="collbench.plugins.hunt.tasks:PairsTask",
    progress="collbench.plugins.hunt.progress:PairsProgressPrinter", help=_PAIRS_HELP,
)  # fmt: skip


# collbench hunt: find the slow node, NIC, rank or link, and clear those that are slow only because of it.
_HUNT_SUMMARY = "find the slow node, NIC, rank or link, and clear its partners"
_HUNT_ABOUT = (
    f"{_HUNT_SUMMARY}. Rounds of disjoint pairs (or groups), then each suspect again with healthy partners next to control pairs, then "
    "groups that grow: each suspect is confirmed, cleared or inconclusive. recommendation.json in the run's folder shows what to do. "
    "For the figures of every pair as a matrix, use `pairs`. Exit code 1: a suspect is confirmed; 3: no verdict."
)


_HUNT_HELP = HelpEntry(
    group="Commands",
    follows="run",
    examples=(
        ("hunt --backend simulated --ranks 8", "try it without a cluster"),
        ("hunt --budget 5m", "stop after five minutes"),
        ("emit slurm --nodes 16 -- hunt", "write a Slurm script for sixteen nodes"),
    ),
    expert="latency_size no_isolation no_growing",
)


def hunt_request(options: HuntOptions, argv: Sequence[str], info: LaunchInfo | None) -> HuntRequest:
    """Return the request of a hunt. Raises UsageError for invalid options."""
    from collbench.plugins.hunt.drain import parse_cap
    from collbench.plugins.hunt.managers import node_here
    from collbench.plugins.hunt.places import HuntRequest

    parse_cap(options.max_drain)
    launch = _launch(options, argv, info)
    return HuntRequest(
        launch, options.by, parse_size(options.size), parse_size(options.latency_size), budget_s=options.budget, method=options.method,
        rounds=options.rounds, growing=not options.no_growing, isolate=not options.no_isolation, node=node_here(os.environ),
        cover_links=options.cover_links, groups=options.groups, apply=options.apply, max_drain=options.max_drain,
    )  # fmt: skip


def planned_hunt(request: HuntRequest, placement: Placement) -> PlannedRounds:
    """Return the stages of a hunt. Raises UsageError for options that do not fit."""
    from collbench.cli.early import earlier_run
    from collbench.plugins.hunt.progress import planned_stages
    from collbench.plugins.hunt.records import read_hunt
    from collbench.report.dry_run import PlannedRounds

    places, most_rounds, crossed = planned_stages(request, placement)
    run = earlier_run(request.launch, {**request.options, "--cover-links": crossed.get("crossed")})
    met = len(read_hunt(run).rounds) if run else 0
    rounds = max(0, sum(most_rounds.values()) - met)
    notes = [places.idle] if places.idle else []
    if run and met:
        notes.append(f"{run.path} has {plural(met, 'more round')}")
    if places.by != "rank":
        notes.append("a confirmed node is also measured over each interface that all nodes have")
    notes.append("most hunts end after far fewer rounds")
    title = f"hunt among {places.n} {places.by}s: at most {plural(rounds, 'round')}"
    parts = [{"stage": stage, "most_rounds": most} for stage, most in most_rounds.items() if most]
    return PlannedRounds(title, parts, rounds, request.launch.budget.max_time_s, notes)


HUNT_COMMAND = CommandSpec(
    name="hunt", summary=_HUNT_SUMMARY, about=_HUNT_ABOUT, options=HuntOptions, layout=HUNT, request=hunt_request, plan=planned_hunt,
    task="collbench.plugins.hunt.tasks:HuntTask", progress="collbench.plugins.hunt.progress:HuntProgressPrinter", help=_HUNT_HELP,
)  # fmt: skip
