"""What `collbench gate`, `baseline` and `history` do with their arguments (`cli.gate`). All functions raise UsageError."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from msgspec.structs import astuple

from collbench.cli.gate import DRAINS_NOT
from collbench.cli.selection import check_selection, selected_runs
from collbench.errors import UsageError
from collbench.gating.allocation import Allocation, allocations_in, allocations_of
from collbench.gating.baseline import ENDING, add_all, drop, load
from collbench.gating.confirm import can_be_named, confirm_suite, suspects
from collbench.gating.judge import judge, read_conditions
from collbench.gating.verdict import NAGIOS, PROLOG, UNDECIDED, Verdict, exit_code, read_verdict
from collbench.plugin import hooks_of
from collbench.report.screen import PlainScreen, wants_color, width_of, write_line
from collbench.report.verdict import GateCommand, arguments_of, check_suite_path, expect_template, next_commands, write_suite
from collbench.report.verdict_formats import OutputFiles, remove_earlier, verdict_lines, write_files
from collbench.report.writers import STDOUT, Outputs, confirm_written, write_whole
from collbench.untrusted import uncollected


def add_to_baseline(arguments: argparse.Namespace) -> int:
    """Add all allocations of the runs, or none, and print how many more are needed. Return 0."""
    from collbench.report.baseline import after_adding

    selected = selected_runs(arguments, arguments.runs)
    allocations = allocations_of(selected[1]) if selected else allocations_in(arguments.runs)
    for file in add_all(arguments.folder, allocations):
        print(file)
    allocation_count = sum(1 for _ in arguments.folder.glob(f"*{ENDING}"))
    write_line(sys.stderr, f"collbench: {after_adding(arguments.folder, allocation_count)}")
    return 0


def show_baseline(arguments: argparse.Namespace) -> int:
    """Print the baseline; return 0."""
    from collbench.report.baseline import baseline_lines

    for line in baseline_lines(load(arguments.folder), arguments.format, width_of(sys.stdout)):
        write_line(sys.stdout, line.text)
    return 0


def drop_allocations(arguments: argparse.Namespace) -> int:
    """Remove the allocations; return 0."""
    for name in arguments.names:
        drop(arguments.folder, name)
    return 0


def compare_baselines(arguments: argparse.Namespace) -> int:
    """Print the differences of two allocations or baselines; return 0."""
    from collbench.gating.history import between_allocations, between_baselines
    from collbench.report.baseline import diff_lines

    folder = arguments.folder
    others = arguments.others
    if len(others) > 2:
        raise UsageError(f"diff compares two: name two allocations of {folder}, or the folder of one other baseline")
    baseline = load(folder)
    names = [allocation.name for allocation in baseline.allocations]
    if len(others) == 1 and others[0] in names:
        other = next((name for name in reversed(names) if name != others[0]), "OTHER")
        raise UsageError(f"diff compares two: name a second one: collbench baseline diff {folder} {others[0]} {other}")
    moves = between_allocations(baseline, *others) if len(others) == 2 else between_baselines(baseline, load(Path(others[0])))
    for line in diff_lines(moves, arguments.format, width_of(sys.stdout)):
        write_line(sys.stdout, line.text)
    return 0


def show_history(arguments: argparse.Namespace) -> int:
    """Print the history; return 0."""
    from collbench.gating.history import dated_in, dated_runs, history
    from collbench.report.baseline import history_lines, letters_for

    Outputs(html=arguments.html).check()
    painted = wants_color(sys.stdout, arguments.color)
    selected = selected_runs(arguments, arguments.folder)
    if not selected and len(arguments.folder) != 1:
        raise UsageError("history shows one folder: name a baseline, or a folder that holds runs")
    if selected:
        allocation_history = history(selected[0], *dated_runs(*selected))
    else:
        allocation_history = history(str(arguments.folder[0]), *dated_in(arguments.folder[0]))
    letters = letters_for(sys.stdout.encoding, painted)
    shown = list(history_lines(allocation_history, arguments.format, arguments.only, letters, width_of(sys.stdout)))
    if arguments.html:
        from collbench.report.html.history import write_history

        write_history(allocation_history, arguments.only, arguments.html)
        confirm_written((arguments.html,), sys.stderr)
    screen = PlainScreen(sys.stdout, sys.stderr, painted)
    for line in shown:
        screen.data(line)
    return 0


def gate(arguments: argparse.Namespace) -> int:
    """Print the verdict and return its exit code in the requested style, or that of a plug-in whose option is given."""
    for answer in hooks_of("gate"):
        code: int | None = answer(arguments)
        if code is not None:
            return code
    files = _files(arguments)
    _check_ways(arguments)
    remove_earlier(files, arguments.verdict)
    if arguments.verdict:
        return _written(arguments, files, read_verdict(arguments.verdict, "--verdict"))
    half, odd = divmod(len(arguments.runs), 2)
    if arguments.paired and odd:
        raise UsageError(f"--paired: {len(arguments.runs)} runs are an odd number: name the old stack's, then as many of the new one's")
    suite = None
    typed = None
    with uncollected():
        expected, floors = read_conditions(arguments.expect, arguments.min_percent)
        if arguments.paired:
            from collbench.gating.paired import judge_paired

            verdict = judge_paired(arguments.runs[:half], arguments.runs[half:], expected, date.today(), floors)
        else:
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
            typed = _typed(arguments, candidate, suite)
    return _written(arguments, files, verdict, suite, typed)


def _files(arguments: argparse.Namespace) -> OutputFiles:
    """Return the requested outputs; invalid ones are errors before the verdict is computed."""
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
        others = "--verdict FILE, or --self-test" if "self_test" in arguments else "or --verdict FILE"
        raise UsageError(f"name a baseline and runs (collbench gate --baseline DIR RUN…), --paired OLD… NEW…, {predicted}{others}")
    if arguments.verdict and (arguments.expect or arguments.min_percent):
        raise UsageError("--verdict shows a stored verdict: omit --expect and --min-percent, or use --baseline and runs")
    if arguments.paired and arguments.store:
        raise UsageError("--paired compares launches in the order of their folders: name the folders, and omit --store")
    check_selection(arguments)


def _typed(arguments: argparse.Namespace, candidate: Sequence[Allocation], suite: str | None) -> GateCommand:
    first = candidate[0]
    besides = ["--expect", str(arguments.expect)] if arguments.expect else []
    besides += [word for floor in arguments.min_percent for word in ("--min-percent", floor)]
    return GateCommand(
        arguments.baseline, arguments.runs, besides, arguments.confirm_suite, suite is not None, bool(arguments.html), first.imported,
        first.facts.get("launcher", {}).get("name"), first.facts.get("options", {}), any(allocation.slowed for allocation in candidate),
        {allocation.name: arguments_of(allocation.facts.get("options", {})) for allocation in candidate},
    )  # fmt: skip


def _written(
    arguments: argparse.Namespace, files: OutputFiles, verdict: Verdict, suite: str | None = None, typed: GateCommand | None = None
) -> int:
    """Write and print a verdict with the suite of its suspects, and return the exit code. typed: of a verdict against a baseline."""
    write_files(verdict, files, arguments.runs, arguments.baseline)
    notes = []
    written = list(astuple(files))
    if arguments.confirm_suite:
        stays = verdict.result == UNDECIDED and len(verdict.candidates) > 1
        notes.append(write_suite(arguments.confirm_suite, suite, stays))
    if suite is not None:
        written.append(arguments.confirm_suite)
    if arguments.expect_template:
        template = expect_template(verdict)
        if template is None:
            notes.append(f"--expect-template {arguments.expect_template} is not written: no unexpected change")
        else:
            write_whole(arguments.expect_template, template, "--expect-template")
            written.append(arguments.expect_template)
    code = exit_code(verdict, arguments.exit_style)
    if arguments.exit_style == PROLOG and verdict.exit_code and not code:
        notes.append(f"{verdict.result}: {DRAINS_NOT}")
    for note in filter(None, notes):
        write_line(sys.stderr, f"collbench: {note}")
    confirm_written(written, sys.stderr)
    screen = PlainScreen(sys.stdout, sys.stderr, wants_color(sys.stdout))
    for line in verdict_lines(verdict, arguments.format, arguments.exit_style, width_of(sys.stdout)):
        screen.data(line)
    if typed is not None and arguments.format == "table" and arguments.exit_style != NAGIOS:
        for line in next_commands(verdict, typed, width_of(sys.stdout)):
            screen.data(line)
    return code
