"""Which ranks are the slowest, and how often: ranks that are alike share it evenly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collbench.report.columns import NOTHING
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.drawing.draw import BAD, LIMIT, fixed_ticks, panel, series_color, spots, svg_of
from collbench.report.html.names import cut
from collbench.units import format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from collbench.analysis.stragglers import Compared, Straggler
    from collbench.report.html.material import Material

_MOST = 64  # bars; of more ranks the most frequent
_WIDE_FROM = 24
_WIDTH, _WIDE, _HEIGHT = 460, 940, 250
_LABELS = 16
_LONGEST = 300
_NAMED = 4
_MADE = (
    "For each sample the rank whose time was the longest. A rank's bar is the share of the samples in which it was that, averaged over the "
    "cells, each of which counts alike. Compared are only cells in which every rank has the same part by design: no rooted operations, no "
    "pairs, no groups of a split, no uneven traffic, no ranks without a core of their own, none that left the synchronisation far apart. "
    "A rank is named when it is the slowest in significantly more samples than its share (binomial test, 0.1 % for the whole run) and its "
    "median is more than 5 % above the others', in at least a quarter of a backend's cells. A slow rank cannot be told from one to which "
    "the library's algorithm gives an extra step."
)


@dataclass(frozen=True)
class _Ranks:
    """What the cells of a table say of its ranks: by rank its host, how often it was the slowest (0 … 1), and how much its median is above.

    drawn     the ranks that have a bar: those that were it most often, in their order; `excess` is known of them
    expected  the share of each if all were alike
    named     those that hold the others up
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

    def is_named(self, rank: int) -> bool:
        """Whether it holds the others up."""
        return any(each.rank == rank for each in self.named)


def section(material: Material) -> Section | None:
    """The section, or None where no cell's ranks may be compared."""
    texts: list[str] = []
    charts: list[Chart] = []
    for number, (table, cells) in enumerate(zip(material.drawn, material.compared, strict=False)):
        if not cells:
            continue
        from collbench.analysis.stragglers import hosts_of

        where = f" ({cut(table.name)})" if len(material.tables) > 1 else ""
        ranks = _ranks(cells, hosts_of(table.runs[0]))
        charts.append(_chart(f"slowest-{number}", f"how often each rank was the slowest{where}", ranks))
        texts += [cut(f"{each.sentence()}{where}", _LONGEST) for each in ranks.named]
    return Section("slowest", "Slowest ranks", texts, (), charts) if charts else None


def _ranks(cells: Sequence[Compared], hosts: Mapping[int, str]) -> _Ranks:
    from collbench.analysis.stragglers import histogram, stragglers_in

    shares = dict.fromkeys(range(max(len(cell.medians_s) for cell in cells)), 0.0) | dict(histogram(cells))
    often = sorted(shares, key=lambda rank: (-shares[rank], rank))
    drawn = sorted(often[:_MOST])
    expected = sum(cell.expected for cell in cells) / len(cells)
    return _Ranks(hosts, shares, drawn, _excess(cells, drawn), expected, len(cells), stragglers_in(cells, hosts))


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
    colors = [BAD if ranks.is_named(rank) else series_color(0) for rank in drawn]
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
    axes.set_ylabel("slowest in % of the samples")


def _write(axes: Axes, drawn: Sequence[int], heights: Sequence[float], ranks: _Ranks) -> None:
    """What an even share would be, and "slow" above the bars of those that are named: colour alone says nothing."""
    axes.axhline(100 * ranks.expected, color=LIMIT, linestyle=(0, (5, 2)), linewidth=1.2)
    note = f"even share {format_percent(100 * ranks.expected)}"
    axes.annotate(note, (1, 1), xycoords="axes fraction", xytext=(0, 8), textcoords="offset pixels", ha="right", va="bottom", color=LIMIT)
    for place, (rank, height) in enumerate(zip(drawn, heights, strict=True)):
        if ranks.is_named(rank):
            axes.annotate("slow", (place, height), xytext=(0, 3), textcoords="offset pixels", ha="center", va="bottom", color=BAD)


def _spot(rank: int, ranks: _Ranks) -> str:
    slow = ", holds the others up" if ranks.is_named(rank) else ""
    return f"{ranks.name(rank)}: slowest in {_percent(ranks.shares[rank])} of the samples, its median {_signed(ranks.excess[rank])}{slow}"


def _says(ranks: _Ranks) -> str:
    """Who is named, or who comes first; and what is not drawn."""
    cells = "1 cell was" if ranks.cells == 1 else f"{ranks.cells} cells were"
    less = f" Drawn are the {len(ranks.drawn)} most frequent of {len(ranks.shares)} ranks." if len(ranks.drawn) < len(ranks.shares) else ""
    if ranks.named:
        names = ", ".join(ranks.name(each.rank) for each in ranks.named[:_NAMED])
        more = f" and {len(ranks.named) - _NAMED} more" if len(ranks.named) > _NAMED else ""
        return f"{names}{more} {'holds' if len(ranks.named) == 1 else 'hold'} the others up; {cells} compared.{less}"
    first = max(ranks.drawn, key=lambda rank: ranks.shares[rank])
    most = f"most often it was {ranks.name(first)}: {_percent(ranks.shares[first])} of the samples"
    return f"No rank holds the others up; {most}. An even share is {_percent(ranks.expected)}; {cells} compared.{less}"


def _table(ranks: _Ranks) -> Table:
    rows = [
        [str(rank), cut(ranks.hosts.get(rank, "")) or NOTHING, _percent(ranks.shares[rank]), _percent(ranks.expected),
         _signed(ranks.excess[rank]), "slow" if ranks.is_named(rank) else NOTHING]
        for rank in ranks.drawn
    ]  # fmt: skip
    marks = {number: "doubtful" for number, rank in enumerate(ranks.drawn) if ranks.is_named(rank)}
    head = ("rank", "host", "slowest in", "even share", "its median against all ranks'", "found")
    return Table(head, rows, frozenset({0, 2, 3, 4}), marks)


def _percent(share: float) -> str:
    return format_percent(100 * share) if share == 0 or share >= 0.0005 else "<0.1 %"


def _signed(excess: float) -> str:
    """A median against the others': "+7.2 %"; in times where it is more than tenfold."""
    return f"{100 * excess:+.1f} %" if excess < 9 else f"{excess + 1:.0f} times"
