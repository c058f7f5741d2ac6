"""Verdicts for the tests of what is made from them."""

from math import log
from typing import Any

from collbench.analysis.differences import Item
from collbench.analysis.launches import case_of
from collbench.gating.reasons import CaseNames, LaunchesLeftOut, LinkOfAll, MissingCases, SlowMessages
from collbench.gating.verdict import Announcement, Change, FloorState, GroupState, Suspicion, Verdict
from tests.results.rows import make_row

PASSED: dict[str, Any] = {
    "result": "passed", "mode": "baseline", "reasons": (), "notes": (), "suspicions": (), "groups": (), "floors": (), "cause": None,
    "changes": (), "baseline": "base", "allocations": 6, "thin": False, "candidates": ("new",), "cases": 6, "judged_on": "2026-11-21",
    "collbench": "0.1.0",
}  # fmt: skip
CASE = case_of(make_row(64 << 20, backend="mpi"))._asdict()
LINK = "NIC 4×100 Gb/s"
ANNOUNCED = Announcement("fewer CTAs leave room for kernels", "A. Reviewer", "2027-01-31")


def verdict(**changes: Any) -> Verdict:
    return Verdict(**{**PASSED, **changes})


def suspicion(state: str = "confirmed", name: str = "allreduce 64 MiB mpi", **changes: Any) -> Suspicion:
    """A case 12, 11 and 13 % slower."""
    actual: dict[str, Any] = {"kind": "cell", "name": name, "case": CASE, "factors": (1.12, 1.11, 1.13), "limit": 1.02, "state": state}
    return Suspicion(**{**actual, **changes})


def group(state: str = "passed", operation: str = "allreduce", backend: str = "mpi", **changes: Any) -> GroupState:
    actual: dict[str, Any] = {
        "backend": backend, "operation": operation, "size_class": "large", "name": f"{operation} on {backend}, large messages",
        "cases": 10, "missing": 0, "factors": (1.001,), "limit": 1.01, "worst": f"{operation} 64 MiB {backend}", "worst_factor": 1.008,
        "worst_limit": 1.02, "state": state,
    }  # fmt: skip
    return GroupState(**{**actual, **changes})


def regression(**changes: Any) -> Verdict:
    """A regression with something of everything."""
    actual: dict[str, Any] = {
        "result": "regression",
        "reasons": (MissingCases("night-9", CaseNames(("allreduce 8 B mpi",))),),
        "notes": (LaunchesLeftOut("night-9", 1, 5),),
        "suspicions": (
            suspicion(),
            suspicion("accepted", "allreduce 8 B nccl", announced=ANNOUNCED, factors=(1.04, None, None)),
            suspicion("cleared", "allreduce on mpi, large messages", kind="group", case={}, factors=(1.03, 1.0, 1.0)),
        ),
        "groups": (
            group("confirmed", factors=(1.03, 1.0, 1.0), worst_factor=1.12),
            group(backend="nccl"),
            group("no verdict", "broadcast", missing=3, limit=None, factors=(None,), worst=None, worst_factor=None, worst_limit=None),
        ),
        "floors": (FloorState("allreduce 64 MiB mpi", CASE, "ring:80@64M-", 80.0, (71.0, 70.5, 72.0), LINK, "ring", "confirmed"),),
        "cause": SlowMessages(("link",), "large", "clear", (log(1.12), log(1.12)), ("mpi", "nccl")),
        "changes": (
            Change(Item.of("topology", "nic rate"), "400 Gb/s", "360 Gb/s", LinkOfAll()),
            Change(Item.of("software", "nccl"), "2.29", "2.30", None, ANNOUNCED),
        ),
        "candidates": ("night-9", "night-10", "night-11"),
        "asked": ("ring:80@64M-", "ring:50@1M-"),
    }  # fmt: skip
    return verdict(**{**actual, **changes})
