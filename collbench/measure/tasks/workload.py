"""A workload launch: opens the backends, and measures the traffic of each training on each of them, on all ranks in step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from collbench.control.world import World
from collbench.errors import FAILED, FINE, USAGE, UsageError
from collbench.launch import signals
from collbench.measure.canary import canary
from collbench.measure.ceilings import Ceilings
from collbench.measure.describe import describe_conditions
from collbench.measure.guarded import Playing, create_folder, guarded
from collbench.measure.instruments import Instruments
from collbench.measure.launch import Launch
from collbench.measure.opening import Opened, open_backends
from collbench.measure.protocol import Measured, slowest
from collbench.measure.row import check_fields, wrong_evidence
from collbench.measure.tasks.checks import notes
from collbench.measure.tasks.turn import stage_of
from collbench.measure.tasks.workload_asked import WorkloadListener, WorkloadRequest
from collbench.measure.tasks.workload_asynchronous import measure_asynchronous
from collbench.measure.tasks.workload_plan import Plan
from collbench.measure.tasks.workload_rows import Around, common_flags, limits_of, path_s, with_figures
from collbench.measure.tasks.workload_served import measure_served
from collbench.measure.tasks.workload_step import PreparedStep, prepare_step, release_step, time_part, verify_step
from collbench.measure.tasks.workload_turns import Turn, turns_of
from collbench.measure.watched import watch
from collbench.results.steps import WORKLOAD, StepRow
from collbench.units import format_duration

_FOR_PARTS = 0.2  # of a step's time, for the looks at its parts
_OF_TIMEOUT = 0.8  # within one step the loop says nothing of how far it is


@dataclass
class Session:
    """One workload launch; the folder and the listener are rank 0's alone."""

    asked: WorkloadRequest
    launch: Launch
    listener: WorkloadListener | None
    opened: Sequence[Opened]
    turns: Sequence[Turn]
    ceilings: Ceilings

    @property
    def world(self) -> World:
        """All ranks."""
        return self.launch.world

    def note(self, sentence: str) -> None:
        """Says something once, and keeps it in events.jsonl."""
        if self.listener:
            self.listener.note(sentence)
        self.launch.note(sentence)

    def about(self) -> dict[str, Any]:
        """run.json's "workload"."""
        of_each = [self.turns[at : at + len(self.opened)] for at in range(0, len(self.turns), len(self.opened))]
        first = [next((turn for turn in turns if turn.shape), turns[0]) for turns in of_each]
        return {
            "trainings": [turn.about() for turn in first], "backends": [one.name for one in self.opened], "ranks": self.turns[0].ranks,
            "nodes": self.turns[0].nodes, "hosts": list(self.world.hosts), "max_time_s": self.launch.request.budget.max_time_s,
            "step_time_s": self.asked.step_time_s,
        }  # fmt: skip

    def crowded(self, turn: Turn) -> bool:
        """Whether ranks wait for cores, so that no percentage is given."""
        return bool(self.world.oversubscribed) and not turn.backend.virtual and turn.row().device == "cpu"


def run_workload(asked: WorkloadRequest, world: World, listener: WorkloadListener | None, ended: Callable[[int], None]) -> int:
    """Measures every training on every backend on all ranks of `world`. Returns the exit code, the same on all ranks.

    `ended` is told the code before the libraries are left, as in `runner.run`. Raises CollbenchError.
    """
    request, waiting = asked.launch, list[str]()
    launch = Launch.begun(request, world)
    opened = open_backends(request, world, waiting.append)
    turns = turns_of(asked, opened, world)
    session = Session(asked, launch, listener, opened, turns, Ceilings(request, world))
    request.slowed.check([part.cell for turn in turns if turn.plan for part in turn.plan.parts], max(turn.ranks for turn in turns))
    launch.folder = create_folder(launch, list(opened), {"workload": session.about()}, len(turns))
    return guarded(Playing(launch, list(opened), listener, ended), lambda: _measure_all(session, waiting))


def _measure_all(session: Session, waiting: Sequence[str]) -> int:
    launch = session.launch
    _look_around(session)
    if session.listener:
        session.listener.begin_workload(session.about(), str(launch.folder.path) if launch.folder else "")
    for sentence in (*waiting, *notes(launch, list(session.opened))):
        session.note(sentence)
    try:
        return _conclude(session, _rows(session))
    finally:
        if launch.instruments:
            launch.instruments.close()


def _rows(session: Session) -> list[StepRow]:
    """One after the other; elsewhere than at rank 0 none, but all take part."""
    rows: list[StepRow] = []
    for done, turn in enumerate(session.turns):
        if session.listener:
            session.listener.progress(turn.title, done, len(session.turns), None)
        row = _measure(session, turn)
        rows += [_keep(session, row)] if row else []
        if _stops(session, rows):
            break
    return rows


def _look_around(session: Session) -> None:
    """Probes the hosts and measures the references that the parts will need."""
    plans = [(turn.plan, turn.backend) for turn in session.turns if turn.plan]
    backends = list({backend.name: backend for _, backend in plans}.values())
    session.ceilings.prepare(backends, [part.laid for plan, _ in plans for part in plan.parts])
    if session.launch.folder:
        session.launch.folder.write_topology(session.ceilings.topology())
    session.launch.conditions = describe_conditions(session.world)
    if any(not backend.virtual for backend in backends):
        session.launch.canary = canary(session.world)
        session.launch.instruments = _instruments(session, [plan for plan, _ in plans])


def _instruments(session: Session, plans: Sequence[Plan]) -> Instruments | None:
    """What reads the hosts' counters around each step, unless the user wants none of it."""
    request, cuda = session.launch.request, any(part.cell.device == "cuda" for plan in plans for part in plan.parts)
    return None if request.evidence == "off" else Instruments.ready(session.world, cuda, request.telemetry_hz)


def _measure(session: Session, turn: Turn) -> StepRow | None:
    """One turn on all ranks; its row is at rank 0."""
    if turn.reason:
        return turn.row(na=turn.reason) if session.world.rank == 0 else None
    if turn.roles:
        return measure_asynchronous(turn, session.launch, session.ceilings, session.crowded(turn))
    if turn.served:
        return measure_served(turn, session.launch, session.crowded(turn))
    plan, world = turn.plan, session.world
    assert plan is not None
    stage = stage_of(session.launch, [(part.operation, part.cell, turn.opened) for part in plan.parts], turn.backend)
    step = prepare_step(turn.name, plan, stage, world)
    if isinstance(step, str):
        return turn.row(na=step) if world.rank == 0 else None
    row = _timed(session, turn, step)
    release_step(step.parts, turn.backend)
    return row


def _timed(session: Session, turn: Turn, step: PreparedStep) -> StepRow | None:
    """Parts alone, the whole, then its data."""
    request, world = session.launch.request, session.world
    looks = _looks(session, step) if session.asked.parts else [None] * len(step.parts)
    _check_deadline(turn, step, looks, world)
    on_host = not turn.backend.virtual and step.ready.cell.device == "cpu"
    instruments = None if turn.backend.virtual else session.launch.instruments
    watched = watch(step.ready, world, request.budget, session.launch.canary if on_host else None, instruments)
    wrong = verify_step(step, world, request.check) if request.check else []
    if watched is None or wrong is None:
        return None
    if watched.other_path:
        session.note(watched.other_path)
    row = with_figures(turn.row(), step, watched, looks, _around(session, turn, step))
    return replace(row, **check_fields(request.check, wrong), evidence=row.evidence | wrong_evidence(wrong))


def _looks(session: Session, step: PreparedStep) -> list[Measured | None]:
    """At each part alone: all of them together take a fifth of a step's time."""
    budget = session.launch.request.budget
    share = replace(budget, max_time_s=_FOR_PARTS * budget.max_time_s / len(step.parts), iterations=None, warmup=1)
    return [time_part(one, session.world, share) for one in step.parts]


def _check_deadline(turn: Turn, step: PreparedStep, looks: Sequence[Measured | None], world: World) -> None:
    """Raises UsageError, on all ranks, where a step would take longer than anything may that shows no progress."""
    known = {at: float(slowest(look.samples, step.ready.timed).mean()) if look else None for at, look in enumerate(looks)}
    seconds = world.decide(None if turn.backend.virtual else path_s(step.plan, known), "planning a step")
    if seconds and seconds > _OF_TIMEOUT * world.timeout_s:
        raise UsageError(
            f"a step of {turn.title} takes about {format_duration(seconds)}, and --timeout {world.timeout_s:g} ends what shows no progress "
            f"for so long: raise it to {int(2 * seconds) + 1}, or choose a smaller model"
        )


def _around(session: Session, turn: Turn, step: PreparedStep) -> Around:
    """The ceilings, flags and evidence of a row."""
    crowded, request = session.crowded(turn), session.launch.request
    slow = {str(text) for part in step.plan.parts if (text := request.slowed.of(part.cell))}
    evidence = {"libraries": dict(turn.backend.versions()), "conditions": session.launch.conditions} | step.ready.evidence
    evidence |= {"buffers": [one.part.slots for one in step.parts], "exchanges": len(step.plan.order)}
    evidence |= {"slowed": sorted(slow)} if slow else {}
    flags = common_flags(step.plan, turn.backend, crowded, request.slowed.of, step.ready.fell_back)
    return Around(limits_of(step, session.ceilings, turn.backend), crowded, flags, evidence)


def _keep(session: Session, row: StepRow) -> StepRow:
    """Stores and shows a row."""
    with signals.deferred():
        if session.launch.folder:
            session.launch.folder.append_round(row.as_json(), WORKLOAD)
        if session.listener:
            session.listener.step_row(row)
    return row


def _stops(session: Session, rows: Sequence[StepRow]) -> bool:
    """Whether wrong data has ended the launch, the same at all ranks, which all call."""
    if not session.launch.request.stop_on_wrong:
        return False
    wrong: bool = session.world.decide(any(row.wrong for row in rows), "deciding whether to go on")
    if wrong and len(rows) < len(session.turns):
        session.note("stopped after wrong data (--stop-on-wrong)")
    return wrong


def _conclude(session: Session, rows: Sequence[StepRow]) -> int:
    """run.json and the exit code: 4 when data was wrong, 2 when nothing could be measured, else 0."""
    wrong = [f"wrong data in {row.regime} on {row.backend}: {row.wrong_detail}" for row in rows if row.wrong]
    for sentence in (*wrong, *session.world.remarks()):
        session.note(sentence)
    measured = any(row.na is None for row in rows)
    code: int = session.world.decide(FAILED if wrong else FINE if measured else USAGE, "ending")
    if session.launch.folder:
        session.launch.folder.finish(exit_code=code, workload=session.about())
    return code
