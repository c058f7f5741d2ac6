"""Prediction of a case at more nodes, from runs of the same case at several smaller node counts.

For each case (operation, backend, size, ranks per node …) typed models of the time over the number of ranks p and of nodes N are fitted by
weighted least squares on ln of the times, with factors above 0. A model has one or two terms:
    constant     does not grow
    log          ceil(log2 p): rounds of a tree or of recursive doubling
    linear       p - 1: rounds of a ring
    volume       the bus factor of the operation, 2(p - 1)/p for an all-reduce: the bytes through the link of a rank
    halving      all-reduce by halving and doubling: volume at powers of two, and 2 more where ranks beyond the last power are folded in
    beyond k     volume × (N - k)/(N - 1) from k nodes on: the part that leaves groups of k nodes, which an oversubscribed fabric slows
With "slowest of N", times are those of the slowest of N nodes with the spread that the samples show. The model is chosen by leave-one-out
errors alone, weighted by node count. The check predicts the largest measured count from the smaller ones, with the model that these
choose. A case is refused if its error there exceeds the maximum, with fewer than three node counts, and far beyond the largest one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import combinations
from math import ceil, exp, hypot, log, log2, sqrt
from pathlib import Path
from statistics import NormalDist, median
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.analysis.latency import reason
from collbench.analysis.launches import case_of, grouped, is_time, read_all, row_times, time_of
from collbench.errors import UsageError
from collbench.operations.registry import operations
from collbench.reason import Fact
from collbench.results.folder import CASES, RUN
from collbench.results.row import CaseKey, Row
from collbench.stats.median import t_quantile
from collbench.units import listed, plural
from collbench.untrusted import read_file

FEWEST_COUNTS = 3
FARTHEST = 4.0  # times the largest measured node count
MAX_ERROR = 0.15
_LARGEST = 64 << 20  # bytes of prediction.json: 10,000 cases take about 20 MB
_NOISE = 0.02  # of a time between launches (one standard deviation), where fewer than two launches show it
_SAME = 0.002  # leave-one-out errors (of ln) that differ by less are equal
_LONGEST_STEP = 2.0  # of ln of a factor in one step of the fit
_STEPS = 60
_EQUAL = 1.5  # models with leave-one-out errors up to this multiple of the smallest one widen the interval
_NORMAL = NormalDist()
_Values = NDArray[np.float64]


# The models.


class ScalingTerm(StrEnum):
    """How a part of the time grows with the number of ranks."""

    CONSTANT = "constant"
    LOG = "log"
    LINEAR = "linear"
    VOLUME = "volume"
    HALVING = "halving"
    BEYOND = "beyond"


class ScalingModel(msgspec.Struct, frozen=True):
    """A sum of terms with factors above 0; `group`: the k of the term "beyond"; `slowest`: whether it is the slowest of N nodes."""

    terms: tuple[ScalingTerm, ...]
    group: int | None = None
    slowest: bool = False

    @property
    def parts(self) -> int:
        """Return how complex it is: of models with equal errors the simplest one is chosen."""
        return len(self.terms) + self.slowest

    def render(self) -> str:
        """Return "log + volume", or "volume + beyond 4 nodes, slowest of N"."""
        names = [f"beyond {self.group} nodes" if term is ScalingTerm.BEYOND else term.value for term in self.terms]
        return " + ".join(names) + (", slowest of N" if self.slowest else "")


def _models(series: _Series) -> Iterator[ScalingModel]:
    """Yield the models that the node counts allow: one term from two counts on, two terms from three on."""
    base = [ScalingTerm.CONSTANT, ScalingTerm.LOG, ScalingTerm.LINEAR]
    if series.volume:
        base.append(ScalingTerm.VOLUME)
    if series.halves and series.uneven:
        base.append(ScalingTerm.HALVING)
    sums: list[tuple[ScalingTerm, ...]] = [(term,) for term in base]
    if len(series.points) > 2:
        sums += combinations(base, 2)
    for terms in sums:
        yield ScalingModel(terms)
        if series.spread > 0 and len(terms) == 1:
            yield ScalingModel(terms, slowest=True)
    if series.volume and len(series.points) > 3:
        for group in series.nodes[:-2]:
            yield ScalingModel((ScalingTerm.VOLUME, ScalingTerm.BEYOND), group)


# Measured points, and fits to them.


class MeasuredPoint(msgspec.Struct, frozen=True):
    """The measured time at a node count: the median of its launches' medians in seconds, and the range of their intervals if known.

    spread  the standard deviation of ln of one node's time, if the samples are those of the slowest of N independent nodes
    """

    nodes: int
    ranks: int
    time_s: float
    low_s: float | None
    high_s: float | None
    launches: int
    spread: float | None = None

    @property
    def sigma(self) -> float:
        """Return the standard deviation of ln of the time: from the interval, and not below what launches differ by."""
        if self.low_s is None or self.high_s is None or min(self.low_s, self.high_s) <= 0:
            return 5 * _NOISE
        return hypot(_NOISE, log(self.high_s / self.low_s) / 2 / 1.96)


class _Series(msgspec.Struct, frozen=True):
    """The points of one case, ascending in nodes, with what the terms need."""

    points: tuple[MeasuredPoint, ...]
    ranks_per_node: int
    volume: Mapping[int, float]  # by ranks
    spread: float
    size_bytes: int
    halves: bool  # whether a library may use halving and doubling: an all-reduce of some bytes

    def without(self, left_out: int) -> _Series:
        return replace(self, points=tuple(point for point in self.points if point.nodes != left_out))

    @property
    def nodes(self) -> list[int]:
        return [point.nodes for point in self.points]

    @property
    def uneven(self) -> list[int]:
        """The node counts with a number of ranks that is not a power of two: at others, halving and volume are the same."""
        return [point.nodes for point in self.points if point.ranks & (point.ranks - 1)]

    def term(self, term: ScalingTerm, model: ScalingModel, nodes: int) -> float:
        ranks = nodes * self.ranks_per_node
        if term is ScalingTerm.CONSTANT:
            value = 1.0
        elif term is ScalingTerm.LOG:
            value = float(ceil(log2(ranks)))
        elif term is ScalingTerm.LINEAR:
            value = ranks - 1.0
        elif term is ScalingTerm.VOLUME:
            value = self.volume[ranks]
        elif term is ScalingTerm.HALVING:
            power = 2 ** (ranks.bit_length() - 1)
            value = 2 * (power - 1) / power + 2 * (ranks != power)
        else:
            value = self.volume[ranks] * max(0, nodes - (model.group or 0)) / (nodes - 1)
        if model.slowest:  # the median of the slowest of so many lognormal times with a median of 1
            value *= exp(self.spread * _NORMAL.inv_cdf(0.5 ** (1 / nodes)))
        return value


class _Fit(msgspec.Struct, frozen=True):
    series: _Series
    model: ScalingModel
    logs: _Values  # ln of the factors
    covariance: _Values

    def parts(self, nodes: int) -> list[float]:
        """Return the seconds of each term."""
        return [exp(ln) * self.series.term(term, self.model, nodes) for ln, term in zip(self.logs, self.model.terms, strict=True)]

    def time_s(self, nodes: int) -> float:
        return sum(self.parts(nodes))

    def error(self, nodes: int) -> float:
        """Return the standard error of ln of the time from the fit of the factors."""
        parts = np.array(self.parts(nodes))
        share = parts / parts.sum()
        return sqrt(max(0.0, float(share @ self.covariance @ share)))


def _fit(series: _Series, model: ScalingModel) -> _Fit | None:
    """Return the fit; None if a factor would be 0: a model with fewer terms has it."""
    basis = np.array([[series.term(term, model, nodes) for term in model.terms] for nodes in series.nodes])
    times = np.array([point.time_s for point in series.points])
    weights = 1 / np.array([point.sigma for point in series.points])

    def linearized(logs: _Values) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the derivative of ln of the times by ln of the factors, and the residuals, both over sigma."""
        parts = basis * np.exp(logs)
        total = parts.sum(axis=1)
        return parts / total[:, None] * weights[:, None], np.log(times / total) * weights

    if len(times) < len(model.terms) or (basis.max(axis=0) <= 0).any():
        return None
    first, *_ = np.linalg.lstsq(basis / times[:, None] * weights[:, None], weights, rcond=None)
    if not np.isfinite(first).all() or (first <= 0).any():
        return None
    logs = np.log(first)
    for _ in range(_STEPS):
        step, *_ = np.linalg.lstsq(*linearized(logs), rcond=None)
        logs = logs + np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
        if not np.isfinite(logs).all() or np.abs(logs - np.log(first)).max() > 20:
            return None
        if np.abs(step).max() < 1e-9:
            break
    jacobian, residuals = linearized(logs)
    spare = len(times) - len(model.terms)
    misfit = float((residuals**2).sum()) / spare if spare else 1.0
    return _Fit(series, model, logs, np.linalg.pinv(jacobian.T @ jacobian) * max(1.0, misfit))


class LeftOut(msgspec.Struct, frozen=True):
    """The prediction of a measured node count from the others: error 0.031 means 3.1 % too long."""

    nodes: int
    error: float


class _Choice(msgspec.Struct, frozen=True):
    fit: _Fit
    left_out: tuple[LeftOut, ...]
    score: float  # root of the mean square of ln of the errors, weighted by node count


def _choices(series: _Series) -> list[_Choice]:
    """Return the models with leave-one-out errors, the smallest first; before it a simpler one with an equal error."""
    choices = []
    for model in _models(series):
        fit = _fit(series, model)
        ratios = _leave_one_out(series, model) if fit else None
        if fit and ratios:
            score = sqrt(sum(nodes * log(ratio) ** 2 for nodes, ratio in ratios.items()) / sum(ratios))
            choices.append(_Choice(fit, tuple(LeftOut(nodes, ratio - 1) for nodes, ratio in ratios.items()), score))
    choices.sort(key=lambda choice: choice.score)
    if choices:
        equal = [choice for choice in choices if choice.score <= choices[0].score + _SAME]
        simplest = min(equal, key=lambda choice: choice.fit.model.parts)
        choices.sort(key=lambda choice: choice is not simplest)
    return choices


def _leave_one_out(series: _Series, model: ScalingModel) -> dict[int, float] | None:
    """Return predicted over measured time by node count, each predicted from the other counts; None if one of the fits has no result."""
    ratios = {}
    for point in series.points:
        fit = _fit(series.without(point.nodes), model)
        if fit is None:
            return None
        ratios[point.nodes] = fit.time_s(point.nodes) / point.time_s
    return ratios


# Predictions.


class Refusal(Fact, frozen=True):
    """Why a prediction is refused."""


class FewNodeCounts(Refusal, frozen=True):
    """Too few node counts were measured for a model with an error."""

    nodes: tuple[int, ...]
    needed: int

    def render(self) -> str:
        """Return the sentence."""
        counts = f"{listed([str(count) for count in self.nodes])} nodes" if self.nodes else "no node count"
        return f"measured at {counts}, but a prediction needs {self.needed} node counts of 2 or more: measure at others, too"


class LargePredictionError(Refusal, frozen=True):
    """The models do not describe how the time grows: they miss the largest measured node count."""

    nodes: int
    smaller: tuple[int, ...]
    error: float
    most: float

    def render(self) -> str:
        """Return the sentence."""
        maximum = f"the maximum is ±{100 * self.most:g} % (--max-error): measure at more node counts"
        return f"{_difference(self.nodes, self.smaller, self.error)}; {maximum}"


class TooManyNodes(Refusal, frozen=True):
    """The node count is too far beyond the largest measured one."""

    text = "{nodes} nodes are more than {most:g} times the largest measured count, {largest}: measure at more nodes"
    nodes: int
    largest: int
    most: float


class NoModelFits(Refusal, frozen=True):
    """No model has a leave-one-out error: its factors would be negative."""

    text = "no model describes the times at {nodes:list} nodes: measure at more node counts"
    nodes: tuple[int, ...]


def format_error(error: float) -> str:
    """Return "+3.1 %"."""
    return f"{100 * error:+.1f} %" if abs(error) < 0.995 else f"{100 * error:+.0f} %"


def _difference(nodes: int, smaller: Sequence[int], error: float) -> str:
    counts = listed([str(count) for count in smaller])
    return f"the prediction for {plural(nodes, 'node')} from {counts} differs from the measured time by {format_error(error)}"


_REFUSALS = FewNodeCounts | LargePredictionError | TooManyNodes | NoModelFits
_NOT_OF_A_CASE = ("ranks", "nodes", "size_bytes")


class PredictedTime(msgspec.Struct, frozen=True):
    """The time of a case at a node count.

    time_s, low_s, high_s  the prediction in seconds, and its interval, which includes the error of the model
    busbw_bytes_per_s      of time_s; None if the operation has no bus bandwidth
    limit, share           the term with the largest part of the time there, and its part from 0 to 1
    refusal                why there is none; the figures are then None
    """

    nodes: int
    ranks: int
    time_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    busbw_bytes_per_s: float | None = None
    limit: ScalingTerm | None = None
    share: float | None = None
    refusal: _REFUSALS | None = None


class PredictedCase(msgspec.Struct, frozen=True):
    """A case with its measured times, its model and its predictions.

    case         what identifies it, without ranks and nodes
    points       the measured times, ascending in nodes
    model        the chosen one; None without enough points
    left_out     its leave-one-out error at each node count
    check        the error at the largest count, predicted from the smaller ones with the model that these choose; None: no such model
    check_model  that model
    """

    case: dict[str, str | int | bool | None]
    size_bytes: int
    ranks_per_node: int
    points: tuple[MeasuredPoint, ...]
    predictions: tuple[PredictedTime, ...]
    model: ScalingModel | None = None
    left_out: tuple[LeftOut, ...] = ()
    check: LeftOut | None = None
    check_model: ScalingModel | None = None

    def key(self, nodes: int) -> CaseKey:
        """Return the identity of the case at a node count."""
        return CaseKey(**self.case, ranks=nodes * self.ranks_per_node, nodes=nodes, size_bytes=self.size_bytes)  # type: ignore[arg-type]


class Prediction(msgspec.Struct, frozen=True):
    """What runs at several node counts predict: prediction.json.

    unused  by reason (a flag, "n/a", "one node", "nodes unknown"): how many rows were not used
    """

    schema: int
    max_error: float
    nodes: tuple[int, ...]
    cases: tuple[PredictedCase, ...]
    unused: dict[str, int] = {}

    @property
    def predicted(self) -> int:
        """Return the number of predictions that were not refused."""
        return sum(time.time_s is not None for case in self.cases for time in case.predictions)


def predict(rows: Iterable[Row], nodes: Sequence[int], max_error: float = MAX_ERROR) -> Prediction:
    """Return the predictions of all cases in `rows` at these node counts.

    Several rows of one case count as launches. Rows that `analysis.latency.reason` rejects, of one node, of an unknown number of nodes, or
    with uneven ranks per node are left out and counted.
    """
    used: list[Row] = []
    unused: dict[str, int] = {}
    for row in rows:
        why = _unusable(row)
        if why is None:
            used.append(row)
        else:
            unused[why] = unused.get(why, 0) + 1
    cases = []
    for (_, per_node, size), members in grouped(used, _identity).items():
        cases.append(_predicted(members, per_node, size, nodes, max_error))
    cases.sort(key=lambda case: (str(case.case["operation"]), str(case.case["backend"]), case.ranks_per_node, case.size_bytes))
    return Prediction(1, max_error, tuple(nodes), tuple(cases), unused)


def _unusable(row: Row) -> str | None:
    if time_of(row) is None:
        return "n/a"
    if row.nodes is None:
        return "nodes unknown"
    if row.nodes < 2:
        return "one node"
    if row.ranks % row.nodes:
        return "uneven ranks"
    if row.size_bytes:
        return reason(row)
    return "wrong_data" if row.wrong else None


def _identity(row: Row) -> tuple[tuple[str | int | bool | None, ...], int, int]:
    """Return what the rows of one case at several node counts have in common: the case, ranks per node, and the size."""
    case = case_of(row)._asdict()
    return tuple(case[name] for name in case if name not in _NOT_OF_A_CASE), row.ranks // (row.nodes or 1), asked_size(row)


def rows_below(paths: Iterable[Path]) -> list[Row]:
    """Return the rows of runs, of launches and of all runs below folders. Raises UsageError without a run, and for one named twice."""
    folders = [folder for path in paths for folder in _run_folders(path)]
    return [row for run in read_all(folders) for row in run.rows]


def _run_folders(path: Path) -> list[Path]:
    run_folders = []
    for folder, subfolders, names in os.walk(path):
        if RUN in names or CASES in names:
            run_folders.append(Path(folder))
            subfolders.clear()
        subfolders.sort()
    return run_folders or [path]


def asked_size(row: Row) -> int:
    """Return the size that was asked for: one that is rounded to a multiple of the ranks is up to one element per rank off."""
    if "size_rounded" not in row.flags:
        return row.size_bytes
    power = 2 ** round(log2(row.size_bytes))
    return power if abs(row.size_bytes - power) <= 8 * row.ranks else row.size_bytes


def _predicted(rows: Sequence[Row], per_node: int, size: int, nodes: Sequence[int], max_error: float) -> PredictedCase:
    points = tuple(_point(members) for _, members in sorted(grouped(rows, lambda row: row.nodes or 0).items()))
    identity = {name: value for name, value in case_of(rows[0])._asdict().items() if name not in _NOT_OF_A_CASE}
    unpredicted = PredictedCase(identity, size, per_node, points, ())
    operation = operations().get(rows[0].operation)
    volume = {}
    if operation and size and not operation.pair:
        counts = {*nodes, *(point.nodes for point in points)}
        volume = {count * per_node: operation.bus_factor(count * per_node) for count in counts}
        if min(volume.values()) <= 0:
            volume = {}
    spreads = [point.spread for point in points if point.spread is not None]
    series = _Series(points, per_node, volume, median(spreads) if spreads else 0.0, size, bool(volume) and rows[0].operation == "allreduce")
    if len(points) < FEWEST_COUNTS:
        return _refused(unpredicted, nodes, FewNodeCounts(tuple(series.nodes), FEWEST_COUNTS))
    largest = points[-1]
    smaller = series.without(largest.nodes)
    choices = _choices(series)
    checks = _choices(smaller)
    if not choices or not checks:
        return _refused(unpredicted, nodes, NoModelFits(tuple(series.nodes)))
    best = choices[0]
    check_fit = checks[0].fit
    check = LeftOut(largest.nodes, check_fit.time_s(largest.nodes) / largest.time_s - 1)
    checked = replace(unpredicted, model=best.fit.model, left_out=best.left_out, check=check, check_model=check_fit.model)
    if abs(check.error) > max_error:
        return _refused(checked, nodes, LargePredictionError(largest.nodes, tuple(smaller.nodes), check.error, max_error))
    return replace(checked, predictions=tuple(_prediction(series, choices, check, count) for count in nodes))


def _refused(case: PredictedCase, nodes: Sequence[int], refusal: _REFUSALS) -> PredictedCase:
    predictions = tuple(PredictedTime(count, count * case.ranks_per_node, refusal=refusal) for count in nodes)
    return replace(case, predictions=predictions)


def _prediction(series: _Series, choices: Sequence[_Choice], check: LeftOut, nodes: int) -> PredictedTime:
    """Return the prediction with its interval: error of the fit, noise of a launch, error of the model, and models that fit as well."""
    best = choices[0]
    ranks = nodes * series.ranks_per_node
    largest = series.points[-1].nodes
    if nodes > FARTHEST * largest:
        return PredictedTime(nodes, ranks, refusal=TooManyNodes(nodes, largest, FARTHEST))
    time_s = best.fit.time_s(nodes)
    # The check bridged the step from the count before to the largest one; a longer step (in ln of nodes) has a larger error.
    step = log(largest / series.points[-2].nodes)
    farther = max(1.0, log(nodes / largest) / step) if nodes > largest else 1.0
    model_error = max(best.score, abs(log(1 + check.error))) * farther
    spare = max(1, len(series.points) - len(best.fit.model.terms))
    reach = t_quantile(0.975, spare) * hypot(best.fit.error(nodes), median(point.sigma for point in series.points))
    half = hypot(min(reach, 1.0), 1.96 * model_error)
    others = [choice.fit.time_s(nodes) for choice in choices if choice.score <= max(_EQUAL * best.score, _NOISE)]
    part_s, term = max(zip(best.fit.parts(nodes), best.fit.model.terms, strict=True))
    busbw = series.volume[ranks] * series.size_bytes / time_s if series.volume else None
    return PredictedTime(
        nodes, ranks, time_s, min(time_s * exp(-half), *others), max(time_s * exp(half), *others), busbw, term, part_s / time_s
    )


def _point(rows: Sequence[Row]) -> MeasuredPoint:
    """Return the point of one node count: the median over launches, with the range of their medians and of the intervals within them.

    Over two or three launches, Student's t is too wide for the weight of a point, and does not include the error of the model.
    """
    low_s, high_s = measured_interval(rows)
    spreads = [spread for spread in map(_spread, rows) if spread is not None]
    launches = sum(row.launches for row in rows)
    spread = median(spreads) if spreads else None
    return MeasuredPoint(rows[0].nodes or 0, rows[0].ranks, median(row_times(rows)), low_s, high_s, launches, spread)


def measured_interval(rows: Sequence[Row]) -> tuple[float, float] | tuple[None, None]:
    """Return the range in seconds of the launches' medians and confidence intervals; None twice if a launch has no interval."""
    times = row_times(rows)
    ends = [end for row in rows if row.time_s for end in (row.time_s.ci_low, row.time_s.ci_high) if end is not None and is_time(end)]
    if len(ends) != 2 * len(times):
        return None, None
    return min(*times, *ends), max(*times, *ends)


def _spread(row: Row) -> float | None:
    """Return the standard deviation of ln of the time of one of N independent nodes, if each sample is that of the slowest of them."""
    times = row.time_s
    if times is None or row.nodes is None or not is_time(times.p95) or times.p95 is None or times.p95 < times.p50:
        return None
    apart = _NORMAL.inv_cdf(0.95 ** (1 / row.nodes)) - _NORMAL.inv_cdf(0.5 ** (1 / row.nodes))
    return min(1.0, log(times.p95 / times.p50) / apart)


def check_sentence(case: PredictedCase) -> str | None:
    """Return "the prediction for 16 nodes from 2, 4 and 8 differs from the measured time by +3.1 %"; None without a check."""
    if case.check is None:
        return None
    return _difference(case.check.nodes, [point.nodes for point in case.points[:-1]], case.check.error)


def read_prediction(path: Path) -> Prediction:
    """Return the prediction in a file that `collbench predict --out` wrote. Raises UsageError if it cannot be read, or is another file."""
    try:
        prediction = msgspec.json.decode(read_file(path, _LARGEST), type=Prediction)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} is not a valid prediction ({error}): name what `collbench predict --out` wrote") from error
    if prediction.schema > 1:
        raise UsageError(f"{path} has schema {prediction.schema}, but this collbench supports 1: update collbench")
    return prediction
