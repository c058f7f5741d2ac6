"""What is asked of a workload launch, and who is told what happens in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from collbench.measure.request import Request
from collbench.results.steps import StepRow
from collbench.workloads.step import Regime, Shape


@dataclass(frozen=True)
class Training:
    """One way of training a model.

    regime  what it exchanges
    shape   from the host of each rank, numbered, to what the regime is told; called on every rank. May raise UsageError
    model   what users call it: "bert-large"
    optional   whether one that cannot be laid out over these ranks is a row without figures, and not the end of the launch
    """

    regime: Regime
    shape: Callable[[tuple[int, ...]], Shape]
    model: str = ""
    optional: bool = False


@dataclass(frozen=True)
class WorkloadRequest:
    """One workload launch: every training on every backend.

    launch     what concerns the launch; its budget is that of a step, of which a fifth at most goes to the looks at its parts. Of
               asynchronous training `max_time_s` is how long the workers go on, and `iterations` how many rounds each of them makes.
               The sweep says dtype (of nothing: exchanges have their own), device, seed and the backends' habits
    trainings  in the order in which they are measured
    parts      whether each exchange is looked at alone, too
    step_time_s  what the user says that a step computes; it is kept in run.json, for reports
    """

    launch: Request
    trainings: tuple[Training, ...]
    parts: bool = True
    step_time_s: float | None = None


class WorkloadListener(Protocol):
    """Who is told what happens, at rank 0."""

    def note(self, sentence: str) -> None:
        """Something worth saying once."""
        ...

    def begin_workload(self, about: Mapping[str, Any], folder: str) -> None:
        """Everything that is known before the first step: run.json's "workload", and the run's folder."""
        ...

    def progress(self, title: str, done: int, total: int, eta_s: float | None) -> None:
        """A training begins on a backend, after so many of so many."""
        ...

    def step_row(self, row: StepRow) -> None:
        """What it came to."""
        ...

    def end(self) -> None:
        """Nothing more will come."""
        ...
