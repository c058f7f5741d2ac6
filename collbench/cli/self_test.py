"""collbench gate --self-test: how often the rule alarms where nothing is wrong, and how often it finds what is."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli.parser import positive

if TYPE_CHECKING:
    from collbench.gate.self_test import Recorded, Setting

_NOISE = "TOML with the noise of the clusters, or of those that come along: bimodal, drift, harsh, missing, wander (default: a usual one)"
_MOST_TRIALS, _MOST_ALLOCATIONS = 1_000_000, 1_000


def add_to(tested: Any) -> None:
    """Adds its options to a group of them."""
    made_up = "make up clusters and judge them: with --baseline such as recorded there, with --paired old and new stack side by side"
    tested.add_argument("--self-test", action="store_true", help=made_up)
    tested.add_argument("--noise", metavar="FILE", type=Path, help=_NOISE)
    tested.add_argument("--trials", metavar="N", type=positive, default=300, help="clusters for each line (default: 300)")
    allocations = "allocations of the baseline (default: 6; with --baseline as many as are there)"
    tested.add_argument("--allocations", metavar="N", type=positive, help=allocations)
    tested.add_argument("--seed", metavar="N", type=int, default=0, help="of the trials (default: 0)")


def call(arguments: argparse.Namespace) -> int:
    """Prints the table, 0. Raises UsageError."""
    import sys

    from collbench.gate.self_test import self_test
    from collbench.report.screen import write_line
    from collbench.report.self_test import head, limits_of, line

    _check(arguments)
    setting, recorded = _setting(arguments)
    table = arguments.format == "table"
    for each in head(setting) if table else ():
        write_line(sys.stdout, each.text)
    for outcome in self_test(setting, arguments.trials, arguments.seed):
        write_line(sys.stdout, line(outcome, arguments.format).text)
    for each in limits_of(recorded) if table and recorded else ():
        write_line(sys.stdout, each.text)
    return 0


def _setting(arguments: argparse.Namespace) -> tuple[Setting, Recorded | None]:
    from collbench.gate.rule import ENOUGH
    from collbench.gate.self_test import Noise, made_up, read_noise, usual_scheme

    if not arguments.baseline:
        noise = Noise() if arguments.noise is None else read_noise(arguments.noise)
        return made_up(noise, usual_scheme(), arguments.allocations or ENOUGH, arguments.paired), None
    from collbench.gate.baseline import load
    from collbench.gate.self_test import recorded, setting_of
    from collbench.gate.state import steady_baseline

    found = recorded(steady_baseline(load(arguments.baseline))[0])
    return setting_of(found, arguments.allocations, arguments.paired), found


def _check(arguments: argparse.Namespace) -> None:
    from collbench.errors import UsageError
    from collbench.gate.rule import FEWEST

    if arguments.runs or arguments.verdict:
        raise UsageError("--self-test makes up what it judges: leave out --verdict and the runs")
    if arguments.format not in ("table", "json"):
        raise UsageError(f"--self-test has no --format {arguments.format}: choose table or json")
    if arguments.baseline and arguments.noise:
        raise UsageError("--self-test: the noise is that of --baseline, or that of --noise: leave one of them out")
    count = arguments.allocations
    if count is not None and arguments.paired:
        raise UsageError("--self-test --paired has no baseline: leave out --allocations")
    if count is not None and count < FEWEST:
        raise UsageError(f"--allocations {count}: with fewer than {FEWEST} the gate gives no verdict; say {FEWEST} or more")
    if arguments.trials > _MOST_TRIALS or (count or 0) > _MOST_ALLOCATIONS or arguments.seed < 0:
        raise UsageError(f"at most {_MOST_TRIALS:,} --trials and {_MOST_ALLOCATIONS:,} --allocations, a --seed from 0 on")
