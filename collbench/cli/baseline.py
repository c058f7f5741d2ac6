"""collbench baseline add|show|drop|diff DIR …: allocations that were good, kept to judge others by."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_ABOUT = "keeps allocations that were good as plain files, one each, and says how small a slowdown they let a gate see"


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "baseline", help="allocations that were good, to judge others by", description=_ABOUT
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    more = verbs.add_parser("add", help="copy the medians of runs into the baseline, an allocation each")
    shown = verbs.add_parser("show", help="print the allocations, and of each cell the smallest slowdown visible")
    less = verbs.add_parser("drop", help="take allocations out")
    between = verbs.add_parser("diff", help="print what moved between two allocations, or two baselines, and what else changed")
    for each in (more, shown, less, between):
        each.add_argument("folder", metavar="DIR", type=Path, help="the baseline's folder")
    more.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run's folder, or a folder of launches")
    for each in (shown, between):
        each.add_argument("--format", choices=("table", "json"), default="table", help="(default: table)")
    less.add_argument("names", metavar="NAME", nargs="+", help="allocations, as `show` calls them")
    between.add_argument(
        "others", metavar="OTHER", nargs="+", help="two allocations of DIR, the old one first; or the folder of another baseline"
    )
    for each, call in ((more, _add), (shown, _show), (less, _drop), (between, _diff)):
        each.set_defaults(call=call)
    return {"baseline": parser}


def _add(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Adds all allocations of the runs, or none, and says how many more are wanted; 0. Raises UsageError."""
    import sys

    from collbench.gate.allocation import allocations_in
    from collbench.gate.baseline import ENDING, add_all
    from collbench.report.baseline import after_adding
    from collbench.report.screen import write_line

    for file in add_all(arguments.folder, allocations_in(arguments.runs)):
        print(file)
    held = sum(1 for _ in arguments.folder.glob(f"*{ENDING}"))
    write_line(sys.stderr, f"collbench: {after_adding(arguments.folder, held)}")
    return 0


def _show(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Prints the baseline; 0. Raises UsageError."""
    import sys

    from collbench.gate.baseline import load
    from collbench.report.baseline import lines
    from collbench.report.screen import write_line

    for line in lines(load(arguments.folder), arguments.format):
        write_line(sys.stdout, line.text)
    return 0


def _drop(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Takes the allocations out; 0. Raises UsageError."""
    from collbench.gate.baseline import drop

    for name in arguments.names:
        drop(arguments.folder, name)
    return 0


def _diff(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Prints what is between the two; 0. Raises UsageError."""
    import sys

    from collbench.errors import UsageError
    from collbench.gate.baseline import load
    from collbench.gate.diff import between_allocations, between_baselines
    from collbench.report.baseline_diff import lines
    from collbench.report.screen import write_line

    if len(arguments.others) > 2:
        raise UsageError(f"diff is between two: name two allocations of {arguments.folder}, or the folder of one other baseline")
    baseline = load(arguments.folder)
    two, names = len(arguments.others) == 2, [each.name for each in baseline.allocations]
    if not two and arguments.others[0] in names:
        other = next((name for name in reversed(names) if name != arguments.others[0]), "OTHER")
        raise UsageError(
            f"diff is between two: name a second one: collbench baseline diff {arguments.folder} {arguments.others[0]} {other}"
        )
    moves = between_allocations(baseline, *arguments.others) if two else between_baselines(baseline, load(Path(arguments.others[0])))
    for line in lines(moves, arguments.format):
        write_line(sys.stdout, line.text)
    return 0
