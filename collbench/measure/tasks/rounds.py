"""Rounds of pairs and hunts: the matrix of all pairs and its suspects again, a hunt's rounds, and external tools between pairs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from collbench.backends.backend import can_do
from collbench.control.world import World
from collbench.errors import FAILED, FINE, NEGATIVE, NO_VERDICT, USAGE, UsageError
from collbench.measure.memory import check_memory
from collbench.measure.monitored import state_probe
from collbench.measure.open_backends import Work, members_of, ranks_by_host
from collbench.measure.prepared_case import MoreWrongData, WrongDataFound, wrong_data
from collbench.measure.session import LaunchSession, Plan, ProgressListener, Task, WrongDataStop, at_rank_0, run_task
from collbench.measure.tasks.places import (
    HuntRequest,
    PairsRequest,
    Places,
    Rails,
    RoundOrder,
    places_of,
    rails_of,
    sampled,
    schedule_of,
)
from collbench.measure.tasks.round_runner import RoundRunner, group_case, no_groups, ways_of
from collbench.measure.wire_tools import FLAGS, LATENCY, ToolPair, ToolRequest, ToolResult, Tools, WireTool, installed_tools, run_tool
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.groups import Pair, Schedule
from collbench.reason import Fact, as_json
from collbench.results.folder import HUNT, PAIRS, TOOLS
from collbench.results.rounds import HuntRound, PairRound
from collbench.results.row import Row, Times
from collbench.units import listed

_CODES = {"confirmed": NEGATIVE, "nobody": FINE, "no verdict": NO_VERDICT}


class NoRecommendation(Fact, frozen=True):
    """A hunt found wrong data. Its verdict is therefore not used to drain nodes."""

    def render(self) -> str:
        """Return the sentence that users see."""
        return "no recommendation is written and no node is drained: data was wrong"


class SuspectsAgain(Fact, frozen=True):
    """Suspects of a pairs run are measured again, next to control pairs that are not suspects."""

    def render(self) -> str:
        """Return the sentence that users see."""
        return "suspects are measured again next to control pairs before a node or pair is reported"


class ToolsRun(Fact, frozen=True):
    """External tools run between the same pairs, in both directions. Their results are not used in the verdict.

    tools   name and version of each
    """

    tools: tuple[str, ...]

    def render(self) -> str:
        """Return the sentence that users see."""
        return f"external tools run between the same pairs, in both directions: {listed(self.tools)}"


class ToolsCutShort(Fact, frozen=True):
    """The external tools ran only between some pairs, because --budget was used up."""

    done: int
    pairs: int

    def render(self) -> str:
        """Return the sentence that users see."""
        return f"the external tools ran between {self.done} of {self.pairs} pairs: --budget is used up; increase it for more"


class ToolFailed(Fact, frozen=True):
    """An external tool gave no result between two places."""

    tool: str
    source: str
    target: str
    reason: str

    def render(self) -> str:
        """Return the sentence that users see."""
        return f"{self.tool} from {self.source} to {self.target}: {self.reason}"


# What pairs and hunts share: one backend, its places, and the rounds that a strategy at rank 0 requests.


class RoundsListener(ProgressListener, Protocol):
    """The listener of a launch that measures rounds, at rank 0: it also requests rounds and judges them."""

    def next(self, last: Sequence[Any]) -> Mapping[str, Any] | None:
        """Return the next round, given the records of the last one (of pairs first: of the whole matrix); None: no more rounds.

        A hunt's round has the fields of `RoundOrder`. A round of pairs has disjoint "pairs". Both may have the seconds to wait
        before it ("pause_s").
        """
        ...

    def verdict(self, rounds: Sequence[Any], about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the verdict on all rounds, JSON-ready. Its "result" is `confirmed`, `nobody` or `no verdict`.

        about: run.json's part. The verdict on pairs also has "findings", each with its fields and "sentence", and "judged", the
        suspects that were measured again.
        """
        ...


class HuntListener(RoundsListener, Protocol):
    """The listener of a hunt, at rank 0."""

    def plan(self, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return more entries for run.json's "hunt", such as the largest number of rounds (`promised`).

        It is called before the first measurement. Raises UsageError.
        """
        ...

    def act(self, folder: Path, event: Callable[..., None]) -> None:
        """Act on a verdict. It is called only if all ranks are still running and no data was wrong.

        event(kind, **facts) stores an action.
        """
        ...


@dataclass
class RoundsTask(Task):
    """Rounds on one backend between its places. Its subclasses are the matrix of pairs and the hunt."""

    request: PairsRequest
    listener: RoundsListener | None
    places: Places = field(init=False)
    about: dict[str, Any] = field(default_factory=dict)
    one_backend = True

    def check(self, session: LaunchSession, others: Sequence[Work] = ()) -> None:
        """Raise UsageError on all ranks if the backend or the memory cannot handle the messages, or if --slowed has no effect.

        others: cases that are measured in addition to the messages.
        """
        backend, world = session.backend.running, session.world
        ways = ways_of(self.request, backend.name)
        refusals = [can_do(backend, way.operation, way.case) for way in ways]
        if reason := world.first_error(next(filter(None, refusals), None), f"asking {backend.name} what it can do"):
            world.refuse(f"no pair can be measured on {backend.name}: {reason}")
        session.request.slowed.check([*(way.case for way in ways), *(case for _, case, _ in others)], backend.ranks)
        largest = max(ways, key=lambda way: way.case.size_bytes)
        check_memory([(largest.operation, largest.case, session.backend), *others], world)

    def runner(self, session: LaunchSession, **more: Any) -> RoundRunner:
        """Return the runner of rounds. All ranks must call it."""
        backend, world = session.backend.running, session.world
        ways = ways_of(self.request, backend.name)
        context = session.context_of([(way.operation, way.case, session.backend) for way in ways], backend)
        on = (*backend.flags, *session.flags(backend, [way.case for way in ways]))
        return RoundRunner(
            self.request, world, context, self.places, ways, on, None if backend.virtual else state_probe(world), **more
        )  # fmt: skip

    def about_places(self, backend: str) -> dict[str, Any]:
        """Return the entries of run.json that pairs and hunts share."""
        return {
            "places": list(self.places.names), "hosts": list(self.places.hosts), "by": self.places.by, "backend": backend,
            "size_bytes": self.request.size_bytes, "latency_size_bytes": self.request.latency_size_bytes,
            "window": ways_of(self.request, backend)[1].case.window, "ranks_per_place": self.places.width,
            "max_time_s": self.request.launch.budget.max_time_s, "budget_s": self.request.budget_s,
        }  # fmt: skip

    def requested_rounds(
        self, session: LaunchSession, last: Sequence[Any], play: Callable[[int, Mapping[str, Any]], WrongDataStop | None]
    ) -> bool:
        """Measure the rounds that the listener requests. Returns False if wrong data ended it (--stop-on-wrong).

        play(number, round) measures one, and returns the reason to give if wrong data in it ends the launch.
        """
        for number in count():
            proposed = dict(self.listener.next(last) or {}) if self.listener else {}
            time.sleep(proposed.get("pause_s", 0.0))
            agreed = session.world.broadcast(proposed, "choosing the next round")
            if not agreed:
                return True
            begun = len(session.records)
            stop = play(number, agreed)
            last = session.records[begun:]
            if session.stops(any(any(one.wrong) for one in last), stop):
                return False
        return True

    def note_wrong_data(self, session: LaunchSession, rounds: Sequence[Any], groups: str, what: Any) -> bool:
        """Note the pairs or groups with wrong data, at rank 0, and return whether there are any."""
        met = (
            each
            for one in rounds
            for each in zip(getattr(one, groups), one.wrong, one.wrong_detail or (None,) * len(one.wrong), strict=True)
        )
        found: list[WrongDataFound | MoreWrongData] = wrong_data(self.places.names, met, what)
        for fact in found:
            session.note(fact)
        return bool(found)


# A hunt: the strategy at rank 0 requests rounds, and all ranks measure them, until there is a verdict.


@dataclass
class HuntTask(RoundsTask):
    """The rounds of a hunt.

    strategy   the listener, at rank 0
    rails      the interfaces that all nodes have; no_groups: why groups cannot be measured
    stopped    whether wrong data ended the hunt
    """

    hunt: HuntRequest = field(kw_only=True)
    strategy: HuntListener | None = field(kw_only=True)
    rails: Rails = field(default_factory=dict)
    no_groups: str | None = None
    stopped: bool = False
    verdict: Mapping[str, Any] | None = None

    def plan(self, session: LaunchSession) -> Plan:
        """Return the plan with the number of rounds that the strategy promises. Raises UsageError on all ranks if it rejects the hunt."""
        backend, world = session.backend.running, session.world
        self.places = places_of(self.request, world.hosts, ranks_by_host(backend, world))
        self.no_groups = no_groups(self.request, backend, world)
        self.check(session, [] if self.no_groups else [(ALLREDUCE, group_case(self.request, backend), session.backend)])
        self.rails = {} if backend.virtual else rails_of(world, self.places)
        self.about = {
            **self.about_places(backend.name), "virtual": backend.virtual, "method": self.hunt.method, "most_rounds": self.hunt.rounds,
            "growing": self.hunt.growing, "isolate": self.hunt.isolate, "no_groups": self.no_groups, "nics": list(self.rails),
            "rounds": None, "ceiling": None, "verdict": None, "nodes": nodes_of(self.hunt, world),
        }  # fmt: skip
        own = at_rank_0(world, lambda: dict(self.strategy.plan(self.about)) if self.strategy else None, "planning the hunt")
        self.about |= world.broadcast(own or {}, "planning the hunt")
        return Plan(self.about["promised"], {"hunt": self.about}, notes=list(filter(None, [self.places.idle])))

    def measure(self, session: LaunchSession) -> None:
        """Measure the rounds that the strategy requests, until it ends the hunt or wrong data does."""
        runner = self.runner(session, rails=self.rails, no_groups=self.no_groups)

        def play(number: int, order: Mapping[str, Any]) -> WrongDataStop:
            if one := runner.play(number, RoundOrder.from_json(order)):
                session.store(one, HUNT)
            return WrongDataStop(f"round {number + 1}")

        self.stopped = not self.requested_rounds(session, (), play)
        self.about |= {"rounds": len(session.records), "ceiling": ceiling_of_rounds(session, runner) if session.records else None}

    def conclude(self, session: LaunchSession) -> Mapping[str, Any]:
        """Note wrong data, and return run.json's "hunt" with the verdict."""
        self.note_wrong_data(session, session.records, "groups", "group")
        if self.strategy and not self.stopped:
            self.verdict = self.strategy.verdict(session.records, self.about)
        return {"hunt": {**self.about, "verdict": self.verdict}}

    def exit_code(self, records: Sequence[HuntRound]) -> int:
        """Return the exit code: 4 if data was wrong, 2 if nothing was measured, else the verdict's."""
        if any(any(one.wrong) for one in records):
            return FAILED
        if records and all(reason for one in records for reason in one.na):
            return USAGE
        return _CODES[self.verdict["result"]] if self.verdict else FAILED

    def act(self, session: LaunchSession, code: int) -> None:
        """Act on the verdict, unless data was wrong or nothing was measured. All ranks must call it."""
        session.world.allgather(None, "ending")  # all ranks still run, so no node is drained because another one has failed
        if not session.folder or not self.verdict:
            return
        session.folder.update(hunt={**self.about, "verdict": self.verdict})
        if code == FAILED:
            session.note(NoRecommendation())
        elif code != USAGE and self.strategy:
            with session.world.watchdog.phase("acting on the verdict"):
                self.strategy.act(session.folder.path, session.folder.event)


def nodes_of(request: HuntRequest, world: World) -> list[tuple[str, str]]:
    """Return the distinct (host, the scheduler's name of the node) of all ranks that know it; at rank 0."""
    replies = world.gather((world.me.host, request.node or ""), "asking for the nodes' names") or []
    return sorted({(host, node) for host, node in replies if node})


def ceiling_of_rounds(session: LaunchSession, runner: RoundRunner) -> dict[str, Any] | None:
    """Return the highest possible rate of a group of the first round, at rank 0; None if it is unknown.

    For pairs it is the rate of one pair of ranks times the ranks of a place, since their messages share the limit.
    """
    first, backend, places = session.records[0], runner.context.backend, runner.places
    if "oversubscribed" in runner.flags:  # times that include waits for a core show nothing about a link
        return None
    if first.kind == "pairs":
        way, groups = runner.ways[1], places.groups([(group[0], group[1]) for group in first.groups])
        ceiling, _ = session.ceilings.of(way.operation, way.case, backend, groups)
        many = places.width
    else:
        ranks = tuple(tuple(rank for place in group for rank in places.ranks[place]) for group in first.groups)
        ceiling, _ = session.ceilings.of(ALLREDUCE, group_case(runner.request, backend), backend, ranks)
        many = 1
    if ceiling.bytes_per_s is None:
        return None
    return {"bytes_per_s": ceiling.bytes_per_s * many, "limited_by": ceiling.limited_by, "source": ceiling.source, "kind": ceiling.kind}


def run_hunt(request: HuntRequest, world: World, listener: HuntListener | None, ended: Callable[[int], None]) -> int:
    """Hunt on all ranks of `world`; see `run_task`. The exit code is 1 if a place is confirmed."""
    return run_task(HuntTask(request.pairs, listener, hunt=request, strategy=listener), request.pairs.launch, world, listener, ended)


# The matrix of pairs: all rounds of the schedule, then those that measure the suspects again, then the external tools.


@dataclass
class PairsTask(RoundsTask):
    """The matrix of pairs. visited: the pairs of the matrix that were measured; external: the rows of external tools, at rank 0."""

    schedule: Schedule = field(init=False)
    tools: Tools = field(default_factory=lambda: Tools((), {}))
    began: float = field(default_factory=time.monotonic)
    visited: int = 0
    external: list[Row] = field(default_factory=list)
    result: str = "nobody"

    def plan(self, session: LaunchSession) -> Plan:
        """Return the plan with the number of rounds. Raises UsageError for options that do not fit the launch or its memory."""
        backend, world, tools = session.backend.running, session.world, self.request.tools
        by_host = ranks_by_host(backend, world)
        self.places = places_of(self.request, world.hosts, by_host)
        self.schedule = schedule_of(self.request, self.places, by_host, session.order_seed)
        self.check(session)
        if tools and backend.virtual:
            raise UsageError(f"--tools {','.join(tools)} needs real hosts, but backend {backend.name} has none: use another --backend")
        self.tools = installed_tools(world, tools)
        self.about = self._about(session, self.schedule.pairs) | {"rounds": self.schedule.number, "measured": None}
        left_out = [self.places.idle, sampled(self.request, self.schedule, self.schedule.pairs)]
        return Plan(self.schedule.number, {"pairs": self.about}, notes=list(filter(None, left_out)))

    def _about(self, session: LaunchSession, pairs: int) -> dict[str, Any]:
        """Return run.json's "pairs" for so many pairs, without those that the launch has counted."""
        request, backend = self.request, session.backend.name
        sample = sampled(request, self.schedule, pairs)
        return {
            **self.about_places(backend), "streams": ways_of(request, backend)[1].case.streams, "possible": self.schedule.possible,
            "sampled": sample.render() if sample else None, "concurrent": request.concurrent,
            **({"sampled_fact": as_json(sample)} if sample else {}), **({"tools": list(request.tools)} if request.tools else {}),
        }  # fmt: skip

    def measure(self, session: LaunchSession) -> None:
        """Measure the matrix, the suspects again, and then run the tools."""
        runner = self.runner(session)
        self.began = time.monotonic()
        if not self._measure_matrix(session, runner):
            return
        most = self.request.concurrent

        def play(number: int, order: Mapping[str, Any]) -> None:
            if number == 0:
                session.note(SuspectsAgain())
            pairs = tuple((int(a), int(b)) for a, b in order["pairs"])
            for at in range(0, len(pairs), most or len(pairs)):
                for one in runner.play_pairs(self.schedule.number + number, pairs[at : at + (most or len(pairs))], again=True):
                    session.store(one, PAIRS)
            session.progress(_pairs_at_once(len(pairs)), number + 1, None)

        if self.requested_rounds(session, list(session.records), play):
            self._run_tools(session)

    def _measure_matrix(self, session: LaunchSession, runner: RoundRunner) -> bool:
        """Measure one round after the other until all are done or the time is used up. Every place gets at least one pair.

        Returns False if wrong data ended it (--stop-on-wrong).
        """
        total, parts = self.schedule.number, self.schedule.parts
        for number, pairs in enumerate(self.schedule.rounds()):
            spent_s = session.world.broadcast(time.monotonic() - self.began, "playing the next round")
            if spent_s > self.request.budget_s and number >= self.schedule.least * parts and number % parts == 0:
                break
            for one in runner.play_pairs(number, pairs):
                session.store(one, PAIRS)
            self.visited += len(pairs)
            self._show_progress(session, number, total, len(pairs), self.began)
            if session.stops(any(any(one.wrong) for one in session.records), WrongDataStop(f"round {number + 1} of {total}")):
                return False
        return True

    def _show_progress(self, session: LaunchSession, number: int, total: int, pairs: int, began: float) -> None:
        if self.listener:
            spent_s = time.monotonic() - began
            session.progress(_pairs_at_once(pairs), number + 1, total, spent_s / (number + 1) * (total - number - 1))

    def conclude(self, session: LaunchSession) -> Mapping[str, Any]:
        """Note what is wrong or missing, store the findings, and return run.json's "pairs" with the verdict."""
        rounds = session.records = [one for one in session.records if isinstance(one, PairRound)]
        first = [one for one in rounds if not one.again]
        wrong = self.note_wrong_data(session, rounds, "pairs", "pair")
        sample = sampled(self.request, self.schedule, self.visited)
        if sample and self.visited < self.schedule.pairs and not (wrong and session.request.stop_on_wrong):
            session.note(sample)
        measured = sum(reason is None for one in first for reason in one.na)
        self.about = self._about(session, self.visited) | {"rounds": len({one.round for one in first}), "measured": measured}
        found = dict(self.listener.verdict(rounds, self.about)) if self.listener else {}
        self.result = found.get("result", "nobody")
        for each in found.pop("findings", ()) if session.folder else ():
            session.folder.event("finding", text=each["sentence"], finding=each)  # type: ignore[union-attr]
        return {"pairs": {**self.about, **found}}

    def exit_code(self, records: Sequence[PairRound]) -> int:
        """Return the exit code: 4 wrong data, 2 no pair measured, 1 a node or pair is slow, 3 inconclusive, else 0."""
        if any(wrong for one in records for wrong in one.wrong):
            return FAILED
        measured = any(reason is None for one in records if not one.again for reason in one.na)
        return _CODES[self.result] if measured else USAGE

    # External tools run after the matrix, in its rounds, in both directions. Their rows are in tools.jsonl; no verdict uses them.

    def _run_tools(self, session: LaunchSession) -> None:
        """Run the tools in rounds, at all ranks, until all measured pairs are done or the time of --budget is used up again."""
        tools, world, began = self.tools, session.world, time.monotonic()
        if not tools.tools:
            return
        versions = {tool.name: " and ".join(dict.fromkeys(filter(None, tools.versions[tool.name]))) for tool in tools.tools}
        session.note(ToolsRun(tuple(f"{name} {each}".strip() for name, each in versions.items())))
        measured = len({one.round for one in session.records if not one.again})
        rounds = list(self.schedule.rounds())[: world.broadcast(measured, "choosing the tools' rounds")]
        done = 0
        for number, pairs in enumerate(rounds):
            spent_s = world.broadcast(time.monotonic() - began, "running the next tools")
            if number and spent_s > self.request.budget_s:
                break
            for row in self._rows_of_round(session, pairs):
                if row.na and all(row.na != other.na for other in self.external):
                    session.note(ToolFailed(row.backend, row.evidence["from"], row.evidence["to"], row.na))
                self.external.append(row)
                session.store(row, TOOLS)
            done += len(pairs)
            self._show_progress(session, number, len(rounds), len(pairs), began)
        left = sum(map(len, rounds)) - done
        if left:
            session.note(ToolsCutShort(done, done + left))

    def _rows_of_round(self, session: LaunchSession, pairs: Sequence[Pair]) -> Iterator[Row]:
        members, firsts = members_of(session.backend.running, session.world), [ranks[0] for ranks in self.places.ranks]
        seconds = min(self.request.launch.budget.max_time_s, session.world.timeout_s / 2)  # a running tool shows no progress
        for tool in self.tools.tools:
            for operation in tool.operations:
                size = self.request.latency_size_bytes if operation == LATENCY else self.request.size_bytes
                request = ToolRequest(operation, size, seconds)
                for ways in (pairs, [(b, a) for a, b in pairs]):
                    courses = [ToolPair(members[firsts[a]], members[firsts[b]]) for a, b in ways]
                    found = run_tool(session.world, tool, request, courses, self.tools.versions[tool.name])
                    for (a, b), course, ran in zip(ways, courses, found, strict=True):
                        row = _tool_row(tool, request, course, ran)
                        around = {"from": self.places.names[a], "to": self.places.names[b]}
                        around |= {"path": "loopback: both are on one host"} if course.inside else {}
                        flags = (*row.flags, *(["pairs_at_once"] if len(pairs) > 1 else []))
                        yield replace(row, group=f"{firsts[a]}-{firsts[b]}", flags=flags, evidence={**row.evidence, **around})


def _pairs_at_once(pairs: int) -> str:
    return f"{pairs} {'pair' if pairs == 1 else 'pairs at once'}"


def _tool_row(tool: WireTool, request: ToolRequest, course: ToolPair, ran: ToolResult) -> Row:
    """Return the row of one run of a tool, without the places."""
    time_s = ran.figure.time_s if ran.figure else None
    rate = request.size_bytes / time_s if time_s else None
    return Row(
        request.operation, tool.name, tool.api, "cpu", "uint8", None, None, "batched", False, "fixed", "all", None,
        request.size_bytes, request.size_bytes, 2, 1 if course.inside else 2, na=ran.why, n=ran.figure.n if ran.figure else 0,
        time_s=Times(time_s, None, None, None, None, None, None) if time_s else None,
        algbw_bytes_per_s=rate, busbw_bytes_per_s=rate, flags=(*FLAGS, *(["other_path"] if ran.other_path else [])),
        evidence=ran.evidence(tool),
    )  # fmt: skip


def run_pairs(request: PairsRequest, world: World, listener: RoundsListener | None, ended: Callable[[int], None]) -> int:
    """Measure all pairs on all ranks of `world`; see `run_task`."""
    return run_task(PairsTask(request, listener), request.launch, world, listener, ended)
