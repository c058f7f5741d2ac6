"""`collbench plot`: a figure of stored runs in a file."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collbench.cli.help import HelpEntry
from collbench.cli.parser import Parser, add_command, words
from collbench.errors import FINE, UsageError

_SUMMARY = "draw stored runs as a figure for a paper, a slide or a mail: PDF, SVG or PNG"
_ABOUT = (
    "Draw stored runs as a figure: bandwidth, time or percentage over message size, scaling over ranks or nodes, history, or a comparison. "
    "Colors are backends, dashes are runs or rank counts; open marks are doubtful, red crosses are wrong data, bars are 95 % intervals."
)
_HELP = HelpEntry(
    follows="runs",
    examples=(
        ("plot runs/my-run --out bandwidth.pdf", "bus bandwidth over message size, one column of a paper wide"),
        ("plot runs/before runs/after --kind compare --out upgrade.svg", "each case against the first run"),
        ("plot runs/a runs/b --kind scaling --style slide --out scaling.png", "over ranks, for a slide"),
    ),
)
_SIZE = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)(?:x(\d{1,3}(?:\.\d{1,3})?))?(in|cm|mm)?")
_INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4}
_LEAST_INCHES, _MOST_INCHES = 1.0, 60.0


def add_plot(commands: Any) -> None:
    """Add the command."""
    add_command(commands, "plot", _SUMMARY, call_plot, _add_plot_options, entry=_HELP, description=_ABOUT)


def figure_size(text: str) -> tuple[float, float | None]:
    """Return width and height in inches of "3.5in", "9cm" or "7x4in"; without a height None. Raises an argparse error for other text."""
    matched = _SIZE.fullmatch(text.strip())
    if not matched:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size: use a width such as 3.5in, 89mm or 9cm, or width and height as in 7x4in")
    factor = _INCHES[matched[3] or "in"]
    width = float(matched[1]) * factor
    height = float(matched[2]) * factor if matched[2] else None
    for length in (width, height or width):
        if not _LEAST_INCHES <= length <= _MOST_INCHES:
            raise argparse.ArgumentTypeError(f"'{text}' is not a size of a figure: use {_LEAST_INCHES:g} to {_MOST_INCHES:g} inches")
    return width, height


def _add_plot_options(parser: Parser) -> None:
    runs = "a run's folder, a folder with runs below it, or a file of another tool (default: the newest run in runs/)"
    out = "the file: its name ends with .pdf, .svg or .png (default: KIND.pdf)"
    kinds = "bandwidth, time or percent over message size; scaling over ranks or nodes; history over dates; compare with the first; pairs"
    size = "width, or width and height: 3.5in, 89mm, 7x4in (default: 3.5in for each column of panels, for slides 13.33x7.5in)"
    style = "fonts and lines for a column of a paper, or a slide (default: paper)"
    parser.add_argument("runs", metavar="RUN", nargs="*", type=Path, help=runs)
    parser.add_argument("--out", metavar="FILE", type=Path, help=out)
    parser.add_argument("--kind", metavar="KIND", default="bandwidth", help=f"{kinds} (default: bandwidth)")
    parser.add_argument("--operation", metavar="NAMES", type=words, default=[], help="only these operations (default: all, at most 12)")
    parser.add_argument("--size", metavar="SIZE", type=figure_size, help=size)
    parser.add_argument("--style", default="paper", choices=("paper", "slide"), help=style)


def call_plot(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Write the figure and return 0. Raises UsageError for runs without such values, and for a file that cannot be written."""
    from collbench.api.runs import read
    from collbench.plugins.plot.figures import OVER_SIZES, check_ending, figure_of, kinds, panels_of, write
    from collbench.report.frame import printable
    from collbench.report.material import MOST_DRAWN, Material
    from collbench.report.run_list import newest_run
    from collbench.report.writers import check_file, confirm_written

    if arguments.kind not in kinds():
        raise UsageError(f"--kind '{printable(arguments.kind)}' is unknown: choose from {', '.join(kinds())}")
    out = arguments.out or Path(f"{arguments.kind}.pdf")
    check_ending(out)
    check_file(out, "--out")
    runs = read(arguments.runs or [newest_run()], strict=False)
    material = Material(list(runs), out)
    _note(runs.warnings)
    panels = panels_of(material, arguments.kind, arguments.operation)
    notes = list(dict.fromkeys(panel.note for panel in panels if panel.note))
    if arguments.kind in OVER_SIZES and len(material.tables) > MOST_DRAWN:
        notes.append(f"the first {MOST_DRAWN} of {len(material.tables)} runs are drawn")
    _note(notes)
    write(figure_of(panels, arguments.style, arguments.size), out)
    confirm_written((out,), sys.stderr)
    return FINE


def _note(notes: Sequence[str]) -> None:
    """Print what was not read or is not drawn."""
    from collbench.report.frame import printable

    for note in notes:
        print(f"collbench: {printable(note)}", file=sys.stderr)
