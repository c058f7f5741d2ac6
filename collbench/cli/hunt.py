"""collbench hunt: find the slow node, NIC, rank or link, and clear those that are slow only because of it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli.options import add_backend, add_check, add_messages, add_samples, add_slowed, add_stop_on_wrong, add_where, pairs_request
from collbench.cli.parser import Parser, duration, natural, positive
from collbench.cli.start import Command, begin, launch_of
from collbench.errors import UsageError

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.measure.request import Request
    from collbench.measure.tasks.places import HuntRequest
    from collbench.report.progress import ProgressPrinter

_BUDGET_S = 600.0
_SUMMARY = "find the slow node, NIC, rank or link, and clear its partners"
_DESCRIPTION = (
    f"{_SUMMARY}. Rounds of disjoint pairs (or groups), then each suspect again with healthy partners next to control pairs, then groups "
    "that grow: each suspect is confirmed, cleared or inconclusive. recommendation.json in the run's folder shows what to do. "
    "Exit code 1: a suspect is confirmed; 3: no verdict."
)


def add_hunt(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Add the command; return its parser by name."""
    parser: Parser = commands.add_parser("hunt", help=_SUMMARY, description=_DESCRIPTION)
    parser.later(partial(_add_options, parser))
    parser.set_defaults(call=call_hunt, gdr_check=False)
    return {"hunt": parser}


def _add_options(parser: Parser) -> None:
    what = parser.add_argument_group("what to measure")
    add_messages(what, "what is compared")
    add_backend(what)
    _add_hunt(parser.add_argument_group("how to hunt"))
    how = parser.add_argument_group("how to measure")
    add_samples(how)
    add_check(how)
    add_stop_on_wrong(how)
    how.add_argument("--seed", metavar="N", type=natural, help="seed of the inputs and of the pairs (default: 0)")
    add_slowed(how)
    _add_drain(parser.add_argument_group("what to do about it"))
    add_where(parser.add_argument_group("launch and output"), "hunt")


def _add_hunt(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--method", choices=("auto", "pairs", "groups"), default="auto",
                       help="rounds of pairs, or O(log N) of collectives over groups that overlap (default: auto, pairs where so many "
                            "rounds fit into the budget)")  # fmt: skip
    group.add_argument("--rounds", metavar="N", type=positive, help="most rounds of the sweep (default: by the number of endpoints)")
    group.add_argument("--budget", metavar="SECONDS", type=duration, default=_BUDGET_S,
                       help=f"for all rounds (default: {_BUDGET_S:g})")  # fmt: skip
    group.add_argument("--cover-links", metavar="FILE", type=Path,
                       help="choose pairs that cross every link of the fabric; FILE: what ibnetdiscover printed")  # fmt: skip
    group.add_argument("--no-isolation", action="store_true", help="do not measure confirmed suspects alone (inside, and per interface)")
    group.add_argument("--no-growing", action="store_true", help="do not search for faults that only larger groups show")


def _add_drain(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--apply", action="store_true",
                       help="drain the nodes that are confirmed (scontrol update, kubectl cordon), and print how to undo it (default: "
                            "print and store the lines only)")  # fmt: skip
    group.add_argument("--max-drain", metavar="N|PCT%", default="2%",
                       help="--apply: so many nodes at most are out of use by collbench at a time, else none is drained (default: 2%%, and "
                            "one at least)")  # fmt: skip


def call_hunt(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Hunt in the launch of this process, or start ranks on this host. Return the exit code."""
    hunt = _hunt_request(arguments, argv)

    def measure(request: Request, world: World, listener: Any, ended: Callable[[int], None]) -> int:
        from collbench.measure.tasks.rounds import run_hunt

        return run_hunt(replace(hunt, pairs=replace(hunt.pairs, launch=request)), world, listener, ended)

    def printer(request: Request, arguments: argparse.Namespace) -> ProgressPrinter:
        from collbench.cli.hunt_strategy import HuntProgressPrinter

        return HuntProgressPrinter(arguments)

    return begin(hunt.pairs.launch, Command(arguments, argv, measure, printer), launch_of(arguments, argv))


def _hunt_request(arguments: argparse.Namespace, argv: list[str]) -> HuntRequest:
    """Return the request. Raises UsageError for invalid options, and for those that a hunt does not support."""
    from collbench.deploy.drain import node_here, parse_cap
    from collbench.measure.tasks.places import HuntRequest, PairsRequest
    from collbench.units import parse_size

    if arguments.resume:
        raise UsageError("hunt cannot be resumed: each round follows from those before it, and one launch measures them; start a new run, "
                         "without --resume")  # fmt: skip
    parse_cap(arguments.max_drain)
    pairs = PairsRequest(
        pairs_request(arguments, argv), arguments.by, parse_size(arguments.size), parse_size(arguments.latency_size),
        budget_s=arguments.budget,
    )  # fmt: skip
    return HuntRequest(
        pairs, arguments.method, arguments.rounds, not arguments.no_growing, not arguments.no_isolation, node_here(os.environ)
    )
