"""What the fixture `collbench` returns: measurements of a test, and assertions about them.

An assertion passes, fails with AssertionError, or is inconclusive: then the test is skipped, or fails with `--collbench-inconclusive=fail`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from inspect import signature
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import msgspec
import pytest

from collbench.analysis.best import headlines
from collbench.analysis.compare import CaseRatio, why_nothing_in_common
from collbench.analysis.outcome import MARGIN
from collbench.errors import CollbenchError, NoVerdict
from collbench.gating.baseline import ENDING
from collbench.gating.verdict import PASSED, UNDECIDED
from collbench.report.bencher import case_name
from collbench.report.cases import name_of, not_available, of_ceiling, times
from collbench.report.headlines import short
from collbench.report.verdict import headline, slower
from collbench.results.flags import flag_name
from collbench.results.quality import is_unreliable
from collbench.results.row import Row
from collbench.testing.plugin import INCONCLUSIVE, MARKER, OUT, PROPERTY
from collbench.units import format_percent, parse_size

if TYPE_CHECKING:
    from collbench import Runs

State = Literal["passed", "failed", "inconclusive"]
_MOST_NAMED = 6  # reasons in a message
_WITHHOLD = frozenset({"reference_disturbed", "above_bound", "oversubscribed", "other_path"})  # flags of rows without a percentage
T = TypeVar("T")


class BandwidthCheck(msgspec.Struct, frozen=True):
    """A row against a share of its expected bandwidth.

    row       the row
    at_least  the share: 0.8 is 80 %
    share, low, high  the bus bandwidth as a share of the expected one, with the ends of its 95 % interval; None: unknown
    """

    row: Row
    at_least: float
    share: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, row: Row, at_least: float) -> BandwidthCheck:
        """Return the check of a row. The bandwidth is inversely proportional to the time, so the interval's ends are exchanged."""
        times, comparison = row.time_s, row.comparison
        if row.na is not None or times is None or comparison is None:
            return cls(row, at_least)
        percent = comparison.percent
        ends = [percent / 100 * times.p50 / end if end else None for end in (times.ci_high, times.ci_low)]
        return cls(row, at_least, percent / 100, *ends)

    @property
    def state(self) -> State:
        """Return the outcome: inconclusive without a percentage, of an unreliable row, and if the interval includes the limit."""
        if self.row.wrong:
            return "failed"
        if self.share is None or is_unreliable(self.row):
            return "inconclusive"
        low = self.share if self.low is None else self.low
        high = self.share if self.high is None else self.high
        if low >= self.at_least:
            return "passed"
        return "failed" if high < self.at_least else "inconclusive"

    def render(self) -> str:
        """Return the sentence for the test's report."""
        where = f"{name_of(self.row)} over {short(self.row.backend)}"
        limit = f"at least {format_percent(100 * self.at_least)} of the expected bandwidth"
        if self.row.wrong:
            return f"{where}: wrong data"
        if self.row.na is not None:
            return f"{where}: {not_available(self.row)}"
        if self.share is None:
            reasons = ", ".join(flag_name(flag) for flag in self.row.flags if flag in _WITHHOLD)
            return f"{where}: {f'no percentage ({reasons})' if reasons else 'no expected bandwidth is known'}"
        known = self.low is not None and self.high is not None
        ends = f" (95 % CI {format_percent(100 * self.low)} to {format_percent(100 * self.high)})" if known else ""  # type: ignore[operator]
        doubt = "; its quality is unreliable" if is_unreliable(self.row) else ""
        return f"{where}: {format_percent(100 * self.share)}{ends}, required {limit}{doubt}"


class TimeCheck(msgspec.Struct, frozen=True):
    """A case of a comparison against the largest slowdown that counts as no change: 0.05 is 5 %."""

    case: CaseRatio
    margin: float

    @property
    def state(self) -> State:
        """Return the outcome: failed if the whole interval is above the margin, inconclusive if it includes it, or is within a launch."""
        time = self.case.time
        if self.case.wrong:
            return "failed"
        if time is None or time.low is None or time.high is None or not self.case.across_launches:
            return "inconclusive"
        limit = 1 + self.margin
        if time.low > limit:
            return "failed"
        return "passed" if time.high <= limit else "inconclusive"

    def render(self) -> str:
        """Return the sentence for the test's report."""
        time, where = self.case.time, f"{name_of(self.case.b)} over {short(self.case.b.backend)}"
        if self.case.wrong:
            return f"{where}: wrong data"
        if time is None:
            return f"{where}: not measured on both sides"
        known = self.case.across_launches and time.low is not None and time.high is not None
        ends = f"95 % CI {slower(time.low)} to {slower(time.high)}" if known else "no interval: measure several launches"
        return f"{where}: time {slower(time.value)} ({ends}), allowed {slower(1 + self.margin)}"


class NetworkTest:
    """The measurements of one test. `runs` has what the marker names, and is measured when it is first used."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    @cached_property
    def runs(self) -> Runs:
        """The stored run of what the marker names. The test fails if it cannot be measured, and for wrong data."""
        marker = self._request.node.get_closest_marker(MARKER)
        if marker is None:
            _fail("the test has no marker `collbench`: add `@pytest.mark.collbench('allreduce', …)`, or call `collbench.measure(…)`")
        return self.measure(*marker.args, **marker.kwargs)

    def measure(self, *args: Any, **options: Any) -> Runs:
        """Measure, add the rows to the test's report, and return the stored run; the arguments are those of `collbench.measure`.

        The run folder is in the test's tmp_path, or below `--collbench-out`. The test fails if it cannot be measured, and for wrong data.
        """
        __tracebackhide__ = True
        import collbench

        options.setdefault("out", self._folder())
        try:
            signature(collbench.measure).bind(*args, **options)
        except TypeError as error:
            _fail(f"collbench.measure: {error}")
        runs: Runs = self._caught(lambda: collbench.measure(*args, **options))
        self._report(runs)
        return runs

    def assert_bandwidth(self, at_least: float, *, from_size: int | str | None = None, runs: Runs | None = None) -> None:
        """Assert that the bus bandwidth reaches a share of the expected one.

        at_least   the share: 0.8 is 80 %
        from_size  check every size from this one on (None: only the best bandwidth of each operation and backend)
        runs       what `measure` returned (None: those of the marker)

        Raises AssertionError if the 95 % confidence interval of a row is below the share. The assertion is inconclusive if the interval
        includes it, for an unreliable row, and without an expected bandwidth.
        """
        __tracebackhide__ = True
        if not 0 < at_least <= 2:
            _fail(f"at_least={at_least}: not a valid share (use a number above 0, such as 0.8 for 80 %)")
        rows = self._caught(lambda: _rows(runs or self.runs))
        if from_size is None:
            chosen = [each.row for each in headlines(rows)]
        else:
            least = self._caught(lambda: parse_size(str(from_size)))
            chosen = [row for row in rows if row.size_bytes >= least]
        checks = [BandwidthCheck.of(row, at_least) for row in chosen]
        if not checks:
            self._inconclusive(["no row to check"])
        self._judge({state: [each.render() for each in checks if each.state == state] for state in ("failed", "inconclusive")})

    def assert_not_slower(self, baseline: str | Path, *, margin: float = MARGIN, runs: Runs | None = None) -> None:
        """Assert that no case is slower than in a baseline.

        baseline  a folder that `collbench baseline add` wrote, which the gate judges; or a stored run, for a comparison case by case
        margin    of a comparison: the largest slowdown that counts as no change: 0.05 is 5 %
        runs      what `measure` returned (None: those of the marker)

        Raises AssertionError for a regression, and for a case with a 95 % confidence interval above the margin. The assertion is
        inconclusive if the gate has no verdict, and if the interval of a case includes the margin or is missing.
        """
        __tracebackhide__ = True
        import collbench

        found, folder = runs or self.runs, Path(baseline)
        if any(folder.glob(f"*{ENDING}")):
            verdict = self._caught(lambda: collbench.gate(folder, found))
            state = {PASSED: "passed", UNDECIDED: "inconclusive"}.get(verdict.result, "failed")
            self._judge({state: [headline(verdict), *(each.render() for each in verdict.reasons)]})
            return
        compared = self._caught(lambda: collbench.compare(folder, found, margin=margin))
        if not compared.cases:
            _fail(why_nothing_in_common(compared))
        checks = [TimeCheck(each, margin) for each in compared.cases]
        self._judge({state: [each.render() for each in checks if each.state == state] for state in ("failed", "inconclusive")})

    def _judge(self, found: Mapping[str, Sequence[str]]) -> None:
        """Raise AssertionError for a failure, and skip or fail the test for what is inconclusive."""
        __tracebackhide__ = True
        if failed := found.get("failed"):
            raise AssertionError(_listed(failed))
        if doubts := found.get("inconclusive"):
            self._inconclusive(doubts)

    def _inconclusive(self, reasons: Sequence[str]) -> NoReturn:
        __tracebackhide__ = True
        text = f"inconclusive: {_listed(reasons)}"
        if self._request.config.getoption(INCONCLUSIVE) == "fail":
            raise pytest.fail.Exception(text, pytrace=False) from None
        pytest.skip(text)

    def _caught(self, do: Callable[[], T]) -> T:
        """Return the result. An error of collbench ends the test with its sentence, without a traceback."""
        __tracebackhide__ = True
        try:
            return do()
        except NoVerdict as error:
            self._inconclusive([str(error)])
        except CollbenchError as error:
            _fail(str(error))

    def _folder(self) -> Path:
        """Return the folder of the next run: the first one that does not exist. Earlier sessions may have used the same --collbench-out."""
        out = self._request.config.getoption(OUT)
        if out is None:
            above, name = Path(self._request.getfixturevalue("tmp_path")), "collbench"
        else:
            above = Path(self._request.config.invocation_params.dir, out)
            name = re.sub(r"[^\w.-]+", "_", self._request.node.nodeid).strip("_")[-150:]
        return next(path for number in count(1) if not (path := above / f"{name}-{number}").exists())

    def _report(self, runs: Runs) -> None:
        """Add the rows to the test's report: lines for people, and properties for JUnit."""
        node = self._request.node
        rows = _rows(runs)
        lines = [f"{name_of(row)} over {short(row.backend)}: {_figures(row)}" for row in rows]
        node.add_report_section("call", "collbench", "\n".join([f"run folder: {path}" for path in runs.paths] + lines))
        best = [each.row for each in headlines(rows)]
        node.user_properties += [(PROPERTY, f"{name_of(row)} over {short(row.backend)}: {_figures(row)}") for row in best]
        node.user_properties += [("collbench run", str(path)) for path in runs.paths]
        for row in rows:
            figures = {"median_s": row.time_s and row.time_s.p50, "busbw_bytes_per_s": row.busbw_bytes_per_s,
                       "percent_of_expected": row.comparison and row.comparison.percent}  # fmt: skip
            node.user_properties += [(f"{case_name(row)} {name}", value) for name, value in figures.items() if value is not None]


def _rows(runs: Runs) -> list[Row]:
    """Return the rows, those of several launches combined."""
    return [row for each in runs.launches for row in each.rows]


def _fail(text: str) -> NoReturn:
    __tracebackhide__ = True
    raise pytest.fail.Exception(f"collbench: {text}", pytrace=False) from None  # pytest would show the exception that is handled, too


def _figures(row: Row) -> str:
    """Return the median and the bandwidth: "2390 µs, 42.0 of 50.0 GB/s (84 %)"; the reason of an n/a row."""
    return not_available(row) if row.na is not None else f"{times(row, ' µs')}, {of_ceiling(row)}"


def _listed(reasons: Sequence[str]) -> str:
    more = len(reasons) - _MOST_NAMED
    return "; ".join([*reasons[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])
