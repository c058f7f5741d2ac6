"""collbench gate: whether a cluster got slower than a baseline explains; and how far that verdict can be trusted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli.parser import positive

if TYPE_CHECKING:
    from collbench.gate.verdict import Verdict

_ABOUT = (
    "judges fresh allocations by a baseline of good ones (`collbench baseline`): what exceeds its limit in the first one is a suspect, and "
    "slower is what exceeds it in three. Without a history --paired sets an old stack against a new one. With --self-test nothing is "
    "judged: made-up clusters show how often the rule alarms, and what it finds."
)
_RUNS = "the candidate's runs: of one allocation, or of three fresh ones; with --paired those of the old stack, then as many of the new"
_MOST_TRIALS, _MOST_ALLOCATIONS = 1_000_000, 1_000


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "gate", help="whether a cluster got slower than a baseline explains", description=_ABOUT
    )
    parser.add_argument("runs", metavar="RUN", nargs="*", type=Path, help=_RUNS)
    parser.add_argument("--baseline", metavar="DIR", type=Path, help="the folder of good allocations")
    parser.add_argument("--paired", action="store_true", help="no history: launches of two stacks by turns in each of two allocations")
    parser.add_argument("--verdict", metavar="FILE", type=Path, help="judge nothing: show a verdict.json once more")
    parser.add_argument("--expect", metavar="FILE", type=Path, help="TOML with changes that were announced: tables [[change]]")
    floor = "a share of the ceiling that is asked for, such as ring:80@64M- (model, percent, sizes); may be given several times"
    parser.add_argument("--min-percent", metavar="MODEL:PERCENT@SIZES", action="append", default=[], help=floor)
    _add_outputs(parser.add_argument_group("outputs, all made from verdict.json"))
    _add_self_test(parser.add_argument_group("how far it can be trusted"))
    parser.set_defaults(call=call)
    return {"gate": parser}


def _add_outputs(outputs: Any) -> None:
    outputs.add_argument("--out", metavar="FILE", type=Path, help="write verdict.json")
    outputs.add_argument("--confirm-suite", metavar="FILE", type=Path, help="write the suite that measures the suspects again")
    outputs.add_argument("--junit", metavar="FILE", type=Path, help="write JUnit XML, a test case for each group (extra: report)")
    outputs.add_argument("--markdown", metavar="FILE", type=Path, help="write Markdown, such as to $GITHUB_STEP_SUMMARY")
    outputs.add_argument("--openmetrics", metavar="FILE", type=Path, help="write OpenMetrics (extra: report)")
    outputs.add_argument("--html", metavar="FILE", type=Path, help="write the candidate's page, the verdict on top (extra: report)")
    outputs.add_argument("--format", choices=("table", "json", "github"), default="table", help="github: annotations (default: table)")
    style = "nagios: 0 to 3 and one line of status; prolog: 1 for what is confirmed or wrong, else 0 (default: collbench)"
    outputs.add_argument("--exit-style", choices=("collbench", "nagios", "prolog"), default="collbench", help=style)


def _add_self_test(tested: Any) -> None:
    tested.add_argument("--self-test", action="store_true", help="make up clusters and judge them; with --baseline such as recorded there")
    tested.add_argument("--noise", metavar="FILE", type=Path, help="TOML with the noise of the clusters (default: a usual one)")
    tested.add_argument("--trials", metavar="N", type=positive, default=300, help="clusters for each line (default: 300)")
    tested.add_argument("--allocations", metavar="N", type=positive, default=6, help="allocations of the baseline (default: 6)")
    tested.add_argument("--seed", metavar="N", type=int, default=0, help="of the trials (default: 0)")


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Prints the verdict and returns its exit code in the style asked for; with --self-test prints the table, 0. Raises UsageError."""
    if arguments.self_test:
        return _self_test(arguments)
    verdict, suite = _verdict(arguments)
    return _written(arguments, verdict, suite)


def _verdict(arguments: argparse.Namespace) -> tuple[Verdict, str | None]:
    """The verdict, and the suite that measures its suspects again: None where there are none, or nothing was judged here."""
    from collbench.errors import UsageError

    ways = [bool(arguments.baseline), arguments.paired, bool(arguments.verdict)]
    if sum(ways) != 1 or bool(arguments.verdict) == bool(arguments.runs):
        ways_told = "--paired OLD… NEW…, --verdict FILE, or --self-test"
        raise UsageError(f"name a baseline and runs (collbench gate --baseline DIR RUN…), {ways_told}")
    if arguments.verdict:
        from collbench.gate.stored import read_verdict

        return read_verdict(arguments.verdict), None
    return _paired(arguments) if arguments.paired else _judged(arguments)


def _judged(arguments: argparse.Namespace) -> tuple[Verdict, str | None]:
    from datetime import date

    from collbench.gate.allocation import allocations_in
    from collbench.gate.baseline import load
    from collbench.gate.changes import read_expected
    from collbench.gate.confirm import confirm_suite, suspects
    from collbench.gate.floors import read_floor
    from collbench.gate.judge import judge

    expected = read_expected(arguments.expect) if arguments.expect else []
    floors = [read_floor(text) for text in arguments.min_percent]
    baseline = load(arguments.baseline)
    verdict = judge(baseline, allocations_in(arguments.runs), expected, date.today(), floors)
    waiting = suspects(verdict, baseline.cells)
    return verdict, confirm_suite(waiting) if waiting else None


def _paired(arguments: argparse.Namespace) -> tuple[Verdict, str | None]:
    from datetime import date

    from collbench.errors import UsageError
    from collbench.gate.changes import read_expected
    from collbench.gate.floors import read_floor
    from collbench.gate.paired import judge_paired

    half, odd = divmod(len(arguments.runs), 2)
    if odd:
        raise UsageError(f"--paired: {len(arguments.runs)} runs are no pairs: name those of the old stack, then as many of the new one")
    expected = read_expected(arguments.expect) if arguments.expect else []
    floors = [read_floor(text) for text in arguments.min_percent]
    return judge_paired(arguments.runs[:half], arguments.runs[half:], expected, date.today(), floors), None


def _written(arguments: argparse.Namespace, verdict: Verdict, suite: str | None) -> int:
    import sys

    from collbench.gate.exits import exit_code
    from collbench.report.screen import write_line
    from collbench.report.verdict.outputs import Files, lines, write_files

    runs: Sequence[Path] = arguments.runs
    write_files(
        verdict, Files(arguments.out, arguments.junit, arguments.markdown, arguments.openmetrics, arguments.html), runs,
        arguments.confirm_suite, suite,
    )  # fmt: skip
    for line in lines(verdict, arguments.format, arguments.exit_style):
        write_line(sys.stdout, line.text)
    return exit_code(verdict, arguments.exit_style)


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

    if arguments.runs or arguments.verdict or arguments.paired:
        raise UsageError("--self-test makes up what it judges: leave out --paired, --verdict and the runs")
    if arguments.allocations < FEWEST:
        raise UsageError(f"--allocations {arguments.allocations}: with fewer than {FEWEST} the gate gives no verdict; say {FEWEST} or more")
    if arguments.trials > _MOST_TRIALS or arguments.allocations > _MOST_ALLOCATIONS or arguments.seed < 0:
        raise UsageError(f"at most {_MOST_TRIALS:,} --trials and {_MOST_ALLOCATIONS:,} --allocations, a --seed from 0 on")
