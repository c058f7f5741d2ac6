"""What every rank and every `--help` pays before anything happens: `collbench --help` against `python -c pass`."""

from __future__ import annotations

import sys

from tools.benchmarks.figures import SECONDS, Outcome, counted, timed
from tools.benchmarks.launches import collbench, launch, pairs

_HEAVY = ("numpy", "torch", "rich")
_IMPORTED = f"""
import sys
sys.argv = ["collbench", "--help"]
from collbench.cli.main import run
try:
    run(["--help"])
except SystemExit:
    print("imported:", *(name for name in {_HEAVY!r} if name in sys.modules))
"""


def measure(n: int = 20) -> Outcome:
    """n pairs."""
    found = pairs(lambda: launch(collbench("--help")).wall_s, lambda: launch([sys.executable, "-c", "pass"]).wall_s, n)
    heavy = launch([sys.executable, "-c", _IMPORTED]).out.rpartition("imported:")[2].split()
    return Outcome(
        "startup",
        "Wall time of `collbench --help` to its end, in pairs with `python -c pass`.",
        [
            timed("collbench --help", (ours for ours, _ in found), SECONDS, below=0.08),
            timed("python -c pass", (bare for _, bare in found), SECONDS),
            timed("difference within pairs", (ours - bare for ours, bare in found), SECONDS),
            counted(f"imported of {', '.join(_HEAVY)}", heavy),
        ],
        [{"help_s": ours, "python_s": bare} for ours, bare in found],
    )
