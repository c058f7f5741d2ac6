"""A workload launch: open the backends, and measure the traffic of each training on each backend, on all ranks together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from collbench.backends.backend import Backend
from collbench.control.world import World
from collbench.errors import FAILED, FINE, USAGE, UsageError
from collbench.launch import signals
from collbench.measure.ceilings import Ceilings
from collbench.measure.instruments import Instruments
from collbench.measure.monitored import measure_monitored, state_probe
from collbench.measure.request import Request
from collbench.measure.row import check_fields, wrong_evidence
from collbench.measure.sampling import Measurement, slowest
from collbench.measure.session import (
    Launch,
    OpenBackend,
    RunContext,
    WrongDataStop,
    create_folder,
    describe_conditions,
    open_backends,
    ranks_by_host,
    ranks_of,
    run_with_cleanup,
)
from collbench.measure.tasks.cases import notes, stage_of
from collbench.measure.tasks.servers import (
    TrainingRun,
    measure_asynchronous,
    measure_served,
    roles_of,
    roles_too_large,
    served_of,
    serves,
)
from collbench.measure.tasks.step import (
    Around,
    PartNotPrepared,
    PreparedStep,
    StepPlan,
    Training,
    common_flags,
    limits_of,
    path_s,
    plan_of,
    prepare_step,
    release_step,
    time_part,
    too_large,
    verify_step,
    with_figures,
)
from collbench.operations.unsupported import ServersUnsupported, as_fact
from collbench.reason import Fact
from collbench.results.steps import WORKLOAD, StepRow
from collbench.units import format_duration

# The request of a workload launch, and its progress listener.


@dataclass(frozen=True)
class WorkloadRequest:
    """The request of one workload launch: every training on every backend.

    launch     options of the launch; its budget is that of a step. At most a fifth of it is used to measure parts alone. For asynchronous
               training `max_time_s` is the time for which workers run, and `iterations` is their number of rounds. The sweep has the
               device, the seed and the backends' defaults. Its dtype is not used, since exchanges have their own
    trainings  in the order in which they are measured
    parts      whether each exchange is also measured alone
    step_time_s  the user's computing time of a step, stored in run.json for reports
    """

    launch: Request
    trainings: tuple[Training, ...]
    parts: bool = True
    step_time_s: float | None = None


class WorkloadListener(Protocol):
    """The progress listener of a workload launch at rank 0."""

    def note(self, sentence: str) -> None:
        """Show a note once."""
        ...

    def begin_workload(self, about: Mapping[str, Any], folder: str) -> None:
        """Receive run.json's "workload" and the run's folder, before the first step."""
        ...

    def progress(self, title: str, done: int, total: int, eta_s: float | None) -> None:
        """Receive the start of a training on a backend: its title, the counts of trainings, and the estimated remaining seconds."""
        ...

    def step_row(self, row: StepRow) -> None:
        """Receive the row of a completed training."""
        ...

    def end(self) -> None:
        """Finish, at the end of the launch."""
        ...


# The measurements of a workload launch: every training on every backend, with exchanges and roles derived before the first measurement.


def runs_of(workload: WorkloadRequest, opened: Sequence[OpenBackend], world: World) -> list[TrainingRun]:
    """Return all trainings to measure. Raises UsageError, on all ranks, for one that does not fit the ranks or their memory."""
    return [_turn(training, one, workload, world) for training in workload.trainings for one in opened]


def _turn(training: Training, opened: OpenBackend, workload: WorkloadRequest, world: World) -> TrainingRun:
    ranks, nodes = ranks_of(opened, world), len(world.hosts)
    if opened.backend is None:
        return TrainingRun(training, opened, ranks, nodes, reason=as_fact(opened.reason))
    run = _laid_out(training, opened, opened.backend, workload, world)
    name = training.regime.name
    reason = world.first_error(run if isinstance(run, str) else None, f"laying {name} out") or _lacks_room(run, opened.backend, world)
    if isinstance(run, TrainingRun) and not reason:
        return run
    if not training.optional:
        raise UsageError(f"{reason}")
    return TrainingRun(training, opened, ranks, nodes, reason=as_fact(reason))


def _lacks_room(run: TrainingRun | str, backend: Backend, world: World) -> str | None:
    """Return why the training's buffers do not fit some host or GPU, the same at all ranks, or None. All ranks must call it."""
    if isinstance(run, str) or run.reason:
        return None
    wrong = too_large(run.title, run.plan, backend, world) if run.plan else None
    roles = run.roles or run.served
    wrong = roles_too_large(run.title, roles, world) if roles else wrong
    return world.first_error(wrong, "looking at the memory")


def _laid_out(training: Training, opened: OpenBackend, backend: Backend, workload: WorkloadRequest, world: World) -> TrainingRun | str:
    """Return the training for this rank, or why its exchanges cannot be derived."""
    try:
        return _training_run(training, opened, backend, workload, world)
    except UsageError as error:
        return str(error)


def _training_run(training: Training, opened: OpenBackend, backend: Backend, workload: WorkloadRequest, world: World) -> TrainingRun:
    shape = training.shape(tuple(_hosts(backend, world)))
    step = training.regime.step(shape)
    known = (training, opened, backend.ranks, len(world.hosts), shape, step)
    if serves(backend, training.regime):
        served = served_of(shape, training.regime, backend.ranks)
        return TrainingRun(*known, reason=served) if isinstance(served, ServersUnsupported) else TrainingRun(*known, served=served)
    if training.regime.asynchronous(shape):
        roles = roles_of(step, backend.ranks)
        return TrainingRun(*known, roles=roles, reason=roles.refusal(backend))
    return TrainingRun(*known, plan=plan_of(step, workload.launch, backend))


def _hosts(backend: Backend, world: World) -> Iterator[int]:
    """Yield for each rank the number of its host."""
    number = {rank: host for host, ranks in enumerate(ranks_by_host(backend, world)) for rank in ranks}
    return (number[rank] for rank in range(backend.ranks))


class WrongStepData(Fact, frozen=True):
    """Ranks received wrong data in a training step."""

    regime: str
    backend: str
    detail: str

    def render(self) -> str:
        """Return the sentence that users see."""
        return f"wrong data in {self.regime} on {self.backend}: {self.detail}"


_FOR_PARTS = 0.2  # of a step's time budget, to measure its parts alone
_OF_TIMEOUT = 0.8  # share of the timeout: the loop reports no progress within a step


@dataclass
class WorkloadRun:
    """The state of one workload launch. Only rank 0 has the folder and the listener."""

    request: WorkloadRequest
    launch: Launch
    listener: WorkloadListener | None
    opened: Sequence[OpenBackend]
    runs: Sequence[TrainingRun]
    ceilings: Ceilings

    @property
    def world(self) -> World:
        """All ranks."""
        return self.launch.world

    def note(self, fact: Fact) -> None:
        """Show a fact, and store it in events.jsonl."""
        if self.listener:
            self.listener.note(fact.render())
        self.launch.note(fact)

    def about(self) -> dict[str, Any]:
        """Return run.json's "workload"."""
        of_each = [self.runs[at : at + len(self.opened)] for at in range(0, len(self.runs), len(self.opened))]
        first = [next((run for run in runs if run.shape), runs[0]) for runs in of_each]
        return {
            "trainings": [run.about() for run in first], "backends": [one.name for one in self.opened], "ranks": self.runs[0].ranks,
            "nodes": self.runs[0].nodes, "hosts": list(self.world.hosts), "max_time_s": self.launch.request.budget.max_time_s,
            "step_time_s": self.request.step_time_s,
        }  # fmt: skip

    def crowded(self, run: TrainingRun) -> bool:
        """Return whether ranks wait for cores. If so, the row has no percentage."""
        return bool(self.world.oversubscribed) and not run.backend.virtual and run.row().device == "cpu"


def run_workload(workload: WorkloadRequest, world: World, listener: WorkloadListener | None, ended: Callable[[int], None]) -> int:
    """Measure every training on every backend on all ranks of `world`. Return the exit code, the same on all ranks.

    `ended` receives the exit code before the libraries are closed, as in `cases.run`. Raises CollbenchError.
    """
    request, waiting = workload.launch, list[Fact]()
    launch = Launch.begun(request, world)
    opened = open_backends(request, world, waiting.append)
    runs = runs_of(workload, opened, world)
    session = WorkloadRun(workload, launch, listener, opened, runs, Ceilings(request, world))
    request.slowed.check([part.case for run in runs if run.plan for part in run.plan.parts], max(run.ranks for run in runs))
    launch.folder = create_folder(launch, list(opened), {"workload": session.about()}, len(runs))
    return run_with_cleanup(RunContext(launch, list(opened), listener, ended), lambda: _measure_all(session, waiting))


def _measure_all(session: WorkloadRun, waiting: Sequence[Fact]) -> int:
    launch = session.launch
    _look_around(session)
    if session.listener:
        session.listener.begin_workload(session.about(), str(launch.folder.path) if launch.folder else "")
    for fact in (*waiting, *notes(launch, list(session.opened))):
        session.note(fact)
    try:
        return _conclude(session, _rows(session))
    finally:
        if launch.instruments:
            launch.instruments.close()


def _rows(session: WorkloadRun) -> list[StepRow]:
    """Return the rows at rank 0, measured one after the other. Other ranks take part and return an empty list."""
    rows: list[StepRow] = []
    for done, run in enumerate(session.runs):
        if session.listener:
            session.listener.progress(run.title, done, len(session.runs), None)
        row = _measure(session, run)
        rows += [_keep(session, row)] if row else []
        if _stops(session, rows):
            break
    return rows


def _look_around(session: WorkloadRun) -> None:
    """Probe the hosts and measure the references that the parts need."""
    plans = [(run.plan, run.backend) for run in session.runs if run.plan]
    backends = list({backend.name: backend for _, backend in plans}.values())
    session.ceilings.prepare(backends, [part.laid for plan, _ in plans for part in plan.parts])
    if session.launch.folder:
        session.launch.folder.write_topology(session.ceilings.topology())
    session.launch.conditions = describe_conditions(session.world)
    if any(not backend.virtual for backend in backends):
        session.launch.canary = state_probe(session.world)
        session.launch.instruments = _instruments(session, [plan for plan, _ in plans])


def _instruments(session: WorkloadRun, plans: Sequence[StepPlan]) -> Instruments | None:
    """Return the instruments that read the hosts' counters around each step; None if the user turned evidence off."""
    request, cuda = session.launch.request, any(part.case.device == "cuda" for plan in plans for part in plan.parts)
    return None if request.evidence == "off" else Instruments.ready(session.world, cuda, request.telemetry_hz)


def _measure(session: WorkloadRun, run: TrainingRun) -> StepRow | None:
    """Measure one training on all ranks. Return its row at rank 0, None elsewhere."""
    if run.reason:
        return run.without(run.reason) if session.world.rank == 0 else None
    if run.roles:
        return measure_asynchronous(run, session.launch, session.ceilings, session.crowded(run))
    if run.served:
        return measure_served(run, session.launch, session.crowded(run))
    plan, world = run.plan, session.world
    assert plan is not None
    stage = stage_of(session.launch, [(part.operation, part.case, run.opened) for part in plan.parts], run.backend)
    step = prepare_step(run.name, plan, stage, world)
    if isinstance(step, PartNotPrepared):
        return run.without(step) if world.rank == 0 else None
    row = _timed(session, run, step)
    release_step(step.parts, run.backend)
    return row


def _timed(session: WorkloadRun, run: TrainingRun, step: PreparedStep) -> StepRow | None:
    """Measure the parts alone, then the whole step, then verify its data."""
    request, world = session.launch.request, session.world
    looks = _looks(session, step) if session.request.parts else [None] * len(step.parts)
    _check_deadline(run, step, looks, world)
    on_host = not run.backend.virtual and step.ready.case.device == "cpu"
    instruments = None if run.backend.virtual else session.launch.instruments
    watched = measure_monitored(step.ready, world, request.budget, session.launch.canary if on_host else None, instruments)
    wrong = verify_step(step, world, request.check) if request.check else []
    if watched is None or wrong is None:
        return None
    if watched.other_path:
        session.note(watched.other_path)
    row = with_figures(run.row(), step, watched, looks, _around(session, run, step))
    return replace(row, **check_fields(request.check, wrong), evidence=row.evidence | wrong_evidence(wrong))


def _looks(session: WorkloadRun, step: PreparedStep) -> list[Measurement | None]:
    """Return the measurement of each part alone. Together they take a fifth of a step's time budget."""
    budget = session.launch.request.budget
    share = replace(budget, max_time_s=_FOR_PARTS * budget.max_time_s / len(step.parts), iterations=None, warmup=1)
    return [time_part(one, session.world, share) for one in step.parts]


def _check_deadline(run: TrainingRun, step: PreparedStep, looks: Sequence[Measurement | None], world: World) -> None:
    """Raise UsageError, on all ranks, if a step takes longer than the deadline for work without progress."""
    known = {at: float(slowest(look.samples, step.ready.timed).mean()) if look else None for at, look in enumerate(looks)}
    seconds = world.broadcast(None if run.backend.virtual else path_s(step.plan, known), "planning a step")
    if seconds and seconds > _OF_TIMEOUT * world.timeout_s:
        raise UsageError(
            f"a step of {run.title} takes about {format_duration(seconds)}, but --timeout {world.timeout_s:g} ends work without progress "
            f"for so long: use --timeout {int(2 * seconds) + 1}, or a smaller model"
        )


def _around(session: WorkloadRun, run: TrainingRun, step: PreparedStep) -> Around:
    """Return the ceilings, flags and evidence of a row."""
    crowded, request = session.crowded(run), session.launch.request
    slow = {str(text) for part in step.plan.parts if (text := request.slowed.of(part.case))}
    evidence = {"libraries": dict(run.backend.versions()), "conditions": session.launch.conditions} | step.ready.evidence
    evidence |= {"buffers": [one.part.slots for one in step.parts], "exchanges": len(step.plan.order)}
    evidence |= {"slowed": sorted(slow)} if slow else {}
    flags = common_flags(step.plan, run.backend, crowded, request.slowed.of, step.ready.fell_back)
    return Around(limits_of(step, session.ceilings, run.backend), crowded, flags, evidence)


def _keep(session: WorkloadRun, row: StepRow) -> StepRow:
    """Store and show a row."""
    with signals.deferred():
        if session.launch.folder:
            session.launch.folder.append_round(row.as_json(), WORKLOAD)
        if session.listener:
            session.listener.step_row(row)
    return row


def _stops(session: WorkloadRun, rows: Sequence[StepRow]) -> bool:
    """Return whether wrong data has ended the launch, the same at all ranks. All ranks must call it."""
    if not session.launch.request.stop_on_wrong:
        return False
    wrong: bool = session.world.broadcast(any(row.wrong for row in rows), "deciding whether to go on")
    if wrong and len(rows) < len(session.runs):
        session.note(WrongDataStop())
    return wrong


def _conclude(session: WorkloadRun, rows: Sequence[StepRow]) -> int:
    """Write run.json and return the exit code: 4 if data was wrong, 2 if nothing could be measured, else 0."""
    wrong = [WrongStepData(row.regime, row.backend, row.wrong_detail or "") for row in rows if row.wrong]
    for fact in (*wrong, *session.world.remarks()):
        session.note(fact)
    measured = any(row.na is None for row in rows)
    code: int = session.world.broadcast(FAILED if wrong else FINE if measured else USAGE, "ending")
    if session.launch.folder:
        session.launch.folder.finish(exit_code=code, workload=session.about())
    return code
