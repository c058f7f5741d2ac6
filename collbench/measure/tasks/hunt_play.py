"""A hunt under way: whoever thinks at rank 0 asks for rounds, all ranks measure them, until there is a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from collbench.errors import FAILED, FINE, NEGATIVE, NO_VERDICT, USAGE
from collbench.launch import signals
from collbench.measure.launch import Launch
from collbench.measure.tasks.hunt_asked import Asked, HuntRequest
from collbench.measure.tasks.hunt_rounds import Field
from collbench.measure.wrong_data import wrong_data
from collbench.results.folder import HUNT, RunFolder
from collbench.results.rounds import HuntRound

_CODES = {"confirmed": NEGATIVE, "nobody": FINE, "no verdict": NO_VERDICT}


class HuntListener(Protocol):
    """Who thinks, and is told what happens, at rank 0."""

    def note(self, sentence: str) -> None:
        """Something worth saying once."""
        ...

    def plan(self, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Before anything is measured: more for run.json's "hunt", such as how many rounds are `promised` at most. Raises UsageError."""
        ...

    def begin_hunt(self, about: Mapping[str, Any], folder: str) -> None:
        """Everything that is known before the first round, and the run's folder."""
        ...

    def next(self, last: HuntRound | None) -> Mapping[str, Any] | None:
        """The next round to be measured, as an `Asked`'s fields, given what the last one gave; None: there is a verdict."""
        ...

    def verdict(self, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """The verdict, JSON-ready, with its "result": "confirmed", "nobody" or "no verdict"; `about` has the ceiling."""
        ...

    def act(self, folder: Path, event: Callable[..., None]) -> None:
        """What follows of a verdict that stands: all ranks are well, and no data was wrong. `event`(kind, **facts) keeps what is done."""
        ...

    def end(self) -> None:
        """Nothing more will come."""
        ...


@dataclass
class Hunting:
    """One hunt; rounds, folder and listener are rank 0's alone. about: run.json's "hunt"."""

    asked: HuntRequest
    launch: Launch
    listener: HuntListener | None
    about: dict[str, Any]
    rounds: list[HuntRound] = field(default_factory=list)
    stopped: bool = False

    def note(self, sentence: str) -> None:
        """Says something once, and keeps it in events.jsonl."""
        if self.listener:
            self.listener.note(sentence)
        self.launch.note(sentence)


def play_all(hunting: Hunting, field: Field) -> None:
    """Round after round, as they are asked for; stops early where wrong data is to end it (--stop-on-wrong)."""
    world, last = hunting.launch.world, None
    for number in count():
        wanted = dict(hunting.listener.next(last) or {}) if hunting.listener else {}
        time.sleep(wanted.get("pause_s", 0.0))
        told = world.decide(wanted, "choosing the next round")
        if not told:
            return
        last = field.play(number, Asked.told(told))
        if last:
            _take(hunting, last)
        if hunting.asked.pairs.launch.stop_on_wrong and world.decide(bool(last and any(last.wrong)), "deciding whether to go on"):
            hunting.note(f"stopped after wrong data in round {number + 1} (--stop-on-wrong)")
            hunting.stopped = True
            return


def _take(hunting: Hunting, one: HuntRound) -> None:
    hunting.rounds.append(one)
    if hunting.launch.folder:
        with signals.deferred():
            hunting.launch.folder.append_round(one.as_json(), HUNT)


def conclude(hunting: Hunting, ceiling: Mapping[str, Any] | None) -> int:
    """The verdict, run.json and the exit code. Raises CollbenchError where a rank is no longer there."""
    launch, world = hunting.launch, hunting.launch.world
    hunting.about |= {"rounds": len(hunting.rounds), "ceiling": ceiling}
    for sentence in (*_wrong(hunting), *world.remarks()):
        hunting.note(sentence)
    verdict = dict(hunting.listener.verdict(hunting.about)) if hunting.listener and not hunting.stopped else None
    code = world.decide(_code(hunting, verdict), "ending")
    world.agree(None, "ending")  # all are still there: nobody is drained for a node that died
    if launch.folder:
        hunting.about["verdict"] = verdict
        launch.folder.update(hunt=hunting.about)
        if verdict:
            _follow(hunting, launch.folder, code)
        launch.folder.finish(exit_code=code, hunt=hunting.about)
    return code


def _follow(hunting: Hunting, folder: RunFolder, code: int) -> None:
    """What a verdict is followed by: nothing where data was wrong, or nothing could be measured."""
    if code == FAILED:
        hunting.note("no recommendation is written, and nobody drained: data was wrong")
    elif code != USAGE and hunting.listener:
        with hunting.launch.world.watchdog.phase("acting on the verdict"):
            hunting.listener.act(folder.path, folder.event)


def _code(hunting: Hunting, verdict: Mapping[str, Any] | None) -> int:
    """4 when data was wrong, 2 when nothing that was asked for could be measured, else the verdict's."""
    if any(any(one.wrong) for one in hunting.rounds):
        return FAILED
    if hunting.rounds and all(reason for one in hunting.rounds for reason in one.na):
        return USAGE
    return _CODES[verdict["result"]] if verdict else FAILED


def _wrong(hunting: Hunting) -> list[str]:
    met = (
        each for one in hunting.rounds for each in zip(one.groups, one.wrong, one.wrong_detail or (None,) * len(one.groups), strict=True)
    )
    return wrong_data(hunting.about["places"], met, "groups")
