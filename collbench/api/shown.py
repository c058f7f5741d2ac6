"""Results of the API as they are shown: a short `repr`, and HTML for notebooks, in which all text is escaped."""

from __future__ import annotations

from typing import Any, TypeVar

from collbench.analysis.compare import Comparison
from collbench.gating.verdict import Verdict
from collbench.machine.peak.collective import CollectiveCeilings
from collbench.machine.peak.comparison import OF_SIZES, headline, limits
from collbench.machine.peak.time_model import ExpectedTime
from collbench.report.compare import html_of_comparison
from collbench.report.frame import Column, Frame, html_text, printable
from collbench.report.outcome_text import describe_comparison
from collbench.report.verdict import headline as headline_of_verdict
from collbench.report.verdict import html_of_verdict
from collbench.units import format_percent, format_rate, format_size, format_time

S = TypeVar("S")


class ShownComparison(Comparison, frozen=True):
    """A `Comparison` that a notebook shows as a table: `cases`, `summary`, `only_a`, `only_b`, `differences`, `warnings`, `fallen`."""

    def __repr__(self) -> str:
        """Return the names of both sides, and how many cases have each outcome."""
        return printable(f"<Comparison: {self.a.name} → {self.b.name}: {describe_comparison(self)}>")

    def _repr_html_(self) -> str:
        return html_of_comparison(self)


class ShownVerdict(Verdict, frozen=True):
    """A `Verdict` that a notebook shows as a table: `result`, `exit_code`, `reasons`, `suspicions`, `groups`, `cause`, `changes` …"""

    def __repr__(self) -> str:
        """Return the result in one line."""
        return f"<Verdict: {headline_of_verdict(self)}>"

    def _repr_html_(self) -> str:
        return html_of_verdict(self)


class ShownCeilings(CollectiveCeilings, frozen=True):
    """`CollectiveCeilings` that a notebook shows with their limits: `expected`, `bound`, `ring`, `sizes`."""

    def __repr__(self) -> str:
        """Return the rates in one line."""
        return printable(f"<CollectiveCeilings: {headline(None, self)}>")

    def _repr_html_(self) -> str:
        head = [headline(None, self), *limits(self)]
        foot = [OF_SIZES] if self.sizes else []
        return html_text(Frame(_OF_SIZES, self.sizes, head=head, foot=foot))


_OF_SIZES: tuple[Column[ExpectedTime], ...] = (
    Column("size_bytes", "size", lambda row: format_size(row.size_bytes)),
    Column("expected_time_s", "time µs", lambda row: format_time(row.seconds), right=True),
    Column("expected_busbw_bytes_per_s", "busbw GB/s", lambda row: format_rate(row.busbw_bytes_per_s), right=True),
    Column("plateau_percent", "of plateau", lambda row: format_percent(row.plateau_percent), right=True),
    Column("algorithm", "algorithm/protocol", lambda row: row.how),
)


def shown(result: Any, kind: type[S]) -> S:
    """Return a result as `kind`, such as one of the classes here, with the same values."""
    names = getattr(result, "__struct_fields__", None) or getattr(result, "__dataclass_fields__", None) or vars(result)
    return kind(**{name: getattr(result, name) for name in names})
