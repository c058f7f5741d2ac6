"""What is looked at before the first cell: whether the memory suffices, and what a user should know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from collbench.control.world import World
from collbench.measure.launch import Launch, Work, ranks_of
from collbench.measure.opening import Opened
from collbench.measure.tasks.turn import placed
from collbench.operations.cell import Cell
from collbench.operations.data import bytes_needed, bytes_on_host
from collbench.operations.groups import group_size
from collbench.operations.sweep import Sweep, Sweeps, rounding_note, tuning_note
from collbench.units import format_bytes, format_size

_CGROUP = Path("/sys/fs/cgroup")


def check_traffic(sweep: Sweep | Sweeps, world: World) -> None:
    """Raises UsageError on all ranks when they have not all read the same traffic, whose names hold the sums of the files."""
    if not any(operation.uneven for operation in sweep.operations):
        return
    read = world.agree([one.traffic.name for one in sweep.each if one.traffic], "reading the traffic")
    other = next((rank for rank, names in enumerate(read) if names != read[0]), None)
    if other is not None:
        theirs, ours = (", ".join(read[rank]) or "none" for rank in (other, 0))
        world.refuse(f"{world.members[other]} has read another traffic ({theirs}) than rank 0 ({ours}): give every node the same file")


def check_memory(work: list[Work], world: World) -> None:
    """Raises UsageError on all ranks when the largest cell does not fit some host or GPU, before anything is measured."""
    wrong = world.first(_too_large(work, world), "looking at the memory")
    if wrong:
        world.refuse(wrong)


def _too_large(work: list[Work], world: World) -> str | None:
    """A sentence about the cell that exceeds what is free here the most, or None when all fit."""
    virtual = max([one.backend.ranks for _, _, one in work if one.backend and one.backend.virtual], default=0)
    here, host = virtual or len(world.on_host()), free_memory()
    missing: list[tuple[int, Cell, str]] = []
    fitting: set[int] = set()
    for operation, asked, one in work:
        if one.backend is None:
            continue
        cell = placed(asked, operation, one.backend)
        ranks, device = ranks_of(one, world), one.backend.free_bytes(cell)
        n = group_size(operation, cell, ranks)
        need, free = bytes_needed(operation, cell, n), device
        if free is None:
            need, free = bytes_on_host(operation, cell, n, here, max(1, ranks // n)), host
        if need <= free:
            fitting.add(cell.size_bytes)
        else:
            whose = f"for its {here} ranks there" if device is None else "on each GPU"
            missing.append((need - free, cell, f"{format_bytes(need)} on {world.me.host} {whose}, and {format_bytes(free)} is free"))
    if not missing:
        return None
    _, cell, why = max(missing, key=lambda one: one[0])
    smallest = min(misfit.size_bytes for _, misfit, _ in missing)
    fits = max((size for size in fitting if size < smallest), default=0)  # for every operation and type that was requested
    remedy = f"the largest of these sizes that fits is {format_size(fits)}" if fits else "choose smaller sizes"
    return f"{cell.title()} needs {why}: {remedy}"


def free_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes that this host, and the container this process may be in, can still give."""
    import psutil

    free = int(psutil.virtual_memory().available)
    try:
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no container, or "max"
        return free
    return min(free, max(0, limit - used))


def notes(launch: Launch, opened: list[Opened]) -> Iterator[str]:
    """What a user should know before the first row."""
    request, world = launch.request, launch.world
    for one in opened:
        if one.reason:
            yield f"{one.name} is not measured: {one.reason}"
    if world.info.advice:
        yield world.info.advice
    crowded = world.oversubscribed
    if crowded and any(one.backend and not one.backend.virtual and "cpu" in one.backend.devices for one in opened):
        ranks, cores = len(world.on_host(crowded)), world.cores_on(crowded)
        yield (
            f"{ranks} ranks share {cores} {'core' if cores == 1 else 'cores'} on {crowded}: times are those of waiting for a core, "
            f"so no percentage is given; start at most {cores} there (or use Open MPI, which yields: MPICH spins, and 8 bytes take 10 ms)"
        )
    yield from filter(None, (rounding_note(request.sweep), tuning_note(request.sweep, [one.name for one in opened])))
    if any(operation.pair for operation in request.sweep.operations) and world.size % 2 and world.size > 1:
        yield f"point-to-point uses pairs: of {world.size} ranks the last one rests"
