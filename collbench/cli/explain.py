"""collbench explain CODE: what a finding means, how to check it by hand, and what to do."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    about = "what a finding of `collbench doctor` or `hunt` means, how to check it by hand, and what to do"
    parser = commands.add_parser("explain", help="what a finding means and what to do", description=about)
    parser.add_argument("code", metavar="CODE", nargs="?", help="CB2101 and the like (default: list all)")
    parser.set_defaults(call=call)
    return {"explain": parser}


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Prints a page, or all codes with their titles. Raises UsageError for an unknown code."""
    from collbench.machine.doctor.pages import page, pages

    if arguments.code is None:
        for code, each in pages().items():
            print(f"{code}  {each.title}")
    else:
        for line in page(arguments.code).lines():
            print(line)
    return 0
