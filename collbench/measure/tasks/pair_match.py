"""The rounds of a pairs launch: those of the tournament, then the suspects again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from collbench.backends.backend import Backend
from collbench.errors import FAILED, FINE, NEGATIVE, NO_VERDICT, USAGE
from collbench.launch import signals
from collbench.measure.launch import Launch
from collbench.measure.opening import Opened
from collbench.measure.tasks.pair_places import PairsRequest, Places, sampled
from collbench.measure.tasks.pair_round import Court, play, ways_of
from collbench.measure.wrong_data import wrong_data
from collbench.operations.groups import Schedule
from collbench.results.rounds import PairRound
from collbench.results.row import Row

_CODES = {"confirmed": NEGATIVE, "nobody": FINE, "no verdict": NO_VERDICT}


class PairsListener(Protocol):
    """Who is told what happens, at rank 0."""

    def note(self, sentence: str) -> None:
        """Something worth saying once."""
        ...

    def begin_pairs(self, about: Mapping[str, Any], folder: str) -> None:
        """Everything that is known before the first round: run.json's "pairs", and the run's folder."""
        ...

    def round(self, done: int, total: int | None, pairs: int, eta_s: float | None) -> None:
        """So many rounds are done, the last one of so many pairs. total: None where suspects are measured again."""
        ...

    def again(self, last: list[PairRound]) -> Mapping[str, Any] | None:
        """The next round that measures suspects again: its disjoint "pairs", and the seconds to wait before it ("pause_s"); None: no more.

        last: what the tournament gave, then what the last of these rounds gave.
        """
        ...

    def matrix(self, rounds: list[PairRound], about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take everything that was measured. Returns what is stored of the verdict: "result", as of a hunt; "findings", a sentence each;
        "judged", the suspects that were measured again, JSON-ready."""
        ...

    def theirs(self, rows: list[Row]) -> None:
        """What other tools said of the pairs, where any were asked for; before `matrix`."""
        ...

    def end(self) -> None:
        """Nothing more will come."""
        ...


@dataclass
class Match:
    """One pairs launch; rounds, folder and listener are rank 0's alone. theirs: the rows of other tools, at all ranks."""

    asked: PairsRequest
    launch: Launch
    listener: PairsListener | None
    opened: Opened
    places: Places
    plan: Schedule
    began: float = field(default_factory=time.monotonic)
    rounds: list[PairRound] = field(default_factory=list)
    theirs: list[Row] = field(default_factory=list)
    visited: int = 0

    def note(self, sentence: str) -> None:
        """Says something once, and keeps it in events.jsonl."""
        if self.listener:
            self.listener.note(sentence)
        self.launch.note(sentence)

    def stops(self) -> bool:
        """Whether wrong data has ended the launch, the same at all ranks, which all call."""
        if not self.asked.launch.stop_on_wrong:
            return False
        wrong: bool = self.launch.world.decide(any(map(any, (one.wrong for one in self.rounds))), "deciding whether to go on")
        return wrong

    @property
    def backend(self) -> Backend:
        """The backend that carries the messages, open."""
        assert self.opened.backend is not None
        return self.opened.backend

    def about(self, measured: int | None) -> dict[str, Any]:
        """run.json's "pairs"; `measured` None: still under way."""
        asked, cell = self.asked, ways_of(self.asked, self.backend.name)[1].cell
        pairs = self.plan.pairs if measured is None else self.visited
        return {
            "places": list(self.places.names), "by": self.places.by, "backend": self.backend.name, "size_bytes": asked.size_bytes,
            "latency_size_bytes": asked.latency_size_bytes, "window": cell.window, "streams": cell.streams,
            "ranks_per_place": self.places.width, "rounds": self.plan.number if measured is None else self._rounds(),
            "possible": self.plan.possible, "measured": measured, "sampled": sampled(asked, self.plan, pairs),
            **({"tools": list(asked.tools)} if asked.tools else {}),
            "concurrent": asked.concurrent, "max_time_s": asked.launch.budget.max_time_s, "budget_s": asked.budget_s,
        }  # fmt: skip

    def _rounds(self) -> int:
        return len({one.round for one in self.rounds if not one.again})


def limits(match: Match) -> Iterator[str]:
    """What this matrix leaves out."""
    yield from filter(None, [match.places.resting, sampled(match.asked, match.plan, match.plan.pairs)])


def tournament(match: Match, court: Court) -> bool:
    """Round by round, until all are done or the time is used up; nobody is left without a pair.

    Returns False where wrong data ended it, as --stop-on-wrong asks.
    """
    world, total, least = match.launch.world, match.plan.number, match.plan.least * match.plan.parts
    for number, pairs in enumerate(match.plan.rounds()):
        spent_s = world.decide(time.monotonic() - match.began, "playing the next round")
        whole = number % match.plan.parts == 0
        if spent_s > match.asked.budget_s and number >= least and whole:
            break
        _take(match, play(court, number, pairs))
        match.visited += len(pairs)
        if match.listener:
            spent_s = time.monotonic() - match.began
            match.listener.round(number + 1, total, len(pairs), spent_s / (number + 1) * (total - number - 1))
        if match.stops():
            match.note(f"stopped after wrong data in round {number + 1} of {total} (--stop-on-wrong)")
            return False
    return True


def _take(match: Match, played: Iterator[PairRound]) -> None:
    for one in played:
        match.rounds.append(one)
        if match.launch.folder:
            with signals.deferred():
                match.launch.folder.append_round(one.as_json())


def measure_again(match: Match, court: Court) -> None:
    """Measure suspects again next to control pairs, round by round as the listener asks."""
    world, last = match.launch.world, match.rounds
    for number in count(match.plan.number):
        wanted = dict(match.listener.again(last) or {}) if match.listener else {}
        time.sleep(wanted.get("pause_s", 0.0))
        told = world.decide(wanted, "choosing the pairs to measure again")
        if not told:
            return
        if number == match.plan.number:
            match.note("suspects are measured again next to control pairs before a node or pair is reported")
        begun, pairs = len(match.rounds), [(int(a), int(b)) for a, b in told["pairs"]]
        for at in range(0, len(pairs), most := match.asked.concurrent or len(pairs)):
            _take(match, play(court, number, tuple(pairs[at : at + most]), again=True))
        last = match.rounds[begun:]
        if match.listener:
            match.listener.round(number + 1 - match.plan.number, None, len(pairs), None)
        if match.stops():
            return


def conclude(match: Match) -> int:
    """Findings, run.json and the exit code."""
    launch = match.launch
    first = [one for one in match.rounds if not one.again]
    measured = sum(reason is None for one in first for reason in one.na)
    about = match.about(measured)
    wrong = _wrong(match)
    if about["sampled"] and match.visited < match.plan.pairs and not (wrong and match.asked.launch.stop_on_wrong):
        match.note(about["sampled"])
    for sentence in (*wrong, *launch.world.remarks()):
        match.note(sentence)
    if match.listener and match.theirs:
        match.listener.theirs(match.theirs)
    found = dict(match.listener.matrix(match.rounds, about)) if match.listener else {}
    code = launch.world.decide(_code(match.rounds, measured, found.get("result", "nobody")), "ending")
    if launch.folder:
        for sentence in found.pop("findings", ()):
            launch.folder.event("finding", text=sentence)
        launch.folder.finish(exit_code=code, pairs={**about, **found})
    return code


def _wrong(match: Match) -> list[str]:
    met = (each for one in match.rounds for each in zip(one.pairs, one.wrong, one.wrong_detail or (None,) * len(one.pairs), strict=True))
    return wrong_data(match.places.names, met, "pairs")


def _code(rounds: Sequence[PairRound], measured: int, result: str) -> int:
    """4 when data was wrong, 2 when no pair could be measured; else as of a hunt: 1: a node or pair is slow; 3: inconclusive."""
    if any(wrong for one in rounds for wrong in one.wrong):
        return FAILED
    return _CODES[result] if measured else USAGE
