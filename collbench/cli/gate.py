"""collbench gate, baseline and history: their options. `cli.judging` does what they ask for; it is imported when one of them runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from collbench.cli.parser import Parser, add_command, add_format, from_environment
from collbench.cli.selection import add_selection
from collbench.errors import UsageError
from collbench.plugin import hooks_of


def _judging(name: str) -> Callable[[argparse.Namespace, list[str]], int]:
    """Return a command's function: the one with this name in `cli.judging`. It returns the exit code, and raises UsageError."""

    def call(arguments: argparse.Namespace, argv: list[str]) -> int:
        from collbench.cli import judging

        code: int = getattr(judging, name)(arguments)
        return code

    return call


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
        ("add", "copy the medians of runs into the baseline, one file per allocation", "add_to_baseline"),
        ("show", "print the allocations, and the smallest detectable slowdown of each case", "show_baseline"),
        ("drop", "take allocations out", "drop_allocations"),
        ("diff", "compare two allocations, or two baselines, with what else changed", "compare_baselines"),
    ):
        added[name] = add_command(verbs, name, summary, _judging(call)).whole()
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


# collbench history DIR: each case and group over the allocations, and when it changed.

_HISTORY_ABOUT = (
    "shows how each case, group and all cases together went from allocation to allocation, and marks where they changed: when, by how "
    "much, and what else changed then. DIR is a baseline's folder, or one that holds runs."
)


def add_history(commands: Any) -> None:
    """Add the command."""
    summary = "show how times changed from allocation to allocation"
    add_command(commands, "history", summary, _judging("show_history"), _add_history_options, description=_HISTORY_ABOUT)


def _add_history_options(parser: Parser) -> None:
    folder = "a baseline's folder, or a folder that holds runs; with --store names of runs (default: all)"
    parser.add_argument("folder", metavar="DIR", nargs="*", type=Path, help=folder)
    parser.add_argument("--only", metavar="PATTERN", default="*", help="only cases that match a pattern such as 'allreduce*mpi'")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write one HTML page")
    add_format(parser, "table")
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")
    add_selection(parser)


# collbench gate: the verdict.

_ABOUT = (
    "Compare fresh allocations with a baseline of good ones (`collbench baseline`). A case or group above its limit in the first "
    "allocation is a suspect; above it in three, it is a regression. Without a baseline, --paired compares an old stack with a new one."
)
_RUNS = "the candidate's runs: of one allocation, or of three fresh ones; with --paired those of the old stack, then as many of the new"

_STYLES = ("collbench", "nagios", "prolog")
DRAINS_NOT = "no confirmed regression, so the exit code is 0 (--exit-style prolog)"


def add_gate(commands: Any) -> None:
    """Add the command."""
    summary = "detect a cluster that is slower than its baseline"
    add_command(commands, "gate", summary, _judging("gate"), _add_gate_options, description=_ABOUT)


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
    outputs = parser.add_argument_group("outputs (all made from verdict.json)")
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
            write_line(sys.stderr, f"collbench: {DRAINS_NOT}")
    return code_of_failure(code, style)
