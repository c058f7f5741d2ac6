"""The options of `collbench workload`, of which each way of training has its own, and the trainings that they ask for."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.cli.options import DEFAULT_TIMEOUT_S, add_ranks, add_slowed, add_stop_on_wrong
from collbench.cli.parser import Parser, amount, factor, natural, positive, words
from collbench.errors import UsageError

if TYPE_CHECKING:
    from collbench.measure.tasks.training import Training
    from collbench.workloads.step import Regime

ALL = "all"
_MAX_TIME_S = 10.0
_METAVARS = {"model": "MODEL", "dtype": "TYPE", "bucket": "SIZE", "update": "HOW", "imbalance": "X"}


def add_options(parser: Parser) -> None:
    """Adds all of them."""
    _add_what(parser.add_argument_group("what to train"))
    _add_how(parser.add_argument_group("how to measure"))
    _add_where(parser.add_argument_group("launch and output"))


def trainings_of(arguments: argparse.Namespace) -> tuple[Training, ...]:
    """What was asked for. Raises UsageError for a name, or words, that cannot be read, and for options that mean nothing there."""
    from collbench.measure.tasks.training import Training
    from collbench.workloads.shape import DEFAULT, shape_of

    chosen, typed = _chosen(arguments.names), _typed(arguments)
    everything = arguments.names.strip().lower() == ALL
    _check_known(typed, chosen)
    found = []
    for regime in chosen:
        own = {name: text for name, text in typed.items() if len(chosen) == 1 or name in _words(regime)}
        shape_of(regime, own, (0,))  # words that cannot be read are refused before any rank is started
        found.append(Training(regime, partial(shape_of, regime, own), typed.get("model", DEFAULT), optional=everything))
    return tuple(found)


def _add_what(group: argparse._ArgumentGroup) -> None:
    from collbench.workloads.registry import regimes
    from collbench.workloads.shape import USUAL, help_of

    group.add_argument("names", metavar="NAME", help=f"{', '.join(regimes())}; several with commas between, or {ALL}")
    for name, knowing in _known_by().items():
        if name == "seed":
            continue  # it has a meaning of its own to every command
        said, usual = help_of(knowing[0])[name], _usual(name, knowing)
        default = f" (default: {usual})" if usual and "(default" not in said else ""
        whose = "" if name in USUAL else f"; of {', '.join(regime.name for regime in knowing)}"
        short = ["-d"] if name == "dtype" else []
        group.add_argument(*short, _option(name), metavar=_METAVARS.get(name, "N"), help=f"{said}{default}{whose}".replace("%", "%%"))
    group.add_argument("--step-time", metavar="TIME",
                       help="how long a step computes, without exchanging, like 180ms: tells the scaling efficiency that the network "
                            "allows")  # fmt: skip


def _usual(name: str, knowing: Sequence[Regime]) -> str:
    """What an option is where nothing is typed, by training where they differ; "" where the model says it."""
    values: dict[str, list[str]] = {}
    for regime in knowing:
        values.setdefault(_words(regime)[name], []).append(regime.name)
    if len(values) == 1:
        return next(iter(values))
    return ", ".join(f"{value} of {' and '.join(names)}" for value, names in values.items())


def _add_how(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--backend", metavar="NAMES", type=words,
                       help="nccl, torch-nccl, mpi, gloo, simulated … (default: nccl where there are GPUs, else every CPU backend at "
                            "hand)")  # fmt: skip
    group.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                       help="where the buffers lie (default: auto, cuda for nccl and torch-nccl, cpu for the others)")  # fmt: skip
    group.add_argument("-n", "--steps", metavar="N", type=positive,
                       help="N steps, if --max-time allows; of asynchronous training N rounds of each worker (default: until "
                            "precise)")  # fmt: skip
    group.add_argument("-w", "--warmup", metavar="N", type=natural, help="exactly N steps before (default: until settled)")
    group.add_argument("--precision", metavar="PCT", type=amount, help="half-width of the interval aimed at, in percent (default: by size)")
    group.add_argument("--max-time", metavar="SECONDS", type=amount, default=_MAX_TIME_S,
                       help=f"per training and backend (default: {_MAX_TIME_S:g})")  # fmt: skip
    group.add_argument("--no-parts", action="store_true",
                       help="measure the whole step alone, and not each of its exchanges for a fifth of the time, too")  # fmt: skip
    group.add_argument("-c", "--check", metavar="N", type=natural, default=1, help="verifying steps; 0: off (default: 1)")
    add_stop_on_wrong(group)
    group.add_argument("--ceiling", metavar="GB/s", type=amount, help="the rate to set the bus bandwidth against (default: probed)")
    group.add_argument("--oversubscription", metavar="X", type=factor, default=1.0,
                       help="the fabric carries a host's rate divided by X (default: 1)")  # fmt: skip
    group.add_argument("--seed", metavar="N", type=natural, help="of the inputs; expert-parallel: of who is the busiest, too (default: 0)")
    add_slowed(group)


def _add_where(group: argparse._ArgumentGroup) -> None:
    add_ranks(group)
    group.add_argument("--dry-run", action="store_true", help="print the exchanges of a step and their bytes, and start nothing")
    group.add_argument("--timeout", metavar="SECONDS", type=amount, default=DEFAULT_TIMEOUT_S,
                       help=f"deadline of every wait (default: {DEFAULT_TIMEOUT_S:g})")  # fmt: skip
    group.add_argument("--allocation", metavar="NAME", help="name of the allocation (default: the scheduler's job)")
    group.add_argument("--out", metavar="DIR", type=Path, help="the run's folder (default: runs/<time>-workload-<id>)")
    group.add_argument("--resume", metavar="RUN", help=argparse.SUPPRESS)
    group.add_argument("--format", choices=("table", "csv", "json"), default="table", help="of stdout (default: table)")
    group.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="(default: auto)")
    group.add_argument("--quiet", action="store_true", help="data and errors only")


def _chosen(text: str) -> tuple[Regime, ...]:
    from collbench.workloads.registry import regime_named, regimes

    if text.strip().lower() == ALL:
        return tuple(regimes().values())
    names = [name for name in text.split(",") if name.strip()]
    return tuple({regime.name: regime for regime in map(regime_named, names or [text])}.values())


def _typed(arguments: argparse.Namespace) -> dict[str, str]:
    """The trainings' options that were given, as text. --seed is the launch's, too: where no training knows it nobody minds."""
    given = {name: getattr(arguments, name) for name in _known_by()}
    heard = any("seed" in _words(regime) for regime in _chosen(arguments.names))
    return {name: str(value) for name, value in given.items() if value is not None and (name != "seed" or heard)}


def _check_known(typed: Mapping[str, str], chosen: tuple[Regime, ...]) -> None:
    """Raises UsageError for an option that none of several trainings knows; of one alone `shape_of` says it."""
    for name in typed if len(chosen) > 1 else ():
        if not any(name in _words(regime) for regime in chosen):
            owners, names = (", ".join(regime.name for regime in those) for those in (_known_by()[name], chosen))
            raise UsageError(f"{_option(name)} means nothing to {names}, only to {owners}: leave it out")


def _words(regime: Regime) -> Mapping[str, str]:
    """The options that a training knows, with their defaults."""
    from collbench.workloads.shape import words as words_of

    return words_of(regime)


def _known_by() -> dict[str, list[Regime]]:
    """By option the trainings that know it."""
    from collbench.workloads.registry import regimes

    every = list(regimes().values())
    return {name: [regime for regime in every if name in _words(regime)] for name in dict.fromkeys(n for r in every for n in _words(r))}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
