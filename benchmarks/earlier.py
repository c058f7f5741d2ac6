"""This version against an earlier one: start-up and first number, in interleaved pairs, as ratios.

    python -m benchmarks.earlier CHECKOUT [--pairs N]

CHECKOUT is another checkout of the project with its C extension built (`python setup.py build_ext --inplace`). Both run with this Python
and its packages.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.figures import RATIO, SECONDS, Outcome, timed
from benchmarks.launches import launch, pairs

_ROOT = Path(__file__).parents[1]
_COMMANDS = {"--help": ("--help",), "first number": ("allreduce", "--backend", "mpi", "--sizes", "8", "--max-time", "0.1")}


def command(checkout: Path, arguments: tuple[str, ...]) -> list[str]:
    """Return the command line that runs collbench from a checkout."""
    return ["env", f"PYTHONPATH={checkout}", sys.executable, "-P", "-m", "collbench", *arguments]


def measure(checkout: Path, n: int = 30) -> Outcome:
    """Measure n pairs of each command. Raises LaunchFailed if one fails."""
    figures, raw = [], []
    for name, arguments in _COMMANDS.items():
        found = pairs(lambda: launch(command(_ROOT, arguments)).wall_s, lambda: launch(command(checkout, arguments)).wall_s, n)  # noqa: B023
        figures += [
            timed(f"{name}, this version", (new for new, _ in found), SECONDS),
            timed(f"{name}, earlier version", (old for _, old in found), SECONDS),
            timed(f"{name}, ratio within pairs", (new / old for new, old in found), RATIO, below=1.0),
        ]
        raw += [{"command": name, "new_s": new, "old_s": old} for new, old in found]
    return Outcome("earlier", "Wall time to the end, in pairs with an earlier version of collbench.", figures, raw)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--pairs", type=int, default=30, metavar="N")
    chosen = parser.parse_args()
    print(measure(chosen.checkout.resolve(), chosen.pairs).markdown())
