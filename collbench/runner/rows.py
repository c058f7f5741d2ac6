"""From samples to a row: the slowest rank per iteration, its median, and what it means as bandwidth."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.backends.backend import Backend
from collbench.operations.cell import Cell
from collbench.operations.check import Mismatch
from collbench.operations.operation import Operation
from collbench.peak.ceiling import Ceiling
from collbench.results.record import Row, Times
from collbench.runner.one_cell import Ready
from collbench.stats.median import Median, median, quantiles
from collbench.timing.protocol import Measured

_WORST = 16
_WHOLE_ARRAYS_UP_TO = 10**6
_TOLERANCE = 1.02  # a token bucket's burst and a clock's error; anything above a bound by more is doubtful
Samples = NDArray[np.float64]


@dataclass(frozen=True)
class Circumstances:
    """What a row says beside its figures: how many hosts, the ceilings, flags and evidence."""

    nodes: int
    ceiling: Ceiling | None = None
    hard_bound: Ceiling | None = None
    withheld: bool = False
    flags: tuple[str, ...] = ()
    evidence: dict[str, Any] | None = None


def row_without(operation: Operation, cell: Cell, api: str, size: tuple[int, int], reason: str) -> Row:
    """An n/a row: the cell, (ranks, nodes), and why it was not measured."""
    ranks, nodes = size
    count = operation.count(cell, 2 if operation.pair else ranks)
    return Row(**_identity(cell, api, "all"), count=count, ranks=ranks, nodes=nodes, na=reason)


def _identity(cell: Cell, api: str, group: str) -> dict[str, Any]:
    return {
        "operation": cell.operation, "backend": cell.backend, "api": api, "device": cell.device,
        "dtype": cell.dtype.name, "redop": cell.redop, "root": cell.root, "mode": cell.mode, "in_place": bool(cell.in_place),
        "buffers": cell.buffers, "group": group, "window": cell.window, "size_bytes": cell.size_bytes, "flags": cell.flags,
    }  # fmt: skip


def make_row(ready: Ready, backend: Backend, measured: Measured, around: Circumstances) -> tuple[Row, dict[str, NDArray[Any]]]:
    """(row, arrays for samples.bin). A sample is the maximum over the timed ranks, per message."""
    operation, cell = ready.operation, ready.cell
    samples = measured.samples[ready.timed] / operation.moves(cell)
    slowest = samples.max(axis=0)
    known = median(slowest)
    algbw = cell.size_bytes / known.value if known.value > 0 else None
    n = len(ready.groups[0])
    factor = operation.bus_factor(n)
    busbw = algbw * factor if algbw and factor else None
    fixed = _identity(cell, backend.api, _group_name(ready))
    doubtful = ("above_bound",) if _above_bound(busbw, around) else ()
    fixed["flags"] = tuple(dict.fromkeys((*cell.flags, *around.flags, *doubtful, *measured.flags)))
    row = Row(
        **fixed, count=operation.count(cell, n), ranks=backend.ranks, nodes=around.nodes,
        target=measured.target, reached=measured.reached, n=known.n, n_eff=known.n_eff,
        time_s=_times(known, slowest), time_rank_mean_s=float(samples.mean()), algbw_bytes_per_s=algbw, busbw_bytes_per_s=busbw,
        ceiling=around.ceiling, hard_bound=around.hard_bound, percent_of_ceiling=_percent(busbw, around),
        evidence={**(around.evidence or {}), "warmups": measured.warmups, "iterations_per_sample": measured.batch},
        slowest_ranks=_slowest_ranks(samples, ready.timed),
    )  # fmt: skip
    return row, _arrays(samples, slowest)


def check_fields(calls: int, mismatches: list[Mismatch]) -> dict[str, Any]:
    """The fields of a row that verification fills in."""
    detail = "; ".join(mismatch.sentence() for mismatch in mismatches[:4]) or None
    return {"checked": calls, "wrong": sum(mismatch.wrong for mismatch in mismatches) if calls else None, "wrong_detail": detail}


def _group_name(ready: Ready) -> str:
    """All ranks, or the pairs: "0-2,1-3"; the first and last of many."""
    if not ready.operation.pair:
        return "all"
    names = [f"{a}-{b}" for a, b in ready.groups]
    return ",".join(names) if len(names) <= 8 else f"{names[0]}…{names[-1]}"


def _times(known: Median, slowest: Samples) -> Times:
    return Times(p50=known.value, ci_low=known.ci_low, ci_high=known.ci_high, **quantiles(slowest))


def _percent(busbw: float | None, around: Circumstances) -> float | None:
    """Percent of the ceiling; None where it would mislead: too many ranks, no ceiling, or more than any algorithm can do."""
    rate = around.ceiling.bytes_per_s if around.ceiling else None
    if around.withheld or not busbw or not rate or _above_bound(busbw, around):
        return None
    return 100 * busbw / rate


def _above_bound(busbw: float | None, around: Circumstances) -> bool:
    """Faster than the hard bound: the bytes took another path, or the link's rate is not what was read."""
    bound = around.hard_bound.bytes_per_s if around.hard_bound else None
    return bool(busbw and bound and busbw > bound * _TOLERANCE)


def _slowest_ranks(samples: Samples, timed: list[int]) -> dict[str, Any]:
    """How often each rank was the slowest: the 16 worst, and how many ranks ever were."""
    counts = Counter(int(timed[i]) for i in samples.argmax(axis=0))
    return {"worst": [[rank, times] for rank, times in counts.most_common(_WORST)], "count": len(counts)}


def _arrays(samples: Samples, slowest: Samples) -> dict[str, NDArray[Any]]:
    """Per sample max, mean and slowest rank; per rank median and p95; the whole while it is small."""
    per_rank = np.quantile(samples, [0.5, 0.95], axis=1)
    arrays = {
        "max_s": slowest, "mean_s": samples.mean(axis=0), "slowest_rank": samples.argmax(axis=0).astype(np.int32),
        "rank_p50_s": per_rank[0], "rank_p95_s": per_rank[1],
    }  # fmt: skip
    return arrays | {"all_s": samples} if samples.size <= _WHOLE_ARRAYS_UP_TO else arrays
