"""Asynchronous training measured: every worker at its own pace for a given time, how stale its updates are, and that none is lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.control.world import World
from collbench.errors import CollbenchError, RunFailed
from collbench.machine.peak.ceiling import TOLERANCE, Ceiling, nothing
from collbench.measure.budget import Budget
from collbench.measure.ceilings import Ceilings
from collbench.measure.launch import Launch, members_of
from collbench.measure.row import check_fields, doubts, wrong_evidence
from collbench.measure.tasks.workload_messages import Messenger, Talk, messenger
from collbench.measure.tasks.workload_roles import Roles
from collbench.measure.tasks.workload_rows import times_of
from collbench.measure.tasks.workload_turns import Turn
from collbench.measure.tasks.workload_updates import Pupil, Shard, differences, exact_updates, lost_updates, total
from collbench.operations.builtin.p2p import P2P_BANDWIDTH
from collbench.operations.cell import Cell
from collbench.operations.data import Mismatch
from collbench.results.row import Times
from collbench.results.steps import StepRow

_NO_CEILING = "a worker shares a host with its server, and no reference is of workers that come when they like"
_ON_HOSTS = "asynchronous training is measured on host memory: choose --device cpu"


@dataclass
class Done:
    """What one rank has to say: a worker its rounds, a server what it applied."""

    duration_s: float = 0.0
    round_s: list[float] = field(default_factory=list)
    shard: Shard | None = None
    pupil: Pupil | None = None


def measure_asynchronous(turn: Turn, launch: Launch, ceilings: Ceilings, crowded: bool) -> StepRow | None:
    """Lets servers and workers run on all ranks; the row is at rank 0. Raises RunFailed where the library breaks down."""
    roles, world = turn.roles, launch.world
    assert roles is not None
    if launch.request.sweep.each[0].device == "cuda":
        return turn.row(na=_ON_HOSTS) if world.rank == 0 else None
    carrier, budget, what = messenger(turn.backend), launch.request.budget, f"{turn.title}: workers at their own pace"
    done = Done()
    with _watched(turn, world, "making its buffers"):
        done = _ready(roles, world.rank)
    world.agree(None, f"{turn.title}: beginning")
    with world.patient(budget.max_time_s):
        with _watched(turn, world, what):
            _go_on(done, carrier, budget, world)
        updates = world.agree(len(done.round_s), what)
    pushed = {rank: updates[rank] for rank in roles.workers}
    checked = bool(launch.request.check) and sum(updates) <= exact_updates(roles.sums)
    wrong = _verified(done, carrier, pushed, turn, world) if checked else []
    everyone = world.gather(_told(done, wrong), f"{turn.title}: gathering")
    row = _row(turn, launch, everyone, checked) if everyone else None
    return _against(row, _ceiling(turn, ceilings, world), crowded) if row else None


def _watched(turn: Turn, world: World, what: str) -> Any:
    return world.watchdog.phase(what if what.startswith(turn.title) else f"{turn.title}: {what}")


def _ready(roles: Roles, rank: int) -> Done:
    """A server's shard, or a worker's gradients."""
    if rank in roles.servers:
        return Done(shard=Shard(roles, roles.servers.index(rank)))
    return Done(pupil=Pupil(roles, rank))


def _go_on(done: Done, carrier: Messenger, budget: Budget, world: World) -> None:
    """A server serves until all workers have said farewell; a worker goes on for so many rounds, or so long."""
    began = time.monotonic()
    if done.shard:
        _hold({worker: done.shard.serve(worker) for worker in done.shard.roles.workers}, carrier, world)
    elif done.pupil:
        while not _enough(len(done.round_s), time.monotonic() - began, budget):
            start = time.monotonic()
            _hold(done.pupil.round(len(done.round_s) + 1), carrier, world)
            done.round_s.append(time.monotonic() - start)
        done.duration_s = time.monotonic() - began
        _hold(done.pupil.farewell(), carrier, world)


def _enough(rounds: int, spent_s: float, budget: Budget) -> bool:
    return rounds >= budget.iterations if budget.iterations else rounds > 0 and spent_s >= budget.max_time_s


def _hold(talks: dict[int, Talk], carrier: Messenger, world: World) -> None:
    """Conversations, each message of which the watchdog sees. Raises RunFailed for what the library says."""

    def moved() -> None:
        world.watchdog.progress.value += 1

    try:
        carrier.run(talks, moved)
    except (CollbenchError, MemoryError):
        raise
    except Exception as error:
        raise RunFailed(f"a message between worker and server failed: {type(error).__name__}: {error}") from error


def _verified(done: Done, carrier: Messenger, pushed: dict[int, int], turn: Turn, world: World) -> list[Mismatch]:
    """What is wrong with a server's sum, how often it applied whose updates, and with the model as workers then pull it."""
    found: list[Mismatch] = []
    counts = list(pushed.values())
    with _watched(turn, world, "verifying"):
        if done.shard:
            right = total(done.shard.server, counts).astype(done.shard.model.dtype)
            found = lost_updates(done.shard, pushed, world.rank) + differences(done.shard.model, right, world.rank, "the server's sum")
            _hold({worker: done.shard.tell() for worker in pushed}, carrier, world)
        elif done.pupil:
            _hold(done.pupil.compare(counts, world.rank, found), carrier, world)
    return found


def _told(done: Done, wrong: Sequence[Mismatch]) -> dict[str, Any]:
    """For rank 0."""
    series = np.array(done.round_s)
    stale = {str(rank): {str(by): many for by, many in seen.items()} for rank, seen in done.shard.staleness.items()} if done.shard else {}
    return {
        "worker": done.pupil is not None, "rounds": len(done.round_s), "duration_s": done.duration_s, "stale": stale,
        "times": asdict(times_of(series)) if done.round_s else None, "doubts": list(doubts(series, len(series), None, 1)),
        "updates": done.shard.applied.total() if done.shard else 0, "wrong": [each.as_json() for each in wrong],
    }  # fmt: skip


def _row(turn: Turn, launch: Launch, everyone: Sequence[dict[str, Any]], checked: bool) -> StepRow:
    """Times are those of the slowest worker."""
    workers = {rank: said for rank, said in enumerate(everyone) if said["worker"] and said["times"]}
    slowest = max(workers.values(), key=lambda said: float(said["times"]["p50"]))
    mismatches = [Mismatch(**one) for said in everyone for one in said["wrong"]]
    busiest = _bytes_per_s(turn, everyone)
    unchecked = launch.request.check and not checked
    flags = (*turn.backend.flags, "asynchronous", *(["too_many_updates"] if unchecked else []), *slowest["doubts"])
    row = turn.row(
        n=slowest["rounds"], time_s=Times(**slowest["times"]), stopped="iterations" if launch.request.budget.iterations else "max_time",
        busbw_bytes_per_s=busiest, staleness=_staleness(everyone, workers), flags=flags,
        evidence={"libraries": dict(turn.backend.versions()), "conditions": launch.conditions, "loop": "python",
                  **wrong_evidence(mismatches)},
    )  # fmt: skip
    return replace(row, **check_fields(1 if checked else 0, mismatches))


def _ceiling(turn: Turn, ceilings: Ceilings, world: World) -> Ceiling:
    """What reaches a server one way where all its workers are on other hosts: of fewer hosts than there are servers what these send."""
    roles, backend = turn.roles, turn.backend
    assert roles is not None
    host = [member.host for member in members_of(backend, world)]
    serving, working = ({host[rank] for rank in ranks} for ranks in (roles.servers, roles.workers))
    if serving & working:
        return nothing(_NO_CEILING)
    cell = Cell("p2p_bandwidth", backend.name, roles.dtype, roles.largest * roles.dtype.size, in_place=False, window=1)
    found = ceilings.of(P2P_BANDWIDTH, cell, backend, ((roles.workers[0], roles.servers[0]),))[0]
    if found.kind == "given" or not found.bytes_per_s:
        return found
    return replace(found, bytes_per_s=found.bytes_per_s * min(1.0, len(working) / len(roles.servers)))


def _against(row: StepRow, ceiling: Ceiling, crowded: bool) -> StepRow:
    """The row with its ceiling; no percentage where ranks wait for cores, or where the bytes went another way."""
    rate, busbw = ceiling.bytes_per_s, row.busbw_bytes_per_s
    passed = bool(rate and busbw and busbw > rate * TOLERANCE)
    percent = 100 * busbw / rate if rate and busbw and not crowded and not passed else None
    on = (*(["oversubscribed"] if crowded else []), *(["above_bound"] if passed else []))
    return replace(row, ceiling=ceiling, percent_of_ceiling=percent, flags=(*row.flags, *on))


def _bytes_per_s(turn: Turn, everyone: Sequence[dict[str, Any]]) -> float | None:
    """What the busiest server takes in, which is also what it sends out, while the workers go on."""
    roles = turn.roles
    assert roles is not None
    longest = max(said["duration_s"] for said in everyone)
    taken = [everyone[rank]["updates"] * roles.elements(server) * roles.dtype.size for server, rank in enumerate(roles.servers)]
    return max(taken) / longest if longest else None


def _staleness(everyone: Sequence[dict[str, Any]], workers: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """By worker and of all: how many updates of others had come in between."""
    seen: dict[int, Counter[int]] = {rank: Counter() for rank in workers}
    for said in everyone:
        for rank, stale in said["stale"].items():
            seen.setdefault(int(rank), Counter()).update({int(by): many for by, many in stale.items()})
    each = [
        {"rank": rank, "steps": said["rounds"], "steps_per_s": said["rounds"] / said["duration_s"], **_quantiles(seen[rank])}
        for rank, said in workers.items()
    ]
    servers = [{"rank": rank, "updates": said["updates"]} for rank, said in enumerate(everyone) if not said["worker"]]
    whole: Counter[int] = sum(seen.values(), Counter())
    return {
        **_quantiles(whole), "workers": each, "servers": servers, "steps_per_s": sum(one["steps_per_s"] for one in each),
        "duration_s": max(said["duration_s"] for said in everyone),
    }  # fmt: skip


def _quantiles(stale: Counter[int]) -> dict[str, float | None]:
    """Of how many updates: nothing where no worker has pulled before it pushed."""
    if not stale:
        return {"p50": None, "p95": None, "max": None}
    values: NDArray[np.int64] = np.repeat(*np.array(sorted(stale.items()), dtype=np.int64).T)
    p50, p95 = np.quantile(values, [0.5, 0.95], method="inverted_cdf")
    return {"p50": float(p50), "p95": float(p95), "max": float(values[-1])}
