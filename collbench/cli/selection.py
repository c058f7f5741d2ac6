"""Options with which plug-ins select runs elsewhere than in folders, such as `--store`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from collbench.cli.parser import Parser
from collbench.plugin import hooks_of
from collbench.results.reader import Run


def add_selection(parser: Parser) -> None:
    """Add the options of plug-ins that select runs. Without any, `arguments.store` is None."""
    parser.set_defaults(store=None)
    for add in hooks_of("run_options"):
        add(parser)


def check_selection(arguments: argparse.Namespace) -> None:
    """Raise UsageError for an option that selects runs of a store, without `--store`."""
    for check in hooks_of("check_run_options"):
        check(arguments)


def selected_runs(arguments: argparse.Namespace, names: Sequence[object]) -> tuple[str, Sequence[Run]] | None:
    """Return (where they are, the runs with these names that the options select), in the order in which they began; None without `--store`.

    Raises UsageError if they cannot be read, there are none, or an option does not go without `--store`.
    """
    check_selection(arguments)
    for select in hooks_of("selected_runs"):
        runs: tuple[str, Sequence[Run]] | None = select(arguments, names)
        if runs is not None:
            return runs
    return None
