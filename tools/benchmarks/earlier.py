"""This version against an earlier one: start-up, first number, and the medians of rows, in interleaved pairs, as ratios.

    python -m tools.benchmarks.earlier CHECKOUT [--pairs N] [--rows]

CHECKOUT is another checkout of the project with its C extension built (`python setup.py build_ext --inplace`). Both run with this Python
and its packages. With --rows, the medians of an all-reduce of three sizes over MPI and Gloo are compared, instead of the commands.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from tools.benchmarks.figures import RATIO, SECONDS, Outcome, timed
from tools.benchmarks.launches import launch, pairs

_ROOT = Path(__file__).parents[2]
_COMMANDS = {"--help": ("--help",), "first number": ("allreduce", "--backend", "mpi", "--sizes", "8", "--max-time", "0.1")}
_SIZES = {8: "8 B", 64 << 10: "64 KiB", 16 << 20: "16 MiB"}


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


def measure_rows(checkout: Path, n: int = 30) -> Outcome:
    """Measure n pairs of launches over each backend, and compare the medians of their rows. Raises LaunchFailed if one fails."""
    figures, raw = [], []
    for backend in ("mpi", "gloo"):
        launches = pairs(partial(_medians, _ROOT, backend), partial(_medians, checkout, backend), n)
        for size, text in _SIZES.items():
            figures.append(timed(f"{backend} {text}, ratio within pairs", (new[size] / old[size] for new, old in launches), RATIO))
            raw += [{"backend": backend, "size_bytes": size, "new_s": new[size], "old_s": old[size]} for new, old in launches]
    return Outcome("earlier-rows", "Medians of rows, in pairs of launches with an earlier version of collbench.", figures, raw)


def _medians(checkout: Path, backend: str) -> dict[int, float]:
    """Return by size the median of a launch over two ranks, in seconds."""
    typed = ("allreduce", "--backend", backend, "--ranks", "2", "--sizes", "8,64K,16M", "--max-time", "0.5", "--format", "jsonl")
    rows = [json.loads(line) for line in launch(command(checkout, typed)).out.splitlines()]
    return {row["size_bytes"]: row["time_s"]["p50"] for row in rows}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--pairs", type=int, default=30, metavar="N")
    parser.add_argument("--rows", action="store_true", help="compare the medians of rows")
    chosen = parser.parse_args()
    measured = (measure_rows if chosen.rows else measure)(chosen.checkout.resolve(), chosen.pairs)
    print(measured.markdown())
