"""Rounds of pairs and hunts: the matrix of all pairs and its suspects again, a hunt's rounds, and external tools between pairs."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
from msgspec.structs import replace

from collbench.backends.backend import can_do
from collbench.control.world import World
from collbench.errors import FAILED, FINE, NEGATIVE, NO_VERDICT, USAGE, UsageError
from collbench.measuring.memory import check_memory
from collbench.measuring.monitored import state_probe
from collbench.measuring.open_backends import PlannedCase, members_of, ranks_by_host
from collbench.measuring.probing import probed
from collbench.measuring.session import LaunchSession, Plan, ProgressListener, Task, WrongDataStop, at_rank_0
from collbench.measuring.verification import wrong_data
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.groups import Pair, Schedule
from collbench.plugins.channels.wire_tools import FLAGS, LATENCY, ToolPair, ToolRequest, Tools, installed_tools, run_tool
from collbench.plugins.hunt import HUNT_FILE, PAIRS_FILE, TOOLS_FILE
from collbench.plugins.hunt.places import HuntRequest, PairsRequest, Places, Rails, Rounds, places_of, rails_of, sampled, schedule_of
from collbench.plugins.hunt.protocol import CONFIRMED, PAIRS, RoundRequest
from collbench.plugins.hunt.records import NONE_SLOW, HuntRound, PairRound, read_hunt, read_pairs
from collbench.plugins.hunt.round_runner import RoundRunner, group_case, no_groups, ways_of
from collbench.reason import as_json
from collbench.results.reader import Run
from collbench.results.row import Row, Times
from collbench.units import listed

MATRIX = "matrix"  # the stage of a pairs run before suspects are measured again
_CODES = {CONFIRMED: NEGATIVE, NONE_SLOW: FINE, "no verdict": NO_VERDICT}


# What pairs and hunts share: one backend, its places, and the rounds that a strategy at rank 0 requests.


class RoundsListener(ProgressListener, Protocol):
    """The listener of a launch that measures rounds, at rank 0: it also requests rounds and judges them."""

    def plan(self, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return more entries for the launch's part of run.json, such as a hunt's largest number of rounds (`promised`).

        about: that part. It is called before `begin` and the first round. Raises UsageError.
        """
        ...

    def next(self, last: Sequence[Any]) -> RoundRequest | None:
        """Return the next round, given the records of the last one (of pairs first: of the whole matrix); None: no more rounds.

        The rounds follow from the records alone: a resumed run gives those that are stored.
        """
        ...

    def verdict(self, rounds: Sequence[Any], about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the verdict on all rounds, JSON-ready. Its "result" is `confirmed`, `nobody` or `no verdict`.

        about: run.json's part. The verdict on pairs also has "findings", each with its fields and "sentence", and "judged", the
        suspects that were measured again.
        """
        ...

    def act(self, folder: Path, event: Callable[..., None]) -> None:
        """Act on the verdict of a hunt, while all ranks run and if no data was wrong. event(kind, **facts) stores an action."""
        ...


@dataclass
class RoundsTask(Task):
    """Rounds on one backend between its places. Its subclasses are the matrix of pairs and the hunt.

    rounds   the rounds that the listener requests, at rank 0
    stopped  whether wrong data ended the launch
    """

    request: PairsRequest
    listener: RoundsListener | None = None
    places: Places = field(init=False)
    about: dict[str, Any] = field(default_factory=dict)
    rounds: Rounds | None = None
    stopped: bool = False
    one_backend = True
    what = "round"
    in_order = True

    def check(self, session: LaunchSession, others: Sequence[PlannedCase] = ()) -> None:
        """Raise UsageError on all ranks if backend or memory cannot handle the messages and `others`, or if --slowed has no effect."""
        backend = session.backend.running
        world = session.world
        ways = ways_of(self.request, backend.name)
        refusals = [can_do(backend, way.operation, way.case) for way in ways]
        reason = world.first_error(next(filter(None, refusals), None), f"asking {backend.name} what it can do")
        if reason:
            world.refuse(f"no pair can be measured on {backend.name}: {reason}")
        session.request.slowed.check([*(way.case for way in ways), *(case for _, case, _ in others)], backend.ranks)
        largest = max(ways, key=lambda way: way.case.size_bytes)
        check_memory([(largest.operation, largest.case, session.backend), *others], world)

    def runner(self, session: LaunchSession, **more: Any) -> RoundRunner:
        """Return the runner of rounds. All ranks must call it."""
        backend = session.backend.running
        ways = ways_of(self.request, backend.name)
        context = session.context_of([(way.operation, way.case, session.backend) for way in ways], backend)
        on = (*backend.flags, *session.flags(backend, [way.case for way in ways]))
        return RoundRunner(
            self.request, session.engine, context, self.places, ways, on, None if backend.virtual else state_probe(session.world), **more
        )  # fmt: skip

    def about_places(self, backend: str) -> dict[str, Any]:
        """Return the entries of run.json that pairs and hunts share."""
        return {
            "places": list(self.places.names), "hosts": list(self.places.hosts), "by": self.places.by, "backend": backend,
            "size_bytes": self.request.size_bytes, "latency_size_bytes": self.request.latency_size_bytes,
            "window": ways_of(self.request, backend)[1].case.window, "ranks_per_place": self.places.width,
            "max_time_s": self.request.launch.budget.max_time_s, "budget_s": self.request.budget_s,
        }  # fmt: skip

    @property
    def options(self) -> Mapping[str, Any]:
        """Return the options of this kind of run for run.json: a run is resumed only with the same ones."""
        return self.request.options

    def requested(self, session: LaunchSession) -> Mapping[str, Any]:
        """Return the request for run.json."""
        return {"options": {**super().requested(session)["options"], **self.options}, "values": {"ranks": [session.backend.running.ranks]}}

    def strategy(self) -> Generator[RoundRequest, list[Any], None]:
        """Yield the rounds at rank 0, and receive the records of each."""
        return self.listened((), 0)

    def listened(self, last: Sequence[Any], number: int) -> Generator[RoundRequest, list[Any], None]:
        """Yield the rounds that the listener requests, from a number on; `last` are the records of the rounds before."""
        while self.listener:
            order = self.listener.next(last)
            if order is None:
                return
            last = yield replace(order, number=number)
            number += 1

    @abstractmethod
    def play(self, session: LaunchSession, runner: RoundRunner, order: RoundRequest) -> WrongDataStop | None:
        """Measure a round on all ranks and store it. Return the reason to give if wrong data in it ends the launch."""

    def measure_rounds(self, session: LaunchSession, runner: RoundRunner) -> None:
        """Measure the rounds of the strategy that are not stored, until there are no more or wrong data ends it (--stop-on-wrong)."""
        rounds = self.rounds = self.rounds or Rounds(self.strategy())
        while not self.stopped:
            order = rounds.next() if session.world.rank == 0 else None
            time.sleep(order.pause_s if order else 0.0)
            agreed = session.world.broadcast(msgspec.to_builtins(order) if order else {}, "choosing the next round")
            if not agreed:
                return
            measured_before = len(session.records)
            stop = self.play(session, runner, msgspec.convert(agreed, RoundRequest))
            records = session.records[measured_before:]
            rounds.add(records)
            self.stopped = session.stops(any(any(record.wrong) for record in records), stop)

    def resumed(self, run: Run, stored: Sequence[Any], result: object) -> tuple[dict[int, Any], bool]:
        """Ask the strategy for the first round that is not stored; return as `take_up`. result: of the run, as it is stored."""
        self.rounds = Rounds(self.strategy(), stored, run.path)
        complete = self.rounds.next() is None and run.finished and result in _CODES
        return dict(enumerate(stored)), complete

    def note_wrong_data(self, session: LaunchSession, rounds: Sequence[Any], groups: str, what: Any) -> bool:
        """Note the pairs or groups with wrong data, at rank 0, and return whether there are any."""
        counts = (
            group_counts
            for record in rounds
            for group_counts in zip(getattr(record, groups), record.wrong, record.wrong_detail or (None,) * len(record.wrong), strict=True)
        )
        sentences = wrong_data(self.places.names, counts, what)
        for sentence in sentences:
            session.note(sentence)
        return bool(sentences)


# A hunt: the strategy at rank 0 requests rounds, and all ranks measure them, until there is a verdict.


@dataclass
class HuntTask(RoundsTask):
    """The rounds of a hunt. rails: the interfaces that all nodes have; no_groups: why groups cannot be measured."""

    request: HuntRequest
    rails: Rails = field(default_factory=dict)
    no_groups: str | None = None
    verdict: Mapping[str, Any] | None = None

    def plan(self, session: LaunchSession) -> Plan:
        """Return the plan with the number of rounds that the strategy promises. Raises UsageError on all ranks if it rejects the hunt."""
        self.listener = cast("RoundsListener | None", session.listener)
        backend = session.backend.running
        world = session.world
        self.places = places_of(self.request, world.hosts, ranks_by_host(backend, world))
        self.no_groups = no_groups(self.request, backend, world)
        self.check(session, [] if self.no_groups else [(ALLREDUCE, group_case(self.request, backend), session.backend)])
        self.rails = {} if backend.virtual else rails_of(world, self.places)
        self.about = {
            **self.about_places(backend.name), "virtual": backend.virtual, "method": self.request.method,
            "most_rounds": self.request.rounds, "growing": self.request.growing, "isolate": self.request.isolate,
            "no_groups": self.no_groups, "nics": list(self.rails), "rounds": None, "ceiling": None, "verdict": None,
            "nodes": nodes_of(self.request, world),
        }  # fmt: skip
        cliques = nvlink_cliques(world) if self.request.groups == "nvlink" else None
        about = {**self.about, "cliques": cliques}
        entries = at_rank_0(world, lambda: dict(self.listener.plan(about)) if self.listener else None, "planning the hunt")
        self.about |= world.broadcast(entries or {}, "planning the hunt")
        return Plan(self.about["promised"], {"hunt": self.about}, notes=list(filter(None, [self.places.idle])))

    @property
    def options(self) -> Mapping[str, Any]:
        """Return the options, and the links that the pairs cross."""
        return {**self.request.options, "--cover-links": self.about.get("crossed")}

    def take_up(self, run: Run) -> tuple[dict[int, Any], bool]:
        """Return the stored rounds. Raises UsageError if one is missing, or if they are not the rounds of this hunt."""
        stored = read_hunt(run)
        missing = next((number for number, hunt_round in enumerate(stored.rounds) if hunt_round.round != number), None)
        if missing is not None:
            raise UsageError(
                f"{run.path} cannot be resumed: round {missing + 1} is missing in its {HUNT_FILE}; start a new run, without --resume"
            )
        self.verdict = stored.about.get("verdict")
        self.about |= {name: stored.about.get(name) for name in ("rounds", "ceiling")}
        return self.resumed(run, stored.rounds, self.verdict and self.verdict["result"])

    def play(self, session: LaunchSession, runner: RoundRunner, order: RoundRequest) -> WrongDataStop:
        """Measure a round of any kind."""
        session.progress(f"{order.stage}: {order.why}", order.number, self.about["promised"])
        hunt_round = runner.play(order.number, order)
        if hunt_round:
            session.store(hunt_round, HUNT_FILE)
        return WrongDataStop(f"round {order.number + 1}")

    def measure(self, session: LaunchSession) -> None:
        """Measure the rounds that the strategy requests, until it ends the hunt or wrong data does."""
        runner = self.runner(session, rails=self.rails, no_groups=self.no_groups)
        self.measure_rounds(session, runner)
        self.about |= {"rounds": len(session.records), "ceiling": ceiling_of_rounds(session, runner) if session.records else None}

    def conclude(self, session: LaunchSession) -> Mapping[str, Any]:
        """Note wrong data, and return run.json's "hunt" with the verdict."""
        self.note_wrong_data(session, session.records, "groups", "group")
        if self.listener and not self.stopped:
            self.verdict = self.listener.verdict(session.records, self.about)
        return {"hunt": {**self.about, "verdict": self.verdict}}

    def exit_code(self, records: Sequence[HuntRound]) -> int:
        """Return the exit code: 4 if data was wrong, 2 if nothing was measured, else the verdict's."""
        if any(any(record.wrong) for record in records):
            return FAILED
        if records and all(reason for record in records for reason in record.na):
            return USAGE
        return _CODES[self.verdict["result"]] if self.verdict else FAILED

    def act(self, session: LaunchSession, code: int) -> None:
        """Act on the verdict, unless data was wrong or nothing was measured. All ranks must call it."""
        session.world.allgather(None, "ending")  # all ranks still run, so no node is drained because another one has failed
        if not session.folder or not self.verdict:
            return
        session.folder.update(hunt={**self.about, "verdict": self.verdict})
        if code == FAILED:
            session.note("no recommendation is written and no node is drained: data was wrong")
        elif code != USAGE and self.listener:
            with session.world.watchdog.phase("acting on the verdict"):
                self.listener.act(session.folder.path, session.folder.event)


def nodes_of(request: HuntRequest, world: World) -> list[tuple[str, str]]:
    """Return the distinct (host, the scheduler's name of the node) of all ranks that know it; at rank 0."""
    replies = world.gather((world.me.host, request.node or ""), "asking for the nodes' names") or []
    return sorted({(host, node) for host, node in replies if node})


def nvlink_cliques(world: World) -> dict[str, str]:
    """Return by host the NVLink clique of its GPUs, at rank 0, of hosts with exactly one. All ranks must call it."""
    cliques = [{gpu.clique for gpu in machine.gpus} for machine in probed(world) or ()]
    by_host = zip(world.hosts, cliques, strict=False)
    return {host: next(iter(host_cliques)) or "" for host, host_cliques in by_host if len(host_cliques) == 1}


def ceiling_of_rounds(session: LaunchSession, runner: RoundRunner) -> dict[str, Any] | None:
    """Return the highest possible rate of a group of the first round, at rank 0; None if it is unknown.

    For pairs it is the rate of one pair of ranks times the ranks of a place, since their messages share the limit.
    """
    if "oversubscribed" in runner.flags:  # times that include waits for a core show nothing about a link
        return None
    first = session.records[0]
    backend = runner.context.backend
    places = runner.places
    if first.kind == PAIRS:
        way = runner.ways[1]
        ceiling, _ = session.ceilings.of(way.operation, way.case, backend, places.groups([(a, b) for a, b in first.groups]))
    else:
        groups = tuple(tuple(rank for place in group for rank in places.ranks[place]) for group in first.groups)
        ceiling, _ = session.ceilings.of(ALLREDUCE, group_case(runner.request, backend), backend, groups)
    if ceiling.bytes_per_s is None:
        return None
    rate = ceiling.bytes_per_s * (places.width if first.kind == PAIRS else 1)
    return {"bytes_per_s": rate, "limited_by": ceiling.limited_by, "source": ceiling.source, "kind": ceiling.kind}


# The matrix of pairs: all rounds of the schedule, then those that measure the suspects again, then the external tools.


@dataclass
class PairsTask(RoundsTask):
    """The matrix of pairs. visited: the pairs of the matrix that were measured; external: the rows of external tools, at rank 0."""

    schedule: Schedule = field(init=False)
    tools: Tools = field(default_factory=lambda: Tools((), {}))
    began: float = field(default_factory=time.monotonic)
    visited: int = 0
    external: list[Row] = field(default_factory=list)
    result: str = NONE_SLOW
    _played: int = 0  # rounds of the matrix that this launch has measured
    _ended: bool = False  # whether the matrix of the run to resume has ended: rounds that it lacks are not measured

    def plan(self, session: LaunchSession) -> Plan:
        """Return the plan with the number of rounds. Raises UsageError for options that do not fit the launch or its memory."""
        self.listener = cast("RoundsListener | None", session.listener)
        backend = session.backend.running
        world = session.world
        by_host = ranks_by_host(backend, world)
        self.places = places_of(self.request, world.hosts, by_host)
        self.schedule = schedule_of(self.request, self.places, by_host, session.order_seed)
        self.check(session)
        if self.request.tools and backend.virtual:
            tools = ",".join(self.request.tools)
            raise UsageError(f"--tools {tools} needs real hosts, but backend {backend.name} has none: use another --backend")
        self.tools = installed_tools(world, self.request.tools)
        self.about = self._about(session, self.schedule.pairs) | {"rounds": self.schedule.number, "measured": None}
        if self.listener:
            self.listener.plan(self.about)
        left_out = [self.places.idle, sampled(self.request, self.schedule, self.schedule.pairs)]
        return Plan(self.schedule.number, {"pairs": self.about}, notes=list(filter(None, left_out)))

    def _about(self, session: LaunchSession, pairs: int) -> dict[str, Any]:
        """Return run.json's "pairs" for so many pairs, without those that the launch has counted."""
        request = self.request
        sample = sampled(request, self.schedule, pairs)
        about = self.about_places(session.backend.name)
        about["streams"] = ways_of(request, session.backend.name)[1].case.streams
        about["possible"] = self.schedule.possible
        about["sampled"] = sample.render() if sample else None
        about["concurrent"] = request.concurrent
        if sample:
            about["sampled_fact"] = as_json(sample)
        if request.tools:
            about["tools"] = list(request.tools)
        return about

    def take_up(self, run: Run) -> tuple[dict[int, Any], bool]:
        """Return the stored rounds. A matrix that --budget ended is not continued."""
        stored = read_pairs(run)
        assert stored  # its options are those of this run
        self.external = stored.external
        for row in stored.external if self.listener else ():
            self.listener.record(row, None)  # type: ignore[union-attr]
        self.result = stored.about.get("result", "")
        stopped = self.request.launch.stop_on_wrong and any(any(pair_round.wrong) for pair_round in stored.rounds)
        measured = stored.about.get("measured") is not None and not stopped
        self._ended = measured or bool(stored.external) or any(pair_round.again for pair_round in stored.rounds)
        return self.resumed(run, stored.rounds, self.result if measured else "")

    def strategy(self) -> Generator[RoundRequest, list[Any], None]:
        """Yield the rounds of the matrix until all are done or the time is used up, then those that measure suspects again.

        Every place gets at least one pair. --budget limits the rounds that one launch measures.
        """
        matrix: list[PairRound] = []
        parts = self.schedule.parts
        stored = set(self.rounds.numbers) if self.rounds else ()
        for number, pairs in enumerate(self.schedule.rounds()):
            if number not in stored:
                if self._ended:
                    continue
                if number >= self.schedule.least * parts and number % parts == 0 and time.monotonic() - self.began > self.request.budget_s:
                    break
            matrix += yield RoundRequest("pairs", pairs, "", MATRIX, number=number)
            self.visited += len(pairs)
        yield from self.listened(matrix, self.schedule.number)

    def play(self, session: LaunchSession, runner: RoundRunner, order: RoundRequest) -> WrongDataStop | None:
        """Measure a round of the matrix, or of suspects again."""
        again = order.stage != MATRIX
        pairs = tuple((group[0], group[1]) for group in order.groups)
        if again:
            session.note_once("again", "suspects are measured again next to control pairs before a node or pair is reported")
        most = self.request.concurrent or len(pairs)
        for first in range(0, len(pairs), most):
            for pair_round in runner.play_pairs(order.number, pairs[first : first + most], again):
                session.store(pair_round, PAIRS_FILE)
        total = self.schedule.number
        if again:
            session.progress(_pairs_at_once(len(pairs)), order.number - total + 1, None)
            return None
        self._played += 1
        round_s = (time.monotonic() - self.began) / self._played
        session.progress(_pairs_at_once(len(pairs)), order.number + 1, total, round_s * (total - order.number - 1))
        return WrongDataStop(f"round {order.number + 1} of {total}")

    def measure(self, session: LaunchSession) -> None:
        """Measure the matrix, the suspects again, and then run the tools."""
        runner = self.runner(session)
        self.began = time.monotonic()
        self.measure_rounds(session, runner)
        if not self.stopped:
            self._run_tools(session)

    def conclude(self, session: LaunchSession) -> Mapping[str, Any]:
        """Note what is wrong or missing, store the findings, and return run.json's "pairs" with the verdict."""
        rounds = session.records = [record for record in session.records if isinstance(record, PairRound)]
        first = [pair_round for pair_round in rounds if not pair_round.again]
        wrong = self.note_wrong_data(session, rounds, "pairs", "pair")
        sample = sampled(self.request, self.schedule, self.visited)
        if sample and self.visited < self.schedule.pairs and not (wrong and session.request.stop_on_wrong):
            session.note(sample)
        measured = sum(reason is None for pair_round in first for reason in pair_round.na)
        self.about = self._about(session, self.visited) | {"rounds": len({pair_round.round for pair_round in first}), "measured": measured}
        verdict = dict(self.listener.verdict(rounds, self.about)) if self.listener else {}
        self.result = verdict.get("result", NONE_SLOW)
        for finding in verdict.pop("findings", ()) if session.folder else ():
            session.folder.event("finding", text=finding["sentence"], finding=finding)  # type: ignore[union-attr]
        return {"pairs": {**self.about, **verdict}}

    def exit_code(self, records: Sequence[PairRound]) -> int:
        """Return the exit code: 4 wrong data, 2 no pair measured, 1 a node or pair is slow, 3 inconclusive, else 0."""
        if any(any(record.wrong) for record in records):
            return FAILED
        measured = any(reason is None for record in records if not record.again for reason in record.na)
        return _CODES[self.result] if measured else USAGE

    # External tools run after the matrix, in its rounds, in both directions. Their rows are in tools.jsonl; no verdict uses them.

    def _run_tools(self, session: LaunchSession) -> None:
        """Run the tools in rounds, at all ranks, until all measured pairs are done or the time of --budget is used up again."""
        world = session.world
        began = time.monotonic()
        if not self.tools.tools:
            return
        versions = {tool.name: " and ".join(dict.fromkeys(filter(None, self.tools.versions[tool.name]))) for tool in self.tools.tools}
        names = listed([f"{name} {version}".strip() for name, version in versions.items()])
        session.note(f"external tools run between the same pairs, in both directions: {names}")
        played = {pair_round.round for pair_round in session.records if not pair_round.again}
        rows = [[row.backend, row.operation, row.evidence.get("from"), row.evidence.get("to")] for row in self.external]
        choice: Any = [len(played), rows]
        measured, stored = world.broadcast(choice, "choosing the tools' rounds")
        rounds = list(self.schedule.rounds())[:measured]
        done = 0
        for number, pairs in enumerate(rounds):
            spent_s = world.broadcast(time.monotonic() - began, "running the next tools")
            if number and spent_s > self.request.budget_s:
                break
            for row in self._rows_of_round(session, pairs, stored):
                if row.na and row.na not in [stored_row.na for stored_row in self.external]:
                    session.note(f"{row.backend} from {row.evidence['from']} to {row.evidence['to']}: {row.na}")
                self.external.append(row)
                session.store(row, TOOLS_FILE)
            done += len(pairs)
            round_s = (time.monotonic() - began) / (number + 1)
            session.progress(_pairs_at_once(len(pairs)), number + 1, len(rounds), round_s * (len(rounds) - number - 1))
        total = sum(map(len, rounds))
        if done < total:
            session.note(f"the external tools ran between {done} of {total} pairs: --budget is used up; increase it for more")

    def _rows_of_round(self, session: LaunchSession, pairs: Sequence[Pair], stored: Sequence[Sequence[Any]]) -> Iterator[Row]:
        """Yield the rows of a round that are not stored: of each tool, operation and direction."""
        names = self.places.names
        members = members_of(session.backend.running, session.world)
        firsts = [ranks[0] for ranks in self.places.ranks]
        seconds = min(self.request.launch.budget.max_time_s, session.world.timeout_s / 2)  # a running tool shows no progress
        for tool in self.tools.tools:
            for operation in tool.operations:
                size = self.request.latency_size_bytes if operation == LATENCY else self.request.size_bytes
                request = ToolRequest(operation, size, seconds)
                for directed in (pairs, [(b, a) for a, b in pairs]):
                    ways = [(a, b) for a, b in directed if [tool.name, operation, names[a], names[b]] not in stored]
                    tool_pairs = [ToolPair(members[firsts[a]], members[firsts[b]]) for a, b in ways]
                    results = run_tool(session.world, tool, request, tool_pairs, self.tools.versions[tool.name]) if tool_pairs else []
                    for (a, b), tool_pair, result in zip(ways, tool_pairs, results, strict=True):
                        evidence = {**result.evidence(tool), "from": names[a], "to": names[b]}
                        if tool_pair.inside:
                            evidence["path"] = "loopback: both are on one host"
                        flags = [*FLAGS]
                        if result.other_path:
                            flags.append("other_path")
                        if len(pairs) > 1:
                            flags.append("pairs_at_once")
                        time_s = result.figure.time_s if result.figure else None
                        rate = size / time_s if time_s else None
                        yield Row(
                            operation, tool.name, tool.api, "cpu", "uint8", None, None, "batched", False, "fixed",
                            f"{firsts[a]}-{firsts[b]}", None, size, size, 2, 1 if tool_pair.inside else 2, na=result.why,
                            n=result.figure.n if result.figure else 0, algbw_bytes_per_s=rate, busbw_bytes_per_s=rate,
                            time_s=Times(time_s, None, None, None, None, None, None) if time_s else None,
                            flags=tuple(flags), evidence=evidence,
                        )  # fmt: skip


def _pairs_at_once(pairs: int) -> str:
    return f"{pairs} {'pair' if pairs == 1 else 'pairs at once'}"
