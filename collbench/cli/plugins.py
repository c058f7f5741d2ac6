"""collbench plugins: the plug-ins that are there, with their versions and what each brings."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from collbench.cli.parser import Parser, add_command, add_format

_ABOUT = """\
List the capabilities beside the core: those that come with collbench, and those of other packages (entry point "collbench.plugins").
A plug-in that cannot be used is named with its error, and does not affect the others."""


def add_plugins(commands: Any) -> None:
    """Add the command."""
    add_command(commands, "plugins", "the capabilities beside the core, and their packages", call_plugins, _add_options, description=_ABOUT)


def _add_options(parser: Parser) -> None:
    add_format(parser, "table")


def call_plugins(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print one line per plug-in, and a warning for each broken one; return 0."""
    from collbench.plugin import broken_plugins, plugins
    from collbench.report.plugins import plugin_lines
    from collbench.report.screen import width_of, write_line

    for line in plugin_lines(plugins().values(), arguments.format, width_of(sys.stdout)):
        write_line(sys.stdout, line.text)
    for error in broken_plugins().values():
        write_line(sys.stderr, f"warning: {error}")
    return 0
