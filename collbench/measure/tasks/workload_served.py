"""A parameter-server step carried by the servers that a library brings itself: timed at the workers, its sums checked to the last element.

The workers meet before each sample, which then lasts until the slowest of them has pulled. Nothing of this is told part by part: the
library orders pushes and pulls itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from collbench.backends.backend import Backend
from collbench.backends.tensorflow import Layout, ParameterServers
from collbench.control.world import World
from collbench.machine.peak.ceiling import nothing
from collbench.measure.budget import Budget
from collbench.measure.launch import Launch
from collbench.measure.row import check_fields, doubts, wrong_evidence
from collbench.measure.tasks.workload_roles import Roles, roles_of
from collbench.measure.tasks.workload_rows import times_of
from collbench.measure.tasks.workload_updates import differences, exact_updates, gradient, total
from collbench.operations.data import Mismatch
from collbench.results.steps import StepRow
from collbench.workloads.parameter_server import REGIME, roles
from collbench.workloads.step import Regime, Shape

if TYPE_CHECKING:
    from collbench.measure.tasks.workload_turns import Turn

_WARMUPS = 3
_MOST = 3000  # samples
_LARGEST = 2**31  # bytes of a message of gRPC
_NO_REFERENCE = "no reference is of a library's own parameter servers"


@runtime_checkable
class BringsServers(Protocol):
    """A backend with parameter servers of its own."""

    def parameter_servers(self, world: World, layout: Layout, gradients: Sequence[NDArray[Any]]) -> ParameterServers:
        """Starts them; `gradients`: by server what this rank pushes, () at servers. All ranks call."""
        ...


@dataclass(frozen=True)
class Served:
    """Who serves and who works, and what each server keeps."""

    roles: Roles

    @property
    def layout(self) -> Layout:
        """For the library."""
        counts = tuple(tuple(many for _, many in pieces) for pieces in self.roles.pushes)
        return Layout(self.roles.servers, self.roles.workers, counts, self.roles.dtype.name)

    def bytes_at(self, rank: int) -> int:
        """Memory that a rank needs: a server its variables; a worker its gradients, and what it pulls on its way and once fetched."""
        elements = [self.roles.elements(server) for server in range(len(self.roles.servers))]
        serving = rank in self.roles.servers
        return self.roles.dtype.size * (elements[self.roles.servers.index(rank)] if serving else 3 * sum(elements))

    def gradients(self, rank: int) -> list[NDArray[Any]]:
        """By server what a worker pushes; nothing at a server."""
        if rank in self.roles.servers:
            return []
        worker, dtype = self.roles.workers.index(rank), self.roles.dtype.numpy
        return [np.resize(gradient(worker, s).astype(dtype), self.roles.elements(s)) for s in range(len(self.roles.servers))]


def serves(backend: Backend, regime: Regime) -> bool:
    """Whether the backend brings its own servers for this way of training."""
    return regime.name == REGIME.name and isinstance(backend, BringsServers)


def served_of(shape: Shape, regime: Regime, ranks: int) -> Served | str:
    """The roles of a synchronous step, or why these servers are not for it. Raises UsageError for a shape that the regime refuses."""
    if regime.asynchronous(shape):
        return "tensorflow's parameter servers know --update synchronous or sharded: for asynchronous choose mpi or gloo"
    options = {**shape.options, "update": "asynchronous", "servers": str(len(roles(shape).servers))}
    served = Served(roles_of(regime.step(replace(shape, options=options)), ranks))
    if served.roles.largest * served.roles.dtype.size >= _LARGEST:
        return "tensorflow sends a bucket as one message, and gRPC carries none of 2 GiB: choose a smaller --bucket"
    return served


def measure_served(turn: Turn, launch: Launch, crowded: bool) -> StepRow | None:
    """Measures on all ranks; the row is at rank 0. Raises RunFailed where the library breaks down."""
    served, backend, title = turn.served, turn.backend, turn.title
    assert served is not None and isinstance(backend, BringsServers)
    world, budget = launch.world, launch.request.budget
    with world.watchdog.phase(f"{title}: starting its parameter servers"):
        library = backend.parameter_servers(world, served.layout, served.gradients(world.rank))
    works = world.rank in served.roles.workers
    with world.patient(budget.max_time_s), world.watchdog.phase(f"{title}: measuring"):
        warm = _samples(library, works, max(1, _WARMUPS if budget.warmup is None else budget.warmup), world)
        series = _samples(library, works, _enough(warm, budget, title, world), world)
    exact = exact_updates(served.roles.dtype) >= len(served.roles.workers)
    wrong = _verified(title, library, served, world) if launch.request.check and exact else []
    library.close(world)
    everyone = world.gather([series.tolist(), [each.as_json() for each in wrong]], f"{title}: gathering")
    if everyone is None:
        return None
    words = {"oversubscribed": crowded, "too_many_updates": launch.request.check and not exact}
    return _row(turn, everyone, launch, [word for word, on in words.items() if on])


def _samples(library: Any, works: bool, n: int, world: World) -> NDArray[np.float64]:
    """Seconds of n steps of this worker; nothing at a server."""
    seconds = np.zeros(n if works else 0)
    for at in range(len(seconds)):
        library.meet()
        began = time.monotonic()
        library.step()
        seconds[at] = time.monotonic() - began
        world.watchdog.progress.value += 1
    return seconds


def _enough(warm: NDArray[np.float64], budget: Budget, title: str, world: World) -> int:
    """How many samples fit into the budget, the same at all ranks, by the warm-up's last."""
    slowest = max(world.agree(float(warm[-1]) if len(warm) else 0.0, f"{title}: warming up"))
    return budget.iterations or int(min(_MOST, max(1, budget.max_time_s / max(slowest, 1e-6))))


def _verified(title: str, library: Any, served: Served, world: World) -> list[Mismatch]:
    """One more step from zero: every server's sums, and what every worker pulled, must be that of one update of each worker."""
    world.agree(None, f"{title}: the steps of its workers")  # who serves has had nothing to wait for
    if world.rank in served.roles.servers:
        library.clear()
    world.agree(None, f"{title}: clearing its sums")
    pulled = library.step() if world.rank in served.roles.workers else []
    world.agree(None, f"{title}: verifying")
    found = [
        wrong for server, parts in enumerate(pulled) for wrong in _compared(served, server, parts, (world.rank, "the model that it pulled"))
    ]
    if world.rank in served.roles.servers:
        server = served.roles.servers.index(world.rank)
        found += _compared(served, server, library.sums(), (world.rank, "the server's sum"))
    return found


def _compared(served: Served, server: int, parts: Sequence[NDArray[Any]], told: tuple[int, str]) -> list[Mismatch]:
    """A server's variables against the sum of every worker's gradients; `told`: at which rank, and what they are."""
    right = total(server, [1] * len(served.roles.workers)).astype(served.roles.dtype.numpy)
    got = np.concatenate([np.asarray(part, served.roles.dtype.numpy) for part in parts])
    return differences(got, right, *told)


def _row(turn: Turn, everyone: Sequence[Any], launch: Launch, words: Sequence[str]) -> StepRow:
    """A sample is that of the slowest worker."""
    series, row, backend = np.max([said[0] for said in everyone if said[0]], axis=0), turn.row(), turn.backend
    mismatches = [Mismatch(**one) for _, wrong in everyone for one in wrong]
    known, checked = times_of(series), bool(launch.request.check) and "too_many_updates" not in words
    evidence = {
        "libraries": dict(backend.versions()), "conditions": launch.conditions, "loop": "python",
        "parameter_server": "tf.distribute.Server", **wrong_evidence(mismatches),
    }  # fmt: skip
    figured = replace(
        row, n=len(series), time_s=known, stopped="iterations" if launch.request.budget.iterations else "max_time",
        busbw_bytes_per_s=row.moved_bytes / known.p50 if known.p50 else None, ceiling=nothing(_NO_REFERENCE),
        flags=tuple(dict.fromkeys((*backend.flags, *words, *doubts(series, len(series), None, 1)))), evidence=evidence,
    )  # fmt: skip
    return replace(figured, **check_fields(int(checked), mismatches))
