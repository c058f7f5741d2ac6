"""Which ranks end last, and how often: ranks that are alike share it evenly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collbench.report.cells import NOTHING
from collbench.report.html.chart import BAD, LIMIT, Chart, Section, Table, cut, fixed_ticks, panel, series_color, spots, svg_of
from collbench.units import format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from collbench.analysis.stragglers import Compared, Role, SlowLink, Straggler
    from collbench.report.html.material import Material

_MOST = 64  # bars; of more ranks the most frequent
_WIDE_FROM = 24
_WIDTH, _WIDE, _HEIGHT = 460, 940, 250
_LABELS = 16
_LONGEST = 300
_NAMED = 4
_TOO_FEW = 2  # ranks: two bars would only show two halves
_MADE = (
    "For each sample the rank whose time was the longest. A rank's bar is the share of the samples in which it was that, averaged over the "
    "cells, each of which counts alike. Only cells in which every rank has the same part by design are compared: no rooted operations, no "
    "pairs, no groups of a split, no uneven traffic, no ranks without a core of their own, none that left the synchronisation far apart. "
    "A rank is reported when it ends last in significantly more samples than its share (binomial test, 0.1 % for the whole run) and its "
    "median is more than 5 % above the others', in at least a quarter of a backend's cells. A rank that ends last may be slow, may wait "
    "for a slower rank or link that it receives from, or may have an extra step in the library's algorithm. It is said to delay the others "
    "only where it ends last in all-to-all, too, in which it receives from every rank directly, and the others end at the same time."
)


@dataclass(frozen=True)
class _Ranks:
    """The ranks of a table: by rank its host, how often it ended last (0 … 1), and how much its median is above the others'.

    drawn     the ranks that have a bar: those that ended last most often, in their order; `excess` is known of them
    expected  the share of each if all were alike
    named     those that end last significantly often
    """

    hosts: Mapping[int, str]
    shares: Mapping[int, float]
    drawn: Sequence[int]
    excess: Mapping[int, float]
    expected: float
    cells: int
    named: Sequence[Straggler]

    def name(self, rank: int) -> str:
        """The rank with its host, where that is known."""
        return f"rank {rank} ({cut(self.hosts[rank])})" if self.hosts.get(rank) else f"rank {rank}"

    def role_of(self, rank: int) -> Role | None:
        """Return why the rank ends last; None for a rank that is not reported."""
        return next((each.role for each in self.named if each.rank == rank), None)

    def color(self, rank: int) -> str:
        """Return the colour of its bar: red only where the rank itself is slow."""
        from collbench.analysis.stragglers import Role

        role = self.role_of(rank)
        return series_color(0) if role is None else BAD if role is Role.DELAYS else LIMIT


def section(material: Material) -> Section | None:
    """The section, or None where no cell's ranks may be compared."""
    texts: list[str] = []
    charts: list[Chart] = []
    for number, (table, cells) in enumerate(zip(material.drawn, material.compared, strict=False)):
        if not cells:
            continue
        from collbench.analysis.stragglers import hosts_of, slow_links

        where = f" ({cut(table.name)})" if len(material.tables) > 1 else ""
        links = slow_links(table.runs[0])
        ranks = _ranks(cells, hosts_of(table.runs[0]), links)
        sentences = [*(link.sentence() for link in links), *(each.sentence() for each in ranks.named)]
        texts += [cut(f"{sentence}{where}", _LONGEST) for sentence in sentences]
        if len(ranks.shares) > _TOO_FEW:
            charts.append(_chart(f"slowest-{number}", f"how often each rank ended last{where}", ranks))
    return Section("slowest", "Ranks that end last", texts, (), charts) if charts or texts else None


def _ranks(cells: Sequence[Compared], hosts: Mapping[int, str], links: Sequence[SlowLink]) -> _Ranks:
    from collbench.analysis.stragglers import histogram, stragglers_in

    shares = dict.fromkeys(range(max(len(cell.medians_s) for cell in cells)), 0.0) | dict(histogram(cells))
    often = sorted(shares, key=lambda rank: (-shares[rank], rank))
    drawn = sorted(often[:_MOST])
    expected = sum(cell.expected for cell in cells) / len(cells)
    return _Ranks(hosts, shares, drawn, _excess(cells, drawn), expected, len(cells), stragglers_in(cells, hosts, links))


def _excess(cells: Sequence[Compared], ranks: Sequence[int]) -> dict[int, float]:
    """By rank its median over the median of all ranks' medians, minus 1: the median over the cells."""
    import numpy as np

    ratios: dict[int, list[float]] = {rank: [] for rank in ranks}
    for cell in cells:
        middle = float(np.median(cell.medians_s))
        for rank in ranks:
            if rank < len(cell.medians_s):
                ratios[rank].append(float(cell.medians_s[rank]) / middle - 1)
    return {rank: float(np.median(each)) for rank, each in ratios.items()}


def _chart(key: str, title: str, ranks: _Ranks) -> Chart:
    drawn = ranks.drawn
    wide = len(drawn) >= _WIDE_FROM
    figure, axes = panel(_WIDE if wide else _WIDTH, _HEIGHT)
    heights = [100 * ranks.shares[rank] for rank in drawn]
    colors = [ranks.color(rank) for rank in drawn]
    axes.bar(range(len(drawn)), heights, width=0.8, color=colors)
    _axes(axes, drawn, max([*heights, 100 * ranks.expected]))
    _write(axes, drawn, heights, ranks)
    points = spots(axes, range(len(drawn)), heights, [_spot(rank, ranks) for rank in drawn])
    return Chart(key, title, _says(ranks), _MADE, svg_of(figure, key, title), _table(ranks), points, wide=wide)


def _axes(axes: Axes, drawn: Sequence[int], highest: float) -> None:
    every = 1 + (len(drawn) - 1) // _LABELS
    places = list(range(0, len(drawn), every))
    fixed_ticks(axes.xaxis, places, [str(drawn[place]) for place in places])
    axes.set_xlim(-0.7, len(drawn) - 0.3)
    axes.set_ylim(0, 1.15 * highest)
    axes.set_xlabel("rank")
    axes.set_ylabel("ends last in % of the samples")


def _write(axes: Axes, drawn: Sequence[int], heights: Sequence[float], ranks: _Ranks) -> None:
    """Write the even share, and the role above the bars of the ranks that are reported: colour alone is not enough."""
    axes.axhline(100 * ranks.expected, color=LIMIT, linestyle=(0, (5, 2)), linewidth=1.2)
    note = f"even share {format_percent(100 * ranks.expected)}"
    axes.annotate(note, (1, 1), xycoords="axes fraction", xytext=(0, 8), textcoords="offset pixels", ha="right", va="bottom", color=LIMIT)
    for place, (rank, height) in enumerate(zip(drawn, heights, strict=True)):
        role = ranks.role_of(rank)
        if role is not None:
            color = ranks.color(rank)
            axes.annotate(role.value, (place, height), xytext=(0, 3), textcoords="offset pixels", ha="center", va="bottom", color=color)


def _spot(rank: int, ranks: _Ranks) -> str:
    role = ranks.role_of(rank)
    why = f", {role.value}" if role is not None else ""
    return f"{ranks.name(rank)}: last in {_percent(ranks.shares[rank])} of the samples, its median {_signed(ranks.excess[rank])}{why}"


def _says(ranks: _Ranks) -> str:
    """Return which ranks are reported, or which one ends last most often; and what is not drawn."""
    cells = "1 cell was" if ranks.cells == 1 else f"{ranks.cells} cells were"
    less = f" Drawn are the {len(ranks.drawn)} most frequent of {len(ranks.shares)} ranks." if len(ranks.drawn) < len(ranks.shares) else ""
    if ranks.named:
        names = ", ".join(ranks.name(each.rank) for each in ranks.named[:_NAMED])
        more = f" and {len(ranks.named) - _NAMED} more" if len(ranks.named) > _NAMED else ""
        return f"{names}{more} {'ends' if len(ranks.named) == 1 else 'end'} last noticeably often; {cells} compared.{less}"
    first = max(ranks.drawn, key=lambda rank: ranks.shares[rank])
    most = f"most often it was {ranks.name(first)}: {_percent(ranks.shares[first])} of the samples"
    return f"No rank ends last noticeably often; {most}. An even share is {_percent(ranks.expected)}; {cells} compared.{less}"


def _table(ranks: _Ranks) -> Table:
    rows = [
        [str(rank), cut(ranks.hosts.get(rank, "")) or NOTHING, _percent(ranks.shares[rank]), _percent(ranks.expected),
         _signed(ranks.excess[rank]), role.value if (role := ranks.role_of(rank)) is not None else NOTHING]
        for rank in ranks.drawn
    ]  # fmt: skip
    marks = {number: "doubtful" for number, rank in enumerate(ranks.drawn) if ranks.role_of(rank) is not None}
    head = ("rank", "host", "ends last in", "even share", "its median against all ranks'", "found")
    return Table(head, rows, frozenset({0, 2, 3, 4}), marks)


def _percent(share: float) -> str:
    return format_percent(100 * share) if share == 0 or share >= 0.0005 else "<0.1 %"


def _signed(excess: float) -> str:
    """A median against the others': "+7.2 %"; in times where it is more than tenfold."""
    return f"{100 * excess:+.1f} %" if excess < 9 else f"{excess + 1:.0f} times"
