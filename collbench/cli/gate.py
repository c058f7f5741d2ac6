"""collbench gate: whether a cluster got slower; so far how far its rule can be trusted."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from collbench.cli.parser import positive

_ABOUT = (
    "--self-test: how often the gate's rule alarms where nothing is wrong, and how often it finds what is, in seeded trials on made-up "
    "clusters. Nothing is measured, and no run is read."
)
_MOST_TRIALS, _MOST_ALLOCATIONS = 1_000_000, 1_000


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    parser = commands.add_parser("gate", help="how far the regression gate's rule can be trusted", description=_ABOUT)
    parser.add_argument("--self-test", action="store_true", required=True, help="make up clusters and judge them")
    parser.add_argument("--noise", metavar="FILE", type=Path, help="TOML with the noise of the clusters (default: a usual one)")
    parser.add_argument("--trials", metavar="N", type=positive, default=300, help="clusters for each line (default: 300)")
    parser.add_argument("--allocations", metavar="N", type=positive, default=6, help="allocations of the baseline (default: 6)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the trials (default: 0)")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="(default: table)")
    parser.set_defaults(call=call)
    return {"gate": parser}


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Prints the table, line by line; 0. Raises UsageError for numbers that make no trial, and a noise file that cannot be read."""
    import sys

    from collbench.gate.noise import Noise, read_noise, usual_scheme
    from collbench.gate.self_test import BASELINE_LAUNCHES, self_test
    from collbench.report.screen import write_line
    from collbench.report.self_test import head, line

    _check(arguments)
    noise = Noise() if arguments.noise is None else read_noise(arguments.noise)
    scheme = usual_scheme()
    if arguments.format == "table":
        for each in head(len(scheme.of), arguments.allocations, BASELINE_LAUNCHES):
            write_line(sys.stdout, each.text)
    for outcome in self_test(noise, scheme, arguments.trials, arguments.seed, arguments.allocations):
        write_line(sys.stdout, line(outcome, arguments.format).text)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    from collbench.errors import UsageError
    from collbench.gate.rule import FEWEST

    if arguments.allocations < FEWEST:
        raise UsageError(f"--allocations {arguments.allocations}: with fewer than {FEWEST} the gate gives no verdict; say {FEWEST} or more")
    if arguments.trials > _MOST_TRIALS or arguments.allocations > _MOST_ALLOCATIONS or arguments.seed < 0:
        raise UsageError(f"at most {_MOST_TRIALS:,} --trials and {_MOST_ALLOCATIONS:,} --allocations, a --seed from 0 on")
