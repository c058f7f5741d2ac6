"""Two sets of launches compared case by case. The result is an outcome per case, but no verdict: that is the gate's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log
from pathlib import Path
from typing import Annotated, Any

import msgspec

from collbench.analysis.ceilings import CeilingDrops, ceiling_drops
from collbench.analysis.differences import Difference, differences
from collbench.analysis.history import history
from collbench.analysis.launches import (
    WHERE_NONE,
    Launches,
    case_of,
    check_once,
    estimate_of,
    grouped,
    known,
    row_figures,
    runs_in,
    sentence,
    together,
    why_inconclusive,
)
from collbench.analysis.outcome import MARGIN, Doubt, Outcome, count_outcomes, counts_by_name, outcome_of
from collbench.columns import column
from collbench.errors import UsageError
from collbench.results.reader import Run
from collbench.results.row import IMPORTED, SERIES, Row
from collbench.stats.launches import Ratio, inverse, ratio_by_scatter, ratio_of_launches, ratio_of_medians

_STATE = 1.20  # a state probe that differs by more belongs to another state of the machine (MEASUREMENT.md)


class NothingInCommon(UsageError):
    """Two sides without a common case. sides: both."""

    def __init__(self, sentence: str, sides: Sequence[Launches]) -> None:
        super().__init__(sentence)
        self.sides = sides


class CaseRatio(msgspec.Struct, frozen=True):
    """A case that both sides have, and its ratio of times; of rows under load the ratio of their factors.

    time      the time (the factor) of b / that of a with its 95 % interval; None if a side has none
    launches  whether the interval is over launches of both sides
    probe_s   (a, b): the median of the state probe in seconds, None if it was not measured
    runs      how many launches of a and of b measured the case; (0, 0) if a and b are rows of one run
    margin    largest difference that counts as no change: 0.05 is ±5 %
    scatter   with one launch on a side: how many launches the scatter is of that the interval includes. 0: no scatter is known, so the
              interval is from within a launch, and another launch may differ by more
    """

    a: Row
    b: Row
    time: Ratio | None
    launches: bool
    probe_s: tuple[float | None, float | None]
    runs: tuple[int, int] = (0, 0)
    margin: float = MARGIN
    scatter: int = 0

    @property
    def across_launches(self) -> bool:
        """Return whether the interval includes the differences between launches; else it decides nothing."""
        return self.launches or self.scatter > 0

    @property
    def outcome(self) -> Outcome | None:
        """Return the outcome; None if a side has no time. A row under load without a factor is inconclusive."""
        if self.time is None:
            return Outcome.INCONCLUSIVE if self._doubtful_side else None
        return outcome_of(self.time.low, self.time.high, self.margin) if self.across_launches else Outcome.INCONCLUSIVE

    @property
    def _doubtful_side(self) -> bool:
        return self.a.na is None and self.b.na is None and any(map(why_inconclusive, (self.a, self.b)))

    @property
    def doubt(self) -> Doubt | None:
        """Return why the outcome is inconclusive; None for any other outcome."""
        if self.time is None and self._doubtful_side:
            return Doubt.OF_A_SIDE
        if self.time is None or self.outcome is not Outcome.INCONCLUSIVE:
            return None
        if self.across_launches and self.time.low is not None and self.time.high is not None:
            return Doubt.WIDE
        return Doubt.ONE_RUN_EACH if self.runs == (1, 1) else Doubt.NO_INTERVAL

    @property
    def within(self) -> float | None:
        """Return the largest difference that the interval allows, in either direction: 0.017 is 1.7 %; None without one over launches."""
        if not self.across_launches or self.time is None or self.time.low is None or self.time.high is None:
            return None
        return max(self.time.high - 1, 1 - self.time.low)

    @property
    def bandwidth(self) -> Ratio | None:
        """Return the bandwidth of b / that of a: the inverse; None for operations without bandwidth."""
        if self.time is None or self.a.interference or self.a.busbw_bytes_per_s is None or self.b.busbw_bytes_per_s is None:
            return None
        return inverse(self.time)

    @property
    def wrong(self) -> bool:
        """Return whether a side has wrong data, so that its time is not valid."""
        return bool(self.a.wrong or self.b.wrong)

    @property
    def state_differs(self) -> bool:
        """Return whether the state probes differ by more than 20 %. Another machine state alone may explain the ratio."""
        a, b = self.probe_s
        return a is not None and b is not None and max(a, b) > _STATE * min(a, b)


class Comparison(msgspec.Struct, frozen=True):
    """Two sides compared: the cases that both have, those that only one has, and their other differences.

    fallen  the links and ceilings that are lower in b
    margin  largest difference that counts as no change: 0.05 is ±5 %
    """

    a: Launches
    b: Launches
    cases: list[CaseRatio]
    only_a: list[Row]
    only_b: list[Row]
    differences: list[Difference]
    warnings: list[str]
    fallen: CeilingDrops
    margin: float = MARGIN

    @property
    def summary(self) -> Summary:
        """Return how many cases have each outcome."""
        sound = [case for case in self.cases if not case.wrong]
        return Summary(
            outcomes=count_outcomes(case.outcome for case in sound if case.outcome is not None),
            one_run_each=sum(case.doubt is Doubt.ONE_RUN_EACH for case in sound),
            not_available=sum(case.outcome is None for case in sound),
            wrong_data=len(self.cases) - len(sound),
            only_a=len(self.only_a),
            only_b=len(self.only_b),
        )

    @property
    def without_intervals(self) -> bool:
        """Return whether every ratio is of one run each and has no interval, as for two imported logs."""
        ratios = [case for case in self.cases if case.time is not None]
        return bool(ratios) and all(case.doubt is Doubt.ONE_RUN_EACH and case.time and case.time.low is None for case in ratios)


class Summary(msgspec.Struct, frozen=True):
    """The number of cases of a comparison by outcome."""

    outcomes: Annotated[
        dict[Outcome, int],
        column("Cases with right data and a time on both sides.", key="", value=lambda summary: counts_by_name(summary.outcomes)),
    ]
    one_run_each: Annotated[int, column("Inconclusive ones with one launch on each side, of which the scatter is not known.")]
    not_available: Annotated[int, column("Cases without a time on a side.")]
    wrong_data: Annotated[int, column("Cases with wrong data on a side; they have no outcome here.")]
    only_a: Annotated[int, column("Cases that B lacks.")]
    only_b: Annotated[int, column("Cases that A lacks.")]


def worst_first(cases: Iterable[CaseRatio]) -> list[CaseRatio]:
    """Return the cases in the order to check them: wrong data, cases that b has lost, then the most certain slowdown."""
    return sorted(cases, key=_urgency)


def largest_first(cases: Iterable[CaseRatio]) -> list[CaseRatio]:
    """Return the cases, the largest change first, slower or faster; cases without a ratio come last."""
    return sorted(cases, key=lambda case: (case.time is None, -abs(log(case.time.value)) if case.time else 0.0))


def _urgency(case: CaseRatio) -> tuple[int, float]:
    """Return the place in the order of what to check, and the negative of the smallest slowdown that the interval allows.

    Of a change without an interval it is its size in either direction.
    """
    lost = case.b.na is not None and case.a.na is None
    if case.wrong:
        rank = 0
    elif lost:
        rank = 1
    else:
        rank = 2 + (len(Outcome) if case.outcome is None else list(Outcome).index(case.outcome))
    if case.time is None:
        return rank, 0.0
    if case.doubt in (Doubt.ONE_RUN_EACH, Doubt.NO_INTERVAL):
        return rank, -abs(log(case.time.value))
    end = {Outcome.SLOWER: case.time.low, Outcome.FASTER: case.time.high}.get(case.outcome or Outcome.INCONCLUSIVE)
    return rank, -(end or case.time.value)


def compare(a: Path, b: Path, margin: float = MARGIN) -> Comparison:
    """Return B compared with A, each a run folder or a folder of launches; `margin` is the largest difference that counts as no change.

    Raises UsageError for a path that is neither, and for the same launch on both sides. Likewise for launches of one side that do not
    belong together, and for sides without a common case.
    """
    if a.resolve() == b.resolve():
        raise UsageError(f"{a} and {b} are the same folder: name two")
    return compare_sides(runs_in(a), runs_in(b), (str(a), str(b)), margin)


def compare_sides(a: Sequence[Run], b: Sequence[Run], names: tuple[str, str], margin: float = MARGIN) -> Comparison:
    """Return B compared with A, each the launches of one side; `names` are those of the sides in errors.

    Raises UsageError for a launch that is on both sides or given twice, for launches of one side that do not belong together.
    Raises NothingInCommon for sides without a common case.
    """
    check_once([*a, *b])
    comparison = compare_pair(side_of(a, names[0]), side_of(b, names[1]), margin)
    if not comparison.cases:
        sentence = f"{names[0]} and {names[1]} have no case in common: {why_nothing_in_common(comparison)}"
        raise NothingInCommon(sentence, (comparison.a, comparison.b))
    return comparison


def compare_pair(a: Launches, b: Launches, margin: float = MARGIN) -> Comparison:
    """Return B compared with A, both read already; without a common case `cases` is empty, and `why_nothing_in_common` has the reason."""
    rows_a, rows_b = ({case_of(row): row for row in side.rows} for side in (a, b))
    launches_a = rows_by_case(a.runs)
    launches_b = rows_by_case(b.runs)
    earlier = rows_by_case(history(a.runs[0], b.runs[0])) if len(a.runs) == len(b.runs) == 1 else {}
    cases = [
        _case(rows_a[case], rows_b[case], launches_a[case], launches_b[case], earlier.get(case, ()), margin=margin)
        for case in rows_a
        if case in rows_b
    ]
    return Comparison(
        a, b, cases,
        [row for case, row in rows_a.items() if case not in rows_b], [row for case, row in rows_b.items() if case not in rows_a],
        differences(a.runs[0], b.runs[0]),
        [warning for run in (*a.runs, *b.runs) for warning in (*run.warnings, sentence(run)) if warning],
        ceiling_drops(a.runs[0], b.runs[0], a.rows, b.rows), margin,
    )  # fmt: skip


def why_nothing_in_common(comparison: Comparison) -> str:
    """Return which columns of the cases never agree, for sides without a common case: "ranks 2 → 4"."""
    a = comparison.only_a
    b = comparison.only_b
    if not a or not b:
        return "one of them has no finished case"
    names = [name for name in (*SERIES, "size_bytes") if not _values(a, name) & _values(b, name)]
    changes = [f"{name.replace('_', ' ')} {_join_values(_values(a, name))} → {_join_values(_values(b, name))}" for name in names]
    return ", ".join(changes) or "their combinations of operation, backend, type and size differ"


def side_of(runs: Sequence[Run], name: str) -> Launches:
    """Return the launches of one side, named `name` in errors. Raises UsageError if they do not belong together."""
    sides, why = together(runs)
    if len(sides) > 1:
        reason = why[0] if why else "they are of different allocations, which may differ by more than launches do"
        raise UsageError(f"the launches in {name} cannot be one side of a comparison ({reason}): name a folder of launches that "
                         "`--launches N` wrote, or give all of them the same --allocation NAME")  # fmt: skip
    return sides[0]


def rows_by_case(runs: Iterable[Run]) -> dict[tuple[Any, ...], list[Row]]:
    """Return the rows of each case, one per launch."""
    return grouped((row for run in runs for row in {case_of(row): row for row in run.rows}.values()), case_of)


def _case(a: Row, b: Row, of_a: Sequence[Row], of_b: Sequence[Row], earlier: Sequence[Row], *, margin: float) -> CaseRatio:
    before, after, others = (row_figures(rows) for rows in (of_a, of_b, earlier))
    several = min(len(before), len(after)) > 1
    time: Ratio | None = None
    scatter = 0
    if before and after and several:
        time = ratio_of_launches(before, after)
        if IMPORTED in (*a.flags, *b.flags) and len({*before}) == len({*after}) == 1:
            # the other tool's rounding hides the scatter: an interval without width would make a change of its last digit
            time = Ratio(time.value, None, None, time.n)
    elif before and after:
        within = ratio_of_medians(estimate_of(a), estimate_of(b))
        known_launches = max((before, after, others), key=len)
        time = ratio_by_scatter(within, known_launches, (len(before), len(after)))
        scatter = len(known_launches) if time is not within else 0
    return CaseRatio(a, b, time, several, (state_probe_s(of_a), state_probe_s(of_b)), (len(of_a), len(of_b)), margin, scatter)


def state_probe_s(rows: Iterable[Row]) -> float | None:
    """Return the median of the state probes of these rows in seconds; None if none was measured."""
    values = sorted(value for row in rows for value in row.canary_s.values() if known(value) and value)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2 if values else None


def _values(rows: Iterable[Row], name: str) -> frozenset[str]:
    values = {getattr(row, name) for row in rows}
    if name == "in_place":
        return frozenset("yes" if value else "no" for value in values)
    return frozenset(WHERE_NONE.get(name, "none") if value is None else str(value) for value in values)


def _join_values(values: frozenset[str]) -> str:
    shown = sorted(values, key=lambda text: (len(text), text))
    return "/".join(shown[:4]) + ("/…" if len(shown) > 4 else "")
