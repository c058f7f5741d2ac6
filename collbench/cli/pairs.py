"""collbench pairs: latency and bandwidth between all pairs of ranks or nodes, and which of them are slow."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from collbench.cli.options import add_slowed, add_stop_on_wrong
from collbench.cli.pair_options import add_backend, add_check, add_messages, add_samples, add_tools, add_where, pairs_request, tools_asked
from collbench.cli.parser import Parser, amount, natural, positive, streams
from collbench.cli.start import Command, begin, launch_of
from collbench.errors import UsageError

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.measure.request import Request
    from collbench.measure.session import Listener
    from collbench.measure.tasks.rounds import PairsListener, PairsRequest
    from collbench.report.listening import Listening

_BUDGET_S = 600.0
_SUMMARY = "latency and bandwidth between all pairs of ranks or nodes, and which of them are slow"
_DESCRIPTION = (
    f"{_SUMMARY}. All pairs of a round are measured at the same time, each rank with one partner. Suspects are measured again "
    "next to control pairs before a node or pair is reported. Exit code 1: a node or pair is slow; 3: inconclusive."
)


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    parser: Parser = commands.add_parser("pairs", help=_SUMMARY, description=_DESCRIPTION)
    parser.later(partial(_add_options, parser))
    parser.set_defaults(call=call, gdr_check=False)
    return {"pairs": parser}


def _add_options(parser: Parser) -> None:
    _add_what(parser.add_argument_group("what to measure"))
    _add_how(parser.add_argument_group("how to measure"))
    add_where(parser.add_argument_group("launch and output"), "pairs")


def _add_what(group: argparse._ArgumentGroup) -> None:
    add_messages(group, "what is paired")
    group.add_argument("--one-to-all", metavar="RANK", type=natural, nargs="?", const=0,
                       help="only the pairs of this rank, or of its node, one by one (RANK: 0)")  # fmt: skip
    group.add_argument("--sample", metavar="N", type=positive,
                       help="only so many partners of each place, of an odd number of places one more for some (default: all)")  # fmt: skip
    add_backend(group)
    add_tools(group, "that are to run between the same pairs, too, as rows beside ours")
    group.add_argument("--streams", metavar="K", type=streams, help="socket: TCP connections per pair of ranks (default: 1)")


def _add_how(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--concurrent", metavar="K", type=positive, help="pairs at the same time, at most (default: all of a round)")
    add_samples(group)
    group.add_argument("--budget", metavar="SECONDS", type=amount, default=_BUDGET_S,
                       help="for the whole matrix: of more rounds than fit into it a sample is measured, in which each place has a "
                            f"partner at least (default: {_BUDGET_S:g}, all pairs of 400 nodes)")  # fmt: skip
    add_check(group)
    add_stop_on_wrong(group)
    group.add_argument("--seed", metavar="N", type=natural, help="of the inputs and the order of rounds (default: 0, and any order)")
    add_slowed(group)


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measures in the launch this process belongs to, or starts ranks on this host. Returns the exit code."""
    asked = _asked(arguments, argv)
    return begin(asked.launch, Command(arguments, argv, _measuring(asked), _listening), launch_of(arguments, argv))


def _asked(arguments: argparse.Namespace, argv: list[str]) -> PairsRequest:
    """What was typed. Raises UsageError for what cannot be read, and for what pairs does not do."""
    from collbench.measure.tasks.rounds import PairsRequest
    from collbench.units import parse_size

    if arguments.resume:
        raise UsageError("pairs cannot be resumed: all rounds of a matrix are set against one another, so one launch measures them; "
                         "start a new run, without --resume")  # fmt: skip
    return PairsRequest(
        pairs_request(arguments, argv), arguments.by, parse_size(arguments.size), parse_size(arguments.latency_size), arguments.concurrent,
        arguments.one_to_all, arguments.sample, arguments.budget, tools_asked(arguments),
    )  # fmt: skip


def _measuring(asked: PairsRequest) -> Callable[[Request, World, Listener | None, Callable[[int], None]], int]:
    """What each rank does."""
    from dataclasses import replace

    def measure(request: Request, world: World, listener: Listener | None, ended: Callable[[int], None]) -> int:
        from collbench.measure.tasks.rounds import run_pairs

        return run_pairs(replace(asked, launch=request), world, cast("PairsListener | None", listener), ended)  # from `_listening`

    return measure


def _listening(request: Request, arguments: argparse.Namespace) -> Listening:
    from collbench.report.pairs_listening import PairsListening

    return PairsListening(arguments)
