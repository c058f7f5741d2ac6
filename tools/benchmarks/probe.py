"""What a probe of this node takes, without torch: it runs in prologs and on every node before each measurement."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from tools.benchmarks.figures import MEBIBYTES, SECONDS, Outcome, counted, timed

_MOST_S, _MOST_BYTES = 0.5, 60e6
_LAST = """
import json, resource, sys
sys.argv = ["collbench", "probe", "--format", "json"]
from collbench.cli.main import run
code = run(sys.argv[1:])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"peak_bytes": peak, "torch": "torch" in sys.modules}), file=sys.stderr)
sys.exit(code)
"""


def measure(n: int = 20) -> Outcome:
    """n probes."""
    found = [_one() for _ in range(n)]
    return Outcome(
        "probe",
        "Wall time of `collbench probe --format json` to its end, and its peak resident memory.",
        [
            timed("wall time", (one["wall_s"] for one in found), SECONDS, below=_MOST_S),
            timed("peak memory", (one["peak_bytes"] for one in found), MEBIBYTES, below=_MOST_BYTES),
            counted("imported of torch", ["torch"] if any(one["torch"] for one in found) else []),
        ],
        found,
    )


def _one() -> dict[str, float]:
    before = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", _LAST], capture_output=True, text=True, timeout=60, check=True)
    wall_s = time.perf_counter() - before
    actual: dict[str, float] = json.loads(done.stderr.splitlines()[-1])
    return {"wall_s": wall_s, **actual}
