"""Whether cases fit the memory of every host and GPU: checked before the first one."""

from __future__ import annotations

from collbench.control.world import World
from collbench.launch.limits import free_bytes
from collbench.measuring.open_backends import PlannedCase
from collbench.measuring.prepared_case import placed
from collbench.operations.case import Case
from collbench.operations.data import bytes_needed, bytes_on_host
from collbench.operations.groups import group_size
from collbench.units import format_bytes, format_size, plural


def fitting_sizes(work: list[PlannedCase], world: World) -> tuple[list[PlannedCase], str | None]:
    """Return the cases below the smallest size that does not fit everywhere, and a sentence if there is one. All ranks must call it."""
    misfits = _misfits(work, world.me.host, len(world.on_host()))
    smallest_here = min((case.size_bytes for _, case, _ in misfits), default=None)
    smallest = min((size for size in world.allgather(smallest_here, "looking at the memory") if size is not None), default=None)
    if smallest is None:
        return work, None
    kept = [item for item in work if item[1].size_bytes < smallest]
    if not kept:
        return work, None
    return kept, f"sizes from {format_size(smallest)} on are left out, because they do not fit the free memory: use --sizes for others"


def check_memory(work: list[PlannedCase], world: World) -> None:
    """Raise UsageError on all ranks if the largest case does not fit the memory of some host or GPU. Call it before measuring."""
    error = world.first_error(too_large(work, world.me.host, len(world.on_host())), "looking at the memory")
    if error:
        world.refuse(error)


def too_large(work: list[PlannedCase], host: str, ranks: int) -> str | None:
    """Return why the largest case does not fit this host, which has so many ranks, or its GPUs; None if all fit."""
    misfits = _misfits(work, host, ranks)
    if not misfits:
        return None
    _, case, why = max(misfits, key=lambda misfit: misfit[0])
    smallest = min(misfit.size_bytes for _, misfit, _ in misfits)
    # the largest size that fits with every requested operation and type
    fits = max((planned.size_bytes for _, planned, opened in work if opened.backend and planned.size_bytes < smallest), default=0)
    remedy = f"the largest of these sizes that fits is {format_size(fits)}" if fits else "use smaller sizes"
    return f"{case.title()} needs {why}: {remedy}"


def _misfits(work: list[PlannedCase], host: str, ranks: int) -> list[tuple[int, Case, str]]:
    """Return the cases that do not fit this host with so many ranks: (missing bytes, case, error text without the remedy)."""
    free_on_host = free_bytes()
    misfits: list[tuple[int, Case, str]] = []
    for operation, case_requested, opened in work:
        backend = opened.backend
        if backend is None:
            continue
        case = placed(case_requested, operation, backend)
        n = group_size(operation, case, backend.ranks)
        ranks_here = backend.ranks if backend.virtual else ranks
        free = backend.free_bytes(case)
        if free is None:
            free = free_on_host
            needed = bytes_on_host(operation, case, n, ranks_here, max(1, backend.ranks // n))
            subject = f"for its {plural(ranks_here, 'rank')}"
        else:
            needed = bytes_needed(operation, case, n)
            subject = "on each GPU"
        if needed > free:
            misfits.append((needed - free, case, f"{format_bytes(needed)} on {host} {subject}, but only {format_bytes(free)} is free"))
    return misfits
