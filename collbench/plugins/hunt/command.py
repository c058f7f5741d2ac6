"""`collbench pairs` and `collbench hunt`: their options, requests and plans."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.backends.registry import backend_defaults
from collbench.cli.dry_run import earlier_run, planned_hosts, show_rounds
from collbench.cli.help import HelpEntry
from collbench.cli.options import ONE_BACKEND, Layout, Option, add_options, in_folder, some
from collbench.cli.parser import add_command, duration, natural, positive
from collbench.cli.request import request_of
from collbench.cli.start import Command, begin, check_installed, launch_of, missing_backend
from collbench.errors import UsageError
from collbench.operations.registry import operations
from collbench.operations.sweep import Sweep
from collbench.plugins.channels.probe import tools_option
from collbench.units import parse_size, plural

if TYPE_CHECKING:
    from collbench.launch.info import LaunchInfo
    from collbench.measuring.request import Request
    from collbench.operations.groups import Schedule
    from collbench.plugins.hunt.places import HuntRequest, PairsRequest, Places

_PAIR_MAX_TIME_S = 0.5
_PAIR_WINDOW = 16  # a sample must be so short that six fit into half a second on a link of 2 Gb/s
_BUDGET_S = 600.0
_SAMPLES = some(
    "iterations warmup precision max_time",
    warmup={"help": "exactly N warm-up calls (default: 10 ping-pongs, 1 window)"},
    max_time={"default": _PAIR_MAX_TIME_S, "help": f"time limit per measurement; a round has three (default: {_PAIR_MAX_TIME_S:g})"},
)
_CHECKS = some("check stop_on_wrong", check={"help": "calls per measurement that verify the data; 0: off (default: 1)"})


def _messages(subject: str) -> list[Option]:
    """Return the options for the pairs (the help text begins with `subject`), and for the messages."""
    return [
        Option("--by", f"{subject}; a pair of nodes uses all their ranks at the same time (default: node if there are several, else rank)",
               choices=("rank", "node")),
        Option("--size", "size of the bandwidth messages (default: 1M)", "SIZE", default="1M"),
        Option("--latency-size", "size of the latency messages (default: 8)", "SIZE", default="8"),
        *some("window", window={"default": _PAIR_WINDOW, "help": f"messages in flight (default: {_PAIR_WINDOW})"}),
    ]  # fmt: skip


PAIRS: Layout = {
    "what to measure": [
        *_messages("what to pair"),
        Option("--one-to-all", "only the pairs of this rank, or of its node, one at a time (RANK: 0)", "RANK", natural,
               more={"nargs": "?", "const": 0}),
        Option("--sample", "number of partners of each rank or node; for an odd number some have one more (default: all)", "N", positive),
        *some("backend device", backend=ONE_BACKEND),
        tools_option("that run between the same pairs as well, as separate rows"),
        *some("streams", streams={"help": "socket: TCP connections per pair of ranks (default: 1)"}),
    ],
    "how to measure": [
        Option("--concurrent", "most pairs at the same time (default: all of a round)", "K", positive),
        *_SAMPLES,
        Option("--budget", "time limit of the whole matrix: if not all pairs fit, measure a sample in which each rank or node has at least "
               f"one partner (default: {_BUDGET_S:g}: all pairs of 400 nodes)", "SECONDS", duration, _BUDGET_S),
        *_CHECKS,
        *some("seed slowed", seed={"help": "seed of the inputs and of the order of rounds (default: 0, random order)"}),
    ],
    "launch and output": in_folder("pairs", "the rounds, their pairs and the estimated time"),
}  # fmt: skip
HUNT: Layout = {
    "what to measure": [*_messages("what is compared"), *some("backend device", backend=ONE_BACKEND)],
    "how to hunt": [
        Option("--method", "rounds of pairs, or O(log N) of collectives over groups that overlap (default: auto, pairs where so many "
               "rounds fit into the budget)", choices=("auto", "pairs", "groups"), default="auto"),
        Option("--rounds", "most rounds of the sweep (default: by the number of endpoints)", "N", positive),
        Option("--budget", f"for all rounds (default: {_BUDGET_S:g})", "SECONDS", duration, _BUDGET_S),
        Option("--cover-links", "choose pairs that cross every link of the fabric; FILE: what ibnetdiscover printed", "FILE", Path),
        Option("--no-isolation", "do not measure confirmed suspects alone (inside, and per interface)"),
        Option("--no-growing", "do not search for faults that only larger groups show"),
    ],
    "how to measure": [
        *_SAMPLES,
        *_CHECKS,
        *some("seed slowed", seed={"help": "seed of the inputs and of the pairs (default: 0)"}),
    ],
    "what to do about it": [
        Option("--apply", "drain the nodes that are confirmed (scontrol update, kubectl cordon), and print how to undo it (default: print "
               "and store the lines only)"),
        Option("--max-drain", "--apply: so many nodes at most are out of use by collbench at a time, else none is drained (default: 2%%, "
               "and one at least)", "N|PCT%", default="2%"),
    ],
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


def add_pairs(commands: Any) -> None:
    """Add the command."""
    add_command(
        commands, "pairs", _PAIRS_SUMMARY, call_pairs, partial(add_options, layout=PAIRS), entry=_PAIRS_HELP, description=_PAIRS_ABOUT
    )


def call_pairs(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure in the launch of this process, or start ranks on this host. Return the exit code."""
    from collbench.plugins.hunt.tasks import run_pairs

    pairs, info = pairs_request(arguments, argv), launch_of(arguments, argv)
    if arguments.dry_run:
        return show_pairs(pairs, arguments, info)
    if info is None:
        planned_pairs(pairs, arguments, None)

    def measure(request: Request, *rank: Any) -> int:
        return run_pairs(replace(pairs, launch=request), *rank)

    cases, progress = _with_cases(pairs, "p2p_bandwidth"), "collbench.plugins.hunt.progress:PairsProgressPrinter"
    return begin(pairs.launch, Command(arguments, argv, measure, cases, progress), info)


def pairs_request(arguments: argparse.Namespace, argv: Sequence[str]) -> PairsRequest:
    """Return the request of pairs, and of a hunt's pairs. Raises UsageError for invalid options."""
    from collbench.plugins.channels.wire_tools import requested_tools
    from collbench.plugins.hunt.places import PairsRequest

    if len(names := tuple(dict.fromkeys(arguments.backend or ()))) > 1:
        raise UsageError(f"{arguments.command} measures one backend, but --backend has {' and '.join(names)}: use one")
    from collbench.operations.dtypes import dtype_named

    # Bytes, of any number, and fixed buffers, since every round creates new ones.
    sweep = Sweep((), None, (dtype_named("uint8"),), device=arguments.device, buffers="fixed", window=arguments.window,
                  seed=arguments.seed or 0, streams=getattr(arguments, "streams", None), defaults=backend_defaults)  # fmt: skip
    request = request_of(arguments, sweep, argv, evidence="off")
    size, latency_size = parse_size(arguments.size), parse_size(arguments.latency_size)
    if arguments.command == "hunt":
        return PairsRequest(request, arguments.by, size, latency_size, budget_s=arguments.budget)
    return PairsRequest(
        request, arguments.by, size, latency_size, arguments.concurrent, arguments.one_to_all, arguments.sample, arguments.budget,
        requested_tools(arguments),
    )  # fmt: skip


def _with_cases(pairs: PairsRequest, operation: str, dtype: str = "uint8") -> Request:
    """Return the request with the sweep of its largest messages, on the first backend that is installed."""
    from collbench.operations.dtypes import dtype_named

    launch = pairs.launch
    assert isinstance(launch.sweep, Sweep)
    installed = [name for name in launch.backends if not missing_backend(name)]
    sweep = replace(launch.sweep, operations=(operations()[operation],), sizes=(pairs.size_bytes,), dtypes=(dtype_named(dtype),))
    return replace(launch, sweep=sweep, backends=tuple(installed[:1]))


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


def add_hunt(commands: Any) -> None:
    """Add the command."""
    add_command(commands, "hunt", _HUNT_SUMMARY, call_hunt, partial(add_options, layout=HUNT), entry=_HUNT_HELP, description=_HUNT_ABOUT)


def call_hunt(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Hunt in the launch of this process, or start ranks on this host. Return the exit code."""
    from collbench.plugins.hunt.tasks import run_hunt

    hunt, info = hunt_request(arguments, argv), launch_of(arguments, argv)
    if arguments.dry_run:
        return show_hunt(hunt, arguments, info)
    if info is None:
        from collbench.plugins.hunt.drain import check_apply

        planned_stages(hunt, arguments, None)
        if arguments.apply:
            check_apply(os.environ)

    def measure(request: Request, *rank: Any) -> int:
        return run_hunt(replace(hunt, pairs=replace(hunt.pairs, launch=request)), *rank)

    cases = _with_cases(hunt.pairs, "allreduce", "float32") if hunt.method == "groups" else _with_cases(hunt.pairs, "p2p_bandwidth")
    return begin(hunt.pairs.launch, Command(arguments, argv, measure, cases, "collbench.plugins.hunt.progress:HuntProgressPrinter"), info)


def hunt_request(arguments: argparse.Namespace, argv: Sequence[str]) -> HuntRequest:
    """Return the request of a hunt. Raises UsageError for invalid options."""
    from collbench.plugins.hunt.drain import parse_cap
    from collbench.plugins.hunt.managers import node_here
    from collbench.plugins.hunt.places import HuntRequest

    parse_cap(arguments.max_drain)
    return HuntRequest(
        pairs_request(arguments, argv), arguments.method, arguments.rounds, not arguments.no_growing, not arguments.no_isolation,
        node_here(os.environ),
    )  # fmt: skip


# --dry-run: the rounds of a run of pairs, and the stages of a hunt.


def show_pairs(request: PairsRequest, arguments: argparse.Namespace, info: LaunchInfo | None) -> int:
    """Print the rounds of a pairs run, at rank 0 of a launch. Return 0. Raises UsageError for options that do not fit."""
    from collbench.measuring.resume import stored_order_seed
    from collbench.plugins.hunt.places import sampled
    from collbench.plugins.hunt.records import read_pairs
    from collbench.report.dry_run import PlannedRounds

    run = earlier_run(request.launch, request.options)
    seed = stored_order_seed(run.path) if run else request.launch.order_seed
    places, schedule = planned_pairs(request, arguments, info, seed or 0)
    stored = read_pairs(run) if run else None
    met = {pair for pair_round in stored.rounds for pair in pair_round.pairs} if stored else set()
    parts: list[dict[str, Any]] = []
    for number, pairs in enumerate(schedule.rounds()):
        left = [pair for pair in pairs if pair not in met]
        if left:
            parts.append({"round": number + 1, "pairs": len(left), f"{places.by}s": left})
    sample = sampled(request, schedule, schedule.pairs)
    notes = [sample.render()] if sample else []
    if places.idle:
        notes.append(places.idle)
    if run is None and seed is None:
        notes.append("without --seed, which pairs meet in which round is drawn at the start")
    if run and met:
        notes.append(f"{run.path} has {plural(len(met), 'more pair')}")
    notes.append("suspects are measured again in further rounds")
    left_pairs = plural(sum(part["pairs"] for part in parts), "pair")
    title = f"pairs of {places.n} {places.by}s: {left_pairs} in {plural(len(parts), 'round')}"
    return show_rounds(PlannedRounds(title, parts, len(parts), request.launch.budget.max_time_s, notes), arguments, info)


def show_hunt(request: HuntRequest, arguments: argparse.Namespace, info: LaunchInfo | None) -> int:
    """Print the stages of a hunt, at rank 0 of a launch. Return 0. Raises UsageError for options that do not fit."""
    from collbench.plugins.hunt.records import read_hunt
    from collbench.report.dry_run import PlannedRounds

    places, most_rounds, crossed = planned_stages(request, arguments, info)
    run = earlier_run(request.pairs.launch, {**request.options, "--cover-links": crossed.get("crossed")})
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
    return show_rounds(PlannedRounds(title, parts, rounds, request.pairs.launch.budget.max_time_s, notes), arguments, info)


def planned_pairs(request: PairsRequest, arguments: argparse.Namespace, info: LaunchInfo | None, seed: int = 0) -> tuple[Places, Schedule]:
    """Return the places and the schedule of a pairs run. Raises UsageError for options that do not fit the ranks."""
    from collbench.plugins.hunt.places import schedule_of

    places, by_host = _places(request, arguments, info)
    return places, schedule_of(request, places, by_host, seed)


def planned_stages(
    request: HuntRequest, arguments: argparse.Namespace, info: LaunchInfo | None
) -> tuple[Places, Mapping[str, int], Mapping[str, Any]]:
    """Return the places of a hunt, the most rounds of each stage, and the results of a link file. Raises UsageError as a hunt does."""
    from collbench.plugins.hunt.progress import options_of
    from collbench.plugins.hunt.strategy import stages

    places, _ = _places(request.pairs, arguments, info)
    about = {"places": list(places.names), "hosts": list(places.hosts), "ranks_per_place": places.width, "no_groups": None, "nics": []}
    options, crossed = options_of(arguments, about)
    return places, stages(places.n, options), crossed


def _places(request: PairsRequest, arguments: argparse.Namespace, info: LaunchInfo | None) -> tuple[Places, list[list[int]]]:
    """Return (the planned places, the ranks of each host). Raises UsageError for fewer than two places."""
    from collbench.plugins.hunt.places import places_of

    check_installed(request.launch)
    host_of = planned_hosts(request.launch, arguments, info, os.environ)
    by_host = [[rank for rank, host in enumerate(host_of) if host == number] for number in range(max(host_of) + 1)]
    names = [socket.gethostname()] if info is None else list(info.hosts)
    hosts = names if len(names) == len(by_host) else [f"node {place}" for place in range(len(by_host))]
    return places_of(request, hosts, by_host), by_host
