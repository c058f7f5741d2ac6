"""Hold runs against a stored prediction (`gate --against-prediction`): is a larger cluster as fast as smaller ones predict?

The interval of a prediction includes the error of its model, so no baseline of several allocations is needed. A case is a regression if
the whole interval of its measured time is above that of the prediction. With several launches, its time is the median over them, and its
interval reaches from the lowest to the highest end of theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from statistics import median
from typing import Any, Literal

import msgspec

from collbench.analysis.latency import reason
from collbench.analysis.launches import case_of, grouped, is_time, time_of
from collbench.errors import UsageError
from collbench.gating.verdict import EXIT_CODES, PASSED, REGRESSION, UNDECIDED, WRONG_DATA
from collbench.plugins.predict.prediction import PredictedCase, PredictedTime, Prediction, asked_size
from collbench.reason import Fact, as_json
from collbench.results.row import CaseKey, Row
from collbench.units import listed


class PredictionOutcome(StrEnum):
    """The outcome of a case against its prediction, in the order of their severity."""

    WRONG_DATA = "wrong data"
    SLOWER = "slower"
    INCONCLUSIVE = "inconclusive"
    FASTER = "faster"
    WITHIN = "within"


class PredictionDoubt(Fact, frozen=True):
    """A case cannot be held against its prediction."""

    cause: Literal["missing", "flag", "no interval", "wide"]
    flag: str = ""

    def render(self) -> str:
        """Return the reason, and what to do."""
        return {
            "missing": "not measured: the prediction has this case, so measure it",
            "flag": f"its time is not one number ({self.flag.replace('_', ' ')}): measure again",
            "no interval": "its time has no confidence interval: use a longer --max-time",
            "wide": "its confidence interval has the upper end of the prediction in it: use a longer --max-time",
        }[self.cause]


class HeldCase(msgspec.Struct, frozen=True):
    """A case at one node count.

    time_s, low_s, high_s   the measured median in seconds with its interval; None if not measured
    doubt                   why the outcome is inconclusive: a `PredictionDoubt`, or the refusal of the prediction
    """

    case: PredictedCase
    predicted: PredictedTime
    outcome: PredictionOutcome
    time_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    doubt: Fact | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the case as an object for JSON."""
        return {
            **self.case.key(self.predicted.nodes)._asdict(), "outcome": self.outcome.value, "time_s": self.time_s, "low_s": self.low_s,
            "high_s": self.high_s, "predicted_s": self.predicted.time_s, "predicted_low_s": self.predicted.low_s,
            "predicted_high_s": self.predicted.high_s, "doubt": as_json(self.doubt),
        }  # fmt: skip


class PredictionVerdict(msgspec.Struct, frozen=True):
    """The verdict about runs against a prediction. unpredicted: how many measured cases the prediction does not have."""

    cases: tuple[HeldCase, ...]
    unpredicted: int

    @property
    def result(self) -> str:
        """Return "passed", "regression", "no verdict" or "wrong data", as a verdict against a baseline."""
        found = {each.outcome for each in self.cases}
        if PredictionOutcome.WRONG_DATA in found:
            return WRONG_DATA
        if PredictionOutcome.SLOWER in found:
            return REGRESSION
        return UNDECIDED if PredictionOutcome.INCONCLUSIVE in found else PASSED

    @property
    def exit_code(self) -> int:
        """Return the exit code: 0 passed, 1 regression, 3 no verdict, 4 wrong data."""
        return EXIT_CODES[self.result]

    def counts(self) -> dict[PredictionOutcome, int]:
        """Return the number of cases of each outcome, zeros included."""
        found = Counter(each.outcome for each in self.cases)
        return {each: found[each] for each in PredictionOutcome}

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as an object for JSON."""
        return {
            "schema": 1, "result": self.result, "exit_code": self.exit_code, "unpredicted": self.unpredicted,
            "cases": [each.as_json() for each in self.cases],
        }  # fmt: skip


def hold_against(rows: Iterable[Row], prediction: Prediction) -> PredictionVerdict:
    """Return the verdict about the rows of one node count or several; several rows of a case are launches.

    Raises UsageError if no row has a node count of the prediction.
    """
    by_case = grouped(rows, lambda row: case_of(row)._replace(size_bytes=asked_size(row)))
    counts = {key.nodes for key in by_case} & set(prediction.nodes)
    if not counts:
        measured = listed(sorted(str(nodes) for nodes in {key.nodes or "unknown" for key in by_case})) or "no case"
        raise UsageError(
            f"the prediction is for {listed([str(nodes) for nodes in prediction.nodes])} nodes, the runs have {measured}: "
            "predict their node count (collbench predict RUN… --nodes N --out FILE)"
        )
    expected = [(case, each) for case in prediction.cases for each in case.predictions if each.nodes in counts]
    keys = {case.key(each.nodes) for case, each in expected}
    held = [_held(case, each, by_case.get(case.key(each.nodes), [])) for case, each in expected]
    held.sort(key=lambda each: list(PredictionOutcome).index(each.outcome))
    return PredictionVerdict(tuple(held), len(_measured(by_case) - keys))


def _measured(by_case: dict[CaseKey, list[Row]]) -> set[CaseKey]:
    return {key for key, rows in by_case.items() if any(time_of(row) is not None for row in rows)}


def _held(case: PredictedCase, predicted: PredictedTime, rows: Sequence[Row]) -> HeldCase:
    times = [time for row in rows if (time := time_of(row)) is not None]
    if any(row.wrong for row in rows):
        return HeldCase(case, predicted, PredictionOutcome.WRONG_DATA, median(times) if times else None)
    if not times:
        return HeldCase(case, predicted, PredictionOutcome.INCONCLUSIVE, doubt=PredictionDoubt("missing"))
    ends = [end for row in rows if row.time_s for end in (row.time_s.ci_low, row.time_s.ci_high) if end is not None and is_time(end)]
    low, high = (min(*times, *ends), max(*times, *ends)) if len(ends) == 2 * len(times) else (None, None)
    outcome, doubt = _outcome(predicted, next(filter(None, map(_flag, rows)), None), low, high)
    return HeldCase(case, predicted, outcome, median(times), low, high, doubt)


def _flag(row: Row) -> str | None:
    return reason(row) if row.size_bytes else None  # a barrier has no size


def _outcome(
    predicted: PredictedTime, flag: str | None, low_s: float | None, high_s: float | None
) -> tuple[PredictionOutcome, Fact | None]:
    """Return the outcome, and why it is inconclusive."""
    if predicted.low_s is None or predicted.high_s is None:
        return PredictionOutcome.INCONCLUSIVE, predicted.refusal
    if flag:
        return PredictionOutcome.INCONCLUSIVE, PredictionDoubt("flag", flag)
    if low_s is None or high_s is None:
        return PredictionOutcome.INCONCLUSIVE, PredictionDoubt("no interval")
    if low_s > predicted.high_s:
        return PredictionOutcome.SLOWER, None
    if high_s < predicted.low_s:
        return PredictionOutcome.FASTER, None
    return (PredictionOutcome.INCONCLUSIVE, PredictionDoubt("wide")) if high_s > predicted.high_s else (PredictionOutcome.WITHIN, None)
