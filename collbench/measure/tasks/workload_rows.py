"""From samples of a step, and of its parts alone, to a row: times, bytes, and how far from the ceilings that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.backends.backend import Backend
from collbench.machine.peak.ceiling import TOLERANCE, Ceiling, nothing
from collbench.measure.ceilings import Ceilings
from collbench.measure.protocol import Measured, slowest, sound
from collbench.measure.row import doubts
from collbench.measure.tasks.workload_plan import Part, Plan
from collbench.measure.tasks.workload_step import Prepared, PreparedStep, taking_part
from collbench.measure.watched import Watched
from collbench.results.row import Times
from collbench.results.steps import StepRow
from collbench.stats.median import median, quantiles
from collbench.workloads.step import Exchange, bytes_of, moved_bytes

Seconds = Mapping[int, float | None]
_NO_INTERVAL: dict[str, Any] = {"low_bytes_per_s": None, "high_bytes_per_s": None}  # of the reference's own rate, which is another unit
_OF_RANKS = ("given", "measured")  # rates of what a rank moves; those of links are busbw as nccl-tests counts it, uneven parts, too


@dataclass(frozen=True)
class Limit:
    """What a part is set against: its ceiling, and what nothing passes (None: not known)."""

    ceiling: Ceiling
    bound: Ceiling | None


def limits_of(step: PreparedStep, ceilings: Ceilings, backend: Backend) -> list[Limit]:
    """Of each part; at rank 0."""
    return [Limit(*ceilings.of(one.ready.operation, one.ready.cell, backend, one.part.groups)) for one in step.parts]


def path_s(plan: Plan, each: Seconds) -> float | None:
    """How long a step takes whose parts take so long each: one after the other where they share a rank. None where one is not known.

    An exchange begins when all its ranks have come, and ends at all of them at once; ranks that share nothing go on side by side.
    """
    if None in each.values():
        return None
    free = dict.fromkeys(plan.ranks, 0.0)
    for turn, alike in groupby(plan.order):
        seconds = (each[turn] or 0.0) * len(list(alike))
        for group in plan.parts[turn].groups:
            free.update(dict.fromkeys(group, max(free[rank] for rank in group) + seconds))
    return max(free.values())


def least_s(part: Part, ceiling: Ceiling | None) -> float | None:
    """How long one exchange takes at a ceiling; None where there is none. What moves nothing takes none."""
    of_rank = ceiling is not None and ceiling.kind in _OF_RANKS
    moved = _moved_once(part) if of_rank else part.cell.size_bytes * part.operation.bus_factor(part.width)
    if not moved:
        return 0.0
    return moved / ceiling.bytes_per_s if ceiling and ceiling.bytes_per_s else None


def rate_at(part: Part, ceiling: Ceiling | None) -> float | None:
    """What the busiest rank moves per second at a ceiling, in the terms of the busbw of parts; None where there is none."""
    seconds = least_s(part, ceiling)
    return _moved_once(part) / seconds if seconds else None


def times_of(series: NDArray[np.float64]) -> Times:
    """The median and how well it is known; equal samples have no interval: the clock's step hides how far apart they are."""
    known, spread = median(series), quantiles(series)
    low, high = (None, None) if spread["min"] == spread["max"] else (known.ci_low, known.ci_high)
    return Times(p50=known.value, ci_low=low, ci_high=high, **spread)


def with_figures(row: StepRow, step: PreparedStep, watched: Watched, looks: Sequence[Measured | None], around: Around) -> StepRow:
    """The row with everything that was measured; at rank 0. `looks`: at each part alone, None where there was none."""
    series = slowest(watched.measured.samples, step.ready.timed)
    taken = sound(watched.measured.samples, step.ready.timed)
    known = times_of(series) if len(series) else None
    alone = [_times_alone(one, look) for one, look in zip(step.parts, looks, strict=True)]
    ceiling, seconds, bound_s = _ceiling(step.plan, around.limits, row.moved_bytes)
    passed = bool(known and bound_s and known.p50 * TOLERANCE < bound_s)
    disturbed = any(limit.ceiling.disturbed for limit in around.limits)
    elsewhere = around.withheld or disturbed or watched.other_path is not None
    withheld = elsewhere or passed
    percent = 100 * seconds / known.p50 if known and seconds and known.p50 and not withheld else None
    doubtful = [*(["reference_disturbed"] if disturbed else []), *(["above_bound"] if passed else [])]
    seen = doubts(series, len(taken), None, 1)
    flags = dict.fromkeys((*around.flags, *doubtful, *watched.measured.flags, *watched.flags, *seen))
    return replace(
        row, n=len(series), time_s=known, stopped=watched.measured.stopped, ceiling=ceiling, ceiling_time_s=seconds,
        busbw_bytes_per_s=row.moved_bytes / known.p50 if known and known.p50 else None, percent_of_ceiling=percent,
        parts=[_part(*each, elsewhere) for each in zip(step.parts, alone, around.limits, strict=True)],
        parts_time_s=path_s(step.plan, {turn: times.p50 if times else None for turn, times in enumerate(alone)}),
        flags=tuple(flags), evidence={**around.evidence, **watched.evidence, "parts_alone": [_how(look) for look in looks]},
    )  # fmt: skip


@dataclass(frozen=True)
class Around:
    """What holds for the whole row: each part's ceilings, flags, evidence, and whether no percentage is given."""

    limits: Sequence[Limit]
    withheld: bool
    flags: tuple[str, ...]
    evidence: dict[str, Any]


def _ceiling(plan: Plan, limits: Sequence[Limit], moved: float) -> tuple[Ceiling, float | None, float | None]:
    """(the step's ceiling, how long it takes there, how long at the hard limits); None where some part has none."""
    seconds = {turn: least_s(part, limit.ceiling) for turn, (part, limit) in enumerate(zip(plan.parts, limits, strict=True))}
    bounds = {turn: least_s(part, limit.bound) for turn, (part, limit) in enumerate(zip(plan.parts, limits, strict=True))}
    whole = path_s(plan, seconds)
    unknown = next((limits[turn].ceiling for turn, each in seconds.items() if each is None), None)
    if unknown or not whole:
        return unknown or nothing("it moves nothing"), None, None
    longest = max(seconds, key=lambda turn: (seconds[turn] or 0.0) * plan.parts[turn].times)
    return replace(limits[longest].ceiling, bytes_per_s=moved / whole, **_NO_INTERVAL), whole, path_s(plan, bounds)


def _times_alone(one: Prepared, look: Measured | None) -> Times | None:
    series = slowest(look.samples, taking_part(one.part)) if look else np.empty(0)
    return times_of(series) if len(series) else None


def _how(look: Measured | None) -> dict[str, Any]:
    return {"n": look.samples.shape[1], "flags": look.flags} if look else {"n": 0, "flags": []}


def _part(one: Prepared, times: Times | None, limit: Limit, withheld: bool) -> dict[str, Any]:
    part, moved = one.part, _moved_once(one.part)
    busbw = moved / times.p50 if times and times.p50 and moved else None
    rate, bound = rate_at(part, limit.ceiling), rate_at(part, limit.bound)
    sound_percent = busbw and rate and not withheld and not (bound and busbw > bound * TOLERANCE)
    return {
        "what": part.what, "operation": part.operation.name, "groups": len(part.groups), "group_ranks": part.width,
        "size_bytes": part.cell.size_bytes, "times": part.times, "moved_bytes": moved * part.times,
        "time_s": asdict(times) if times else None, "busbw_bytes_per_s": busbw,
        "ceiling": replace(limit.ceiling, bytes_per_s=rate, **_NO_INTERVAL).as_json(),
        "percent_of_ceiling": 100 * busbw / rate if sound_percent and busbw and rate else None,
    }  # fmt: skip


def _moved_once(part: Part) -> float:
    """Bytes of the busiest rank in one exchange."""
    return max(bytes_of(replace(_whole(part), times=1), part.width))


def _whole(part: Part) -> Exchange:
    """The part as one exchange, of the size that was really moved."""
    return replace(part.exchange, size_bytes=part.cell.size_bytes, times=part.times)


def moved_by(plan: Plan, ranks: int) -> float:
    """Bytes of the rank that moves most in a step."""
    step = replace(plan.step, exchanges=tuple(_whole(part) for part in plan.parts))
    return max(moved_bytes(step, ranks))


def common_flags(plan: Plan, backend: Backend, crowded: bool, slowed: Callable[[Any], Any], fell_back: bool = False) -> tuple[str, ...]:
    """Words that hold for every figure of a step, the backend's among them."""
    true = {
        "size_rounded": any("size_rounded" in part.cell.flags for part in plan.parts),
        "slowed": any(slowed(part.cell) is not None for part in plan.parts),
        "oversubscribed": crowded,
        "python_loop": fell_back,
    }
    return (*backend.flags, *(word for word, on in true.items() if on))
