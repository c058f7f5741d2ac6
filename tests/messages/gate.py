"""The gate: reasons and notes of verdicts, plausible causes, and the outputs of a verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from collbench.analysis.differences import Difference, Item
from collbench.errors import UsageError
from collbench.gating import plausible, reasons
from collbench.gating.allocation import Allocation, CaseTimes, allocations_in
from collbench.gating.baseline import Baseline, add_all, load
from collbench.gating.changes import read_expected
from collbench.gating.floors import floor_states, read_floor
from collbench.gating.history import dated_in
from collbench.gating.reasons import CaseNames, ColumnDiffers
from collbench.gating.verdict import UNDECIDED, read_verdict
from collbench.report.frame import Line
from collbench.report.verdict import GateCommand, lines, next_commands
from collbench.report.verdict_formats import annotation_lines, status_lines
from collbench.results.store import to_page
from tests.gate.allocations import launch
from tests.gate.judging import BASE, allocation, case, judged, slow
from tests.gate.patterns import LARGE, MID, SMALL
from tests.gate.verdicts import regression, suspicion, verdict
from tests.messages import Message
from tests.results.rows import make_row, store

CASE = CaseNames(("allreduce 8 B mpi",))
CASES = CaseNames(("allreduce 8 B mpi", "allreduce 16 B mpi"), 12)
RATE = Difference(Item.of("topology", "machines 3 nics mlx5_0 rate_bits_per_s"), "400000000000.0", "200000000000.0")
JOB = "Slurm job testbed-12"
TYPED = GateCommand(Path("base"), [Path("night-8")], [], Path("confirm.toml"), True, False, False, "local", {"--ranks": "2"}, False)


def printed(made: Callable[[], Iterable[Line]]) -> Message:
    return lambda: "\n".join(line.text for line in made())


def waiting(**changes: object) -> Message:
    given = verdict(**{"result": UNDECIDED, "suspicions": (suspicion("suspected"),), "reasons": (reasons.StillSuspected(1, 2),), **changes})
    return printed(partial(next_commands, given, TYPED))


def stored(change: Callable[[list[str]], list[str]]) -> Message:
    """The error of a baseline with an altered file."""

    def run() -> object:
        with TemporaryDirectory() as folder:
            (file,) = add_all(Path(folder), [allocation("good-0", launches=3)])
            file.write_text("\n".join(change(file.read_text().splitlines())))
            return error_of(lambda: load(Path(folder)), folder)

    return run


def head(**changes: object) -> Message:
    return stored(lambda lines: [json.dumps({**json.loads(lines[0]), **changes}), *lines[1:]])


def added(*allocations: Allocation) -> Message:
    """The error of adding these to a baseline with good-0."""

    def run() -> object:
        with TemporaryDirectory() as folder:
            add_all(Path(folder), [allocation("good-0", jobs=("Slurm job testbed-12",))])
            return error_of(lambda: add_all(Path(folder), allocations), folder)

    return run


def read_back(**changes: object) -> Message:
    """The error of a stored verdict with these fields."""

    def run() -> object:
        with TemporaryDirectory() as folder:
            file = Path(folder, "verdict.json")
            file.write_text(json.dumps({**json.loads(to_page(regression().as_json())), **changes}))
            return error_of(lambda: read_verdict(file), folder)

    return run


def error_of(call: Callable[[], object], folder: str) -> str:
    """The text of an error, without the path of a temporary folder."""
    try:
        return str(call())
    except UsageError as error:
        return str(error).replace(folder, "base")


def runs(*allocation_ids: str) -> Message:
    """The error of reading launches with these allocations as one folder."""

    def run() -> object:
        with TemporaryDirectory() as folder:
            for number, name in enumerate(allocation_ids, 1):
                launch(Path(folder, f"launch-{number}"), {8: 1e-6}, name)
            return error_of(lambda: allocations_in([Path(folder)]), folder)

    return run


def history_of(make: Callable[[Path], object]) -> Message:
    """The notes, or the error, of a history of this folder."""

    def run() -> object:
        with TemporaryDirectory() as folder:
            make(Path(folder, "runs"))
            return error_of(lambda: "\n".join(dated_in(Path(folder, "runs"))[1]), folder)

    return run


def copied(name: str) -> Allocation:
    return replace(allocation(name), began_utc="2026-11-20T10:00:00Z")


def announced(kind: str, what: str) -> object:
    text = f'[[change]]\nkind = "{kind}"\nwhat = "{what}"\nreason = "x"\nreviewer = "ops"\nexpires = 2026-12-01\n'
    with TemporaryDirectory() as folder:
        Path(folder, "expected.toml").write_text(text)
        return error_of(lambda: read_expected(Path(folder, "expected.toml")), folder)


def imported_in_part() -> object:
    with TemporaryDirectory() as folder:
        run = store(Path(folder, "night"), [make_row(8, flags=("imported",)), make_row(1024)])
        return error_of(lambda: allocations_in([run]), folder)


SIZES = (*SMALL, *MID, *LARGE)
THREE = ("allreduce", "broadcast", "allgather")
MESSAGES: dict[str, Message] = {
    "baseline, too short": reasons.ShortBaseline("base", 3, 4),
    "baseline, too short without allocations in another state": reasons.ShortBaseline("base", 1, 4, 3),
    "baseline, no case in enough allocations": reasons.NoHistory("base", 4),
    "baseline, too coarse": reasons.TooCoarse(2.56),
    "stacks, too coarse": reasons.TooCoarse(None, paired=True),
    "clock, before the baseline": reasons.BeganBeforeBaseline("old", "2026-11-11", "good-5", "2026-11-12"),
    "clock, in the future": reasons.BeganInFuture("new", "2026-11-23T01:00:00+00:00", "2026-11-21"),
    "job of the baseline": reasons.SameJobAsBaseline("new", "good-0", JOB),
    "job of another candidate": reasons.SameJob("a", "b", JOB),
    "another cluster": reasons.AnotherCluster("new", ("node7", "node8"), "base", ("node1", "node2", "node3", "node4")),
    "change": reasons.UnexpectedChange(RATE),
    "change in several places": reasons.UnexpectedChange(replace(RATE, item=Item.of("topology", "interfaces * mtu"), times=3)),
    "changes, more": reasons.MoreUnexpectedChanges(3),
    "launches, unfinished": reasons.UnfinishedLaunches("new", 2, 5),
    "cases, missing": reasons.MissingCases("new", CASES),
    "cases, missing with the reason of their rows": reasons.MissingCases("new", CASE, "no GPU"),
    "cases, missing in this mode": reasons.MissingCases("new", CASE, differs=ColumnDiffers("mode", "pipelined", "isolated")),
    "cases, missing with an option not set": reasons.MissingCases("new", CASE, differs=ColumnDiffers("algorithm", None, "ring")),
    "cases, incomplete": reasons.IncompleteCases("new", CASE),
    "cases, unstable": reasons.UnstableCases("new", CASE, ("drift", "two_modes")),
    "cases, wrong data": reasons.WrongCases("new", CASE),
    "suspect": reasons.StillSuspected(1, 2),
    "suspects": reasons.StillSuspected(3, 1),
    "suspects, missing in later allocations": reasons.StillSuspected(2, 0),
    "floor, suspected": reasons.SuspectedBelowFloor(CASE),
    "floor, unknown": reasons.FloorUnknown("ring:80@64M-", CASE),
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
    "note, new cases": reasons.NewCases(1, CASE),
    "note, wide limits": reasons.WideLimits(CASE),
    "note, slowed": reasons.SlowedOnPurpose("new", "by=10%"),
    "note, few launches": reasons.FewLaunches("a", 1, 3),
    "note, baseline of one job": reasons.BaselineOfOneJob("good-0", "good-1", JOB),
    "note, baseline without state probe": reasons.BaselineWithoutProbe(6, 6),
    "note, without state probe": reasons.WithoutProbe("new", 2, 5),
    "note, baseline without start": reasons.BaselineWithoutStart(1, 6, "good-0"),
    "note, without start": reasons.WithoutStart("new", several=False),
    "note, several without start": reasons.WithoutStart("new", several=True),
    "note, without history": reasons.WithoutHistory("new", 14, CASES),
    "note, unchecked": reasons.UncheckedCases("new", CASE),
    "note, slower later": reasons.SlowerLater("a", ("allreduce on mpi, large messages", "allreduce 64 MiB mpi")),
    "note, not in the suite": reasons.NotInSuite(CASE),
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
    "baseline, missing": lambda: load(Path("nowhere")),
    "baseline, empty": stored(lambda lines: []),
    "baseline, newer": head(schema=2),
    "baseline, another name": head(name="night-2"),
    "baseline, invalid start": head(began_utc="soon"),
    "baseline, launches and probes": head(launches=4),
    "baseline, no case": stored(lambda lines: lines[:1]),
    "baseline, not a case": stored(lambda lines: [lines[0], "[1]", *lines[2:]]),
    "baseline, impossible case": stored(lambda lines: [lines[0], lines[1].replace("nccl", "\\u001b"), *lines[2:]]),
    "baseline, repeated case": stored(lambda lines: [*lines, lines[1]]),
    "baseline, in it already": added(allocation("good-0")),
    "baseline, one job": added(allocation("good-1", launches=4, jobs=("Slurm job testbed-12",))),
    "baseline, wrong data": added(replace(allocation("bad"), cases={case(8): CaseTimes((1e-6,), wrong=3)})),
    "baseline, unfinished": added(replace(allocation("torn"), unfinished=1)),
    "baseline, slowed": added(replace(allocation("slow"), slowed="by=10%")),
    "baseline, imported": added(replace(allocation("other"), imported=True)),
    "allocation, of no name": runs("", ""),
    "allocation, not a file name": runs("../x"),
    "allocation, imported in part": imported_in_part,
    "candidate, in the baseline": lambda: judged(allocation("good-3")),
    "candidate, in the baseline under another name": lambda: judged(
        copied("new"), baseline=Baseline(Path("base"), [copied("good-0"), *BASE.allocations[1:]])
    ),
    "candidate, one name twice": lambda: judged(slow("b"), slow("b")),
    "candidate, one allocation twice": lambda: judged(copied("a"), copied("b")),
    "candidate, nothing in common": lambda: judged(replace(allocation("new"), cases={case(5): CaseTimes((1e-6,))})),
    "candidate, imported": lambda: judged(replace(allocation("new"), imported=True)),
    "floor, no such case": lambda: floor_states([read_floor("ring:80@1G-")], [allocation("night-1")]),
    "announcement of every change": lambda: announced("*", "*"),
    "verdict, unknown result": read_back(result="fine"),
    "verdict, unknown field": read_back(surprise=1),
    "verdict, passed with suspects": read_back(result="passed", exit_code=0),
    "verdict, newer": read_back(schema=2),
    "history, missing": history_of(lambda folder: None),
    "history, nothing in it": history_of(lambda folder: folder.mkdir()),
    "history, short": history_of(lambda folder: [launch(folder / name, {8: 1e-6}, name) for name in "ab"]),
    "history, wrong data": history_of(lambda folder: launch(folder / "a", {8: 1e-6}, "a", wrong=3)),
}  # fmt: skip
