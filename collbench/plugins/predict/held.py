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
from collbench.analysis.launches import case_of, grouped, row_times
from collbench.errors import UsageError
from collbench.gating.verdict import EXIT_CODES, PASSED, REGRESSION, UNDECIDED, WRONG_DATA
from collbench.plugins.predict.prediction import PredictedCase, PredictedTime, Prediction, asked_size, measured_interval
from collbench.reason import Fact, as_json
from collbench.results.row import Row
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
        outcomes = {case.outcome for case in self.cases}
        if PredictionOutcome.WRONG_DATA in outcomes:
            return WRONG_DATA
        if PredictionOutcome.SLOWER in outcomes:
            return REGRESSION
        return UNDECIDED if PredictionOutcome.INCONCLUSIVE in outcomes else PASSED

    @property
    def exit_code(self) -> int:
        """Return the exit code: 0 passed, 1 regression, 3 no verdict, 4 wrong data."""
        return EXIT_CODES[self.result]

    def counts(self) -> dict[PredictionOutcome, int]:
        """Return the number of cases of each outcome, zeros included."""
        counts = Counter(case.outcome for case in self.cases)
        return {outcome: counts[outcome] for outcome in PredictionOutcome}

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as an object for JSON."""
        return {
            "schema": 1, "result": self.result, "exit_code": self.exit_code, "unpredicted": self.unpredicted,
            "cases": [case.as_json() for case in self.cases],
        }  # fmt: skip


def hold_against(rows: Iterable[Row], prediction: Prediction) -> PredictionVerdict:
    """Return the verdict about the rows of one node count or several; several rows of a case are launches.

    Raises UsageError if no row has a node count of the prediction.
    """
    by_case = grouped(rows, lambda row: case_of(row)._replace(size_bytes=asked_size(row)))
    counts = {case.nodes for case in by_case} & set(prediction.nodes)
    if not counts:
        measured = listed(sorted(str(nodes) for nodes in {case.nodes or "unknown" for case in by_case})) or "no case"
        raise UsageError(
            f"the prediction is for {listed([str(nodes) for nodes in prediction.nodes])} nodes, the runs have {measured}: "
            "predict their node count (collbench predict RUN… --nodes N --out FILE)"
        )
    predicted = [(case.key(time.nodes), case, time) for case in prediction.cases for time in case.predictions if time.nodes in counts]
    held = [_held(case, time, by_case.get(key, [])) for key, case, time in predicted]
    held.sort(key=lambda case: list(PredictionOutcome).index(case.outcome))
    measured_cases = {key for key, rows in by_case.items() if row_times(rows)}
    return PredictionVerdict(tuple(held), len(measured_cases - {key for key, _, _ in predicted}))


def _held(case: PredictedCase, predicted: PredictedTime, rows: Sequence[Row]) -> HeldCase:
    times = row_times(rows)
    if any(row.wrong for row in rows):
        return HeldCase(case, predicted, PredictionOutcome.WRONG_DATA, median(times) if times else None)
    if not times:
        return HeldCase(case, predicted, PredictionOutcome.INCONCLUSIVE, doubt=PredictionDoubt("missing"))
    flags = [reason(row) for row in rows if row.size_bytes]  # a barrier has no size
    low_s, high_s = measured_interval(rows)
    outcome, doubt = _outcome(predicted, next(filter(None, flags), None), low_s, high_s)
    return HeldCase(case, predicted, outcome, median(times), low_s, high_s, doubt)


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
    if high_s > predicted.high_s:
        return PredictionOutcome.INCONCLUSIVE, PredictionDoubt("wide")
    return PredictionOutcome.FASTER if high_s < predicted.low_s else PredictionOutcome.WITHIN, None
