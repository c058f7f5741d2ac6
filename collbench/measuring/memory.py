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
    own = min((case.size_bytes for _, case, _ in _misfits(work, world.me.host, len(world.on_host()))), default=None)
    sizes = [size for size in world.allgather(own, "looking at the memory") if size is not None]
    kept = [item for item in work if item[1].size_bytes < min(sizes)] if sizes else work
    if not sizes or not kept:
        return work, None
    return kept, f"sizes from {format_size(min(sizes))} on are left out, because they do not fit the free memory: use --sizes for others"


def check_memory(work: list[PlannedCase], world: World) -> None:
    """Raise UsageError on all ranks if the largest case does not fit the memory of some host or GPU. Call it before measuring."""
    own = too_large(work, world.me.host, len(world.on_host()))
    if wrong := world.first_error(own, "looking at the memory"):
        world.refuse(wrong)


def too_large(work: list[PlannedCase], host: str, ranks: int) -> str | None:
    """Return why the largest case does not fit this host, which has so many ranks, or its GPUs; None if all fit."""
    missing = _misfits(work, host, ranks)
    if not missing:
        return None
    _, case, why = max(missing, key=lambda one: one[0])
    smallest = min(misfit.size_bytes for _, misfit, _ in missing)
    # the largest size that fits with every requested operation and type
    fits = max((each.size_bytes for _, each, one in work if one.backend and each.size_bytes < smallest), default=0)
    remedy = f"the largest of these sizes that fits is {format_size(fits)}" if fits else "use smaller sizes"
    return f"{case.title()} needs {why}: {remedy}"


def _misfits(work: list[PlannedCase], host: str, ranks: int) -> list[tuple[int, Case, str]]:
    """Return the cases that do not fit this host with so many ranks: (missing bytes, case, error text without the remedy)."""
    virtual = max([one.backend.ranks for _, _, one in work if one.backend and one.backend.virtual], default=0)
    here = virtual or ranks
    free_on_host = free_bytes()
    missing: list[tuple[int, Case, str]] = []
    for operation, case_requested, one in work:
        if one.backend is None:
            continue
        case = placed(case_requested, operation, one.backend)
        device = one.backend.free_bytes(case)
        n = group_size(operation, case, one.backend.ranks)
        need, free = bytes_needed(operation, case, n), device
        if free is None:
            need, free = bytes_on_host(operation, case, n, here, max(1, one.backend.ranks // n)), free_on_host
        if need > free:
            subject = f"for its {plural(here, 'rank')}" if device is None else "on each GPU"
            missing.append((need - free, case, f"{format_bytes(need)} on {host} {subject}, but only {format_bytes(free)} is free"))
    return missing
