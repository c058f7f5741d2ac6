"""What a workload launch measures one after the other: every training on every backend, laid out before anything is measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from collbench.backends.backend import Backend
from collbench.control.world import World
from collbench.errors import UsageError
from collbench.measure.launch import ranks_by_host, ranks_of
from collbench.measure.opening import Opened
from collbench.measure.tasks.workload_asked import Training, WorkloadRequest
from collbench.measure.tasks.workload_plan import Plan, plan_of, too_large
from collbench.measure.tasks.workload_roles import Roles, roles_of, roles_too_large
from collbench.measure.tasks.workload_rows import moved_by
from collbench.measure.tasks.workload_served import Served, served_of, serves
from collbench.results.steps import StepRow
from collbench.workloads.step import Shape, Step, moved_bytes


@dataclass(frozen=True)
class Turn:
    """A training on a backend; `reason`: why it is not measured.

    It has a plan, or roles where it is asynchronous, or is served where the backend brings servers of its own.
    """

    training: Training
    opened: Opened
    ranks: int
    nodes: int
    shape: Shape | None = None
    step: Step | None = None
    plan: Plan | None = None
    roles: Roles | None = None
    served: Served | None = None
    reason: str | None = None

    @property
    def name(self) -> str:
        """For titles: "data-parallel bert-large"."""
        return " ".join(filter(None, (self.training.regime.name, self.training.model)))

    @property
    def title(self) -> str:
        """With the backend: "data-parallel bert-large on mpi"."""
        return f"{self.name} on {self.opened.name}"

    @property
    def backend(self) -> Backend:
        """Open."""
        assert self.opened.backend is not None
        return self.opened.backend

    def row(self, **figures: Any) -> StepRow:
        """The row, as far as it is known beforehand."""
        shape, step = self.shape, self.step
        sizes = (shape.parameters, shape.bucket_bytes, step.payload_bytes) if shape and step else (0, 0, 0)
        device = self.plan.parts[0].cell.device if self.plan else "cpu"
        moved = moved_by(self.plan, self.ranks) if self.plan else self.roles.moved_bytes if self.roles else 0.0
        moved = max(moved_bytes(step, self.ranks)) if self.served and step else moved
        return StepRow(
            self.training.regime.name, self.training.model, self.opened.name, device, self.ranks, self.nodes, shape.dtype if shape else "",
            *sizes, moved_bytes=moved, options=dict(shape.options) if shape else {}, note=step.note if step else "", **figures,
        )  # fmt: skip

    def about(self) -> dict[str, Any]:
        """For run.json's "workload"."""
        row = self.row()
        known = ("regime", "model", "parameters", "dtype", "bucket_bytes", "payload_bytes", "options", "note")
        return {name: getattr(row, name) for name in known}


def turns_of(asked: WorkloadRequest, opened: Sequence[Opened], world: World) -> list[Turn]:
    """All that is to be measured. Raises UsageError, on all ranks, for what cannot be laid out over these ranks, or into their memory."""
    return [_turn(training, one, asked, world) for training in asked.trainings for one in opened]


def _turn(training: Training, opened: Opened, asked: WorkloadRequest, world: World) -> Turn:
    ranks, nodes = ranks_of(opened, world), len(world.hosts)
    if opened.backend is None:
        return Turn(training, opened, ranks, nodes, reason=opened.reason)
    turn = _laid_out(training, opened, opened.backend, asked, world)
    name = training.regime.name
    reason = world.first(turn if isinstance(turn, str) else None, f"laying {name} out") or _lacks_room(turn, opened.backend, world)
    if isinstance(turn, Turn) and not reason:
        return turn
    if not training.optional:
        raise UsageError(f"{reason}")
    return Turn(training, opened, ranks, nodes, reason=f"{reason}")


def _lacks_room(turn: Turn | str, backend: Backend, world: World) -> str | None:
    """Why its buffers do not fit some host or GPU, the same at all ranks, which all call."""
    if isinstance(turn, str) or turn.reason:
        return None
    wrong = too_large(turn.title, turn.plan, backend, world) if turn.plan else None
    roles = turn.roles or turn.served
    wrong = roles_too_large(turn.title, roles, world) if roles else wrong
    return world.first(wrong, "looking at the memory")


def _laid_out(training: Training, opened: Opened, backend: Backend, asked: WorkloadRequest, world: World) -> Turn | str:
    """What this rank makes of it, or why it cannot."""
    try:
        return _told(training, opened, backend, asked, world)
    except UsageError as error:
        return str(error)


def _told(training: Training, opened: Opened, backend: Backend, asked: WorkloadRequest, world: World) -> Turn:
    shape = training.shape(tuple(_hosts(backend, world)))
    step = training.regime.step(shape)
    known = (training, opened, backend.ranks, len(world.hosts), shape, step)
    if serves(backend, training.regime):
        served = served_of(shape, training.regime, backend.ranks)
        return Turn(*known, reason=served) if isinstance(served, str) else Turn(*known, served=served)
    if training.regime.asynchronous(shape):
        roles = roles_of(step, backend.ranks)
        return Turn(*known, roles=roles, reason=roles.refusal(backend))
    return Turn(*known, plan=plan_of(step, asked.launch, backend))


def _hosts(backend: Backend, world: World) -> Iterator[int]:
    """By rank the number of its host."""
    number = {rank: host for host, ranks in enumerate(ranks_by_host(backend, world)) for rank in ranks}
    return (number[rank] for rank in range(backend.ranks))
