"""The gate: reasons and notes of verdicts, plausible causes, and the outputs of a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from collbench.analysis.differences import Difference, Item
from collbench.gate import plausible, reasons
from collbench.gate.floors import read_floor
from collbench.gate.reasons import CaseNames, ColumnDiffers
from collbench.gate.verdict import UNDECIDED
from collbench.report.verdict import GateCommand, lines, next_commands
from collbench.report.verdict_formats import annotation_lines, status_lines
from collbench.report.writers import Line
from tests.gate.verdicts import regression, suspicion, verdict
from tests.messages import Message

CELL = CaseNames(("allreduce 8 B mpi",))
CELLS = CaseNames(("allreduce 8 B mpi", "allreduce 16 B mpi"), 12)
RATE = Difference(Item.of("topology", "machines 3 nics mlx5_0 rate_bits_per_s"), "400000000000.0", "200000000000.0")
JOB = "Slurm job testbed-12"
TYPED = GateCommand(Path("base"), [Path("night-8")], [], Path("confirm.toml"), True, False, False, "local", {"--ranks": "2"}, False)


def printed(made: Callable[[], Iterable[Line]]) -> Message:
    return lambda: "\n".join(line.text for line in made())


def waiting(**changes: object) -> Message:
    given = verdict(**{"result": UNDECIDED, "suspicions": (suspicion("suspected"),), "reasons": (reasons.StillSuspected(1, 2),), **changes})
    return printed(partial(next_commands, given, TYPED))


MESSAGES: dict[str, Message] = {
    "baseline, too short": reasons.ShortBaseline("base", 3, 4),
    "baseline, too short without allocations in another state": reasons.ShortBaseline("base", 1, 4, 3),
    "baseline, no case in enough allocations": reasons.NoHistory("base", 4),
    "clock, before the baseline": reasons.BeganBeforeBaseline("old", "2026-11-11", "good-5", "2026-11-12"),
    "clock, in the future": reasons.BeganInFuture("new", "2026-11-23T01:00:00+00:00", "2026-11-21"),
    "job of the baseline": reasons.SameJobAsBaseline("new", "good-0", JOB),
    "job of another candidate": reasons.SameJob("a", "b", JOB),
    "another cluster": reasons.AnotherCluster("new", ("node7", "node8"), "base", ("node1", "node2", "node3", "node4")),
    "change": reasons.UnexpectedChange(RATE),
    "change in several places": reasons.UnexpectedChange(replace(RATE, item=Item.of("topology", "interfaces * mtu"), times=3)),
    "changes, more": reasons.MoreUnexpectedChanges(3),
    "launches, unfinished": reasons.UnfinishedLaunches("new", 2, 5),
    "cases, missing": reasons.MissingCases("new", CELLS),
    "cases, missing with the reason of their rows": reasons.MissingCases("new", CELL, "no GPU"),
    "cases, missing in this mode": reasons.MissingCases("new", CELL, differs=ColumnDiffers("mode", "pipelined", "isolated")),
    "cases, missing with an option not set": reasons.MissingCases("new", CELL, differs=ColumnDiffers("algorithm", None, "ring")),
    "cases, incomplete": reasons.IncompleteCases("new", CELL),
    "cases, unstable": reasons.UnstableCases("new", CELL, ("drift", "two_modes")),
    "cases, wrong data": reasons.WrongCases("new", CELL),
    "suspect": reasons.StillSuspected(1, 2),
    "suspects": reasons.StillSuspected(3, 1),
    "suspects, missing in later allocations": reasons.StillSuspected(2, 0),
    "floor, suspected": reasons.SuspectedBelowFloor(CELL),
    "floor, unknown": reasons.FloorUnknown("ring:80@64M-", CELL),
    "state, launches to replace": reasons.LaunchesNeeded("new", 1, 3, 1),
    "state, fresh allocation": reasons.AllocationStateChanged("new", 3, 9),
    "paired, other allocation": reasons.OtherAllocation("a", "b"),
    "paired, other hosts": reasons.OtherHosts("a", "node1, node2", ""),
    "paired, unequal launches": reasons.UnequalLaunches("a", 5, 6),
    "paired, start unknown": reasons.StartUnknown("a"),
    "paired, not interleaved": reasons.NotInterleaved("a"),
    "paired, state": reasons.PairsStateChanged("a", 3, 9),
    "paired, more pairs": reasons.PairsNeeded("a", 4, 5),
    "paired, no pairs": reasons.NoPairs("a", 4),
    "paired, sides differ": reasons.SidesDiffer(RATE),
    "paired, stack changed": reasons.StackChanged("new", "a", "b", Difference(Item.of("software", "nccl version"), "2.30", "2.31")),
    "note, launches left out": reasons.LaunchesLeftOut("new", 2, 5),
    "note, launches of the baseline left out": reasons.LaunchesLeftOut("good-9", 1, 3, "baseline"),
    "note, pairs left out": reasons.PairsLeftOut("a", 2, 7),
    "note, equal stacks": reasons.EqualStacks(),
    "note, new cases": reasons.NewCases(1, CELL),
    "note, wide limits": reasons.WideLimits(CELL),
    "note, slowed": reasons.SlowedOnPurpose("new", "by=10%"),
    "note, few launches": reasons.FewLaunches("a", 1, 3),
    "note, baseline of one job": reasons.BaselineOfOneJob("good-0", "good-1", JOB),
    "note, baseline without state probe": reasons.BaselineWithoutProbe(6, 6),
    "note, without state probe": reasons.WithoutProbe("new", 2, 5),
    "note, baseline without start": reasons.BaselineWithoutStart(1, 6, "good-0"),
    "note, without start": reasons.WithoutStart("new", several=False),
    "note, several without start": reasons.WithoutStart("new", several=True),
    "note, without history": reasons.WithoutHistory("new", 14, CELLS),
    "note, unchecked": reasons.UncheckedCases("new", CELL),
    "note, slower later": reasons.SlowerLater("a", ("allreduce on mpi, large messages", "allreduce 64 MiB mpi")),
    "note, not in the suite": reasons.NotInSuite(CELL),
    "note, expired": reasons.ExpiredAnnouncement("ops", "upgrade", "2026-11-01"),
    "note, unused": reasons.UnusedAnnouncement("ops", "fewer CTAs", "software", "nccl*"),
    "cause, single sizes": plausible.SlowSizes((1 << 20,), (("mpi", "allreduce"),), 0.1),
    "cause, single sizes of several series": plausible.SlowSizes((8, 64), (("gloo", "allreduce"), ("mpi", "broadcast")), 0.1),
    "cause, backend": plausible.SlowBackend("mpi", False, ("small", "large"), (), (0.05, 0.1), ("gloo", "nccl")),
    "cause, backend or its link": plausible.SlowBackend("mpi", True, ("large",), ("allreduce",), (0.05, 0.05), ("gloo",)),
    "cause, operation": plausible.SlowOperation("broadcast", ("large",), ("gloo", "mpi"), (0.05, 0.1), ("allreduce",)),
    "cause, link": plausible.SlowMessages(("link",), "large", "clear", (0.1, 0.1), ("gloo", "mpi")),
    "cause, link without small messages": plausible.SlowMessages(("link",), "large", "unknown", (0.1, 0.1), ("gloo", "mpi")),
    "cause, link or hosts": plausible.SlowMessages(("link", "host"), "large", "unsure", (0.02, 0.02), ("gloo", "mpi")),
    "cause, memory or the only backend": plausible.SlowMessages(("memory",), "large", "clear", (0.1, 0.1), ("mpi",), "mpi"),
    "cause, latency": plausible.SlowMessages(("latency",), "small", "clear", (0.1, 0.1), ("gloo", "mpi")),
    "cause, latency or hosts": plausible.SlowMessages(("latency", "host"), "small", "unknown", (0.1, 0.1), ("gloo", "mpi")),
    "cause, hosts": plausible.SlowMessages(("host",), "all", None, (0.1, 0.12), ("gloo", "mpi")),
    "cause, of an earlier version": plausible.StoredCause("link", "the link: large messages are slower"),
    "plausible, library of all": plausible.CarriesAll(),
    "plausible, library of some": plausible.CarriesSome(("gloo", "nccl")),
    "plausible, library of none": plausible.CarriesNone(("gloo", "mpi")),
    "plausible, faster link": plausible.FasterLink(),
    "plausible, matching rate": plausible.MatchingRate(0.1, 0.11),
    "plausible, link of all": plausible.LinkOfAll(),
    "plausible, link of some": plausible.LinkOfSome(),
    "plausible, same link": plausible.SameLink(),
    "plausible, collbench": plausible.OwnVersion(),
    **{
        f"plausible, host, {extent}": plausible.OnTheHost(extent)
        for extent in ("memory", "all", "slower", "both", "others")
    },
    "floor, not valid": lambda: read_floor("ring"),
    "floor, unknown model": lambda: read_floor("rings:80@64M-"),
    "floor, percentage": lambda: read_floor("ring:800@64M-"),
    "terminal, passed": printed(partial(lines, verdict())),
    "terminal, regression": printed(partial(lines, regression())),
    "next, passed": printed(partial(next_commands, verdict(thin=True, allocations=4), TYPED)),
    "next, suspects": waiting(),
    "next, change": waiting(changes=regression().changes[:1]),
    "next, short baseline": waiting(allocations=3),
    "next, regression": printed(partial(next_commands, regression(), TYPED)),
    "next, wrong data": printed(partial(next_commands, verdict(result="wrong data"), TYPED)),
    "nagios": printed(partial(status_lines, regression())),
    "github": printed(partial(annotation_lines, regression())),
}  # fmt: skip
