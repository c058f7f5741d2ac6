"""The quality of a row in one word (ok, noisy, unreliable), by rules over its flags and figures; the reasons grouped by remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, isfinite
from typing import NamedTuple

import msgspec

from collbench.reason import Fact
from collbench.results.flags import WITHIN_A_LAUNCH
from collbench.results.row import Row, SharedCores, StartSkew
from collbench.units import plural
from collbench.untrusted import list_of

OK = "ok"
NOISY = "noisy"
UNRELIABLE = "unreliable"
QUALITIES = (OK, NOISY, UNRELIABLE)  # from best to worst

NOISE = 0.10  # half of the confidence interval, the distance of two modes, and a drift, as a part of the median
MOST_NOISE = 0.50
MOST_COMMON = 2 / 3  # a mode with more of the samples decides the median, however far the other mode is
LEAST_SKEW_S = 1e-6  # ranks of one host always leave a barrier some 0.1 µs apart
FEWEST = 3  # samples of a time without an interval
_LEAST_INTERVAL = 6  # the smallest number of samples with an interval
_TIMES_S = (10, 20, 30, 60, 120)  # values of --max-time that are suggested
_COUNTS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)  # values of -n that are suggested
_WRONG_DATA = "data"  # the remedy that is named first
_LEAST_PART = 1 / 3  # of the doubtful cases: a cause of fewer does not explain the others
_NO_OWN_INTERVAL = frozenset({"imported", "their_tool"})
_NO_NEWS = frozenset({"two_modes", "skew_limited", "few_samples", "target_missed", "warmup_unsettled", "remeasured"})
_DISTURBED = frozenset({"cpu_shared", "state_flip", "straggler"})
_SHARE_CORES = "threads_share_cores"
# What threads that share cores do to samples: they explain these reasons, and neither an idle machine nor more time helps.
_BY_THREADS = frozenset({"idle", "time", "skew"})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and isfinite(value)


def half_width(row: Row) -> float | None:
    """Return half of the confidence interval as a part of the median; None without an interval."""
    times = row.time_s
    if times is None or not (_is_number(times.ci_low) and _is_number(times.ci_high) and _is_number(times.p50)) or times.p50 <= 0:
        return None
    return (times.ci_high - times.ci_low) / 2 / times.p50  # type: ignore[operator]  # checked above


def counted_flags(row: Row) -> set[str]:
    """Return the flags that count: several launches show some effects in their spread."""
    return set(row.flags) - WITHIN_A_LAUNCH if row.launches > 1 else set(row.flags)


def _is_disturbed(row: Row) -> bool:
    return bool(_DISTURBED & counted_flags(row)) or _has_drifted(row) or _changes_modes(row)


def _has_drifted(row: Row) -> bool:
    """Return whether the median moved by more than noise, or by an unknown amount (rows of an earlier version)."""
    moved = row.evidence.get("drift")
    return "drift" in counted_flags(row) and not (isinstance(moved, int | float) and abs(moved) <= NOISE)


def _changes_modes(row: Row) -> bool:
    """Return whether the samples gather around two distant values, and neither is so common that the median stays with it."""
    if "two_modes" not in row.flags:
        return False
    modes = list_of(row.modes, dict)
    times = [mode["time_s"] for mode in modes if isinstance(mode.get("time_s"), int | float)]
    shares = [mode["share"] for mode in modes if isinstance(mode.get("share"), int | float)]
    if len(times) < 2 or len(shares) < 2 or min(times) <= 0:
        return True
    return bool(max(times) / min(times) > 1 + NOISE and max(shares) <= MOST_COMMON)


def _is_wide(row: Row, limit: float) -> bool:
    width = half_width(row)
    return width is not None and width > limit


def _lacks_interval(row: Row) -> bool:
    return half_width(row) is None and not _NO_OWN_INTERVAL.intersection(row.flags)


def _has_skew(row: Row) -> bool:
    """Return whether the start skew distorts the time, by more than a barrier between ranks of one host always does."""
    skew = StartSkew.of(row.evidence)
    return "skew_limited" in row.flags and (skew is None or skew.p50 > LEAST_SKEW_S)


class Remedy(NamedTuple):
    """What to do about a reason.

    cause   in a sentence after the number of cases: "other work ran on these CPUs"
    action  an imperative, without a final period
    """

    cause: str
    action: str


# A cause comes before its effects: a busy machine explains few samples and ranks that start apart, too. See `RunQuality.best_remedy`.
REMEDIES: Mapping[str, Remedy] = {
    _WRONG_DATA: Remedy("the received data is wrong", "Do not use these times; measure with another backend to find the faulty part"),
    "path": Remedy(
        "the bytes took another path than the expected link, or the rate of the link is wrong", "Check the links with `collbench probe`"
    ),
    "slowed": Remedy("`--slowed` made the backend slower on purpose", "Measure without `--slowed`"),
    "cores": Remedy("there are more ranks and busy threads than cores", "Use fewer ranks"),
    "clock": Remedy("the clock is coarse or was changed", "Check the clock source, or use `--mode batched`"),
    "ranks": Remedy("the bandwidths do not fit the number of ranks", "Check `--ranks` of the import"),
    "idle": Remedy("other work or a changed machine state disturbed the measurement", "Repeat on an idle machine"),
    "threads": Remedy("the library's threads share the cores with the ranks", "Use a host with more cores"),
    "network": Remedy("the network lost packets or a link went down", "Check cables, optics and switch ports"),
    "time": Remedy("there are too few samples for a narrow interval", "Use a longer `--max-time`"),
    "skew": Remedy("the ranks start too far apart", "Use `--mode batched`"),
    "launches": Remedy("some launches lack the case", "Repeat the launches that ended early"),
}


class Rule(msgspec.Struct, frozen=True):
    """A row has the quality `word`, and needs the remedy, if it has one of the flags or `applies` is true."""

    word: str
    remedy: str
    flags: frozenset[str] = frozenset()
    applies: Callable[[Row], bool] = lambda row: False


RULES = (
    Rule(UNRELIABLE, _WRONG_DATA, frozenset({"wrong_data"}), lambda row: bool(row.wrong)),
    Rule(UNRELIABLE, "path", frozenset({"above_bound", "other_path"})),
    Rule(UNRELIABLE, "slowed", frozenset({"slowed"})),
    Rule(UNRELIABLE, "cores", frozenset({"oversubscribed"})),
    Rule(UNRELIABLE, "clock", frozenset({"clock_stepped"})),
    Rule(UNRELIABLE, "ranks", frozenset({"ranks_doubtful"})),
    Rule(UNRELIABLE, "idle", applies=lambda row: _is_wide(row, MOST_NOISE) and _is_disturbed(row)),
    Rule(UNRELIABLE, "time", frozenset({"budget_exceeded"}), lambda row: _is_wide(row, MOST_NOISE) and not _is_disturbed(row)),
    Rule(UNRELIABLE, "time", applies=lambda row: _lacks_interval(row) and row.n < FEWEST),
    Rule(NOISY, "idle", applies=_is_disturbed),
    Rule(NOISY, "network", frozenset({"lossy_path", "port_errors", "link_flapped"})),
    Rule(NOISY, "time", frozenset({"no_interval"}), lambda row: _is_wide(row, NOISE) or _lacks_interval(row)),
    Rule(NOISY, "clock", frozenset({"constant"})),
    Rule(NOISY, "skew", applies=_has_skew),
    Rule(NOISY, "launches", frozenset({"missing_launches"})),
)


# Flags that rules, intervals or both values of bimodal samples show already. The table counts the others below its rows.
SHOWN_FLAGS = frozenset().union(*(rule.flags for rule in RULES), _DISTURBED, _NO_NEWS, {"drift", _SHARE_CORES})


class Quality(NamedTuple):
    """The quality of a row, and the remedies of all rules that apply, in their order (codes of REMEDIES)."""

    word: str
    remedies: tuple[str, ...]


def quality_of(row: Row) -> Quality | None:
    """Return the quality of a row; None for an n/a row, and for one of another tool without an interval to which no rule applies."""
    if row.na is not None:
        return None
    flags = counted_flags(row)
    applying = [rule for rule in RULES if rule.flags & flags or rule.applies(row)]
    if not applying and half_width(row) is None:
        return None
    word = max((rule.word for rule in applying), key=QUALITIES.index, default=OK)
    shares_cores = _SHARE_CORES in flags and not _DISTURBED & flags
    remedies = ("threads" if shares_cores and rule.remedy in _BY_THREADS else rule.remedy for rule in applying)
    return Quality(word, tuple(dict.fromkeys(remedies)))


def is_unreliable(row: Row) -> bool:
    """Return whether the quality of a row is "unreliable"."""
    quality = quality_of(row)
    return quality is not None and quality.word == UNRELIABLE


class SharingThreads(Fact, frozen=True):
    """The threads of these backends share the cores of a host with its ranks; spread: 90th percentile of the times through the 10th."""

    backends: tuple[str, ...]
    ranks: int
    threads: int
    cores: int
    spread: float

    def render(self) -> str:
        """Return "gloo's 8 threads share 2 cores with both ranks: times vary 7-fold, in longer runs, too"."""
        ranks = "both ranks" if self.ranks == 2 else f"{self.ranks} ranks"
        libraries = " and ".join(f"{backend}'s" for backend in self.backends)
        share = f"{self.threads} threads share {plural(self.cores, 'core')} with {ranks}"
        return f"{libraries} {share}: times vary {self.spread:.0f}-fold, in longer runs, too"


class QualityReason(Fact, frozen=True):
    """A remedy, and the number of cases of a run that need it because they are noisy or unreliable.

    max_time_s  the suggested --max-time; iterations: the suggested -n, if -n ended most of the cases; 0: more than it has
    threads     of threads that share cores
    """

    text = "{cases:case}: {cause}. {action}."
    remedy: str
    cases: int
    max_time_s: int | None = None
    iterations: int | None = None
    threads: SharingThreads | None = None

    @property
    def cause(self) -> str:
        """Return why the cases are not ok, as the second half of a sentence."""
        return self.threads.render() if self.threads else REMEDIES[self.remedy].cause

    @property
    def action(self) -> str:
        """Return what to do: "Use `--max-time 20`", "Use `-n 100`, or omit it"."""
        if self.iterations is not None:
            return f"Use {f'`-n {self.iterations}`' if self.iterations else 'a larger `-n`'}, or omit it"
        return f"Use `--max-time {self.max_time_s}`" if self.max_time_s is not None else REMEDIES[self.remedy].action


class RunQuality(Fact, frozen=True):
    """How many cases of a run are ok, noisy and unreliable, and the reasons in the order of REMEDIES."""

    ok: int
    noisy: int
    unreliable: int
    reasons: tuple[QualityReason, ...] = ()

    @property
    def cases(self) -> int:
        """Return the number of measured cases."""
        return self.ok + self.noisy + self.unreliable

    @property
    def word(self) -> str:
        """Return the quality of the whole run: that of most cases; "ok" needs 90 % of them."""
        if self.unreliable * 2 > self.cases:
            return UNRELIABLE
        return OK if self.ok >= 0.9 * self.cases else NOISY

    @property
    def best_remedy(self) -> QualityReason | None:
        """Return the reason to name: the first in the order of REMEDIES that a third of the doubtful cases have, else that of most cases.

        Wrong data is named however few cases have it.
        """
        least = _LEAST_PART * (self.noisy + self.unreliable)
        for reason in self.reasons:
            if reason.remedy == _WRONG_DATA or reason.cases >= least:
                return reason
        return max(self.reasons, key=lambda reason: reason.cases, default=None)

    def render(self) -> str:
        """Return "20 of 22 cases are noisy. Main reason: …. Repeat on an idle machine."; "ok (22 of 22 cases)" if all are."""
        best = self.best_remedy
        bad = self.noisy + self.unreliable
        if best is None or not bad:
            return f"ok ({self.ok} of {plural(self.cases, 'case')})"
        texts: list[str] = []
        for count, word in ((self.noisy, NOISY), (self.unreliable, UNRELIABLE)):
            if count:
                total = "" if texts else f" of {plural(self.cases, 'case')}"
                texts.append(f"{count}{total} {'is' if count == 1 else 'are'} {word}")
        where = "" if best.cases == bad else f" ({plural(best.cases, 'case')})"
        return f"{', '.join(texts)}. Main reason{where}: {best.cause}. {best.action}."


def run_quality(rows: Iterable[Row]) -> RunQuality:
    """Return the quality of all measured rows, with the reasons in the order of REMEDIES."""
    qualities = [(row, quality_of(row)) for row in rows]
    measured = [(row, quality) for row, quality in qualities if quality is not None]
    counts = {word: sum(quality.word == word for _, quality in measured) for word in QUALITIES}
    reasons = [_reason(remedy, [row for row, quality in measured if remedy in quality.remedies]) for remedy in REMEDIES]
    return RunQuality(counts[OK], counts[NOISY], counts[UNRELIABLE], tuple(reason for reason in reasons if reason.cases))


def _sharing_threads(rows: Sequence[Row]) -> SharingThreads | None:
    """Return what the rows have about threads that share cores: the middle one of their spreads; None without valid evidence."""
    parts = [(row, SharedCores.of(row.evidence)) for row in rows]
    sharing = [(row, shared) for row, shared in parts if shared is not None]
    if not sharing:
        return None
    row, shared = sorted(sharing, key=lambda pair: pair[1].spread)[len(sharing) // 2]
    backends = tuple(sorted({row.backend for row, _ in sharing}))
    return SharingThreads(backends, row.ranks, shared.threads, shared.cores, shared.spread)


def _reason(remedy: str, rows: Sequence[Row]) -> QualityReason:
    if remedy == "threads":
        return QualityReason(remedy, len(rows), threads=_sharing_threads(rows))
    if remedy != "time":
        return QualityReason(remedy, len(rows))
    counted = [row for row in rows if row.stopped == "iterations"]
    if 2 * len(counted) > len(rows):
        return QualityReason(remedy, len(rows), iterations=_suggested(map(_needed_iterations, counted), _COUNTS) or 0)
    return QualityReason(remedy, len(rows), _suggested(map(_needed_time, rows), _TIMES_S))


def _suggested(needs: Iterable[float | None], choices: Sequence[int]) -> int | None:
    """Return the choice that is enough for an interval of ±10 % in most of the rows; None if that is not known, or none is enough."""
    needed = sorted(need for need in needs if need is not None)
    most = needed[ceil(0.8 * len(needed)) - 1] if needed else None
    return next((choice for choice in choices if most is not None and choice >= most), None)


def _needed_iterations(row: Row) -> float:
    """Return the samples for an interval of ±10 %: it narrows with the square root of their number."""
    width = half_width(row)
    return max(2.0 * row.n, _LEAST_INTERVAL) if width is None else row.n * (width / NOISE) * (width / NOISE)


def _needed_time(row: Row) -> float | None:
    """Return the seconds for an interval of ±10 %; None if they are not known."""
    width = half_width(row)
    iterations = row.evidence.get("iterations_per_sample", 1)
    if width is None or row.time_s is None or not isinstance(iterations, int | float):
        return None
    spent = 1.5 * row.n * row.time_s.p50 * iterations  # 50 % more for warm-up and synchronization
    return float(spent * (width / NOISE) * (width / NOISE))
