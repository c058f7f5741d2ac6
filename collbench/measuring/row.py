"""Convert samples to a row: the slowest rank per iteration, the median, and the bandwidth. Of several groups the slowest counts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.backends.backend import Backend
from collbench.machine.peak.ceiling import MOST_OF_MEASURED, TOLERANCE, Ceiling
from collbench.measuring.loop import WRAP_NS, exit_skew
from collbench.measuring.monitored import MonitoredMeasurement
from collbench.measuring.prepared_case import PreparedCase
from collbench.measuring.sampling import Measurement, sound
from collbench.operations.case import Case
from collbench.operations.groups import group_name, group_size, groups_of
from collbench.operations.operation import Operation
from collbench.reason import Fact, Text, as_json
from collbench.results.row import Row, SampleStarts, StartSkew, Times
from collbench.stats.median import Median, Mode, drift, median, middle, modes, quantile, quantiles

_WORST = 16
_MOST_GROUPS = 1024  # groups that are listed one by one at most
_WHOLE_ARRAYS_UP_TO = 10**6
_MOST_SKEW = 0.1  # of a sample: with more, the sample measures the synchronization's skew
Samples = NDArray[np.float64]


class SeriesStatistics(NamedTuple):
    """The statistics of a series of samples, computed once.

    modes  the two modes of a bimodal series
    drift  by how much the last third of a drifting series differs from the first, relative to the first
    """

    median: Median
    modes: tuple[Mode, Mode] | None
    drift: float | None

    @classmethod
    def of(cls, series: Samples) -> SeriesStatistics:
        """Return the statistics of a series."""
        series_median = median(series)
        return cls(series_median, modes(series), drift(series, series_median.half_width))


class RowContext(msgspec.Struct, frozen=True):
    """The parts of a row other than its figures: the ranks of each host, the ceilings, flags and evidence.

    withheld   whether the row gets no percentage
    began_s    when the run began, in seconds on CLOCK_MONOTONIC, if the row stores when its samples began; else None
    """

    hosts: Sequence[Sequence[int]]
    ceiling: Ceiling | None = None
    hard_bound: Ceiling | None = None
    withheld: bool = False
    flags: tuple[str, ...] = ()
    evidence: dict[str, Any] | None = None
    began_s: float | None = None


def row_without(operation: Operation, case: Case, api: str, size: tuple[int, int], reason: str | Fact) -> Row:
    """Return an n/a row for the case; size: (ranks, nodes); reason: why it was not measured."""
    ranks, nodes = size
    count = operation.count(case, group_size(operation, case, ranks))
    group = "all" if operation.pair and not operation.aggregate else group_name(operation, case, groups_of(operation, case, ranks))
    fact = Text(reason) if isinstance(reason, str) else reason
    return Row(**_identity(case, api, group), count=count, ranks=ranks, nodes=nodes, na=fact.render(), na_fact=as_json(fact))


def _identity(case: Case, api: str, group: str) -> dict[str, Any]:
    return {
        "operation": case.operation, "backend": case.backend, "api": api, "device": case.device,
        "dtype": case.dtype.name, "redop": case.redop, "root": case.root, "mode": case.mode, "in_place": bool(case.in_place),
        "buffers": case.buffers, "group": group, "window": case.window, "size_bytes": case.size_bytes, "flags": case.flags,
        "registration": case.registration, "algorithm": case.algorithm, "protocol": case.protocol,
        "traffic": case.traffic.name if case.traffic else None, "streams": case.streams,
        "call": case.call,
    }  # fmt: skip


def make_row(
    ready: PreparedCase, backend: Backend, watched: MonitoredMeasurement, around: RowContext
) -> tuple[Row, dict[str, NDArray[Any]]]:
    """Return (row, arrays for samples.bin). A sample is the maximum over the timed ranks of the slowest group, per message."""
    operation = ready.operation
    case = ready.case
    measured = watched.measured
    usable = sound(measured.samples, ready.timed)
    samples = measured.samples[ready.timed][:, usable] / operation.moves(case)
    place = {rank: index for index, rank in enumerate(ready.timed)}
    places = [[place[rank] for rank in (group[:1] if operation.pair else group)] for group in ready.groups]
    figures, arrays, statistics = _figures(operation, case, samples, places)
    ceiling = around.ceiling
    bound = around.hard_bound.bytes_per_s if around.hard_bound else None
    percent, withholding = against_limits(figures.get("busbw_bytes_per_s"), ceiling, bound, around.withheld)
    if ceiling and "reference_disturbed" in withholding:
        ceiling = replace(ceiling, disturbed=True)
    skew = _exit_skew(measured, around.hosts) if case.mode == "isolated" and ready.synchronised else None
    flags = dict.fromkeys((
        *case.flags, *around.flags, *withholding,
        *measured.flags, *watched.flags, *doubts(arrays.get("max_s", np.empty(0)), len(usable), skew, operation.moves(case), statistics),
    ))  # fmt: skip
    evidence: dict[str, Any] = {
        **(around.evidence or {}),
        "warmups": measured.warmups, "iterations_per_sample": measured.batch * ready.loop.iterations,
        "preempted": watched.preempted, "stolen": watched.stolen, "repeats": watched.repeats,
    }  # fmt: skip
    if skew is not None:
        ordered = np.sort(skew)
        evidence |= StartSkew(quantile(ordered, 0.5), quantile(ordered, 0.95), operation.moves(case)).entry()
    if not usable.all():
        evidence["unsound_samples"] = int(np.count_nonzero(~usable))
    if statistics is not None and statistics.drift is not None:
        evidence["drift"] = statistics.drift
    starts = _starts(measured, ready, around, usable) if "all_s" in arrays else None
    if starts is not None:
        arrays["start_s"] = starts
        evidence |= SampleStarts(ready.timed, operation.moves(case)).entry()
    row = Row(
        **{**_identity(case, backend.api, group_name(operation, case, ready.groups)), "flags": tuple(flags)},
        **figures, count=operation.count(case, len(ready.groups[0])), ranks=backend.ranks, nodes=len(around.hosts),
        target=measured.target, reached=measured.reached, stopped=measured.stopped,
        evidence=evidence, canary_s=watched.probe_s, slowest_ranks=_slowest_ranks(samples, ready.timed),
    )  # fmt: skip
    return row.compared_with(ceiling, around.hard_bound, percent), arrays


def _figures(
    operation: Operation, case: Case, samples: Samples, places: list[list[int]]
) -> tuple[dict[str, Any], dict[str, Any], SeriesStatistics | None]:
    """Return a row's times and bandwidths, its arrays, and its statistics; empty without a sample.

    They are those of the slowest group. Of pairs that are aggregated the time is until the last pair ended, and the rates are of all.
    """
    if samples.shape[1] == 0:
        return {}, {}, None
    series = [samples[part].max(axis=0) for part in places]
    p50s = [middle(np.sort(group_series)) for group_series in series]
    together = np.max(series, axis=0)
    slowest = together if operation.aggregate else series[int(np.argmax(p50s))]
    statistics = SeriesStatistics.of(slowest)
    time_s = statistics.median.value
    n = 2 if operation.pair else len(places[0])
    pairs = len(series) if operation.aggregate else 1
    algbw, busbw = (rate and rate * pairs for rate in _rates(operation, case, n, time_s))
    message_rate = None
    if operation.aggregate and time_s > 0:
        message_rate = pairs * (2 if operation.bidirectional else 1) / time_s
    figures = {
        "n": statistics.median.n, "n_eff": statistics.median.n_eff, "time_s": times_of(slowest, statistics.median),
        "time_rank_mean_s": float(samples.mean()),
        "modes": [{"time_s": mode.value, "share": mode.share} for mode in statistics.modes or ()],
        "algbw_bytes_per_s": algbw, "busbw_bytes_per_s": busbw,
        "groups": _group_figures((operation, case, n), p50s, middle(np.sort(together))) if len(p50s) > 1 else {},
        "message_rate": message_rate,
    }  # fmt: skip
    return figures, _arrays(samples, slowest), statistics


def _rates(operation: Operation, case: Case, n: int, time_s: float) -> tuple[float | None, float | None]:
    """Return (algbw, busbw) over n ranks; None if no data moves."""
    algbw = case.size_bytes / time_s if case.size_bytes and time_s > 0 else None
    factor = operation.bus_factor(n)
    return algbw, algbw * factor if algbw and factor else None


def _group_figures(moved: tuple[Operation, Case, int], p50s: list[float], all_s: float) -> dict[str, Any]:
    """Return the figures of several groups of n ranks that ran at the same time: of each group, and of all together.

    moved: (operation, case, n). Together they moved all their bytes until the last group ended, after `all_s`. Rates of
    groups that end at different times do not add up: the slower ones had the shared links to themselves at the end, and
    the sum can exceed the link rate.
    """
    busbws = [_rates(*moved, p50)[1] for p50 in p50s]
    mean_busbw = _rates(*moved, all_s)[1]
    is_listed = len(p50s) <= _MOST_GROUPS
    return {
        "count": len(p50s), "ranks": moved[2], "p50_s": p50s if is_listed else None,
        "busbw_bytes_per_s": busbws if is_listed and None not in busbws else None,
        "total_busbw_bytes_per_s": len(p50s) * mean_busbw if mean_busbw is not None else None,
    }  # fmt: skip


def doubts(series: Samples, n_samples: int, skew: Samples | None, moves: int, statistics: SeriesStatistics | None = None) -> Iterator[str]:
    """Yield the quality flags that follow from the samples.

    series: the valid samples, per message; n_samples: the number of all samples; skew: the start skew per sample in
    seconds.
    """
    if len(series) < n_samples:
        yield "clock_stepped"
    if len(series) < 2:
        return
    statistics = statistics or SeriesStatistics.of(series)
    if series.min() == series.max():
        yield "constant"
    if statistics.modes:
        yield "two_modes"
    if statistics.drift is not None:
        yield "drift"
    if skew is not None and middle(np.sort(skew)) > _MOST_SKEW * statistics.median.value * moves:
        yield "skew_limited"


def _exit_skew(measured: Measurement, hosts: Sequence[Sequence[int]]) -> Samples | None:
    """Return the start skew per sample in seconds, at the worst host; None if no host has two ranks."""
    starts = measured.starts_ns
    skews = [exit_skew(starts[list(ranks)]) for ranks in hosts if len(ranks) > 1 and len(starts) > max(ranks)]
    return np.max(skews, axis=0) if skews and np.isfinite(skews).all() else None


def _starts(measured: Measurement, ready: PreparedCase, around: RowContext, usable: NDArray[np.bool_]) -> Samples | None:
    """Return when the usable samples began at each timed rank, in seconds since the run began [timed ranks × n].

    NaN at ranks of other hosts than rank 0's, which have another clock. None if they are not stored, the backend has another clock,
    or the samples took as long as the stamps' period.
    """
    sample_phases = [phase for phase in measured.phases if phase.name == "samples"]
    now_s = time.monotonic()
    if around.began_s is None or not sample_phases or now_s - sample_phases[0].began_s > WRAP_NS * 1e-9 / 2:
        return None
    ranks_at_rank_0 = next((set(ranks) for ranks in around.hosts if 0 in ranks), set())
    stamps = measured.starts_ns[ready.timed][:, usable]
    starts: Samples = now_s - around.began_s - np.mod(now_s * 1e9 - stamps, WRAP_NS) * 1e-9
    starts[[rank not in ranks_at_rank_0 for rank in ready.timed]] = np.nan
    return starts if np.isfinite(starts).any() else None


def times_of(series: Samples, series_median: Median | None = None) -> Times:
    """Return the times of a row. Equal samples have no interval: the clock's resolution hides their differences."""
    series_median = series_median or median(series)
    spread = quantiles(series)
    if spread["min"] == spread["max"]:
        return Times(p50=series_median.value, ci_low=None, ci_high=None, **spread)
    return Times(p50=series_median.value, ci_low=series_median.ci_low, ci_high=series_median.ci_high, **spread)


def against_limits(
    rate: float | None, ceiling: Ceiling | None, bound: float | None, withheld: bool = False
) -> tuple[float | None, tuple[str, ...]]:
    """Return (the percentage of the expected bandwidth, None if it would mislead; the flags that withhold it).

    It would mislead with more ranks than cores or a path outside the network (`withheld`), with an unsteady reference or far above it, and
    above the hard limit `bound`: then the bytes took another path, or the link's rate was read wrongly.
    """
    expected = ceiling.bytes_per_s if ceiling else None
    disturbed = False
    if ceiling:
        is_far_above = ceiling.kind == "measured" and rate and expected and rate > MOST_OF_MEASURED * expected
        disturbed = bool(ceiling.disturbed or is_far_above)
    above = bool(rate and bound and rate > bound * TOLERANCE)
    percent = 100 * rate / expected if rate and expected and not (withheld or disturbed or above) else None
    withholding = {"reference_disturbed": disturbed, "above_bound": above}
    return percent, tuple(flag for flag, applies in withholding.items() if applies)


def _slowest_ranks(samples: Samples, timed: list[int]) -> dict[str, Any]:
    """Return how often each rank was the slowest: the 16 worst, and how many ranks ever were."""
    counts = Counter(int(timed[i]) for i in samples.argmax(axis=0)) if samples.size else Counter[int]()
    return {"worst": [[rank, times] for rank, times in counts.most_common(_WORST)], "count": len(counts)}


def _arrays(samples: Samples, slowest: Samples) -> dict[str, NDArray[Any]]:
    """Return per sample the maximum, mean and slowest rank; per rank the median and p95; and all samples if there are few."""
    by_rank = np.sort(samples, axis=1)
    arrays = {
        "max_s": slowest, "mean_s": samples.mean(axis=0), "slowest_rank": samples.argmax(axis=0).astype(np.int32),
        "rank_p50_s": np.array([quantile(ordered, 0.5) for ordered in by_rank]),
        "rank_p95_s": np.array([quantile(ordered, 0.95) for ordered in by_rank]),
    }  # fmt: skip
    return arrays | {"all_s": samples} if samples.size <= _WHOLE_ARRAYS_UP_TO else arrays
