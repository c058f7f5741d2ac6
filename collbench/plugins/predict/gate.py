"""`collbench gate --against-prediction`: the option, and the verdict about runs against a stored prediction."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from collbench.cli.parser import Parser
from collbench.cli.selection import check_selection
from collbench.errors import UsageError


def add_option(parser: Parser) -> None:
    """Add --against-prediction to `gate`."""
    predicted = "without a history: hold runs against prediction.json of `collbench predict --out` for their node count"
    parser.add_argument("--against-prediction", metavar="FILE", type=Path, help=predicted)


def hold(arguments: argparse.Namespace) -> int | None:
    """Print the verdict about the runs against the prediction; return its exit code.

    None without the option, or with --self-test. Raises UsageError.
    """
    if not arguments.against_prediction or getattr(arguments, "self_test", False):
        return None
    from collbench.plugins.predict.command import rows_of
    from collbench.plugins.predict.held import hold_against
    from collbench.plugins.predict.prediction import read_prediction
    from collbench.plugins.predict.text import held_lines, write_held
    from collbench.report.screen import PlainScreen, wants_color, width_of
    from collbench.report.writers import check_file, confirm_written
    from collbench.untrusted import uncollected

    others = (
        "baseline", "paired", "verdict", "expect", "min_percent", "confirm_suite", "junit", "markdown", "openmetrics", "html",
    )  # fmt: skip
    typed = next((name for name in others if getattr(arguments, name)), None)
    if typed or arguments.exit_style != "collbench":
        raise UsageError(f"--against-prediction and --{(typed or 'exit_style').replace('_', '-')} exclude each other: remove one of them")
    if arguments.format == "github":
        raise UsageError("--against-prediction does not support --format github: choose table or json")
    check_selection(arguments)
    if not arguments.store and not arguments.runs:
        raise UsageError("--against-prediction needs runs: collbench gate --against-prediction FILE RUN…")
    if arguments.out:
        check_file(arguments.out, "--out")
    with uncollected():
        prediction = read_prediction(arguments.against_prediction)
        verdict = hold_against(rows_of(arguments), prediction)
    if arguments.out:
        write_held(verdict, arguments.out)
    confirm_written((arguments.out,), sys.stderr)
    screen = PlainScreen(sys.stdout, sys.stderr, wants_color(sys.stdout))
    for line in held_lines(verdict, arguments.format, width_of(sys.stdout)):
        screen.data(line)
    return verdict.exit_code
