"""Makes the time, interval and arrays of a row from single times, which nccl-tests' JSON, NCCL Inspector and all_reduce_bench print."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.results.importers.peer import Arrays
from collbench.results.importers.rows import Kind
from collbench.results.row import Row, Times
from collbench.stats.median import drift, median, modes, quantiles

_WORST = 16
_FEWEST = 6  # below, a median has no interval
_WHOLE_ARRAYS_UP_TO = 10**6


@dataclass(frozen=True)
class Samples:
    """Single times in seconds, per message and in the order of the measurement.

    slowest    of the slowest rank, one per iteration
    per_rank   of each rank, an array of ranks × iterations; None where the tool does not print them
    statistic  what the row's time is then
    """

    slowest: NDArray[np.float64]
    statistic: str
    per_rank: NDArray[np.float64] | None = None


def sampled(row: Row, samples: Samples, kind: Kind) -> tuple[Row, Arrays]:
    """The row with the median of its samples and the interval of it, and the arrays that the run folder keeps. `kind` made the row."""
    series = samples.slowest
    known, both, spread = median(series), modes(series), quantiles(series)
    equal = spread["min"] == spread["max"]
    low, high = (None, None) if equal else (known.ci_low, known.ci_high)
    again = kind.row(row.size_bytes, known.value, count=row.count)
    flags = [
        *(["no_interval"] if known.n < _FEWEST else []), *(["constant"] if equal and known.n > 1 else []),
        *(["two_modes"] if both else []), *(["drift"] if drift(series, known.half_width) is not None else []),
    ]  # fmt: skip
    whole = samples.per_rank
    figures = {
        "time_s": Times(known.value, low, high, **spread), "n": known.n, "n_eff": known.n_eff,
        "modes": [{"time_s": mode.value, "share": mode.share} for mode in both or ()],
        "time_rank_mean_s": None if whole is None else float(whole.mean()),
        "algbw_bytes_per_s": again.algbw_bytes_per_s, "busbw_bytes_per_s": again.busbw_bytes_per_s, "flags": (*row.flags, *flags),
        "slowest_ranks": {} if whole is None else _slowest_ranks(whole), "evidence": {**row.evidence, "statistic": samples.statistic},
    }  # fmt: skip
    return row.with_figures(**figures), _arrays(series, whole)


def _slowest_ranks(per_rank: NDArray[np.float64]) -> dict[str, Any]:
    counts = Counter(int(rank) for rank in per_rank.argmax(axis=0))
    return {"worst": [[rank, times] for rank, times in counts.most_common(_WORST)], "count": len(counts)}


def _arrays(series: NDArray[np.float64], per_rank: NDArray[np.float64] | None) -> Arrays:
    if per_rank is None:
        return {"max_s": series}
    quantile = np.quantile(per_rank, [0.5, 0.95], axis=1)
    found: dict[str, NDArray[Any]] = {
        "max_s": series, "mean_s": per_rank.mean(axis=0), "slowest_rank": per_rank.argmax(axis=0).astype(np.int32),
        "rank_p50_s": quantile[0], "rank_p95_s": quantile[1],
    }  # fmt: skip
    return found | ({"all_s": per_rank} if per_rank.size <= _WHOLE_ARRAYS_UP_TO else {})
