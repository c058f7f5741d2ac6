"""Verdicts and recommendations for tests."""

from pathlib import Path

from collbench.plugins.hunt.protocol import CONFIRMED, HuntVerdict, Suspect
from collbench.plugins.hunt.recommendation import HuntSummary, recommendation
from collbench.reason import Text

NAMES = tuple(f"node{number:02}" for number in range(16))


def suspect(kind="node", *places, **changes):
    """Return a suspect: node07 at 51 % of the others, with `changes`."""
    actual = {
        "state": CONFIRMED, "ratio": 0.51, "low": 0.49, "high": 0.53, "partners": (2, 5),
        "evidence": (Text("with node02 59.8 MB/s, with node05 60.1 MB/s"),),
    }  # fmt: skip
    return Suspect(kind, places or (7,), **{**actual, **changes})


def verdict(*suspects, **changes):
    actual = {"names": NAMES, "suspects": suspects, "rounds": {"sweep": 8, "cross-check": 2}, "promised": 18}
    return HuntVerdict(**{**actual, **changes})


def about(**changes):
    """Return the summary of a hunt in a Slurm job."""
    return HuntSummary(**{"run": Path("runs/20261122T031500Z-hunt-a1b2c3"), "allocation": "cluster-42", "manager": "slurm", **changes})


def undo_lines(applied):
    """Return the commands that return the drained nodes to service."""
    return [entry["undo"] for entry in applied.entries if entry["undo"]]


def recommended(*suspects, **changes):
    """Return the recommendation for these suspects, node07 by default; `changes` apply to the hunt's summary."""
    return recommendation(verdict(*suspects or (suspect(),)), about(**changes))
