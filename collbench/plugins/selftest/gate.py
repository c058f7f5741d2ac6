"""`collbench gate --self-test`: its options, and the table of the trials."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from collbench.cli.parser import Parser, positive
from collbench.errors import UsageError

_ABOUT = (
    " --self-test simulates clusters: it prints how often the gate reports a slowdown that is not there, and which slowdowns it detects."
)
_NOISE = "TOML with the noise of the clusters, or one of bimodal, drift, harsh, missing, wander (default: typical noise)"
_MOST_TRIALS, _MOST_ALLOCATIONS = 1_000_000, 1_000


def add_options(parser: Parser) -> None:
    """Add --self-test and the options of the trials to `gate`, after those of the verdict."""
    parser.later(_add_last)


def _add_last(parser: Parser) -> None:
    parser.description = f"{parser.description}{_ABOUT}"
    tested = parser.add_argument_group("self-test of the rule")
    made_up = "test the gate on simulated clusters: with --baseline clusters like that one, with --paired two stacks side by side"
    tested.add_argument("--self-test", action="store_true", help=made_up)
    tested.add_argument("--noise", metavar="FILE", type=Path, help=_NOISE)
    tested.add_argument("--trials", metavar="N", type=positive, default=300, help="clusters per line (default: 300)")
    allocations = "allocations of the baseline (default: 6, with --baseline its own number)"
    tested.add_argument("--allocations", metavar="N", type=positive, help=allocations)
    tested.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the trials (default: 0)")


def run_self_test(arguments: argparse.Namespace) -> int | None:
    """Print the table of the self-test: how often the rule alarms without a change, and how often it detects one. Return 0.

    None without --self-test. Raises UsageError.
    """
    if not arguments.self_test:
        return None
    from collbench.gating.baseline import load
    from collbench.gating.rule import ENOUGH, FEWEST, filter_baseline
    from collbench.plugins.selftest import self_test as trials
    from collbench.plugins.selftest.text import head, limits_of, line
    from collbench.report.screen import width_of, wrapped, write_line

    count = arguments.allocations
    if arguments.runs or arguments.verdict:
        raise UsageError("--self-test simulates its runs: omit --verdict and the runs")
    if arguments.format not in ("table", "json"):
        raise UsageError(f"--self-test does not support --format {arguments.format}: choose table or json")
    if arguments.baseline and arguments.noise:
        raise UsageError("--self-test takes noise from --baseline or from --noise: omit one of them")
    if count is not None and arguments.paired:
        raise UsageError("--self-test --paired uses no baseline: omit --allocations")
    if count is not None and count < FEWEST:
        raise UsageError(f"--allocations {count}: the gate needs at least {FEWEST}")
    if arguments.trials > _MOST_TRIALS or (count or 0) > _MOST_ALLOCATIONS or arguments.seed < 0:
        raise UsageError(f"at most {_MOST_TRIALS:,} --trials and {_MOST_ALLOCATIONS:,} --allocations, and a --seed of 0 or more")
    recorded = None
    if arguments.baseline:
        recorded = trials.recorded(filter_baseline(load(arguments.baseline))[0])
        setting = trials.setting_of(recorded, count, arguments.paired)
    else:
        noise = trials.Noise() if arguments.noise is None else trials.read_noise(arguments.noise)
        setting = trials.simulated(noise, trials.default_scheme(), count or ENOUGH, arguments.paired)
    table, width = arguments.format == "table", width_of(sys.stdout)
    for text in head(setting, width) if table else ():
        write_line(sys.stdout, text.text)
    for outcome in trials.self_test(setting, arguments.trials, arguments.seed):
        write_line(sys.stdout, line(outcome, arguments.format, width).text)
    for text in wrapped(limits_of(recorded), width) if table and recorded else ():
        write_line(sys.stdout, text.text)
    return 0
