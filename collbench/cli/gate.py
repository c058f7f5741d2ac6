"""collbench gate: whether a cluster got slower than a baseline explains; and how far that verdict can be trusted."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from collbench.cli.parser import positive

_ABOUT = (
    "judges fresh allocations by a baseline of good ones (`collbench baseline`): what exceeds its limit in the first one is a suspect, and "
    "slower is what exceeds it in three. With --self-test nothing is read: made-up clusters show how often that alarms, and what it finds."
)
_MOST_TRIALS, _MOST_ALLOCATIONS = 1_000_000, 1_000


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "gate", help="whether a cluster got slower than a baseline explains", description=_ABOUT
    )
    parser.add_argument("runs", metavar="RUN", nargs="*", type=Path, help="the candidate's runs: of one allocation, or of three fresh ones")
    parser.add_argument("--baseline", metavar="DIR", type=Path, help="the folder of good allocations")
    parser.add_argument("--expect", metavar="FILE", type=Path, help="TOML with changes that were announced: tables [[change]]")
    parser.add_argument("--confirm-suite", metavar="FILE", type=Path, help="write the suite that measures the suspects again")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write verdict.json")
    tested = parser.add_argument_group("how far it can be trusted")
    tested.add_argument("--self-test", action="store_true", help="make up clusters and judge them")
    tested.add_argument("--noise", metavar="FILE", type=Path, help="TOML with the noise of the clusters (default: a usual one)")
    tested.add_argument("--trials", metavar="N", type=positive, default=300, help="clusters for each line (default: 300)")
    tested.add_argument("--allocations", metavar="N", type=positive, default=6, help="allocations of the baseline (default: 6)")
    tested.add_argument("--seed", metavar="N", type=int, default=0, help="of the trials (default: 0)")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="(default: table)")
    parser.set_defaults(call=call)
    return {"gate": parser}


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Prints the verdict and returns its exit code; with --self-test prints the table, 0. Raises UsageError."""
    from collbench.errors import UsageError

    if arguments.self_test:
        if arguments.runs or arguments.baseline:
            raise UsageError("--self-test makes up what it judges: leave out --baseline and the runs")
        return _self_test(arguments)
    if not arguments.runs or arguments.baseline is None:
        raise UsageError("name a baseline and runs (collbench gate --baseline DIR RUN…), or --self-test")
    return _judge(arguments)


def _judge(arguments: argparse.Namespace) -> int:
    import sys
    from datetime import date

    from collbench.gate.allocation import allocations_in
    from collbench.gate.baseline import load
    from collbench.gate.changes import read_expected
    from collbench.gate.confirm import confirm_suite, suspects
    from collbench.gate.judge import judge
    from collbench.report.outputs import write_whole
    from collbench.report.screen import write_line
    from collbench.report.verdict import lines
    from collbench.results.jsonl import to_page

    expected = read_expected(arguments.expect) if arguments.expect else []
    baseline = load(arguments.baseline)
    verdict = judge(baseline, allocations_in(arguments.runs), expected, date.today())
    if arguments.out:
        write_whole(arguments.out, to_page(verdict.as_json()), "--out")
    waiting = suspects(verdict, baseline.cells)
    if arguments.confirm_suite and waiting:
        write_whole(arguments.confirm_suite, confirm_suite(waiting), "--confirm-suite")
    for line in lines(verdict, arguments.format):
        write_line(sys.stdout, line.text)
    return verdict.exit_code


def _self_test(arguments: argparse.Namespace) -> int:
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
