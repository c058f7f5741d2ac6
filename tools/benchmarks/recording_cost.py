"""What `collbench trace` costs a job: the step of a real DDP job of two ranks with it and without it, in pairs."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from tools.benchmarks.figures import RATIO, Outcome, Unit, timed
from tools.benchmarks.launches import Missing, collbench, launch, pairs

_JOB = Path(__file__).with_name("recording_job.py")
_TORCHRUN = Path(sys.prefix) / "bin/torchrun"
_TRACE = ("trace", "--skip", "50", "--steps", "50", "--out", "traces", "--")
_MILLISECONDS = Unit("ms", 1e3)


def measure(n: int = 10) -> Outcome:
    """n pairs."""
    if not _TORCHRUN.exists():
        raise Missing("torch is not installed: pip install 'collbench[torch]'")
    job = [str(_TORCHRUN), "--nproc-per-node", "2", str(_JOB)]
    found = pairs(partial(_medians, [*collbench(*_TRACE), *job]), partial(_medians, job), n)

    def ratios(part: str) -> list[float]:
        return [traced[part] / plain[part] for traced, plain in found]

    return Outcome(
        "recording_cost",
        "150 DDP steps of a model with 3.2 million parameters on Gloo, two ranks on this host, under `collbench trace` and without it: "
        "rank 0's median step before the 50 recorded steps, within them, and after them.",
        [
            timed("step without it", (plain["before"] for _, plain in found), _MILLISECONDS),
            timed("ratio within pairs, before the recorded steps", ratios("before"), RATIO),
            timed("ratio within pairs, recorded steps", ratios("recorded"), RATIO),
            timed("ratio within pairs, after the recorded steps", ratios("after"), RATIO),
        ],
        [
            {f"{kind}_{part}_s": value for kind, one in zip(("traced", "plain"), pair, strict=True) for part, value in one.items()}
            for pair in found
        ],
    )


def _medians(command: list[str]) -> dict[str, float]:
    medians: dict[str, float] = json.loads(launch(command).out.splitlines()[-1])
    return medians
