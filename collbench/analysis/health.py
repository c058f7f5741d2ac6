"""The verdict of `collbench check`: OK, SLOW, BROKEN or INCONCLUSIVE, from the rows of a short run, its end, and doctor's findings.

BROKEN        wrong data, or a run that failed: a hang, a crash, a rank that was killed
SLOW          no backend reaches the required share of the expected bandwidth in an operation, or doctor has a severe finding
INCONCLUSIVE  nothing was measured, noise hides the answer, or the expected bandwidth is unknown
OK            in every operation a backend reaches the share

A row reaches the share if its whole interval, and that of a measured reference, is above it; it misses the share if the whole interval
is below. The largest size that shows one of both decides. Without an interval, since one message takes long on a slow link, a row reaches
the share if even its slowest sample does. Noise never proves that something is slow: neither does a noisy row, nor a row without an
interval, nor a quiet row of a backend that has noisy rows at other large sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from collbench.analysis.best import is_shown_as_time
from collbench.analysis.launches import grouped
from collbench.errors import FAILED, FINE, NEGATIVE, NO_VERDICT
from collbench.machine.doctor.finding import Finding
from collbench.reason import Fact
from collbench.results.flags import DOUBTFUL
from collbench.results.row import Row
from collbench.units import format_percent, format_rate, format_size, format_time, plural

# Bytes; smaller messages do not reach the bandwidth of a healthy system. Inside a host 4 MiB may stay in a cache, and so be copied faster
# than any library can exchange them.
LEAST_OF_LINKS, LEAST_OF_MEASURED = 4 << 20, 16 << 20
# The share of the expected bandwidth that a healthy system reaches. References measured inside a host are not what libraries aim at: two
# ranks on a healthy machine reach 28 to 66 % of memory copy, and 33 to 48 % of loopback TCP (reports/first-run).
OF_LINKS, OF_MEASURED = 0.5, 0.2
# A wide or late interval is not noise of its own: the interval itself is compared with the share.
NOISE = DOUBTFUL - {"target_missed", "warmup_unsettled"} | {"straggler", "above_bound", "other_path", "oversubscribed", "shared_gpu"}


class CheckOutcome(StrEnum):
    """The outcome of a check, worst first."""

    BROKEN = "BROKEN"
    SLOW = "SLOW"
    INCONCLUSIVE = "INCONCLUSIVE"
    OK = "OK"

    @property
    def exit_code(self) -> int:
        """Return the exit code of `collbench check`."""
        return {"BROKEN": FAILED, "SLOW": NEGATIVE, "INCONCLUSIVE": NO_VERDICT, "OK": FINE}[self.value]


class Reach(StrEnum):
    """Whether an operation over a backend reaches the required share of the expected bandwidth."""

    REACHED = "ok"
    MISSED = "slow"
    NOISY = "noisy"
    UNKNOWN = "expected bandwidth unknown"
    LATENCY = "latency"
    ABSENT = "n/a"
    WRONG = "wrong data"


# The evidence: one fact for each operation and backend, and one for doctor.


class SeriesCheck(Fact, frozen=True):
    """One operation over one backend: the row that decides, and whether it reaches the required share.

    The rates are bytes/s of bus bandwidth. `share` is the required part of `expected`. `low` and `high` are the ends of the percentage's
    95 % confidence interval. For an operation that results in a time, only `time_s` is known.
    """

    operation: str
    backend: str
    reach: Reach
    size_bytes: int = 0
    busbw: float | None = None
    expected: float | None = None
    percent: float | None = None
    low: float | None = None
    high: float | None = None
    share: float | None = None
    limited_by: str = ""
    time_s: float | None = None
    checked: int = 0
    detail: str = ""

    def render(self) -> str:
        """Return "allreduce over mpi: 5.07 of 8.02 GB/s (63 %) at 64 MiB, limited by memory copy; data verified"."""
        return f"{self.operation} over {self.backend}: {self._figure()}"

    def _figure(self) -> str:
        if self.reach in (Reach.ABSENT, Reach.WRONG):
            return f"{self.reach.value}{f': {self.detail}' if self.detail else ''}"
        checked = "data verified" if self.checked else "data not verified"
        if self.reach is Reach.LATENCY or self.busbw is None:
            return f"{format_time(self.time_s or 0)} µs at {format_size(self.size_bytes)}; {checked}"
        if self.reach is Reach.MISSED and self.share is not None:
            return f"{self.rate()}; {checked}; slow: below {format_percent(100 * self.share)}"
        return f"{self.rate()}; {checked}{f'; {self.reach.value}' if self.reach in (Reach.NOISY, Reach.UNKNOWN) else ''}"

    def rate(self) -> str:
        """Return "5.07 of 8.02 GB/s (63 %) at 64 MiB, limited by memory copy"."""
        own, where = format_rate(self.busbw or 0), f"at {format_size(self.size_bytes)}"
        if self.expected is None or self.percent is None:
            return f"{own} GB/s {where}"
        return f"{own} of {format_rate(self.expected)} GB/s ({format_percent(self.percent)}) {where}, limited by {self.limited_by}"


class DoctorSummary(Fact, frozen=True):
    """How many findings doctor has by severity, and the code of the first."""

    severe: int
    warnings: int
    notes: int
    first: str = ""

    def render(self) -> str:
        """Return "doctor: 1 severe finding, 2 warnings (CB2101; `collbench doctor` shows all)"."""
        counts = ((self.severe, "severe finding"), (self.warnings, "warning"), (self.notes, "note"))
        listed = ", ".join(plural(count, word) for count, word in counts if count)
        return f"doctor: {listed} ({self.first} first; `collbench doctor` shows all)" if listed else "doctor: no findings"


# The causes of a verdict: each knows its outcome.


class ReachesExpected(Fact, frozen=True):
    """In every operation a backend reaches the required share of the expected bandwidth, with right data."""

    series: tuple[SeriesCheck, ...]

    def render(self) -> str:
        """Return "allreduce reaches 63 % of the expected bandwidth (mpi), p2p_bandwidth 71 % (mpi)"."""
        parts = [f"{each.operation} reaches {format_percent(each.percent or 0)}" for each in self.series]
        return f"{', '.join(parts)} of the expected bandwidth, data verified"


class MissesExpected(Fact, frozen=True):
    """No backend reaches the required share of the expected bandwidth in an operation: `best` is the fastest one."""

    best: SeriesCheck

    def render(self) -> str:
        """Return "allreduce over mpi reaches only 1.00 of 10.0 GB/s (10 %) at 64 MiB, …, below 50 %"."""
        limit = f"a healthy system reaches {format_percent(100 * (self.best.share or 0))} or more"
        return f"{self.best.operation} over {self.best.backend} reaches only {self.best.rate()}; {limit}"


class SevereProblem(Fact, frozen=True):
    """Doctor has a severe finding: bandwidth is lost, or jobs fail."""

    finding: str
    what: str
    host: str = ""

    def render(self) -> str:
        """Return the finding with its code and host."""
        return f"{f'{self.host}: ' if self.host else ''}{self.what} ({self.finding})"


class WrongDataReceived(Fact, frozen=True):
    """The received data differs from the sent data."""

    where: str
    detail: str = ""

    def render(self) -> str:
        """Return "wrong data in allreduce over mpi at 4 MiB: rank 0: …"."""
        return f"wrong data in {self.where}{f': {self.detail}' if self.detail else ''}"


class RunFailedEarly(Fact, frozen=True):
    """The run ended before its last case: a hang, a crash, or a rank that was killed."""

    exit_code: int
    detail: str = ""

    def render(self) -> str:
        """Return the reason, or the exit code if no reason was stored."""
        return f"the measurement failed: {self.detail}" if self.detail else f"the measurement failed (exit code {self.exit_code})"


class NothingMeasured(Fact, frozen=True):
    """No case was measured."""

    detail: str = ""

    def render(self) -> str:
        """Return the reason."""
        return f"nothing was measured{f': {self.detail}' if self.detail else ''}"


class HiddenByNoise(Fact, frozen=True):
    """In these operations noise hides whether the expected bandwidth is reached."""

    operations: tuple[str, ...]

    def render(self) -> str:
        """Return "noise hides whether the expected bandwidth is reached in allreduce"."""
        return f"noise hides whether the expected bandwidth is reached in {' and '.join(self.operations)}"


class NothingToCompareWith(Fact, frozen=True):
    """In these operations the expected bandwidth is unknown: the data was right, but fast or slow cannot be decided."""

    operations: tuple[str, ...]

    def render(self) -> str:
        """Return "the expected bandwidth of allreduce is unknown"."""
        return f"the expected bandwidth of {' and '.join(self.operations)} is unknown"


Cause = (
    ReachesExpected | MissesExpected | SevereProblem | WrongDataReceived | RunFailedEarly | NothingMeasured | HiddenByNoise
    | NothingToCompareWith
)  # fmt: skip
Evidence = SeriesCheck | DoctorSummary
_OUTCOMES: dict[type[Fact], CheckOutcome] = {
    WrongDataReceived: CheckOutcome.BROKEN, RunFailedEarly: CheckOutcome.BROKEN,
    MissesExpected: CheckOutcome.SLOW, SevereProblem: CheckOutcome.SLOW,
    NothingMeasured: CheckOutcome.INCONCLUSIVE, HiddenByNoise: CheckOutcome.INCONCLUSIVE, NothingToCompareWith: CheckOutcome.INCONCLUSIVE,
    ReachesExpected: CheckOutcome.OK,
}  # fmt: skip


class CheckVerdict(Fact, frozen=True):
    """The verdict of a check: its causes, worst first, and the evidence."""

    causes: tuple[Cause, ...]
    evidence: tuple[Evidence, ...] = ()

    @property
    def outcome(self) -> CheckOutcome:
        """Return the outcome of the worst cause."""
        return _OUTCOMES[type(self.causes[0])]

    def render(self) -> str:
        """Return "SLOW: …": the outcome, and the causes that have it."""
        return f"{self.outcome.value}: {self.reasons()}"

    def reasons(self) -> str:
        """Return the causes that have the outcome."""
        return "; ".join(cause.render() for cause in self.causes if _OUTCOMES[type(cause)] is self.outcome)


def verdict_of(rows: Sequence[Row], findings: Sequence[Finding], failed: RunFailedEarly | None = None, reason: str = "") -> CheckVerdict:
    """Return the verdict. `failed`: how the run failed, if it did; `reason`: why nothing was measured, if known."""
    series = [_series(members) for members in grouped(rows, lambda row: (row.operation, row.backend)).values()]
    wrong = [WrongDataReceived(f"{each.operation} over {each.backend} at {format_size(each.size_bytes)}", each.detail)
             for each in series if each.reach is Reach.WRONG]  # fmt: skip
    severe = [SevereProblem(each.code, each.what, each.hostname or "") for each in findings if each.severity == "severe"]
    causes: list[Cause] = [*wrong, *([failed] if failed else []), *severe, *_of_bandwidth(series)]
    if all(each.reach is Reach.ABSENT for each in series):
        causes.append(NothingMeasured(reason))
    if not causes:  # a single rank
        causes.append(NothingToCompareWith(tuple(dict.fromkeys(each.operation for each in series))))
    order = list(CheckOutcome)
    worst_first = sorted(causes, key=lambda cause: order.index(_OUTCOMES[type(cause)]))
    in_order = sorted(series, key=lambda each: (each.operation, each.backend))
    severe_ones, warnings, notes = (sum(each.severity == word for each in findings) for word in ("severe", "warning", "note"))
    summary = DoctorSummary(severe_ones, warnings, notes, findings[0].code if findings else "")
    return CheckVerdict(tuple(worst_first), (*in_order, summary))


_BEST_FIRST = (Reach.REACHED, Reach.NOISY, Reach.UNKNOWN, Reach.MISSED, Reach.LATENCY, Reach.WRONG, Reach.ABSENT)


def _of_bandwidth(series: Sequence[SeriesCheck]) -> list[Cause]:
    """Return what the rates show: for each operation that of a backend that reaches the share, else of one that may, else the fastest."""
    best = [
        min(members, key=lambda each: (_BEST_FIRST.index(each.reach), -(each.percent or 0)))
        for members in grouped(series, lambda each: each.operation).values()
    ]
    by_reach = {reach: tuple(each for each in best if each.reach is reach) for reach in Reach}
    noisy, unknown = (tuple(each.operation for each in by_reach[reach]) for reach in (Reach.NOISY, Reach.UNKNOWN))
    causes: list[Cause] = [MissesExpected(each) for each in by_reach[Reach.MISSED]]
    causes += [HiddenByNoise(noisy)] if noisy else []
    causes += [NothingToCompareWith(unknown)] if unknown else []
    causes += [ReachesExpected(by_reach[Reach.REACHED])] if by_reach[Reach.REACHED] else []
    return causes


def _series(rows: Sequence[Row]) -> SeriesCheck:
    """Return the result of one operation over one backend."""
    wrong = next((row for row in rows if row.wrong), None)
    if wrong:
        return SeriesCheck(wrong.operation, wrong.backend, Reach.WRONG, wrong.size_bytes, detail=wrong.wrong_detail or "")
    measured = sorted((row for row in rows if row.na is None and row.time_s), key=lambda row: row.size_bytes, reverse=True)
    if not measured:
        return SeriesCheck(rows[0].operation, rows[0].backend, Reach.ABSENT, detail=rows[0].na or "")
    if is_shown_as_time(measured[0]) and measured[0].busbw_bytes_per_s is not None:
        return _described(measured[-1], Reach.LATENCY)
    large = [row for row in measured if row.size_bytes >= _least_size(row)] or measured[:1]
    is_disturbed = any(NOISE.intersection(row.flags) or (row.ceiling and row.ceiling.disturbed) for row in large)
    known = [_described(row, _reach(row, is_disturbed or row.size_bytes < _least_size(row))) for row in large]
    decided = [each for each in known if each.reach in (Reach.REACHED, Reach.MISSED)]
    return (decided or [each for each in known if each.reach is Reach.NOISY] or known)[0]


def _is_measured(row: Row) -> bool:
    return row.ceiling is not None and row.ceiling.kind == "measured"


def _least_size(row: Row) -> int:
    return LEAST_OF_MEASURED if _is_measured(row) else LEAST_OF_LINKS


def share_of(row: Row) -> float | None:
    """Return the required part of the row's expected bandwidth; None if that is unknown."""
    if row.ceiling is None or row.percent_of_ceiling is None:
        return None
    return OF_MEASURED if _is_measured(row) else OF_LINKS


def _reach(row: Row, is_disturbed: bool) -> Reach:
    """Return what a row shows. `is_disturbed`: whether it cannot prove that something is slow."""
    share, (low, high) = share_of(row), _interval(row)
    if share is None:
        return Reach.NOISY if row.ceiling is not None and row.ceiling.disturbed else Reach.UNKNOWN
    if low is None or high is None:
        slowest = _percent_at(row, row.time_s.max if row.time_s else None, fastest_reference=True)
        return Reach.REACHED if slowest is not None and slowest >= 100 * share else Reach.NOISY
    if low >= 100 * share:
        return Reach.REACHED
    return Reach.MISSED if high < 100 * share and not is_disturbed else Reach.NOISY


def _interval(row: Row) -> tuple[float | None, float | None]:
    """Return the 95 % interval of the percentage, with that of a measured reference; (None, None) without one."""
    if row.time_s is None or not row.time_s.ci_low or not row.time_s.ci_high:
        return None, None
    return _percent_at(row, row.time_s.ci_high, fastest_reference=True), _percent_at(row, row.time_s.ci_low, fastest_reference=False)


def _percent_at(row: Row, time_s: float | None, *, fastest_reference: bool) -> float | None:
    """Return the percentage if the row took this time, against the fast or the slow end of the reference's interval; None if unknown."""
    times, ceiling, percent = row.time_s, row.ceiling, row.percent_of_ceiling
    if times is None or not times.p50 or ceiling is None or not ceiling.bytes_per_s or percent is None or not time_s:
        return None
    reference = (ceiling.high_bytes_per_s if fastest_reference else ceiling.low_bytes_per_s) or ceiling.bytes_per_s
    return percent * times.p50 / time_s * ceiling.bytes_per_s / reference


def _described(row: Row, reach: Reach) -> SeriesCheck:
    low, high = _interval(row)
    ceiling = row.ceiling if row.percent_of_ceiling is not None else None
    rate = ceiling.bytes_per_s if ceiling else None
    return SeriesCheck(
        row.operation, row.backend, reach, row.size_bytes, row.busbw_bytes_per_s, rate, row.percent_of_ceiling,
        low, high, share_of(row), ceiling.limited_by if ceiling else "", row.time_s.p50 if row.time_s else None, row.checked,
    )  # fmt: skip
