"""The verdict of `collbench check`: OK, SLOW, BROKEN or INCONCLUSIVE, from the rows of a short run, its end, and doctor's findings.

Each backend has an outcome:

BROKEN        wrong data, or its library does not start
SLOW          an operation misses the required share of the expected bandwidth
INCONCLUSIVE  noise hides the answer in an operation, or the expected bandwidth is unknown
OK            every operation with a bandwidth reaches the share

The outcome of the check is the worst one. A run that failed is BROKEN, and a severe finding of doctor SLOW. An INCONCLUSIVE backend does
not count if the user did not name it and another backend is proven; the verdict still names it.

A row decides only with at least 6 samples, a quality that is not unreliable, and the whole interval, with that of a measured reference, on
one side of the share. The largest size that decides counts. More than 120 % of a measured reference shows that the reference was disturbed,
and proves nothing. A reference whose rounds disagree is disturbed, too: then a row is compared with the fastest round at any large size,
which can prove that the share is reached, and never that it is missed. A noisy row never proves that something is slow, and neither does
a quiet row of a backend that has noisy rows at other large sizes. Inside a host, "slow" needs all large sizes below the share, and
references that agree between these sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated

from msgspec import structs
from msgspec.structs import replace

from collbench.analysis.best import is_shown_as_time
from collbench.analysis.launches import grouped
from collbench.columns import column, figure
from collbench.errors import FAILED, FINE, NEGATIVE, NO_VERDICT
from collbench.launch.mpi import BackendStartFailed
from collbench.machine.doctor.finding import Finding
from collbench.machine.peak.ceiling import ABOVE_LIMIT, MOST_OF_MEASURED, is_above_limit
from collbench.operations.unsupported import decode_reason
from collbench.reason import Fact, with_texts
from collbench.results.flags import DOUBTFUL
from collbench.results.quality import OK as QUALITY_OK
from collbench.results.quality import RunQuality, is_unreliable, quality_of, run_quality
from collbench.results.row import Row
from collbench.units import format_percent, format_rate, format_size, format_time, listed, plural

# Bytes; smaller messages do not reach the bandwidth of a healthy system. Inside a host 4 MiB may stay in a cache.
LEAST_OF_LINKS = 4 << 20
LEAST_OF_MEASURED = 16 << 20
# The share of the expected bandwidth that a healthy system reaches. Inside a host, two ranks on a healthy machine reach 60 to 120 % of what
# was measured. Runs of earlier versions were compared with memory copy, of which they reach 28 to 66 %, or with loopback TCP out of a
# cache, of which they reach 33 to 48 %.
OF_LINKS = 0.5
OF_MEASURED = 0.4
OF_MEMORY = 0.2
EARLIER_REFERENCES = frozenset(
    {"memory copy", "memory sum", "memory copy and sum", "one loopback TCP stream", "one loopback TCP stream each way"}
)
# A fault of the machine shows at all large sizes. Memory changes its speed by a factor within a launch on a healthy virtual machine.
_OTHER_SIZE = "another size is not below it"
_MOST_BETWEEN_SIZES = 1.5
FEWEST_SAMPLES = 6  # with fewer samples a median has no 95 % interval
# One process does not fill a faster link over TCP, on a healthy machine either (bytes/s).
TCP_BACKENDS = frozenset({"gloo", "socket", "zmq"})
MOST_OF_TCP = 25e9 / 8
# Inside a host their times are those of the library, not of the machine: MPICH allocates memory in each call, Gloo sums whole buffers.
LIBRARY_BOUND = frozenset({"reducescatter", "reducescatterv"})
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
    95 % confidence interval. For an operation that results in a time, only `time_s` is known. `varied`: the rounds of the measured
    reference disagree, and `expected` is the fastest of them, so that `percent` is the least that is reached.
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
    quality: str = QUALITY_OK
    varied: bool = False

    def render(self) -> str:
        """Return "allreduce over mpi: 5.07 of 8.02 GB/s (63 %) at 64 MiB, limited by memory copy; data verified"."""
        subject = f"{self.operation} over {self.backend}"
        if self.reach in (Reach.ABSENT, Reach.WRONG):
            return f"{subject}: {self.reach.value}{f': {self.detail}' if self.detail else ''}"
        texts = [self.rate(), "data verified" if self.checked else "data not verified"]
        if self.quality != QUALITY_OK:
            texts.append(self.quality)
        if self.reach is Reach.LATENCY or self.busbw is None:
            texts[0] = f"{format_time(self.time_s or 0)} µs at {format_size(self.size_bytes)}"
        elif self.reach is Reach.MISSED and self.share is not None:
            texts.append(f"slow: below {format_percent(100 * self.share)}")
        elif self.detail or self.reach is Reach.UNKNOWN:
            texts.append(self.detail or self.reach.value)
        return f"{subject}: {'; '.join(texts)}"

    def rate(self) -> str:
        """Return "5.07 of 8.02 GB/s (63 %) at 64 MiB, limited by memory copy"."""
        busbw = format_rate(self.busbw or 0)
        size = format_size(self.size_bytes)
        if self.expected is None or self.percent is None:
            return f"{busbw} GB/s at {size}"
        expected = f"{'at most ' if self.varied else ''}{format_rate(self.expected)}"
        percent = f"{format_percent(self.percent)}{' or more' if self.varied else ''}{self._remark(', ')}"
        return f"{busbw} of {expected} GB/s ({percent}) at {size}, limited by {self.limited_by}"

    def reached(self) -> str:
        """Return "allreduce reaches 63 %", or "allreduce reaches 57 % or more"; above 100 % with what that means."""
        remark = self._remark(" (", ")")
        return f"{self.operation} reaches {format_percent(self.percent or 0)}{' or more' if self.varied else ''}{remark}"

    def _remark(self, before: str, after: str = "") -> str:
        return f"{before}{ABOVE_LIMIT}{after}" if is_above_limit(self.percent) else ""


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
    """Every operation of a backend reaches the required share of the expected bandwidth, with right data."""

    backend: str
    series: tuple[SeriesCheck, ...]

    def render(self) -> str:
        """Return "allreduce reaches 63 %, p2p_bandwidth reaches 71 % of the expected bandwidth over gloo, data verified"."""
        parts = [check.reached() for check in self.series]
        checked = "data verified" if all(check.checked for check in self.series) else "data not verified"
        return f"{', '.join(parts)} of the expected bandwidth over {self.backend}, {checked}"


class MissesExpected(Fact, frozen=True):
    """An operation over a backend misses the required share of the expected bandwidth: `best` is the row that shows it."""

    best: SeriesCheck

    @property
    def backend(self) -> str:
        """Return the backend."""
        return self.best.backend

    def render(self) -> str:
        """Return "allreduce over mpi reaches only 1.00 of 10.0 GB/s (10 %) at 64 MiB, …; a healthy system reaches 50 % or more"."""
        limit = f"a healthy system reaches {format_percent(100 * (self.best.share or 0))} or more"
        return f"{self.best.operation} over {self.best.backend} reaches only {self.best.rate()}; {limit}"


class SevereProblem(Fact, frozen=True):
    """Doctor has a severe finding: bandwidth is lost, or jobs fail."""

    text = "{host:?{host}: }{what} ({finding})"
    finding: str
    what: str
    host: str = ""


class WrongDataReceived(Fact, frozen=True):
    """The received data differs from the sent data."""

    text = "wrong data in {where}{detail:?: {detail}}"
    where: str
    detail: str = ""
    backend: str = ""


class RunFailedEarly(Fact, frozen=True):
    """The run ended before its last case: a hang, a crash, or a rank that was killed."""

    exit_code: int
    detail: str = ""

    def render(self) -> str:
        """Return the reason, or the exit code if no reason was stored."""
        return f"the measurement failed: {self.detail}" if self.detail else f"the measurement failed (exit code {self.exit_code})"


class NothingMeasured(Fact, frozen=True):
    """No case was measured."""

    text = "nothing was measured{detail:?: {detail}}"
    detail: str = ""


class HiddenByNoise(Fact, frozen=True):
    """Noise hides whether a backend reaches the expected bandwidth in these operations; `quality` is that of all its rows."""

    backend: str
    operations: tuple[str, ...]
    quality: RunQuality

    def render(self) -> str:
        """Return "11 of 12 rows over mpi are noisy or unreliable: other work or a changed machine state disturbed the measurement"."""
        reason = self.quality.best_remedy
        return self.summary() if reason is None or not self.quality.cases else f"{self.summary()}: {reason.cause}"

    def summary(self) -> str:
        """Return the sentence without what disturbed the measurement."""
        bad = self.quality.noisy + self.quality.unreliable
        if not self.quality.cases:
            return f"{listed(self.operations)} over {self.backend}: no row has a confidence interval"
        if self.quality.best_remedy is None:
            return f"{listed(self.operations)} over {self.backend}: the intervals are on both sides of the required bandwidth"
        be = "is" if bad == 1 else "are"
        return f"{bad} of {plural(self.quality.cases, 'row')} over {self.backend} {be} noisy or unreliable"


class NothingToCompareWith(Fact, frozen=True):
    """The expected bandwidth of these operations over a backend is unknown: the data was right, but fast or slow cannot be decided."""

    backend: str
    operations: tuple[str, ...]
    ranks: int = 2

    def render(self) -> str:
        """Return "the expected bandwidth of allreduce over gloo is unknown"."""
        if self.ranks == 1:
            return f"{self.backend} has one rank, which sends nothing, so nothing can be compared"
        return f"the expected bandwidth of {listed(self.operations)} over {self.backend} is unknown"


class NotMeasuredInTime(Fact, frozen=True):
    """No case of these operations over a backend was measured, because the time of the command was over."""

    backend: str
    operations: tuple[str, ...]

    def render(self) -> str:
        """Return "allreduce over gloo was not measured: the time of the command was over"."""
        was = "was" if len(self.operations) == 1 else "were"
        return f"{listed(self.operations)} over {self.backend} {was} not measured: the time of the command was over (--total-time)"


Cause = (
    ReachesExpected | MissesExpected | SevereProblem | WrongDataReceived | RunFailedEarly | NothingMeasured | HiddenByNoise
    | NothingToCompareWith | NotMeasuredInTime | BackendStartFailed
)  # fmt: skip
Evidence = SeriesCheck | DoctorSummary
_OUTCOMES: dict[type[Fact], CheckOutcome] = {
    WrongDataReceived: CheckOutcome.BROKEN, RunFailedEarly: CheckOutcome.BROKEN, BackendStartFailed: CheckOutcome.BROKEN,
    MissesExpected: CheckOutcome.SLOW, SevereProblem: CheckOutcome.SLOW,
    NotMeasuredInTime: CheckOutcome.INCONCLUSIVE,
    NothingMeasured: CheckOutcome.INCONCLUSIVE, HiddenByNoise: CheckOutcome.INCONCLUSIVE, NothingToCompareWith: CheckOutcome.INCONCLUSIVE,
    ReachesExpected: CheckOutcome.OK,
}  # fmt: skip


_OF_THE_RUN = (RunFailedEarly, SevereProblem, NothingMeasured)


_ANSWER = {
    "verdict": column("OK, SLOW, BROKEN or INCONCLUSIVE.", value=lambda verdict: verdict.outcome),
    "exit_code": column("The exit code of `collbench check`."),
    "text": column("The verdict in a sentence.", value=str),
}


class CheckVerdict(Fact, frozen=True):
    """The verdict of a check."""

    causes: Annotated[tuple[Cause, ...], column("The causes, worst first.", value=lambda verdict: with_texts(verdict.causes))]
    evidence: Annotated[tuple[Evidence, ...], column("What led to it.", value=lambda verdict: with_texts(verdict.evidence))] = ()

    @property
    @figure("", key="", parts=_ANSWER)
    def outcome(self) -> CheckOutcome:
        """Return the outcome of the worst cause."""
        return _OUTCOMES[type(self.causes[0])]

    @property
    @figure("The outcome of each backend, worst first.")
    def backends(self) -> dict[str, CheckOutcome]:
        """Return the outcome of each backend, worst first."""
        outcomes: dict[str, CheckOutcome] = {}
        for cause in self.causes:
            if not isinstance(cause, _OF_THE_RUN) and cause.backend:
                outcomes.setdefault(cause.backend, _OUTCOMES[type(cause)])
        return outcomes

    def render(self) -> str:
        """Return "INCONCLUSIVE: 11 of 12 rows over mpi are noisy or unreliable: …; gloo OK": reasons, and backends of other outcomes."""
        others = [f"{backend} {outcome.value}" for backend, outcome in sorted(self.backends.items()) if outcome is not self.outcome]
        return f"{self.outcome.value}: {'; '.join([self.reasons(), *others])}"

    @property
    def decisive_causes(self) -> list[Cause]:
        """Return the causes that have the outcome."""
        return [cause for cause in self.causes if _OUTCOMES[type(cause)] is self.outcome]

    def reasons(self) -> str:
        """Return the causes that have the outcome, as one text."""
        return "; ".join(cause.render() for cause in self.decisive_causes)

    def backend_lines(self) -> list[str]:
        """Return a line for each cause of a backend, if there are several backends: "gloo OK: allreduce reaches …"."""
        if len(self.backends) < 2:
            return []
        causes = [cause for cause in self.causes if not isinstance(cause, _OF_THE_RUN) and cause.backend]
        return [
            f"{cause.backend} {_OUTCOMES[type(cause)].value}: {cause.render()}" for cause in sorted(causes, key=lambda cause: cause.backend)
        ]


def verdict_of(
    rows: Sequence[Row],
    findings: Sequence[Finding],
    failed: RunFailedEarly | BackendStartFailed | None = None,
    reason: str = "",
    requested: frozenset[str] = frozenset(),
    *,
    omitted: Iterable[tuple[str, str]] = (),
) -> CheckVerdict:
    """Return the verdict.

    failed     how the run failed, if it did
    reason     why nothing was measured, if that is known
    requested  the backends that the user named: each of them must be proven. Of others one suffices, if none is slow or broken
    omitted    (operation, backend) with cases that were not measured, because the time was over
    """
    by_backend = grouped(rows, lambda row: row.backend)
    series_by_backend = {}
    for backend, backend_rows in by_backend.items():
        series_by_backend[backend] = [_series(members) for members in grouped(backend_rows, lambda row: row.operation).values()]
    series = [check for checks in series_by_backend.values() for check in checks]
    causes: list[Cause] = []
    if failed:
        causes.append(failed)
    reasons = [decode_reason(row.na_fact) for row in rows]
    causes += dict.fromkeys(fact for fact in reasons if isinstance(fact, BackendStartFailed))
    causes += [SevereProblem(finding.code, finding.what, finding.hostname or "") for finding in findings if finding.severity == "severe"]
    measured = {(check.operation, check.backend) for check in series if check.reach is not Reach.ABSENT}
    missing = grouped((case for case in omitted if case not in measured), lambda case: case[1])
    for backend in dict.fromkeys([*series_by_backend, *missing]):
        backend_causes = _causes_of_backend(backend, series_by_backend.get(backend, []), by_backend.get(backend, []))
        if backend in missing and all(isinstance(cause, ReachesExpected) for cause in backend_causes):
            backend_causes = [NotMeasuredInTime(backend, tuple(operation for operation, _ in missing[backend]))]
        causes += backend_causes
    if any(isinstance(cause, ReachesExpected) for cause in causes):
        causes = [cause for cause in causes if not isinstance(cause, NothingToCompareWith) or cause.backend in requested]
    if all(check.reach is Reach.ABSENT for check in series):
        causes.append(NothingMeasured(reason or next((check.detail for check in series if check.detail), "")))
    is_proven = any(isinstance(cause, ReachesExpected) for cause in causes)
    outcomes = list(CheckOutcome)

    def rank_of(cause: Cause) -> int:
        """Return the place of a cause: an undecided backend that the user did not name is last if another one is proven."""
        outcome = _OUTCOMES[type(cause)]
        decides_nothing = outcome is CheckOutcome.INCONCLUSIVE and not isinstance(cause, _OF_THE_RUN) and cause.backend not in requested
        return len(outcomes) if is_proven and decides_nothing else outcomes.index(outcome)

    in_order = sorted(series, key=lambda check: (check.operation, check.backend))
    counts = Counter(finding.severity for finding in findings)
    summary = DoctorSummary(counts["severe"], counts["warning"], counts["note"], findings[0].code if findings else "")
    return CheckVerdict(tuple(sorted(causes, key=rank_of)), (*in_order, summary))


def _causes_of_backend(backend: str, checks: Sequence[SeriesCheck], rows: Sequence[Row]) -> list[Cause]:
    """Return the causes that decide the outcome of a backend; none if it was not measured."""
    by_reach = {reach: [check for check in checks if check.reach is reach] for reach in Reach}
    if by_reach[Reach.WRONG]:
        return [WrongDataReceived(f"{check.operation} over {backend} at {format_size(check.size_bytes)}", check.detail, backend)
                for check in by_reach[Reach.WRONG]]  # fmt: skip
    if by_reach[Reach.MISSED]:
        return [MissesExpected(check) for check in by_reach[Reach.MISSED]]
    if by_reach[Reach.NOISY]:
        return [HiddenByNoise(backend, tuple(check.operation for check in by_reach[Reach.NOISY]), run_quality(rows))]
    unknown = by_reach[Reach.UNKNOWN] or ([] if by_reach[Reach.REACHED] else by_reach[Reach.LATENCY])
    if unknown:
        return [NothingToCompareWith(backend, tuple(check.operation for check in unknown), max(row.ranks for row in rows))]
    if by_reach[Reach.REACHED]:
        return [ReachesExpected(backend, tuple(by_reach[Reach.REACHED]))]
    return []


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
    # the rates measured inside a host must not differ between sizes: memory has the same rate for all large messages
    rates = [row.ceiling.bytes_per_s for row in large if row.ceiling and row.ceiling.kind == "measured" and row.ceiling.bytes_per_s]
    is_disturbed |= bool(rates) and max(rates) > _MOST_BETWEEN_SIZES * min(rates)
    highest = max((row.ceiling.high_bytes_per_s or 0.0 for row in large if row.ceiling), default=0.0)
    checks = [_check_of(row, highest, is_disturbed or row.size_bytes < _least_size(row)) for row in large]
    decided = [check for check in checks if check.reach in (Reach.REACHED, Reach.MISSED)]
    if decided and decided[0].reach is Reach.MISSED and _is_measured(large[0]) and any(check.reach is not Reach.MISSED for check in checks):
        return structs.replace(decided[0], reach=Reach.NOISY, detail=_OTHER_SIZE)
    return (decided or [check for check in checks if check.reach is Reach.NOISY] or checks)[0]


def _check_of(row: Row, highest_reference: float, is_disturbed: bool) -> SeriesCheck:
    """Return what a row shows. With a disturbed reference it can only reach the share: of the fastest round at any size (bytes/s)."""
    ceiling = row.ceiling
    if ceiling is not None and ceiling.disturbed and highest_reference and row.busbw_bytes_per_s is not None:
        fastest = replace(ceiling, bytes_per_s=highest_reference, low_bytes_per_s=highest_reference, high_bytes_per_s=highest_reference)
        compared = row.compared_with(fastest, row.hard_bound, 100 * row.busbw_bytes_per_s / highest_reference)
        if _reach(compared, is_disturbed=True) is Reach.REACHED:
            return structs.replace(_described(compared, Reach.REACHED), varied=True)
    return _described(row, _reach(row, is_disturbed))


def _is_measured(row: Row) -> bool:
    return row.ceiling is not None and row.ceiling.kind == "measured"


def _least_size(row: Row) -> int:
    return LEAST_OF_MEASURED if _is_measured(row) else LEAST_OF_LINKS


def share_of(row: Row) -> float | None:
    """Return the required part of the row's expected bandwidth; None if that is unknown."""
    if row.comparison is None:
        return None
    if row.comparison.ceiling.kind != "measured":
        return OF_LINKS
    return OF_MEMORY if row.comparison.ceiling.limited_by in EARLIER_REFERENCES else OF_MEASURED


def _proves_nothing(row: Row) -> bool:
    """Return whether the quality is unreliable; `--slowed` alone does not count, which tests that a check finds a slow backend."""
    return is_unreliable(replace(row, flags=tuple(flag for flag in row.flags if flag != "slowed")))


def _exceeds_reference(row: Row) -> bool:
    """Return whether a row is so far above a measured reference that the reference must have been disturbed."""
    return _is_measured(row) and row.comparison is not None and row.comparison.percent > 100 * MOST_OF_MEASURED


def _why_not_slow(row: Row) -> str:
    """Return why a row below the share does not show that the machine is slow; "" if it does."""
    if _is_measured(row):
        return "the library's reduce-scatter does not reach what the ranks of a host do" if row.operation in LIBRARY_BOUND else ""
    rate = row.ceiling.bytes_per_s if row.ceiling else None
    if row.backend in TCP_BACKENDS and rate is not None and rate > MOST_OF_TCP:
        return "one process does not fill this link over TCP"
    return ""


def _reach(row: Row, is_disturbed: bool) -> Reach:
    """Return what a row shows. `is_disturbed`: whether it cannot prove that something is slow."""
    share = share_of(row)
    low, high = interval_of_percent(row)
    if share is None:
        return Reach.NOISY if row.ceiling is not None and row.ceiling.disturbed else Reach.UNKNOWN
    if row.n < FEWEST_SAMPLES or _proves_nothing(row) or low is None or high is None or _exceeds_reference(row):
        return Reach.NOISY
    if low >= 100 * share:
        return Reach.REACHED
    if high >= 100 * share or is_disturbed:
        return Reach.NOISY
    return Reach.UNKNOWN if _why_not_slow(row) else Reach.MISSED


def interval_of_percent(row: Row) -> tuple[float | None, float | None]:
    """Return the 95 % interval of the percentage, with that of a measured reference; (None, None) without one."""
    times = row.time_s
    comparison = row.comparison
    if times is None or not times.ci_low or not times.ci_high or not times.p50 or comparison is None:
        return None, None
    fast = comparison.ceiling.high_bytes_per_s or comparison.expected_bytes_per_s
    slow = comparison.ceiling.low_bytes_per_s or comparison.expected_bytes_per_s
    expected = comparison.expected_bytes_per_s
    percent_seconds = comparison.percent * times.p50
    return percent_seconds / times.ci_high * expected / fast, percent_seconds / times.ci_low * expected / slow


def _described(row: Row, reach: Reach) -> SeriesCheck:
    low, high = interval_of_percent(row)
    quality = quality_of(row)
    check = SeriesCheck(
        row.operation, row.backend, reach, row.size_bytes, row.busbw_bytes_per_s, time_s=row.time_s.p50 if row.time_s else None,
        checked=row.checked, detail=_why_undecided(row, reach), quality=quality.word if quality else QUALITY_OK,
    )  # fmt: skip
    comparison = row.comparison
    if comparison is None or _exceeds_reference(row):
        return check
    return structs.replace(
        check, expected=comparison.expected_bytes_per_s, percent=comparison.percent, low=low, high=high,
        share=share_of(row), limited_by=comparison.ceiling.limited_by,
    )  # fmt: skip


def _why_undecided(row: Row, reach: Reach) -> str:
    """Return why a row decides nothing, in words that its quality does not have."""
    if reach is Reach.UNKNOWN and row.comparison is not None:
        return _why_not_slow(row)
    if reach is not Reach.NOISY:
        return ""
    if _exceeds_reference(row):
        return "more than the measured reference, which was disturbed"
    if row.n < FEWEST_SAMPLES:
        return f"{plural(row.n, 'sample')}, {FEWEST_SAMPLES} are needed"
    if _proves_nothing(row):
        return ""
    unclear = f"not clearly above or below {format_percent(100 * (share_of(row) or 0))}"
    return "the measured reference was disturbed" if row.comparison is None else unclear
