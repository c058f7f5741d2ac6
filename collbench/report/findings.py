"""What `collbench report` says below the rows: latency and bandwidth of each series, and which ranks end last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from collbench.analysis.launches import forced
from collbench.report import tuning
from collbench.report.columns import NOTHING, name_of, share, value_of
from collbench.report.flags import printable
from collbench.report.plan import SERIES
from collbench.report.table import Line
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.units import format_bytes, format_percent, format_rate, format_size, format_time

if TYPE_CHECKING:  # they import numpy, which a run that only prints rows does not need
    from collbench.analysis.latency import LineFit
    from collbench.analysis.stragglers import Compared
    from collbench.stats.fit import Bounds

_MOST_RANKS = 8
_BAR = 20
_TIMES = 9.0  # what takes more than ten times as long is told in multiples
_ALWAYS = ("operation", "backend")
FIT_TITLES = ("sizes", "α µs", "busbw GB/s of large messages", "of ceiling", "n½", "switches at", "more than 10 % off")


def lines(runs: Sequence[Run], rows: Sequence[Row]) -> list[Line]:
    """The sections that have something to say, each after an empty line.

    `rows` are the ones shown (of several launches the combined ones): they are fitted. The ranks are those of the runs.
    """
    return [
        *_section(tuning.TITLE, tuning.sentences(rows)),
        *_section("latency and bandwidth (α–β fit)", _fits(rows)),
        *_section("ranks that end last", _slowest(runs)),
    ]


def _section(title: str, texts: list[str]) -> list[Line]:
    return [Line(""), Line(title, "head"), *(Line(printable(text)) for text in texts)] if texts else []


def _fits(rows: Sequence[Row]) -> list[str]:
    from collbench.analysis.latency import line_fits

    fits = line_fits(rows)
    if not fits:
        return []
    telling = [name for name in SERIES if name in _ALWAYS or len({getattr(fit.row, name) for fit in fits}) > 1]
    titles = [*("placing" if name == "in_place" else name for name in telling), *FIT_TITLES]
    off = ["more than 10 % off: perhaps a bad choice of algorithm at that size"] if any(fit.fit.off for fit in fits) else []
    cells = ([*(value_of(fit.row, name) for name in telling), *fit_cells(fit)] for fit in fits)
    return [*_aligned([titles, *cells]), *off, *left_out(fits)]


def fit_cells(fit: LineFit) -> list[str]:
    """What FIT_TITLES name, of one fit."""
    row = fit.row
    percent = NOTHING if fit.percent is None or row.ceiling is None else share(fit.percent, row.ceiling)
    return [
        f"{format_size(fit.first)}–{format_size(row.size_bytes)}",
        _latency(fit.alpha_s),
        _bounds(fit.busbw, format_rate),
        percent,
        format_bytes(fit.half_size) if fit.half_size else NOTHING,
        ", ".join(map(format_size, fit.switches)) or NOTHING,
        ", ".join(f"{format_size(int(size))} ({_off(residual)})" for size, residual in fit.fit.off) or NOTHING,
    ]


def _bounds(bounds: Bounds, text: Callable[[float], str]) -> str:
    value, low, high = (text(each) if isfinite(each) else "?" for each in (bounds.value, bounds.low, bounds.high))
    return f"{value} ({low}–{high})"


def _latency(alpha_s: Bounds) -> str:
    """α, or only its upper end where the sizes are too large to tell it from nothing."""
    if alpha_s.low > 0:
        return _bounds(alpha_s, format_time)
    return f"at most {format_time(alpha_s.high)}" if isfinite(alpha_s.high) and alpha_s.high > 0 else NOTHING


def _off(residual: float) -> str:
    return f"{100 * residual:+.0f} %" if residual < _TIMES else f"{residual + 1:.0f} times"


def left_out(fits: Iterable[LineFit]) -> list[str]:
    """The sizes that were not fitted, one line per reason, since a size that is missing may be the one that mattered."""
    names: dict[str, list[str]] = {}
    for fit in fits:
        for size, reason in fit.left_out:
            words = (fit.row.operation, format_size(size), fit.row.backend, forced(fit.row))
            names.setdefault(reason, []).append(" ".join(word for word in words if word))
    return [f"not fitted, {reason}: {', '.join(cells)}" for reason, cells in names.items()]


def _slowest(runs: Sequence[Run]) -> list[str]:
    parts = [(together, _ranks(together)) for together in _same_ranks(runs)]
    heads = [f"{_title(together)}:" if len(parts) > 1 else "" for together, _ in parts]
    return [text for head, (_, texts) in zip(heads, parts, strict=True) if texts for text in (head, *texts) if text]


def _same_ranks(runs: Sequence[Run]) -> list[list[Run]]:
    """The launches of one allocation on the same hosts are looked at together: a rank is the same rank there."""
    from collbench.analysis.launches import allocation_of
    from collbench.analysis.stragglers import hosts_of

    groups: list[list[Run]] = []
    for run in runs:
        own = allocation_of(run)
        alike = (group for group in groups if own and allocation_of(group[0]) == own and hosts_of(group[0]) == hosts_of(run))
        group = next(alike, None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    return groups


def _title(runs: Sequence[Run]) -> str:
    more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    return f"{runs[0].path.resolve().name}{more}"


def _ranks(runs: Sequence[Run]) -> list[str]:
    from collbench.analysis.stragglers import compared, hosts_of, slow_links, stragglers_in

    hosts, rows = hosts_of(runs[0]), [row for run in runs for row in run.rows]
    cells = [cell for run in runs for cell in compared(run)]
    backends = list(dict.fromkeys(row.backend for row in rows))
    spreads = [text for backend in backends for text in (_spread(backend, cells), _exit_skew(backend, rows)) if text]
    links = slow_links(runs[0]) if cells else []
    named = [*(link.sentence() for link in links), *(each.sentence() for each in stragglers_in(cells, hosts, links))]
    return [*named, *_histogram(hosts, cells), *spreads]


def _histogram(hosts: Mapping[int, str], cells: list[Compared]) -> list[str]:
    """Return bars of how often each rank ended last: the most frequent ones, with the share that all would have if they were alike."""
    from collbench.analysis.stragglers import histogram

    if not cells:
        return []
    ranks = histogram(cells)
    shown = [["rank", "host", "ends last in"]]
    shown += [[str(rank), hosts.get(rank, NOTHING), f"{format_percent(100 * part):>5}  {_bar(part)}"] for rank, part in ranks[:_MOST_RANKS]]
    rest = len(ranks) - _MOST_RANKS
    alike = format_percent(100 * sum(cell.expected for cell in cells) / len(cells))
    more = f"and {rest} more ranks; " if rest > 0 else ""
    return [*_aligned(shown), f"{more}{len(cells)} cells, each counts alike; {alike} each if the ranks were alike"]


def _bar(part: float) -> str:
    return "█" * max(1, round(_BAR * part))


def _spread(backend: str, cells: list[Compared]) -> str:
    """By how much the ranks' medians differ, and where most."""
    here = [cell for cell in cells if cell.row.backend == backend]
    if not here:
        return ""
    by = sorted((float(cell.medians_s.max() / cell.medians_s.min()) - 1, place) for place, cell in enumerate(here))
    worst = here[by[-1][1]]
    ordered = sorted(worst.medians_s.tolist())
    least, middle, most = map(format_time, (ordered[0], _middle(ordered), ordered[-1]))
    usual, most_differ = (format_percent(100 * part) for part in (by[len(by) // 2][0], by[-1][0]))
    where = f"{name_of(worst.row)}: min {least}, median {middle}, max {most} µs"
    return f"{backend}: the ranks' medians differ by {usual}, at most by {most_differ} ({where})"


def _exit_skew(backend: str, rows: Iterable[Row]) -> str:
    """How far apart the ranks left the synchronisation, and where that weighs most."""
    from collbench.analysis.stragglers import exit_skew_s

    known = [(skew, row) for row in rows if row.backend == backend and row.time_s and row.time_s.p50 and (skew := exit_skew_s(row))]
    if not known:
        return ""
    shares = [(skew[0] / row.time_s.p50, place) for place, (skew, row) in enumerate(known) if row.time_s]
    worst, place = max(shares)
    p50, p95 = (format_time(_middle(sorted(skew[part] for skew, _ in known))) for part in (0, 1))
    return (
        f"{backend}: the ranks left the synchronisation {p50} µs apart (95th percentile {p95} µs), "
        f"at most {_percent(worst)} of the time shown ({name_of(known[place][1])})"
    )


def _percent(part: float) -> str:
    return format_percent(100 * part) if part >= 0.0005 else "<0.1 %"


def _middle(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    wide = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(cells, wide, strict=True)).rstrip() for cells in table]
