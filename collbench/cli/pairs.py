"""collbench pairs: latency and bandwidth between all pairs of ranks or nodes, and who among them is slow."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from collbench.cli.gpus import default_backends
from collbench.cli.options import DEFAULT_TIMEOUT_S, add_ranks, add_slowed, add_stop_on_wrong
from collbench.cli.parser import Parser, amount, natural, positive, streams, words
from collbench.cli.start import Command, begin, launch_of
from collbench.errors import UsageError

if TYPE_CHECKING:
    from collbench.cli.listening import Listening
    from collbench.runner.launch import Listener
    from collbench.runner.pair_match import PairsListener
    from collbench.runner.pair_places import PairsRequest
    from collbench.runner.request import Request
    from collbench.world.world import World

_MAX_TIME_S, _BUDGET_S = 0.5, 600.0
_WINDOW = 16  # a sample must be short enough for six of them to fit into half a second on a link of 2 Gb/s
_SUMMARY = "latency and bandwidth between all pairs of ranks or nodes, and who among them is slow"
_DESCRIPTION = (
    f"{_SUMMARY}. All pairs of a round are measured at the same time, each rank with one partner; who seems slow is "
    "measured again, alone, before anybody is named."
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
    _add_where(parser.add_argument_group("launch and output"))


def _add_what(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--by", choices=("rank", "node"),
                       help="what is paired; two nodes meet with all their ranks at once, each with its counterpart (default: node where "
                            "there are several, else rank)")  # fmt: skip
    group.add_argument("--size", metavar="SIZE", default="1M", help="of the messages whose bandwidth is measured (default: 1M)")
    group.add_argument("--latency-size", metavar="SIZE", default="8", help="of those whose latency is (default: 8)")
    group.add_argument("--window", metavar="W", type=positive, default=_WINDOW, help=f"messages in flight (default: {_WINDOW})")
    group.add_argument("--one-to-all", metavar="RANK", type=natural, nargs="?", const=0,
                       help="only the pairs of this rank, or of its node, one by one (RANK: 0)")  # fmt: skip
    group.add_argument("--sample", metavar="N", type=positive,
                       help="only so many partners of each place, of an odd number of places one more for some (default: all)")  # fmt: skip
    group.add_argument("--backend", metavar="NAME", type=words, help="one of those of `collbench backends` (default: the first at hand)")
    group.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                       help="where the buffers lie (default: auto, cuda for nccl and torch-nccl, cpu for the others)")  # fmt: skip
    group.add_argument("--streams", metavar="K", type=streams, help="socket: TCP connections per pair of ranks (default: 1)")


def _add_how(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--concurrent", metavar="K", type=positive, help="pairs at the same time, at most (default: all of a round)")
    group.add_argument("-n", "--iterations", metavar="N", type=positive, help="N samples, if --max-time allows (default: until precise)")
    group.add_argument("-w", "--warmup", metavar="N", type=natural, help="exactly N warm-up calls (default: 10 ping-pongs, 1 window)")
    group.add_argument("--precision", metavar="PCT", type=amount, help="half-width of the interval aimed at, in percent (default: by size)")
    group.add_argument("--max-time", metavar="SECONDS", type=amount, default=_MAX_TIME_S,
                       help=f"per measurement, of which a round has three (default: {_MAX_TIME_S:g})")  # fmt: skip
    group.add_argument("--budget", metavar="SECONDS", type=amount, default=_BUDGET_S,
                       help="for the whole matrix: of more rounds than fit into it a sample is measured, in which each place has a "
                            f"partner at least (default: {_BUDGET_S:g}, all pairs of 400 nodes)")  # fmt: skip
    group.add_argument("-c", "--check", metavar="N", type=natural, default=1, help="verifying calls per measurement; 0: off (default: 1)")
    add_stop_on_wrong(group)
    group.add_argument("--seed", metavar="N", type=natural, help="of the inputs and the order of rounds (default: 0, and any order)")
    add_slowed(group)


def _add_where(group: argparse._ArgumentGroup) -> None:
    add_ranks(group)
    group.add_argument("--timeout", metavar="SECONDS", type=amount, default=DEFAULT_TIMEOUT_S,
                       help=f"deadline of every wait (default: {DEFAULT_TIMEOUT_S:g})")  # fmt: skip
    group.add_argument("--allocation", metavar="NAME", help="name of the allocation (default: the scheduler's job)")
    group.add_argument("--out", metavar="DIR", type=Path, help="the run's folder (default: runs/<time>-pairs-<id>)")
    group.add_argument("--resume", metavar="RUN", help=argparse.SUPPRESS)
    group.add_argument("--format", choices=("table", "csv", "json"), default="table", help="of stdout (default: table)")
    group.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="(default: auto)")
    group.add_argument("--quiet", action="store_true", help="data and errors only")


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measures in the launch this process belongs to, or starts ranks on this host. Returns the exit code."""
    asked = _asked(arguments, argv)
    return begin(asked.launch, Command(arguments, argv, _measuring(asked), _listening), launch_of(arguments, argv))


def _asked(arguments: argparse.Namespace, argv: list[str]) -> PairsRequest:
    """What was typed. Raises UsageError for what cannot be read, and for what pairs does not do."""
    from collbench.runner.pair_places import PairsRequest
    from collbench.units import parse_size

    if arguments.resume:
        raise UsageError("pairs cannot be resumed: all rounds of a matrix are set against one another, so one launch measures them; "
                         "start a new run, without --resume")  # fmt: skip
    return PairsRequest(
        _request(arguments, argv), arguments.by, parse_size(arguments.size), parse_size(arguments.latency_size), arguments.concurrent,
        arguments.one_to_all, arguments.sample, arguments.budget,
    )  # fmt: skip


def _request(arguments: argparse.Namespace, argv: list[str]) -> Request:
    from collbench.backends.habits import habits
    from collbench.backends.slowing import parse_slowing
    from collbench.operations.dtypes import dtype_named
    from collbench.operations.plan import Sweep
    from collbench.runner.request import Request
    from collbench.timing.budget import Budget

    seed = arguments.seed or 0
    precision = arguments.precision / 100 if arguments.precision else None
    # Bytes, of any number; and fixed buffers, since every round makes new ones.
    sweep = Sweep((), None, (dtype_named("uint8"),), device=arguments.device, buffers="fixed", window=arguments.window, seed=seed,
                  streams=arguments.streams, habits=habits)  # fmt: skip
    return Request(
        command="pairs", sweep=sweep, backends=_backends(arguments), asked=frozenset(arguments.backend or ()),
        budget=Budget(arguments.max_time, arguments.iterations, arguments.warmup, precision), ranks=arguments.ranks,
        check=arguments.check, timeout_s=arguments.timeout, seed=seed, order_seed=arguments.seed, out=arguments.out,
        allocation=arguments.allocation, gpus_per_process=arguments.gpus_per_process, evidence="off",
        slowed=parse_slowing(arguments.slowed), stop_on_wrong=arguments.stop_on_wrong, argv=tuple(argv),
    )  # fmt: skip


def _backends(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The one that was asked for, or those that are tried in turn."""
    from collbench.backends.registry import backend_class

    asked = tuple(dict.fromkeys(arguments.backend or ()))
    if len(asked) > 1:
        raise UsageError(f"pairs measures one backend, but --backend names {' and '.join(asked)}: choose one")
    for name in asked:
        backend_class(name)
    return asked or default_backends(os.environ)


def _measuring(asked: PairsRequest) -> Callable[[Request, World, Listener | None, Callable[[int], None]], int]:
    """What each rank does."""
    from dataclasses import replace

    def measure(request: Request, world: World, listener: Listener | None, ended: Callable[[int], None]) -> int:
        from collbench.runner.pairs import run_pairs

        return run_pairs(replace(asked, launch=request), world, cast("PairsListener | None", listener), ended)  # from `_listening`

    return measure


def _listening(request: Request, arguments: argparse.Namespace) -> Listening:
    from collbench.cli.pairs_listening import PairsListening

    return PairsListening(arguments)
