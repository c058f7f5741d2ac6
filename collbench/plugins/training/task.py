"""A workload launch: measure the traffic of each training on each backend, on all ranks together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.backends.backend import Backend
from collbench.control.world import World
from collbench.errors import UsageError
from collbench.measuring.engine import Measured
from collbench.measuring.monitored import MonitoredMeasurement
from collbench.measuring.open_backends import OpenBackend, ranks_by_host
from collbench.measuring.prepared_case import BackendContext
from collbench.measuring.request import Placement, TaskRequest
from collbench.measuring.row import RowContext, make_row
from collbench.measuring.sampling import Measurement, slowest
from collbench.measuring.session import LaunchSession, Plan, Task, WrongDataStop
from collbench.measuring.verification import check_fields, wrong_evidence
from collbench.operations.case import Case
from collbench.operations.operation import Operation
from collbench.operations.sweep import Sweep
from collbench.operations.traffic import Traffic
from collbench.operations.unsupported import ServersUnsupported
from collbench.plugins.training import FILE
from collbench.plugins.training.computing import ComputingWork, refused, unsupported, with_own_buffers
from collbench.plugins.training.framework_steps import FrameworkTraining
from collbench.plugins.training.records import StepRow
from collbench.plugins.training.routed import RoutedWork, check_routing, plan_routed, routed_limits, routed_row, routed_too_large
from collbench.plugins.training.servers import roles_of, served_of, serves
from collbench.plugins.training.step_task import (
    Around,
    LibraryTraining,
    PartLimit,
    PartNotPrepared,
    PreparedStep,
    StepPlan,
    StepWork,
    Training,
    TrainingRun,
    agree,
    check_number,
    library_too_large,
    limits_of,
    path_s,
    plan_of,
    prepare_step,
    release_step,
    time_parts,
    too_large,
    with_figures,
)
from collbench.plugins.training.text import STEPS, PlannedStep
from collbench.plugins.training.timeline import NO_OVERLAP
from collbench.reason import Fact, as_fact
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.units import format_duration


class WorkloadRequest(TaskRequest, frozen=True):
    """The request of one workload launch: every training on every backend.

    launch     options of the launch; its budget is that of a step. At most a fifth of it is used to measure parts alone. For asynchronous
               training `max_time_s` is the time for which workers run, and `iterations` is their number of rounds. The sweep has the
               device, the seed and the backends' defaults. Its dtype is not used, since exchanges have their own
    trainings  in the order in which they are measured
    parts      whether each exchange is also measured alone
    step_time_s  the user's computing time of a step, stored in run.json for reports
    compute    whether each step is also measured with a computation that lasts so long, see `computing`
    """

    trainings: tuple[Training, ...]
    parts: bool = True
    step_time_s: float | None = None
    compute: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Return the options for run.json: a run is resumed only with the same ones."""
        sweep = self.launch.sweep
        assert isinstance(sweep, Sweep)
        options = {"--device": sweep.device, "--no-parts": not self.parts, "--step-time": self.step_time_s}
        return {**options, "--compute": "real"} if self.compute else options  # runs of earlier versions have no such key

    def planned(self, hosts: tuple[int, ...]) -> tuple[list[PlannedStep], list[str]]:
        """Return the steps for these hosts, and why optional trainings have none. Raises UsageError for another training without one."""
        steps = []
        left_out = []
        for training in self.trainings:
            try:
                shape = training.shape(hosts)
                step = training.regime.step(shape)
                check_number(step)
                steps.append(PlannedStep(training.regime, shape, step, training.model))
            except UsageError as error:
                if not training.optional:
                    raise
                left_out.append(f"{training.regime.name} is skipped: {error}")
        return steps, left_out

    def check(self, placement: Placement) -> None:
        """Raise UsageError for a training that does not fit the ranks on this host."""
        self.planned((0,) * placement.ranks)


_OF_TIMEOUT = 0.8  # share of the timeout: the loop reports no progress within a step


@dataclass
class WorkloadTask(Task):
    """Every training on every backend, with exchanges and roles derived before the first measurement."""

    request: WorkloadRequest
    runs: list[TrainingRun] = field(default_factory=list)
    what = "row"

    def plan(self, session: LaunchSession) -> Plan:
        """Return the plan. Raises UsageError, on all ranks, for a training that does not fit the ranks or their memory."""
        world = session.world
        self.runs = [self._run_of(training, opened, world) for training in self.request.trainings for opened in session.opened]
        cases = [part.case for run in self.runs if run.plan for part in run.plan.parts]
        session.request.slowed.check(cases, max(run.ranks for run in self.runs))
        return Plan(len(self.runs), {"workload": self._about(session)})

    def _run_of(self, training: Training, opened: OpenBackend, world: World) -> TrainingRun:
        """Return the training on one backend, or the reason why it is not measured, the same at all ranks."""
        without = TrainingRun(training, opened, opened.ranks(world), len(world.hosts))
        if opened.backend is None:
            return replace(without, reason=opened.reason)
        wrong = None
        run = without
        try:
            run = self._laid_out(without, opened.backend, world)
        except UsageError as error:
            wrong = str(error)
        reason = world.first_error(wrong, f"laying {training.regime.name} out")
        if not reason:
            check_routing(run.step.routing if run.step else None, world)
        if not reason and not run.reason:
            run = replace(run, plan=agree(run.plan, world)) if run.plan and not (run.step and run.step.routing) else run
            room = routed_too_large if run.step and run.step.routing else too_large
            too_much = room(run.title, run.plan, opened.backend, world) if run.plan else None
            too_much = library_too_large(run.title, run.library, world) if run.library else too_much
            reason = world.first_error(too_much, "looking at the memory")
        if not reason:
            return run
        if not training.optional:
            raise UsageError(f"{reason}")
        return replace(without, reason=as_fact(reason))

    def _laid_out(self, run: TrainingRun, backend: Backend, world: World) -> TrainingRun:
        """Return the training with its exchanges for this rank. Raises UsageError if these cannot be derived."""
        regime = run.training.regime
        host_of = {rank: host for host, ranks in enumerate(ranks_by_host(backend, world)) for rank in ranks}
        shape = run.training.shape(tuple(host_of[rank] for rank in range(backend.ranks)))
        step = regime.step(shape)
        if run.training.adapt:
            step = run.training.adapt(step, self.request.launch, backend)
        run = replace(run, shape=shape, step=step)
        library: LibraryTraining | ServersUnsupported | None = None
        if regime.models:
            library = FrameworkTraining(regime, shape, step)
        elif serves(backend, regime):
            library = served_of(shape, regime, backend.ranks)
        elif regime.asynchronous(shape):
            library = roles_of(step, backend.ranks)
        if isinstance(library, ServersUnsupported):
            return replace(run, reason=library)
        if library:
            return replace(run, library=library, reason=library.refusal(backend))
        plan = plan_of(step, self.request.launch, backend)
        if step.routing:
            plan_routed(plan)
        return replace(run, plan=with_own_buffers(plan) if self._computes(run) else plan)

    def _computes(self, run: TrainingRun) -> bool:
        return self.request.compute and run.training.regime.with_computing is not None

    def _about(self, session: LaunchSession) -> dict[str, Any]:
        """Return run.json's "workload"."""
        n = len(session.opened)
        by_training = [self.runs[first : first + n] for first in range(0, len(self.runs), n)]
        described = [next((run for run in runs if run.shape), runs[0]) for runs in by_training]
        return {
            "trainings": [run.about() for run in described], "backends": [opened.name for opened in session.opened],
            "ranks": self.runs[0].ranks, "nodes": self.runs[0].nodes, "hosts": list(session.world.hosts),
            "max_time_s": session.request.budget.max_time_s, "step_time_s": self.request.step_time_s,
        }  # fmt: skip

    def requested(self, session: LaunchSession) -> Mapping[str, Any]:
        """Return the options, and each training with its own ones."""
        options = {**super().requested(session)["options"], **self.request.options}
        trainings = [" ".join([run.name, *(f"{name}={value}" for name, value in run.row().options.items())]) for run in self.runs]
        return {"options": options, "values": {"ranks": [self.runs[0].ranks], "trainings": list(dict.fromkeys(trainings))}}

    def take_up(self, run: Run) -> tuple[dict[int, Any], bool]:
        """Return the stored rows by the place of their training."""
        rows, _ = STEPS.read(run.path)
        stored = {(row.regime, row.model, row.backend): row for row in rows}
        names = [(run.training.regime.name, run.training.model, run.opened.name) for run in self.runs]
        done = {place: stored[name] for place, name in enumerate(names) if name in stored}
        return done, len(done) == len(self.runs)

    def _left(self, session: LaunchSession) -> list[TrainingRun]:
        return [run for place, run in enumerate(self.runs) if place not in session.stored.done]

    def references(self, session: LaunchSession) -> tuple[list[Backend], list[tuple[Operation, Case]]]:
        """Return the references that the parts need."""
        planned = [run for run in self._left(session) if run.plan]
        return list({run.opened.name: run.backend for run in planned}.values()), [part.laid for run in planned for part in run.parts]

    def measure(self, session: LaunchSession) -> None:
        """Measure the trainings that are not stored, one after the other."""
        runs = self._left(session)
        session.monitor(part.case for run in runs for part in run.parts)
        for number, run in enumerate(runs, 1):
            session.progress(run.title, number - 1, len(runs))
            row = self._measured(session, run)
            if row:
                reason = unsupported(run.training.regime)
                if self.request.compute and reason and not row.computing and row.na is None:
                    row = row.replace(computing=refused(reason, self.request.step_time_s))
                session.store(row, FILE)
            if session.stops(bool(row and row.wrong), WrongDataStop() if number < len(runs) else None):
                return

    def _measured(self, session: LaunchSession, run: TrainingRun) -> StepRow | None:
        """Measure one training on all ranks. Return its row at rank 0, None elsewhere."""
        world = session.world
        if run.reason:
            return run.without(run.reason) if world.rank == 0 else None
        if run.library:
            return run.library.measure(run, session)
        assert run.plan is not None
        context = session.context_of([(part.operation, part.case, run.opened) for part in run.parts], run.backend)
        measure = self._routed if run.plan.step.routing else self._stepped
        return measure(session, run, run.plan, context)

    def _stepped(self, session: LaunchSession, run: TrainingRun, plan: StepPlan, context: BackendContext) -> StepRow | None:
        """Measure one step again and again. Return the row at rank 0, None elsewhere."""
        step = prepare_step(run.name, plan, context, session.world)
        if isinstance(step, PartNotPrepared):
            return run.without(step) if session.world.rank == 0 else None
        row = self._timed(session, run, step, context)
        if self._computes(run):
            row = self._computing(session, run, step, context, row)
        release_step(step.parts, run.backend)
        return row

    def _computing(
        self, session: LaunchSession, run: TrainingRun, step: PreparedStep, context: BackendContext, row: StepRow | None
    ) -> StepRow | None:
        """Measure the step with its computation, and return the row with the result, at rank 0."""
        goal_s = self.request.step_time_s
        work = ComputingWork(context, step, run.training.regime, goal_s)
        result = session.engine.measure(work, session.request.budget)
        if isinstance(result, Fact):
            return row and row.replace(computing=refused(result, goal_s))
        if row is None or result.watched is None or result.gathered is None:
            return None
        flags = tuple(dict.fromkeys((*row.flags, *result.watched.flags)))
        row = row.replace(computing=work.result(result.gathered, stated=goal_s is not None), flags=flags)
        if row.wrong or not result.wrong:
            return row
        return _verified(row, result)

    def _routed(self, session: LaunchSession, run: TrainingRun, step: StepPlan, context: BackendContext) -> StepRow | None:
        """Measure all routings in turn, and verify the data of each. Return the row at rank 0, None elsewhere."""
        plan = plan_routed(step)
        result = session.engine.measure(RoutedWork(context, run.name, plan), session.request.budget)
        if isinstance(result, Fact):
            return run.without(result) if session.world.rank == 0 else None
        if result.watched is None:
            return None
        around = _around(session, run, result, routed_limits(plan, session.ceilings, run.backend))
        return _verified(routed_row(run.row(), plan, result.watched, around), result)

    def _timed(self, session: LaunchSession, run: TrainingRun, step: PreparedStep, context: BackendContext) -> StepRow | None:
        """Measure the parts alone, together for a fifth of the time budget, then the whole step, and verify its data."""
        world = session.world
        budget = session.request.budget
        alone: Sequence[Measurement | None] = [None] * len(step.parts)
        left_out: tuple[str, ...] = ()
        if self.request.parts:
            alone, left_out = time_parts(step, context, session.engine, budget)
        check_deadline(run, step, alone, world, left_out)
        result = session.engine.measure(StepWork(context, step), budget)
        if isinstance(result, Fact) or result.watched is None:
            return None
        slots = {"buffers": [part.part.slots for part in step.parts]}
        limits = limits_of(step, session.ceilings, run.backend)
        flags = (NO_OVERLAP, *left_out) if step.no_overlap else left_out
        around = _around(session, run, result, limits, flags=flags, evidence=slots)
        row = _verified(with_figures(run.row(), step, result.watched, alone, around), result)
        if run.training.recording and session.folder:
            session.folder.append(*replayed_case(row, run, step, result.watched, ranks_by_host(run.backend, world)))
        return row

    def conclude(self, session: LaunchSession) -> Mapping[str, Any]:
        """Note wrong data, and return run.json's "workload"."""
        for row in session.records:
            if row.wrong:
                session.note(f"wrong data in {row.regime} on {row.backend}: {row.wrong_detail or ''}")
        return {"workload": self._about(session)}


def replayed_case(
    row: StepRow, run: TrainingRun, step: PreparedStep, watched: MonitoredMeasurement, hosts: Sequence[Sequence[int]]
) -> tuple[Row, dict[str, NDArray[Any]]]:
    """Return a replayed step as a row of cases with its samples, which `compare`, `gate` and `baseline` use.

    The row's operation is "replay", its size the bytes of all buffers, and its traffic the name of the trace with the step's digest.
    """
    assert run.training.recording is not None
    case = replace(
        step.ready.case, operation=run.training.regime.name, traffic=Traffic(f"{run.training.model}:{run.training.recording.digest}")
    )
    operation = replace(step.ready.operation, name=case.operation, bus_factor=lambda n: row.moved_bytes / case.size_bytes)
    context = RowContext(hosts, row.ceiling, withheld=row.comparison is None, evidence=row.evidence)
    replayed, arrays = make_row(replace(step.ready, operation=operation, case=case), run.backend, watched, context)
    return replace(replayed, checked=row.checked, wrong=row.wrong, wrong_detail=row.wrong_detail, flags=row.flags), arrays


def check_deadline(
    run: TrainingRun, step: PreparedStep, alone: Sequence[Measurement | None], world: World, left_out: Sequence[str] = ()
) -> None:
    """Raise UsageError, on all ranks, if a step takes longer than the deadline for work without progress.

    left_out: not empty if parts were too slow to be measured alone; their first calls count.
    """
    seconds_of = {number: float(slowest(part.samples, step.ready.timed).mean()) if part else None for number, part in enumerate(alone)}
    if left_out:
        seconds_of |= {number: part.ready.first_call_s for number, part in enumerate(step.parts) if seconds_of[number] is None}
    seconds = world.broadcast(None if run.backend.virtual else path_s(step.plan, seconds_of), "planning a step")
    if seconds and seconds > _OF_TIMEOUT * world.timeout_s:
        raise UsageError(
            f"a step of {run.title} takes about {format_duration(seconds)}, but --timeout {world.timeout_s:g} ends work without progress "
            f"for so long: use --timeout {int(2 * seconds) + 1}, or a smaller model"
        )


def _verified(row: StepRow, result: Measured) -> StepRow:
    wrong = result.wrong or []
    return row.replace(**check_fields(result.checked, wrong), evidence=row.evidence | wrong_evidence(wrong))


def _around(
    session: LaunchSession,
    run: TrainingRun,
    result: Measured,
    limits: Sequence[PartLimit],
    *,
    flags: Sequence[str] = (),
    evidence: Mapping[str, Any] | None = None,
) -> Around:
    """Return the ceilings, flags and evidence of a row, and note a path of the data other than expected. flags, evidence: more of them."""
    watched = result.watched
    assert watched is not None
    if watched.other_path:
        session.note(watched.other_path)
    cases = [part.case for part in run.parts]
    if any("size_rounded" in case.flags for case in cases):
        flags = ["size_rounded", *flags]
    context = session.engine.context_of_row(result.ready, run.backend, watched, (None, None), cases=cases, flags=flags)
    exchanges = {"exchanges": len(run.plan.order) if run.plan else 0}
    return Around(limits, replace(context, evidence={**(context.evidence or {}), **exchanges, **(evidence or {})}))
