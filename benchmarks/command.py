"""The command line that all benchmarks share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from benchmarks.figures import Outcome
from benchmarks.launches import LaunchFailed, Missing


def main(measure: Callable[..., Outcome]) -> None:
    """One benchmark: `python -m benchmarks.NAME [--pairs N]`."""
    parser = argparse.ArgumentParser(description=sys.modules[measure.__module__].__doc__)
    parser.add_argument("--pairs", type=int, metavar="N", help="pairs of launches, or launches, instead of the benchmark's own number")
    chosen = parser.parse_args()
    try:
        print(measure(**({"n": chosen.pairs} if chosen.pairs else {})).markdown())
    except (Missing, LaunchFailed) as why:
        sys.exit(f"cannot be measured here: {why}")
