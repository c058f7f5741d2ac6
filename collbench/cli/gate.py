"""collbench gate, baseline and history: detect a cluster that is slower than its baseline, and test how reliable that
verdict is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli.parser import Parser, add_command, add_format, from_environment, positive
from collbench.cli.selection import add_selection, check_selection, selected_runs
from collbench.errors import UsageError
from collbench.plugin import hooks_of

if TYPE_CHECKING:
    from collbench.gating.allocation import Allocation
    from collbench.gating.self_test import NoiseRecord, TrialSetting
    from collbench.gating.verdict import Verdict
    from collbench.report.verdict import GateCommand
    from collbench.report.verdict_formats import OutputFiles


# collbench baseline add|show|drop|diff DIR …: good allocations, with which later ones are compared.


def add_baseline(commands: Any) -> None:
    """Add the command."""
    summary = "good allocations, which the gate compares others with"
    about = "stores good allocations as plain files, one each, and shows how small a slowdown the gate can detect with them"
    add_command(commands, "baseline", summary, None, _add_baseline_options, description=about)


def _add_baseline_options(parser: Parser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    added = {}
    for name, summary, call in (
        ("add", "copy the medians of runs into the baseline, one file per allocation", _add),
        ("show", "print the allocations, and the smallest detectable slowdown of each case", _show),
        ("drop", "take allocations out", _drop),
        ("diff", "compare two allocations, or two baselines, with what else changed", _diff),
    ):
        added[name] = add_command(verbs, name, summary, call).whole()
        added[name].add_argument("folder", metavar="DIR", type=Path, help="the baseline's folder")
    runs = "a run's folder, or a folder of launches; with --store the name of a run, an allocation or a label"
    added["add"].add_argument("runs", metavar="RUN", nargs="+", type=Path, help=runs)
    add_selection(added["add"])
    for name in ("show", "diff"):
        add_format(added[name], "table")
    added["drop"].add_argument("names", metavar="NAME", nargs="+", help="allocations, by the names that `show` prints")
    added["diff"].add_argument(
        "others", metavar="OTHER", nargs="+", help="two allocations of DIR, the old one first; or the folder of another baseline"
    )


def _add(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Add all allocations of the runs, or none, and print how many more are needed. Return 0. Raises UsageError."""
    from collbench.gating.allocation import allocations_in, allocations_of
    from collbench.gating.baseline import ENDING, add_all
    from collbench.report.baseline import after_adding
    from collbench.report.screen import write_line

    selected = selected_runs(arguments, arguments.runs)
    allocations = allocations_of(selected[1]) if selected else allocations_in(arguments.runs)
    for file in add_all(arguments.folder, allocations):
        print(file)
    held = sum(1 for _ in arguments.folder.glob(f"*{ENDING}"))
    write_line(sys.stderr, f"collbench: {after_adding(arguments.folder, held)}")
    return 0


def _show(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the baseline; return 0. Raises UsageError."""
    from collbench.gating.baseline import load
    from collbench.report.baseline import baseline_lines
    from collbench.report.screen import width_of, write_line

    for line in baseline_lines(load(arguments.folder), arguments.format, width_of(sys.stdout)):
        write_line(sys.stdout, line.text)
    return 0


def _drop(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Remove the allocations; return 0. Raises UsageError."""
    from collbench.gating.baseline import drop

    for name in arguments.names:
        drop(arguments.folder, name)
    return 0


def _diff(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the differences of two baselines; return 0. Raises UsageError."""
    from collbench.gating.baseline import load
    from collbench.gating.diff import between_allocations, between_baselines
    from collbench.report.baseline import diff_lines
    from collbench.report.screen import width_of, write_line

    if len(arguments.others) > 2:
        raise UsageError(f"diff compares two: name two allocations of {arguments.folder}, or the folder of one other baseline")
    baseline = load(arguments.folder)
    two, names = len(arguments.others) == 2, [each.name for each in baseline.allocations]
    if not two and arguments.others[0] in names:
        other = next((name for name in reversed(names) if name != arguments.others[0]), "OTHER")
        raise UsageError(f"diff compares two: name a second one: collbench baseline diff {arguments.folder} {arguments.others[0]} {other}")
    moves = between_allocations(baseline, *arguments.others) if two else between_baselines(baseline, load(Path(arguments.others[0])))
    for line in diff_lines(moves, arguments.format, width_of(sys.stdout)):
        write_line(sys.stdout, line.text)
    return 0


# collbench history DIR: each case and group over the allocations, and when it changed.

_HISTORY_ABOUT = (
    "shows how each case, group and all cases together went from allocation to allocation, and marks where they changed: when, by how "
    "much, and what else changed then. DIR is a baseline's folder, or one that holds runs."
)


def add_history(commands: Any) -> None:
    """Add the command."""
    about = "show how times changed from allocation to allocation"
    add_command(commands, "history", about, call_history, _add_history_options, description=_HISTORY_ABOUT)


def _add_history_options(parser: Parser) -> None:
    folder = "a baseline's folder, or a folder that holds runs; with --store names of runs (default: all)"
    parser.add_argument("folder", metavar="DIR", nargs="*", type=Path, help=folder)
    parser.add_argument("--only", metavar="PATTERN", default="*", help="only cases that match a pattern such as 'allreduce*mpi'")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write one HTML page")
    add_format(parser, "table")
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")
    add_selection(parser)


def _dated(arguments: argparse.Namespace) -> tuple[str, list[Allocation], list[str]]:
    """Return (where the allocations are from, the allocations, notes). Raises UsageError."""
    from collbench.gating.history import dated_in, dated_runs

    selected = selected_runs(arguments, arguments.folder)
    if selected:
        return selected[0], *dated_runs(*selected)
    if len(arguments.folder) != 1:
        raise UsageError("history shows one folder: name a baseline, or a folder that holds runs")
    return str(arguments.folder[0]), *dated_in(arguments.folder[0])


def call_history(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the history; return 0. Raises UsageError."""
    from collbench.gating.history import history
    from collbench.report.baseline import history_lines, letters_for
    from collbench.report.screen import PlainScreen, wants_color, width_of
    from collbench.report.writers import Outputs

    Outputs(html=arguments.html).check()
    painted = wants_color(sys.stdout, arguments.color)
    found = history(*_dated(arguments))
    letters = letters_for(sys.stdout.encoding, painted)
    shown = list(history_lines(found, arguments.format, arguments.only, letters, width_of(sys.stdout)))
    if arguments.html:
        from collbench.report.html.history import write_history
        from collbench.report.writers import confirm_written

        write_history(found, arguments.only, arguments.html)
        confirm_written((arguments.html,), sys.stderr)
    screen = PlainScreen(sys.stdout, sys.stderr, painted)
    for line in shown:
        screen.data(line)
    return 0


# collbench gate --self-test: how often the rule alarms without a change, and how often it detects one.

_NOISE = "TOML with the noise of the clusters, or one of bimodal, drift, harsh, missing, wander (default: typical noise)"
_MOST_TRIALS, _MOST_ALLOCATIONS = 1_000_000, 1_000


def _add_self_test(tested: Any) -> None:
    made_up = "test the gate on simulated clusters: with --baseline clusters like that one, with --paired two stacks side by side"
    tested.add_argument("--self-test", action="store_true", help=made_up)
    tested.add_argument("--noise", metavar="FILE", type=Path, help=_NOISE)
    tested.add_argument("--trials", metavar="N", type=positive, default=300, help="clusters per line (default: 300)")
    allocations = "allocations of the baseline (default: 6, with --baseline its own number)"
    tested.add_argument("--allocations", metavar="N", type=positive, help=allocations)
    tested.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the trials (default: 0)")


def call_self_test(arguments: argparse.Namespace) -> int:
    """Print the table; return 0. Raises UsageError."""
    from collbench.gating.self_test import self_test
    from collbench.report.baseline import head, limits_of, line
    from collbench.report.screen import width_of, wrapped, write_line

    _check(arguments)
    setting, recorded = _setting(arguments)
    table, width = arguments.format == "table", width_of(sys.stdout)
    for each in head(setting, width) if table else ():
        write_line(sys.stdout, each.text)
    for outcome in self_test(setting, arguments.trials, arguments.seed):
        write_line(sys.stdout, line(outcome, arguments.format, width).text)
    for each in wrapped(limits_of(recorded), width) if table and recorded else ():
        write_line(sys.stdout, each.text)
    return 0


def _setting(arguments: argparse.Namespace) -> tuple[TrialSetting, NoiseRecord | None]:
    from collbench.gating.baseline import load
    from collbench.gating.rule import ENOUGH
    from collbench.gating.self_test import Noise, default_scheme, read_noise, recorded, setting_of, simulated
    from collbench.gating.state import filter_baseline

    if arguments.baseline:
        found = recorded(filter_baseline(load(arguments.baseline))[0])
        return setting_of(found, arguments.allocations, arguments.paired), found
    noise = Noise() if arguments.noise is None else read_noise(arguments.noise)
    return simulated(noise, default_scheme(), arguments.allocations or ENOUGH, arguments.paired), None


def _check(arguments: argparse.Namespace) -> None:
    from collbench.gating.rule import FEWEST

    if arguments.runs or arguments.verdict:
        raise UsageError("--self-test simulates its runs: omit --verdict and the runs")
    if arguments.format not in ("table", "json"):
        raise UsageError(f"--self-test does not support --format {arguments.format}: choose table or json")
    if arguments.baseline and arguments.noise:
        raise UsageError("--self-test takes noise from --baseline or from --noise: omit one of them")
    count = arguments.allocations
    if count is not None and arguments.paired:
        raise UsageError("--self-test --paired uses no baseline: omit --allocations")
    if count is not None and count < FEWEST:
        raise UsageError(f"--allocations {count}: the gate needs at least {FEWEST}")
    if arguments.trials > _MOST_TRIALS or (count or 0) > _MOST_ALLOCATIONS or arguments.seed < 0:
        raise UsageError(f"at most {_MOST_TRIALS:,} --trials and {_MOST_ALLOCATIONS:,} --allocations, and a --seed of 0 or more")


_ABOUT = (
    "Compare fresh allocations with a baseline of good ones (`collbench baseline`). A case or group above its limit in the first "
    "allocation is a suspect; above it in three, it is a regression. Without a baseline, --paired compares an old stack with a new one. "
    "--self-test simulates clusters: it prints how often the gate reports a slowdown that is not there, and which slowdowns it detects."
)
_RUNS = "the candidate's runs: of one allocation, or of three fresh ones; with --paired those of the old stack, then as many of the new"

_STYLES = ("collbench", "nagios", "prolog")
_DRAINS_NOT = "no confirmed regression, so the exit code is 0 (--exit-style prolog)"


def add_gate(commands: Any) -> None:
    """Add the command."""
    add_command(commands, "gate", "detect a cluster that is slower than its baseline", call_gate, _add_gate_options, description=_ABOUT)


def _add_gate_options(parser: Parser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="*", type=Path, help=_RUNS)
    parser.add_argument("--baseline", metavar="DIR", type=Path, help="folder of good allocations")
    parser.add_argument("--paired", action="store_true", help="without a history: interleaved launches of two stacks, in two allocations")
    for add in hooks_of("gate_options"):
        add(parser)
    parser.add_argument("--verdict", metavar="FILE", type=Path, help="show a stored verdict.json")
    parser.add_argument("--expect", metavar="FILE", type=Path, help="TOML with expected changes: tables [[change]]")
    floor = (
        "least percentage of the expected bandwidth, for each case: ring:75@1G- (model, percent, sizes) or hard:40@1G-/allreduce+nccl "
        "(operation, backend); may be repeated"
    )
    parser.add_argument("--min-percent", metavar="MODEL:PERCENT@SIZES", action="append", default=[], help=floor)
    add_selection(parser)
    _add_outputs(parser.add_argument_group("outputs (all made from verdict.json)"))
    _add_self_test(parser.add_argument_group("self-test of the rule"))


def _add_outputs(outputs: Any) -> None:
    outputs.add_argument("--out", metavar="FILE", type=Path, help="write verdict.json")
    outputs.add_argument("--confirm-suite", metavar="FILE", type=Path, help="write a suite that measures the suspects again")
    template = "write a table [[change]] for each unexpected change, to complete and use with --expect"
    outputs.add_argument("--expect-template", metavar="FILE", type=Path, help=template)
    outputs.add_argument("--junit", metavar="FILE", type=Path, help="write JUnit XML, a test case for each group (extra: report)")
    outputs.add_argument("--markdown", metavar="FILE", type=Path, help="write Markdown, such as to $GITHUB_STEP_SUMMARY")
    outputs.add_argument("--openmetrics", metavar="FILE", type=Path, help="write OpenMetrics")
    outputs.add_argument("--html", metavar="FILE", type=Path, help="write the candidate's page with the verdict")
    outputs.add_argument("--format", choices=("table", "json", "github"), default="table", help="github: annotations (default: table)")
    style = "nagios: 0 to 3 and a status line; prolog: 1 for a regression or wrong data, else 0 (default: collbench)"
    outputs.add_argument("--exit-style", choices=_STYLES, default="collbench", help=style)


def call_gate(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the verdict and return its exit code in the requested style; with --self-test print the table, return 0. Raises UsageError."""
    if arguments.self_test:
        return call_self_test(arguments)
    from collbench.report.verdict_formats import remove_earlier

    for gate in hooks_of("gate"):
        code: int | None = gate(arguments)
        if code is not None:
            return code
    files = _files(arguments)
    _check_ways(arguments)
    remove_earlier(files, arguments.verdict)
    return _written(arguments, files, *_verdict(arguments))


def style_of(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the requested --exit-style, even if other arguments are invalid: failures use it, too.

    Default for an invalid one: collbench.
    """
    if list(argv[:1]) != ["gate"]:
        return "collbench"
    parser = Parser(prog="collbench gate", add_help=False)
    parser.add_argument("--exit-style", choices=_STYLES, default="collbench")
    try:
        style: str = parser.parse_known_args(from_environment(parser, list(argv[1:]), environ))[0].exit_style
    except UsageError:
        return "collbench"
    return style


def exit_in_style(code: int, style: str, why: str) -> int:
    """Return the exit code of a failure in this style, and print the line that a monitor reads."""
    from collbench.gating.verdict import NAGIOS, PROLOG, code_of_failure
    from collbench.report.screen import write_line

    if code != 0 and style == NAGIOS:
        from collbench.report.verdict_formats import of_failure

        with suppress(OSError, ValueError):
            write_line(sys.stdout, of_failure(why).text)
    elif code != 0 and style == PROLOG:
        with suppress(OSError, ValueError):
            write_line(sys.stderr, f"collbench: {_DRAINS_NOT}")
    return code_of_failure(code, style)


def _files(arguments: argparse.Namespace) -> OutputFiles:
    """Return the requested outputs. Raises UsageError for invalid ones, before the verdict is computed."""
    from collbench.report.verdict import check_suite_path
    from collbench.report.verdict_formats import OutputFiles
    from collbench.report.writers import STDOUT

    files = OutputFiles(arguments.out, arguments.junit, arguments.markdown, arguments.openmetrics, arguments.html)
    files.check()
    if arguments.exit_style == "nagios" and arguments.format != "table":
        raise UsageError(f"--exit-style nagios prints one status line, so --format {arguments.format} is not supported: use --out FILE")
    if arguments.verdict and arguments.html:
        raise UsageError("--html needs the runs: use collbench report RUN… --html FILE --verdict FILE")
    template = arguments.expect_template
    if template is not None and (template == STDOUT or template.exists()):
        why = "cannot write to stdout: use a file name" if template == STDOUT else f"{template} exists: name another file, or remove it"
        raise UsageError(f"--expect-template {why}")
    if arguments.confirm_suite:
        if arguments.verdict or arguments.paired:
            raise UsageError("--confirm-suite needs --baseline: with --paired, measure the same suite again")
        check_suite_path(arguments.confirm_suite)
    return files


def _check_ways(arguments: argparse.Namespace) -> None:
    """Raise UsageError unless exactly one input of the verdict is given."""
    ways = [bool(arguments.baseline), arguments.paired, bool(arguments.verdict)]
    if sum(ways) != 1 or bool(arguments.verdict) == bool(arguments.runs or arguments.store):
        predicted = "--against-prediction FILE RUN…, " if "against_prediction" in arguments else ""
        other_ways = f"--paired OLD… NEW…, {predicted}--verdict FILE, or --self-test"
        raise UsageError(f"name a baseline and runs (collbench gate --baseline DIR RUN…), {other_ways}")
    if arguments.verdict and (arguments.expect or arguments.min_percent):
        raise UsageError("--verdict shows a stored verdict: omit --expect and --min-percent, or use --baseline and runs")
    if arguments.paired and arguments.store:
        raise UsageError("--paired compares launches in the order of their folders: name the folders, and omit --store")
    check_selection(arguments)


def _verdict(arguments: argparse.Namespace) -> tuple[Verdict, str | None, GateCommand | None]:
    """Return (verdict, suite that measures its suspects again or None, command line of a verdict against a baseline)."""
    from collbench.gating.verdict import read_verdict

    if arguments.verdict:
        return read_verdict(arguments.verdict), None, None
    if arguments.paired:
        return _paired_verdict(arguments), None, None
    from datetime import date

    from collbench.gating.allocation import allocations_in, allocations_of
    from collbench.gating.baseline import load
    from collbench.gating.confirm import can_be_named, confirm_suite, suspects
    from collbench.gating.judge import judge, read_conditions
    from collbench.untrusted import uncollected

    with uncollected():
        expected, floors = read_conditions(arguments.expect, arguments.min_percent)
        baseline = load(arguments.baseline)
        selected = selected_runs(arguments, arguments.runs)
        if selected:
            runs = [run for run in selected[1] if run.rows]
            arguments.runs = [run.path for run in runs]  # what the printed commands and the page name
            candidate = allocations_of(runs)
        else:
            candidate = allocations_in(arguments.runs)
        verdict = judge(baseline, candidate, expected, date.today(), floors)
    waiting = suspects(verdict, baseline.cases)
    suite = confirm_suite(waiting) if any(map(can_be_named, waiting)) else None
    return verdict, suite, _typed(arguments, candidate, suite)


def _paired_verdict(arguments: argparse.Namespace) -> Verdict:
    from datetime import date

    from collbench.gating.judge import read_conditions
    from collbench.gating.paired import judge_paired
    from collbench.untrusted import uncollected

    half, odd = divmod(len(arguments.runs), 2)
    if odd:
        raise UsageError(f"--paired: {len(arguments.runs)} runs are an odd number: name the old stack's, then as many of the new one's")
    with uncollected():
        expected, floors = read_conditions(arguments.expect, arguments.min_percent)
        return judge_paired(arguments.runs[:half], arguments.runs[half:], expected, date.today(), floors)


def _typed(arguments: argparse.Namespace, candidate: Sequence[Allocation], suite: str | None) -> GateCommand:
    from collbench.report.verdict import GateCommand, arguments_of

    first = candidate[0]
    besides = ["--expect", str(arguments.expect)] if arguments.expect else []
    besides += [word for floor in arguments.min_percent for word in ("--min-percent", floor)]
    return GateCommand(
        arguments.baseline, arguments.runs, besides, arguments.confirm_suite, suite is not None, bool(arguments.html), first.imported,
        first.facts.get("launcher", {}).get("name"), first.facts.get("options", {}), any(each.slowed for each in candidate),
        {each.name: arguments_of(each.facts.get("options", {})) for each in candidate},
    )  # fmt: skip


def _written(arguments: argparse.Namespace, files: OutputFiles, verdict: Verdict, suite: str | None, typed: GateCommand | None) -> int:
    from collbench.gating.verdict import NAGIOS, PROLOG, UNDECIDED, exit_code
    from collbench.report.screen import PlainScreen, wants_color, width_of, write_line
    from collbench.report.verdict import expect_template, next_commands, write_suite
    from collbench.report.verdict_formats import verdict_lines, write_files
    from collbench.report.writers import confirm_written, write_whole

    write_files(verdict, files, arguments.runs, arguments.baseline)
    stays = verdict.result == UNDECIDED and len(verdict.candidates) > 1
    suite_note = write_suite(arguments.confirm_suite, suite, stays) if arguments.confirm_suite else None
    template, template_note = None, None
    if arguments.expect_template:
        template = expect_template(verdict)
        template_note = f"--expect-template {arguments.expect_template} is not written: no unexpected change"
    if template is not None:
        write_whole(arguments.expect_template, template, "--expect-template")
        template_note = None
    code = exit_code(verdict, arguments.exit_style)
    drains_not = f"{verdict.result}: {_DRAINS_NOT}" if arguments.exit_style == PROLOG and verdict.exit_code and not code else None
    for known in filter(None, (suite_note, template_note, drains_not)):
        write_line(sys.stderr, f"collbench: {known}")
    written = list(vars(files).values())
    if suite is not None:
        written.append(arguments.confirm_suite)
    if template is not None:
        written.append(arguments.expect_template)
    confirm_written(written, sys.stderr)
    screen = PlainScreen(sys.stdout, sys.stderr, wants_color(sys.stdout))
    for line in verdict_lines(verdict, arguments.format, arguments.exit_style, width_of(sys.stdout)):
        screen.data(line)
    if typed is not None and arguments.format == "table" and arguments.exit_style != NAGIOS:
        for line in next_commands(verdict, typed, width_of(sys.stdout)):
            screen.data(line)
    return code
