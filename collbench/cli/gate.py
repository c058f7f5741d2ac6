"""collbench gate: whether a cluster got slower than a baseline explains; and how far that verdict can be trusted."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli import self_test
from collbench.cli.parser import Parser, from_environment
from collbench.errors import UsageError

if TYPE_CHECKING:
    from collbench.gate.allocation import Allocation
    from collbench.gate.verdict import Verdict
    from collbench.report.following import Typed
    from collbench.report.verdict_outputs import Files

_ABOUT = (
    "judges fresh allocations by a baseline of good ones (`collbench baseline`): what exceeds its limit in the first one is a suspect, and "
    "slower is what exceeds it in three. Without a history --paired sets an old stack against a new one. With --self-test nothing is "
    "judged: made-up clusters show how often the rule alarms, and what it finds."
)
_RUNS = "the candidate's runs: of one allocation, or of three fresh ones; with --paired those of the old stack, then as many of the new"

_STYLES = ("collbench", "nagios", "prolog")
_DRAINS_NOT = "nothing is confirmed, so the exit code is 0 (--exit-style prolog)"


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
    floor = (
        "a share of the ceiling asked of each cell for itself: ring:80@64M- (model, percent, sizes) or hard:60@1M-16M/allreduce+nccl "
        "(operation, backend); may be given several times"
    )
    parser.add_argument("--min-percent", metavar="MODEL:PERCENT@SIZES", action="append", default=[], help=floor)
    _add_outputs(parser.add_argument_group("outputs, all made from verdict.json"))
    self_test.add_to(parser.add_argument_group("how far it can be trusted"))
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
    outputs.add_argument("--exit-style", choices=_STYLES, default="collbench", help=style)


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Prints the verdict and returns its exit code in the style asked for; with --self-test prints the table, 0. Raises UsageError."""
    if arguments.self_test:
        return self_test.call(arguments)
    from collbench.report.earlier import remove_earlier

    files = _files(arguments)
    _check_ways(arguments)
    remove_earlier(files, arguments.verdict)
    return _written(arguments, files, *_verdict(arguments))


def style_of(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """The --exit-style that was asked for, be the rest as it may: failures are told in it, too. What cannot be read is collbench's own."""
    if list(argv[:1]) != ["gate"]:
        return "collbench"
    parser = Parser(prog="collbench gate", add_help=False)
    parser.add_argument("--exit-style", choices=_STYLES, default="collbench")
    try:
        style: str = parser.parse_known_args(from_environment(parser, list(argv[1:]), environ))[0].exit_style
    except UsageError:
        return "collbench"
    return style


def told_in_style(code: int, style: str, why: str) -> int:
    """The exit code of what failed, in this style; what a monitor has to read is printed."""
    import sys

    from collbench.gate.verdict import NAGIOS, PROLOG, code_of_failure
    from collbench.report.screen import write_line

    if code != 0 and style == NAGIOS:
        from collbench.report.status import of_failure

        with suppress(OSError, ValueError):
            write_line(sys.stdout, of_failure(why).text)
    elif code != 0 and style == PROLOG:
        with suppress(OSError, ValueError):
            write_line(sys.stderr, f"collbench: {_DRAINS_NOT}")
    return code_of_failure(code, style)


def _files(arguments: argparse.Namespace) -> Files:
    """The outputs asked for. Raises UsageError for those that cannot be, before anything is judged."""
    from collbench.report.again import check_ours
    from collbench.report.verdict_outputs import Files

    files = Files(arguments.out, arguments.junit, arguments.markdown, arguments.openmetrics, arguments.html)
    files.check()
    if arguments.exit_style == "nagios" and arguments.format != "table":
        raise UsageError(f"--exit-style nagios prints one line of status and no --format {arguments.format}: write --out FILE")
    if arguments.verdict and arguments.html:
        raise UsageError("--html shows the runs, too: collbench report RUN… --html FILE --verdict FILE")
    if arguments.confirm_suite:
        if arguments.verdict or arguments.paired:
            raise UsageError("--confirm-suite needs a baseline: for paired stacks measure the same suite again, for a verdict judge again")
        check_ours(arguments.confirm_suite)
    return files


def _check_ways(arguments: argparse.Namespace) -> None:
    """Raises UsageError where it is not said, or twice, what is to be judged."""
    ways = [bool(arguments.baseline), arguments.paired, bool(arguments.verdict)]
    if sum(ways) != 1 or bool(arguments.verdict) == bool(arguments.runs):
        ways_told = "--paired OLD… NEW…, --verdict FILE, or --self-test"
        raise UsageError(f"name a baseline and runs (collbench gate --baseline DIR RUN…), {ways_told}")
    if arguments.verdict and (arguments.expect or arguments.min_percent):
        raise UsageError("--verdict judges nothing: leave out --expect and --min-percent, or name the baseline and the runs")


def _verdict(arguments: argparse.Namespace) -> tuple[Verdict, str | None, Typed | None]:
    """The verdict, the suite that measures its suspects again (None where there are none), and what was typed to judge by a baseline."""
    if arguments.verdict:
        from collbench.gate.verdict import read_verdict

        return read_verdict(arguments.verdict), None, None
    from collbench.untrusted import uncollected

    with uncollected():
        return _paired(arguments) if arguments.paired else _judged(arguments)


def _judged(arguments: argparse.Namespace) -> tuple[Verdict, str | None, Typed]:
    from datetime import date

    from collbench.gate.allocation import allocations_in
    from collbench.gate.baseline import load
    from collbench.gate.changes import read_expected
    from collbench.gate.confirm import can_be_named, confirm_suite, suspects
    from collbench.gate.floors import read_floor
    from collbench.gate.judge import judge

    expected = read_expected(arguments.expect) if arguments.expect else []
    floors = [read_floor(text) for text in arguments.min_percent]
    baseline = load(arguments.baseline)
    candidate = allocations_in(arguments.runs)
    verdict = judge(baseline, candidate, expected, date.today(), floors)
    waiting = suspects(verdict, baseline.cells)
    suite = confirm_suite(waiting) if any(map(can_be_named, waiting)) else None
    return verdict, suite, _typed(arguments, candidate, suite)


def _typed(arguments: argparse.Namespace, candidate: Sequence[Allocation], suite: str | None) -> Typed:
    from collbench.report.following import Typed, words_of

    first = candidate[0]
    besides = ["--expect", str(arguments.expect)] if arguments.expect else []
    besides += [word for floor in arguments.min_percent for word in ("--min-percent", floor)]
    return Typed(
        arguments.baseline, arguments.runs, besides, arguments.confirm_suite, suite is not None, bool(arguments.html), first.imported,
        first.facts.get("launcher", {}).get("name"), first.facts.get("options", {}), any(each.slowed for each in candidate),
        {each.name: words_of(each.facts.get("options", {})) for each in candidate},
    )  # fmt: skip


def _paired(arguments: argparse.Namespace) -> tuple[Verdict, None, None]:
    from datetime import date

    from collbench.gate.changes import read_expected
    from collbench.gate.floors import read_floor
    from collbench.gate.paired import judge_paired

    half, odd = divmod(len(arguments.runs), 2)
    if odd:
        raise UsageError(f"--paired: {len(arguments.runs)} runs are no pairs: name those of the old stack, then as many of the new one")
    expected = read_expected(arguments.expect) if arguments.expect else []
    floors = [read_floor(text) for text in arguments.min_percent]
    return judge_paired(arguments.runs[:half], arguments.runs[half:], expected, date.today(), floors), None, None


def _written(arguments: argparse.Namespace, files: Files, verdict: Verdict, suite: str | None, typed: Typed | None) -> int:
    import sys

    from collbench.gate.verdict import NAGIOS, PROLOG, UNDECIDED, exit_code
    from collbench.report.again import write_suite
    from collbench.report.following import following
    from collbench.report.screen import PlainScreen, wants_color, write_line
    from collbench.report.verdict_outputs import lines, write_files

    write_files(verdict, files, arguments.runs)
    stays = verdict.result == UNDECIDED and len(verdict.candidates) > 1
    said = write_suite(arguments.confirm_suite, suite, stays) if arguments.confirm_suite else None
    code = exit_code(verdict, arguments.exit_style)
    drains_not = f"{verdict.result}: {_DRAINS_NOT}" if arguments.exit_style == PROLOG and verdict.exit_code and not code else None
    for told in filter(None, (said, drains_not)):
        write_line(sys.stderr, f"collbench: {told}")
    screen = PlainScreen(sys.stdout, sys.stderr, wants_color(sys.stdout))
    for line in lines(verdict, arguments.format, arguments.exit_style):
        screen.data(line)
    if typed is not None and arguments.format == "table" and arguments.exit_style != NAGIOS:
        for line in following(verdict, typed):
            screen.data(line)
    return code
