"""The section "Ranks that finish last": equal ranks finish last equally often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from collbench.report.cases import NOTHING, least_percent
from collbench.report.figures import set_names
from collbench.report.headlines import short as cut
from collbench.report.html.chart import Chart, Section, Table, marks_of
from collbench.report.html.picture import NARROW, PAGE, WIDE, Picture, drawn
from collbench.units import format_percent, plural

if TYPE_CHECKING:
    from collbench.analysis.stragglers import Compared, SlowLink, Straggler
    from collbench.report.material import Material

_MOST = 64  # bars; with more ranks the most frequent ones
_WIDE_FROM = 24
_LABELS = 16
_NAMED = 4
_TOO_FEW = 2  # ranks: two bars would only show two halves
_METHOD = (
    "For each sample, the rank with the longest time finishes last. A bar is the share of samples in which a rank finishes last, averaged "
    "over the cases with equal weight. Compared are only cases in which all ranks do the same by design: no rooted operations, pairs, "
    "groups of a split or uneven traffic, no ranks without a core of their own, and no large start skew. "
    "A rank is reported if it finishes last in significantly more samples than its share (binomial test, 0.1 % for the whole run) and its "
    "median is more than 5 % above that of the others, in at least a quarter of the cases of a backend. Such a rank may be slow, may wait "
    "for a slower rank or link that it receives from, or may have an extra step in the library's algorithm. It is reported to delay the "
    "others only if it also finishes last in all-to-all, where it receives from every rank directly, and the others finish together."
)


class _Ranks(msgspec.Struct, frozen=True):
    """The ranks of a table: host, share of samples in which the rank finished last (0 … 1), and excess of its median over the others.

    drawn     the ranks with a bar: those that finished last most often, in ascending order; only they have an `excess`
    expected  the share of each rank if all were equal
    named     the ranks that are reported
    """

    hosts: Mapping[int, str]
    shares: Mapping[int, float]
    drawn: Sequence[int]
    excess: Mapping[int, float]
    expected: float
    cases: int
    named: Sequence[Straggler]

    def name(self, rank: int) -> str:
        """Return the rank with its host, if that is known."""
        return f"rank {rank} ({cut(self.hosts[rank])})" if self.hosts.get(rank) else f"rank {rank}"

    def role_of(self, rank: int) -> str:
        """Return why the rank finishes last; "" if it is not reported."""
        return next((straggler.role.value for straggler in self.named if straggler.rank == rank), "")

    def color(self, rank: int) -> str:
        """Return the color of its bar: red only if the rank itself is slow."""
        from collbench.analysis.stragglers import Role

        return {"": PAGE.series[0], Role.DELAYS.value: PAGE.wrong}.get(self.role_of(rank), PAGE.expected)


def section(material: Material) -> Section | None:
    """Return the section, or None without a case with comparable ranks."""
    texts: list[str] = []
    charts: list[Chart] = []
    for number, (table, cases) in enumerate(zip(material.drawn, material.compared, strict=False)):
        if not cases:
            continue
        from collbench.analysis.stragglers import hosts_of, slow_links

        where = f" ({cut(table.name)})" if len(material.tables) > 1 else ""
        links = slow_links(table.runs[0])
        ranks = _ranks(cases, hosts_of(table.runs[0]), links)
        sentences = [*(link.sentence() for link in links), *(straggler.sentence() for straggler in ranks.named)]
        texts += [f"{sentence}{where}" for sentence in sentences]
        if len(ranks.shares) > _TOO_FEW:
            charts.append(_chart(f"slowest-{number}", f"how often each rank finished last{where}", ranks))
    return Section("slowest", "Ranks that finish last", texts, (), charts) if charts or texts else None


def _ranks(cases: Sequence[Compared], hosts: Mapping[int, str], links: Sequence[SlowLink]) -> _Ranks:
    from collbench.analysis.stragglers import histogram, stragglers_in

    shares = dict.fromkeys(range(max(len(case.medians_s) for case in cases)), 0.0) | dict(histogram(cases))
    drawn = sorted(sorted(shares, key=lambda rank: (-shares[rank], rank))[:_MOST])
    expected = sum(case.expected for case in cases) / len(cases)
    # of each rank its median / the median of all ranks, minus 1: the median over the cases
    ratios = [[float(median) / float(np.median(case.medians_s)) - 1 for median in case.medians_s] for case in cases]
    excess = {rank: float(np.median([by_rank[rank] for by_rank in ratios if rank < len(by_rank)])) for rank in drawn}
    return _Ranks(hosts, shares, drawn, excess, expected, len(cases), stragglers_in(cases, hosts, links))


def _chart(key: str, title: str, ranks: _Ranks) -> Chart:
    rows = []
    for rank in ranks.drawn:
        figures = [_percent(ranks.shares[rank]), _percent(ranks.expected), _signed(ranks.excess[rank])]
        rows.append([str(rank), cut(ranks.hosts.get(rank, "")) or NOTHING, *figures, ranks.role_of(rank) or NOTHING])
    head = ("rank", "host", "finishes last in", "equal share", "median versus all ranks", "finding")
    marks = marks_of("doubtful" if ranks.role_of(rank) else "" for rank in ranks.drawn)
    table = Table(head, rows, frozenset({0, 2, 3, 4}), marks)
    width = WIDE if len(ranks.drawn) >= _WIDE_FROM else NARROW
    return drawn(Chart(key, title, _caption(ranks), _METHOD, table), lambda picture: _draw(picture, ranks), width)


def _draw(picture: Picture, ranks: _Ranks) -> None:
    """Draw a bar for each rank, with its role above it, and the equal share."""
    axes = picture.axes()
    for place, rank in enumerate(ranks.drawn):
        height = 100 * ranks.shares[rank]
        role = ranks.role_of(rank)
        color = ranks.color(rank)
        axes.bar(place, height, width=0.8, color=color, gid=f"rank {rank}")
        if role:  # color alone is not enough
            axes.annotate(role, (place, height), (0, 3), textcoords="offset points", ha="center", color=color)
        finding = f", {role}" if role else ""
        last = f"last in {_percent(ranks.shares[rank])} of the samples, its median {_signed(ranks.excess[rank])}"
        picture.tip(axes, place, height, f"{ranks.name(rank)}: {last}{finding}")
    equal = 100 * ranks.expected
    axes.axhline(equal, color=PAGE.expected, linestyle=(0, (7, 3)), linewidth=1.4, gid="equal share")
    axes.set_title(f"equal share {format_percent(equal)}", loc="right", color=PAGE.expected)
    axes.set_ylim(0, 1.15 * max([equal, *(100 * ranks.shares[rank] for rank in ranks.drawn)]))
    set_names(axes, [str(rank) for rank in ranks.drawn], _LABELS)
    axes.set_xlabel("rank")
    axes.set_ylabel("finishes last in % of the samples")


def _caption(ranks: _Ranks) -> str:
    """Return which ranks are reported, or which one finishes last most often; and what is not drawn."""
    extent = f"compared: {plural(ranks.cases, 'case')}"
    all_drawn = len(ranks.drawn) == len(ranks.shares)
    less = "" if all_drawn else f" The chart shows the {len(ranks.drawn)} most frequent of {len(ranks.shares)} ranks."
    if ranks.named:
        names = ", ".join(ranks.name(straggler.rank) for straggler in ranks.named[:_NAMED])
        more = f" and {len(ranks.named) - _NAMED} more" if len(ranks.named) > _NAMED else ""
        return f"{names}{more} {'finishes' if len(ranks.named) == 1 else 'finish'} last noticeably often; {extent}.{less}"
    first = max(ranks.drawn, key=lambda rank: ranks.shares[rank])
    most = f"the most frequent is {ranks.name(first)}, in {_percent(ranks.shares[first])} of the samples"
    return f"No rank finishes last noticeably often; {most}. An equal share is {_percent(ranks.expected)}; {extent}.{less}"


def _percent(share: float) -> str:
    return format_percent(0) if share == 0 else least_percent(100 * share)


def _signed(excess: float) -> str:
    """Return a median versus the others: "+7.2 %", or "12 times"."""
    return f"{100 * excess:+.1f} %" if excess < 9 else f"{excess + 1:.0f} times"
