"""What the commands that measure pairs of ranks or nodes have in common: their options, and the request these make."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.cli.gpus import default_backends
from collbench.cli.options import DEFAULT_TIMEOUT_S, add_ranks
from collbench.cli.parser import amount, natural, positive, words
from collbench.errors import UsageError

if TYPE_CHECKING:
    from collbench.measure.request import Request

_MAX_TIME_S = 0.5
_WINDOW = 16  # a sample must be short enough for six of them to fit into half a second on a link of 2 Gb/s


def add_messages(group: argparse._ArgumentGroup, who: str) -> None:
    """Adds what is paired ("what is paired; ..." begins with `who`), and the messages."""
    group.add_argument("--by", choices=("rank", "node"),
                       help=f"{who}; two nodes meet with all their ranks at once, each with its counterpart (default: node where "
                            "there are several, else rank)")  # fmt: skip
    group.add_argument("--size", metavar="SIZE", default="1M", help="of the messages whose bandwidth is measured (default: 1M)")
    group.add_argument("--latency-size", metavar="SIZE", default="8", help="of those whose latency is (default: 8)")
    group.add_argument("--window", metavar="W", type=positive, default=_WINDOW, help=f"messages in flight (default: {_WINDOW})")


def add_backend(group: argparse._ArgumentGroup) -> None:
    """Adds which backend carries them, and where the buffers lie."""
    group.add_argument("--backend", metavar="NAME", type=words, help="one of those of `collbench backends` (default: the first at hand)")
    group.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                       help="where the buffers lie (default: auto, cuda for nccl and torch-nccl, cpu for the others)")  # fmt: skip


def add_tools(group: argparse._ActionsContainer, which: str) -> None:
    """Adds the tools of others; `which` says what they do here."""
    group.add_argument("--tools", metavar="NAME", type=words,
                       help=f"of iperf3, fi_pingpong, ucx_perftest and ib_write_bw those {which} (default: none)")  # fmt: skip


def tools_asked(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Their names. Raises UsageError for one that is none."""
    if not arguments.tools:
        return ()
    from collbench.measure.wire_tools import tools_named

    return tuple(tool.name for tool in tools_named(arguments.tools))


def add_samples(group: argparse._ArgumentGroup) -> None:
    """Adds how long one measurement takes."""
    group.add_argument("-n", "--iterations", metavar="N", type=positive, help="N samples, if --max-time allows (default: until precise)")
    group.add_argument("-w", "--warmup", metavar="N", type=natural, help="exactly N warm-up calls (default: 10 ping-pongs, 1 window)")
    group.add_argument("--precision", metavar="PCT", type=amount, help="half-width of the interval aimed at, in percent (default: by size)")
    group.add_argument("--max-time", metavar="SECONDS", type=amount, default=_MAX_TIME_S,
                       help=f"per measurement, of which a round has three (default: {_MAX_TIME_S:g})")  # fmt: skip


def add_check(group: argparse._ArgumentGroup) -> None:
    """Adds how often what arrived is compared."""
    group.add_argument("-c", "--check", metavar="N", type=natural, default=1, help="verifying calls per measurement; 0: off (default: 1)")


def add_where(group: argparse._ArgumentGroup, command: str) -> None:
    """Adds who starts the ranks, and where the results go."""
    add_ranks(group)
    group.add_argument("--timeout", metavar="SECONDS", type=amount, default=DEFAULT_TIMEOUT_S,
                       help=f"deadline of every wait (default: {DEFAULT_TIMEOUT_S:g})")  # fmt: skip
    group.add_argument("--allocation", metavar="NAME", help="name of the allocation (default: the scheduler's job)")
    group.add_argument("--out", metavar="DIR", type=Path, help=f"the run's folder (default: runs/<time>-{command}-<id>)")
    group.add_argument("--resume", metavar="RUN", help=argparse.SUPPRESS)
    group.add_argument("--format", choices=("table", "csv", "json"), default="table", help="of stdout (default: table)")
    group.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="(default: auto)")
    group.add_argument("--quiet", action="store_true", help="data and errors only")


def pairs_request(arguments: argparse.Namespace, argv: list[str]) -> Request:
    """The launch's request. Raises UsageError for what cannot be read."""
    from collbench.backends.registry import habits
    from collbench.backends.slowing import parse_slowing
    from collbench.measure.request import Budget, Request
    from collbench.operations.dtypes import dtype_named
    from collbench.operations.sweep import Sweep

    seed = arguments.seed or 0
    precision = arguments.precision / 100 if arguments.precision else None
    # Bytes, of any number; and fixed buffers, since every round makes new ones.
    sweep = Sweep((), None, (dtype_named("uint8"),), device=arguments.device, buffers="fixed", window=arguments.window, seed=seed,
                  streams=getattr(arguments, "streams", None), habits=habits)  # fmt: skip
    return Request(
        command=arguments.command, sweep=sweep, backends=_backends(arguments), asked=frozenset(arguments.backend or ()),
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
        raise UsageError(f"{arguments.command} measures one backend, but --backend names {' and '.join(asked)}: choose one")
    for name in asked:
        backend_class(name)
    return asked or default_backends(os.environ)
