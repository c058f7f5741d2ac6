"""The overlap of communication and computation: evaluation of interleaved blocks of states, and its form in rows.

Overlap is OSU's: 100 · (1 − (both − computation) / communication), here without a limit to 0–100. Exposed time is both − computation:
what the communication costs a rank that computes meanwhile. A block has one sample of each state. Neighboring blocks are grouped, each
group gives one value from the medians of its states, and the interval is over groups, so that slow changes of the machine cancel.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, sqrt
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.columns import column
from collbench.reason import Fact
from collbench.stats.median import t_quantile
from collbench.units import plural

MODE = "overlap"  # of the test cases and rows
FEWEST_BLOCKS = 4
_MOST_GROUPS = 20
_RANKED = 6  # values from which a pair of order statistics covers the median with 95 %
_WIDE = 40.0  # percentage points of overlap between the ends of its interval
_MISSED = 1.5  # times that the computation may be longer or shorter than the communication
_HIDDEN = 75.0
_EXPOSED = 25.0
_UNSTEADY = 0.9  # a slowdown of the computation with its whole interval below has no cause in the communication
_PAID = 5.0  # percent of the communication time: what is less is paid by nothing
Samples = NDArray[np.float64]
Outcome = Literal["hidden", "partial", "exposed", "inconclusive"]
Progress = Literal["threads", "calls", "kernels"]
Payer = Literal["none", "computation", "waiting"]


class TooFewBlocks(Fact, frozen=True):
    """Too few blocks of all states were measured to determine an overlap."""

    blocks: int

    def render(self) -> str:
        """Return the reason, and what to do."""
        return f"{plural(self.blocks, 'block')} of samples, but at least {FEWEST_BLOCKS} are needed: use a longer --max-time"


class CoresSharedWithProgress(Fact, frozen=True):
    """A host has fewer cores than ranks and progress threads, so that computation and communication share cores."""

    host: str
    ranks: int
    threads: int
    cores: int

    def render(self) -> str:
        """Return the reason, and what to do."""
        threads = f" and {plural(self.threads, 'progress thread')}" if self.threads else ""
        return f"{plural(self.ranks, 'rank')}{threads} share {plural(self.cores, 'core')} on {self.host}: start fewer ranks per host"


class ComputationMissed(Fact, frozen=True):
    """The computation does not last as long as the communication, so it cannot show how much of it can be hidden."""

    text = (
        "the computation lasted {computation_s:micros} µs, the communication {communication_s:micros} µs: the machine changed during the "
        "case, so measure again"
    )
    communication_s: float
    computation_s: float


class StepTimeMissed(Fact, frozen=True):
    """The computation of a training step does not last as long as requested."""

    text = (
        "the computation lasted {computation_s:micros} µs instead of {step_time_s:micros} µs: the machine changed during the case, so "
        "measure again"
    )
    step_time_s: float
    computation_s: float


class ComputationUnsteady(Fact, frozen=True):
    """The computation was faster during the communication than alone, so the machine was disturbed."""

    slowdown: float

    def render(self) -> str:
        """Return by how much, and what to do."""
        percent = f"{100 * (1 - self.slowdown):.0f} %"
        return f"the computation was {percent} faster during the communication than alone: other work disturbed it; measure again"


class OverlapWide(Fact, frozen=True):
    """The confidence interval of the overlap is too wide for a conclusion, or has values of two outcomes."""

    text = "95 % confidence interval {low:.0f} to {high:.0f} %: use a longer --max-time or a larger size"
    low: float
    high: float


Doubt = TooFewBlocks | CoresSharedWithProgress | ComputationMissed | StepTimeMissed | ComputationUnsteady | OverlapWide


class AssistanceMissing(Fact, frozen=True):
    """The backend has no second way to make progress during a computation, so that state was not measured.

    by   what makes the progress: threads of the library, or its kernels on the GPU
    """

    text = "the {by} of {backend} make progress without help"
    backend: str
    by: Literal["threads", "kernels"] = "threads"


class OverlapEstimate(msgspec.Struct, frozen=True):
    """A value with its 95 % confidence interval; low and high are None where there are too few groups."""

    value: Annotated[float, column("{}", key="")]
    low: Annotated[float | None, column("{} The lower end of its 95 % confidence interval.")]
    high: Annotated[float | None, column("{} The upper end of its 95 % confidence interval.")]


class Assisted(msgspec.Struct, frozen=True):
    """The state with help for the library's progress: how it was helped, its time, overlap and exposed time, as those of `Overlap`."""

    how: Literal["test calls"]
    both_s: float
    percent: OverlapEstimate
    exposed_s: OverlapEstimate
    slowdown: OverlapEstimate


class Overlap(msgspec.Struct, frozen=True):
    """The overlap of a case.

    communication_s, computation_s, both_s   medians of the three states, in seconds: alone, alone, together
    percent      OSU's overlap, not limited to 0–100
    exposed_s    both − computation, in seconds
    slowdown     time of the computation during the communication / alone
    payer        what takes the exposed time: a slower "computation", "waiting" (calls and waits), or "none" where it is below 5 %
    progress     what moves data while the rank computes: the library's "threads", its "calls" only, or its "kernels" on the GPU, while
                 collbench's kernel computes
    assisted     the state with test calls between slices of the computation; None where `unassisted` is the reason, and for steps
    blocks       of one sample of each state
    outcome      "hidden" (overlap above 75 %), "exposed" (below 25 %) or "partial", of the whole interval;
                 or "inconclusive" with the reason in `doubt`
    """

    communication_s: float
    computation_s: float
    both_s: float
    percent: OverlapEstimate
    exposed_s: OverlapEstimate
    slowdown: OverlapEstimate
    payer: Payer
    progress: Progress
    assisted: Assisted | None
    unassisted: AssistanceMissing | None
    blocks: int
    outcome: Outcome
    doubt: Doubt | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the values for a row, JSON-ready."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values


def overlap_of(values: Mapping[str, Any]) -> Overlap | None:
    """Return the overlap of a row's values (`Row.overlap`); None without one, or for values of another shape."""
    try:
        return msgspec.convert(values, Overlap) if values else None
    except msgspec.ValidationError:
        return None


def flat_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a row's overlap for CSV and DataFrames, without nested objects; {} for values of another shape."""
    overlap = overlap_of(values)
    if overlap is None:
        return {}
    return {
        "communication_s": overlap.communication_s, "computation_s": overlap.computation_s,
        "percent": overlap.percent.value, "percent_low": overlap.percent.low, "percent_high": overlap.percent.high,
        "exposed_s": overlap.exposed_s.value, "exposed_low_s": overlap.exposed_s.low, "exposed_high_s": overlap.exposed_s.high,
        "slowdown": overlap.slowdown.value, "slowdown_low": overlap.slowdown.low, "slowdown_high": overlap.slowdown.high,
        "assisted_percent": overlap.assisted.percent.value if overlap.assisted else None,
        "payer": overlap.payer, "progress": overlap.progress, "blocks": overlap.blocks, "outcome": overlap.outcome,
    }  # fmt: skip


class States(msgspec.Struct, frozen=True):
    """The samples of all states, in seconds [blocks]: the slowest rank of each.

    computing, computing_both, computing_assisted   time of the computation within `computation`, `both` and `assisted`, as it measured
    itself at the slowest rank
    """

    communication: Samples
    computation: Samples
    both: Samples
    computing: Samples
    computing_both: Samples
    assisted: Samples | None = None
    computing_assisted: Samples | None = None


def evaluate(
    states: States,
    progress: Progress,
    unassisted: AssistanceMissing | None,
    shared: CoresSharedWithProgress | None,
    step_time_s: float | None = None,
) -> Overlap:
    """Return the overlap. Raises ValueError without a block.

    shared: where a host has too few cores; step_time_s: how long the computation should last; None: as long as the communication
    """
    communication, computation, both = (float(np.median(samples)) for samples in (states.communication, states.computation, states.both))
    percent, exposed, slowdown = _estimates(states, states.both, states.computing_both)
    assisted = None
    if states.assisted is not None and states.computing_assisted is not None:
        estimates = _estimates(states, states.assisted, states.computing_assisted)
        assisted = Assisted("test calls", float(np.median(states.assisted)), *estimates)
    blocks = len(states.both)
    slower_s = (slowdown.value - 1) * float(np.median(states.computing))
    off = computation / max(step_time_s or communication, 1e-12)
    missed = StepTimeMissed(step_time_s, computation) if step_time_s else ComputationMissed(communication, computation)
    doubt = _doubt(blocks, shared, None if 1 / _MISSED <= off <= _MISSED else missed, slowdown, percent)
    return Overlap(
        communication, computation, both, percent, exposed, slowdown,
        _payer(exposed.value, slower_s, communication), progress, assisted, unassisted,
        blocks, "inconclusive" if doubt else _outcome(percent.value), doubt,
    )  # fmt: skip


class StepOverlap(msgspec.Struct, frozen=True):
    """A training step that computes while it communicates (`--compute real`).

    goal_s      how long the computation should last; stated: whether the user stated it, else it is the time of the exchanges
    overlap     of the step's exchanges with its computation; None where `refusal` is the reason
    efficiency  computation alone / both: the scaling efficiency, from 0 to 1
    """

    goal_s: float
    stated: bool
    overlap: Overlap | None = None
    efficiency: OverlapEstimate | None = None
    refusal: dict[str, Any] | None = None

    @property
    def conclusive(self) -> bool:
        """Whether the efficiency holds. An overlap can be too wide for a conclusion while the efficiency is not."""
        return self.overlap is not None and (self.overlap.doubt is None or isinstance(self.overlap.doubt, OverlapWide))


def efficiency_of(states: States) -> OverlapEstimate:
    """Return the time of the computation alone divided by that of both, with its interval."""
    return _estimate(_grouped(states.computation) / np.maximum(_grouped(states.both), 1e-12))


def _estimates(states: States, both: Samples, computing: Samples) -> tuple[OverlapEstimate, OverlapEstimate, OverlapEstimate]:
    """Return the overlap in percent, the exposed time in seconds, and the slowdown of the computation."""
    exposed = _grouped(both) - _grouped(states.computation)
    percent = 100 * (1 - exposed / np.maximum(_grouped(states.communication), 1e-12))
    slowdown = _grouped(computing) / np.maximum(_grouped(states.computing), 1e-12)
    return _estimate(percent), _estimate(exposed), _estimate(slowdown)


def _grouped(samples: Samples) -> Samples:
    """Return the medians of at most 20 groups of neighboring samples."""
    return np.array([np.median(part) for part in np.array_split(samples, min(len(samples), _MOST_GROUPS))])


def _estimate(values: Samples) -> OverlapEstimate:
    """Return the median with its interval over values that may be negative: order statistics from 6 values on, else Student's t."""
    n = len(values)
    ordered = np.sort(values)
    middle = float(np.median(ordered))
    if n < FEWEST_BLOCKS:
        return OverlapEstimate(middle, None, None)
    if n < _RANKED:
        half = t_quantile(0.975, n - 1) * float(values.std(ddof=1)) / sqrt(n)
        mean = float(values.mean())
        return OverlapEstimate(middle, min(middle, mean - half), max(middle, mean + half))
    # ranks of the binomial's normal approximation; of 6 to 8 values the extremes
    rank = 0 if n <= 8 else max(0, ceil(n / 2 - 1.96 * sqrt(n) / 2) - 1)
    return OverlapEstimate(middle, float(ordered[rank]), float(ordered[n - 1 - rank]))


def _doubt(
    blocks: int, shared: CoresSharedWithProgress | None, missed: Doubt | None, slowdown: OverlapEstimate, percent: OverlapEstimate
) -> Doubt | None:
    """Return why the outcome is inconclusive, or None. missed: the doubt if the computation does not last as long as it should."""
    if blocks < FEWEST_BLOCKS or percent.low is None or percent.high is None:
        return TooFewBlocks(blocks)
    if shared or missed:
        return shared or missed
    if slowdown.high is not None and slowdown.high < _UNSTEADY:
        return ComputationUnsteady(slowdown.value)
    unclear = percent.high - percent.low > _WIDE or _outcome(percent.low) != _outcome(percent.high)
    return OverlapWide(percent.low, percent.high) if unclear else None


def _outcome(percent: float) -> Outcome:
    if percent > _HIDDEN:
        return "hidden"
    return "exposed" if percent < _EXPOSED else "partial"


def _payer(exposed_s: float, slower_s: float, communication_s: float) -> Payer:
    if exposed_s < _PAID / 100 * communication_s:
        return "none"
    return "computation" if slower_s > exposed_s / 2 else "waiting"
