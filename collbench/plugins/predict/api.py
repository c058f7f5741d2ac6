"""`collbench.predict`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from collbench.api.functions import runs_of
from collbench.api.runs import AnyPath, Runs
from collbench.api.shown import shown
from collbench.errors import UsageError
from collbench.plugins.predict.prediction import MAX_ERROR, Prediction
from collbench.plugins.predict.prediction import predict as predict_times
from collbench.plugins.predict.text import prediction_frame
from collbench.report.frame import html_text
from collbench.units import listed, plural


class ShownPrediction(Prediction, frozen=True):
    """A `Prediction` that a notebook shows as a table: `cases`, `nodes`, `predicted`, `unused`."""

    def __repr__(self) -> str:
        """Return how many times are predicted."""
        total = len(self.cases) * len(self.nodes)
        return f"<Prediction: {self.predicted} of {plural(total, 'time')} on {listed([str(count) for count in self.nodes], 3)} nodes>"

    def _repr_html_(self) -> str:
        return html_text(prediction_frame(self))


def predict(runs: Runs | AnyPath | Sequence[AnyPath], nodes: int | Sequence[int], *, max_error: float = MAX_ERROR) -> Prediction:
    """Return the times on more nodes that runs at several smaller node counts predict, as `collbench predict` does.

    runs       runs at 3 node counts or more, or what `read` accepts
    nodes      the node counts to predict
    max_error  of the largest measured count, predicted from the smaller ones: 0.15 is ±15 %; a case with a larger one is refused

    `cases` has the measured `points`, the `model`, the `check` and the `predictions` of each case: `time_s`, `low_s`, `high_s` in seconds,
    or `refusal`, the reason why there is none. Raises UsageError for invalid numbers, and for runs that cannot be read.
    """
    counts = [nodes] if isinstance(nodes, int) else list(nodes)
    if not counts or min(counts) < 2:
        raise UsageError(f"nodes={nodes}: not valid node counts (use 2 or more)")
    if not 0 < max_error < math.inf:
        raise UsageError(f"max_error={max_error}: not a valid fraction (use a number above 0, such as 0.15)")
    return shown(predict_times(runs_of(runs).rows, counts, max_error), ShownPrediction)
