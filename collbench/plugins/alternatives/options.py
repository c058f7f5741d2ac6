"""The options that alternatives add to `collbench compare`, apart from the comparison: the manual page is made without numpy."""

from pathlib import Path

from collbench.cli.parser import Parser


def add_options(parser: Parser) -> None:
    """Add the further runs to `compare`."""
    parser.add_argument("more", metavar="MORE", nargs="*", type=Path, default=[], help="further runs: all are compared as alternatives")
