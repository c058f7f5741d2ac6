"""What a row shows to people: one definition of every column, used by all tables and headlines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isclose
from typing import Any

from collbench.analysis.launches import WHERE_NONE, forced
from collbench.machine.peak.ceiling import TOLERANCE, Ceiling
from collbench.report.flags import DOUBTFUL, WITHIN_A_LAUNCH, printable
from collbench.report.groups import group_rates, of_each_group
from collbench.report.plan import PlanSummary, is_several
from collbench.results.row import Row
from collbench.units import format_percent, format_rate, format_size, format_time

NOTHING = "–"
ONE_RANK = "one rank: no bus"
_SAME_RATE = 0.001
_MODELS = {"bound": "hard limit"}  # as people read it


@dataclass(frozen=True)
class Column:
    """One column of the table.

    width   what figures need (wider text pushes the rest of its line, it is never cut)
    shown   whether a plan needs the column
    rank    which columns a narrow terminal drops first (the highest); 0, and what tells rows apart, is never dropped
    figure  whether an n/a row has nothing to say here
    """

    title: str
    text: Callable[[Row], str]
    width: int = 0
    right: bool = False
    shown: Callable[[PlanSummary], bool] = lambda plan: True
    rank: int = 0
    figure: bool = False

    def pad(self, text: str, width: int) -> str:
        """`text` aligned within `width`."""
        return text.rjust(width) if self.right else text.ljust(width)


def placing(row: Row) -> str:
    """Where the result goes, in words, or a dash where nothing is moved."""
    return ("in place" if row.in_place else "out of place") if row.size_bytes else NOTHING


def size_of(row: Row) -> str:
    """The message size, or a dash where nothing is moved."""
    return format_size(row.size_bytes) if row.size_bytes else NOTHING


def name_of(row: Row) -> str:
    """A row in few words: "allreduce 64 MiB", "barrier"."""
    return f"{row.operation} {format_size(row.size_bytes)}" if row.size_bytes else row.operation


def value_of(row: Row, name: str) -> str:
    """One of the fields that tell series apart, in words."""
    value = getattr(row, name)
    if name == "dtype" and not row.size_bytes:
        return NOTHING  # bytes stand for what moves nothing
    if name == "in_place":
        return placing(row)
    return WHERE_NONE.get(name, NOTHING) if value is None else printable(str(value))


def rate(bytes_per_s: float | None) -> str:
    """A rate in GB/s without its unit, or a dash."""
    return NOTHING if bytes_per_s is None else format_rate(bytes_per_s)


def times(row: Row, unit: str = "") -> str:
    """The median in µs, or both values where the samples gather around two: "2.345", "2.345 82 % / 10.70 18 %"."""
    if row.time_s is None or row.time_s.p50 is None:
        return NOTHING
    modes = two_modes(row)
    if not modes:
        return f"{format_time(row.time_s.p50)}{unit}"
    return " / ".join(f"{format_time(time_s)}{unit} {format_percent(100 * share)}" for time_s, share in modes)


def two_modes(row: Row) -> list[tuple[float, float]]:
    """The values around which the samples gather, if more than one: (seconds, share) each; nothing where the row's are no numbers."""
    pairs = [(mode.get("time_s"), mode.get("share")) for mode in row.modes if isinstance(mode, dict)]
    known = [(time, share) for time, share in pairs if isinstance(time, int | float) and isinstance(share, int | float)]
    return known if len(known) > 1 else []


def doubtful(row: Row) -> list[str]:
    """The flags of a row whose time or interval is not what it seems; an interval over launches has its own evidence."""
    doubts = DOUBTFUL - WITHIN_A_LAUNCH if row.launches > 1 else DOUBTFUL
    return [flag for flag in row.flags if flag in doubts]


def interval(row: Row) -> str:
    """The interval of the median in µs: "2390–2410"; "? 2390–2410" where a flag says that it cannot be taken at its word."""
    known = row.time_s
    if known is None or known.ci_low is None or known.ci_high is None:
        return NOTHING
    return f"{'? ' if doubtful(row) else ''}{format_time(known.ci_low)}–{format_time(known.ci_high)}"


def of_ceiling(row: Row) -> str:
    """Return the rate and its percentages: "42.0 of 50.0 GB/s (84 %, hard limit 65 %)"; a dash where no percentage is known.

    The first percentage is of the rate shown. A hard limit of the same rate has no second one.
    """
    if row.ranks == 1 and row.size_bytes:
        return ONE_RANK
    ceiling, percent = row.ceiling, row.percent_of_ceiling
    if ceiling is None or ceiling.bytes_per_s is None or percent is None or row.busbw_bytes_per_s is None:
        return NOTHING
    rates = f"{format_rate(row.busbw_bytes_per_s)} of {format_rate(ceiling.bytes_per_s)} GB/s"
    return f"{rates} ({share(percent, ceiling)}{_of_hard_limit(row, ceiling.bytes_per_s)})"


def _of_hard_limit(row: Row, ceiling: float) -> str:
    """Return the percentage of a hard limit that is another rate than the ceiling: ", hard limit 65 %"."""
    percent, bound = row.percent_of_hard_bound, row.hard_bound
    if percent is None or bound is None or _is_same(bound, ceiling):
        return ""
    return f", hard limit {share(percent, bound)}"


def _is_same(bound: Ceiling, rate: float) -> bool:
    return isclose(bound.bytes_per_s or 0.0, rate, rel_tol=_SAME_RATE)


def share(percent: float, ceiling: Ceiling) -> str:
    """A percentage of a ceiling as text; above 100 it says what that means for this kind of ceiling."""
    if percent <= 100 or (percent <= 100 * TOLERANCE and ceiling.kind != "measured"):
        return format_percent(percent) if percent >= 0.05 else "<0.1 %"
    if ceiling.kind == "measured":  # a reference, no bound: being above it is news about the library, not an error
        return f"faster than measured {'copy' if 'copy' in ceiling.limited_by else 'reference'}"
    if ceiling.model == "bound":
        return "above the hard limit: its inputs are doubtful"
    return format_percent(percent)


def limited_by(row: Row) -> str:
    """The link or copy that limits and what kind of figure its rate is; without a rate, the reason why there is none."""
    ceiling = row.ceiling
    if ceiling is None or row.ranks == 1:
        return NOTHING
    if ceiling.bytes_per_s is None or (row.percent_of_ceiling is None and not ceiling.disturbed):
        return printable(ceiling.limited_by)
    if ceiling.low_bytes_per_s is not None and ceiling.high_bytes_per_s is not None:
        return printable(f"{ceiling.limited_by} (measured {_between(ceiling.low_bytes_per_s, ceiling.high_bytes_per_s)})")
    kind = basis(ceiling)
    if kind == "ring" and row.hard_bound is not None and _is_same(row.hard_bound, ceiling.bytes_per_s):
        kind = "ring and hard limit"
    return printable(ceiling.limited_by if kind in ceiling.limited_by.split() else f"{ceiling.limited_by} ({kind})")


def basis(ceiling: Ceiling) -> str:
    """Return what kind of figure a ceiling is: "ring", "hard limit", "measured", "given"."""
    return _MODELS.get(ceiling.model, ceiling.model) if ceiling.kind in ("network", "topology") else ceiling.kind


def _between(low: float, high: float) -> str:
    """Return an interval of rates in GB/s as text: "9.80–10.3"."""
    texts = dict.fromkeys((format_rate(low), format_rate(high)))
    return "–".join(texts)


def wrong(row: Row) -> str:
    """Wrong elements: a dash when unchecked, and not to be overlooked when there are any."""
    if row.wrong is None:
        return NOTHING
    return f"WRONG {row.wrong}" if row.wrong else "0"


def remarks(row: Row) -> str:
    """The row's flags, and where the first wrong element was."""
    words = [*row.flags, *([row.wrong_detail] if row.wrong_detail else [])]
    return printable(", ".join(words))


def not_available(row: Row) -> str:
    """An n/a row's figures: its reason."""
    return printable(f"n/a ({row.na})")


def headline(row: Row) -> str:
    """The row as one sentence: "allreduce  64 MiB  nccl  42.0 of 50.0 GB/s (84 %)  limited by NIC 4×100 Gb/s (ring)".

    Where no single figure is honest it shows the two times, and it names what is doubtful.
    """
    size = [format_size(row.size_bytes)] if row.size_bytes else []
    name = [row.operation, *size, row.backend, *([forced(row)] if forced(row) else [])]
    if row.na is not None:
        return printable("  ".join([*name, not_available(row)]))
    limit = [f"limited by {limited_by(row)}"] if row.percent_of_ceiling is not None and not two_modes(row) else []
    return printable("  ".join([*name, _figures(row), *limit, *_loud(row)]))


def shown_columns(plan: PlanSummary) -> list[Column]:
    """The columns that this plan needs, in order."""
    return [column for column in COLUMNS if column.shown(plan)]


def same_for_all(plan: PlanSummary, also: Iterable[Column] = ()) -> str:
    """What is the same in every row and so has no column: "cpu · isolated · out of place · fixed buffers · 4 ranks · 2 nodes".

    `also` are columns that found no room; they are told here where they have one value.
    """
    known = {name: next(iter(values)) for name, values in plan.values.items() if len(values) == 1 and (plan.moves or name not in _PLACED)}
    facts = [fact for name, text in _FACTS.items() if known.get(name) is not None and (fact := text(known[name]))]
    facts += [f"{column.title} {known[column.title]}" for column in also if known.get(column.title) is not None]
    return printable(" · ".join(facts))


def widths(columns: Iterable[Column], plan: PlanSummary, rows: Iterable[Row] = ()) -> list[int]:
    """Each column's width, from the plan and the rows that are known already."""
    known = [row for row in rows if row.na is None]
    return [max([len(c.title), c.width, *_planned(c, plan), *(len(c.text(row)) for row in known)]) for c in columns]


def _figures(row: Row) -> str:
    if two_modes(row):
        return times(row, " µs")
    figures = of_ceiling(row)
    if figures not in (NOTHING, ONE_RANK):
        return figures
    return times(row, " µs") if row.busbw_bytes_per_s is None or row.ranks == 1 else f"{rate(row.busbw_bytes_per_s)} GB/s"


def _loud(row: Row) -> list[str]:
    doubts = doubtful(row)
    return [*([f"doubtful: {', '.join(doubts)}"] if doubts else []), *([wrong(row)] if row.wrong else [])]


def _busbw(row: Row) -> str:
    return NOTHING if row.ranks == 1 else rate(row.busbw_bytes_per_s)


def _text_of(name: str) -> Callable[[Row], str]:
    return lambda row: value_of(row, name)


def _if_any(name: str) -> Callable[[PlanSummary], bool]:
    return lambda plan: bool(plan.some(name))


def _if_varies(name: str) -> Callable[[PlanSummary], bool]:
    return lambda plan: plan.varies(name)


def _if_moves(plan: PlanSummary) -> bool:
    return plan.moves


def _if_groups(plan: PlanSummary) -> bool:
    """Several groups, or pairs, at the same time."""
    return any(is_several(group) for group in plan.some("group"))


def _if_registered(plan: PlanSummary) -> bool:
    """Libraries without registration have None, which is no other way than none."""
    return plan.varies("registration") and plan.some("registration") != ["none"]


def _if_placings_differ(plan: PlanSummary) -> bool:
    """Also when it is left to the library, which may know only one."""
    return plan.varies("in_place") or None in plan.values.get("in_place", ())


def _named(name: str, shown: Callable[[PlanSummary], bool], rank: int = 0, right: bool = False) -> Column:
    return Column(name, _text_of(name), right=right, shown=shown, rank=rank)


def _planned(column: Column, plan: PlanSummary) -> list[int]:
    if column.title == "size":
        return [len(format_size(size)) for size in plan.sizes if size]
    return [len(printable(text)) for text in plan.some(column.title)]


def _group_fact(group: str) -> str:
    return "" if group == "all" else f"{'pairs' if group[0].isdigit() else 'split'} {group}"


_PLACED = ("in_place", "buffers", "registration")  # where buffers lie says nothing of what has none
_REGISTRATIONS = {"registered": "buffers registered", "symmetric": "buffers in a symmetric window"}
_FACTS: dict[str, Callable[[Any], str]] = {
    "device": str,
    "mode": str,
    "in_place": lambda value: "in place" if value else "out of place",
    "buffers": lambda value: f"{value} buffers",
    "registration": lambda value: _REGISTRATIONS.get(value, ""),
    "window": lambda value: f"window {value}",
    "traffic": lambda value: f"{value} traffic" if value == "even" else f"traffic {value}",
    "streams": lambda value: f"{value} stream" if value == 1 else f"{value} streams",
    "group": _group_fact,
    "ranks": lambda value: f"{value} rank" if value == 1 else f"{value} ranks",
    "nodes": lambda value: f"{value} node" if value == 1 else f"{value} nodes",
}

COLUMNS = (
    _named("operation", lambda plan: True, rank=5),
    Column("size", size_of, right=True, shown=_if_moves),
    _named("backend", lambda plan: True, rank=6),
    _named("device", _if_varies("device")),
    _named("dtype", _if_moves, rank=8),
    _named("redop", _if_any("redop"), rank=8),
    _named("root", _if_any("root"), rank=8, right=True),
    _named("mode", _if_varies("mode")),
    Column("placing", placing, width=12, shown=_if_placings_differ),
    _named("buffers", _if_varies("buffers")),
    _named("window", _if_varies("window"), right=True),
    _named("traffic", _if_varies("traffic")),
    _named("streams", _if_varies("streams"), right=True),
    _named("group", _if_varies("group")),
    _named("ranks", _if_varies("ranks"), right=True),
    _named("nodes", _if_varies("nodes"), right=True),
    _named("registration", _if_registered),
    _named("algorithm", _if_any("algorithm")),
    _named("protocol", _if_any("protocol")),
    Column("time µs", times, width=9, right=True, figure=True),
    Column("95 % interval", interval, width=17, right=True, rank=7, figure=True),
    Column("algbw GB/s", lambda row: rate(row.algbw_bytes_per_s), right=True, shown=_if_moves, rank=9, figure=True),
    Column("busbw GB/s", _busbw, right=True, shown=_if_moves, figure=True),
    Column("each group GB/s", lambda row: of_each_group(row) or NOTHING, right=True, shown=_if_groups, rank=9, figure=True),
    Column("all groups GB/s", lambda row: rate(group_rates(row)[1]), right=True, shown=_if_groups, figure=True),
    Column("wrong", wrong, right=True, figure=True),
    Column("of ceiling", of_ceiling, width=29, shown=_if_moves, figure=True),
    Column("limited by", limited_by, width=24, shown=_if_moves, rank=4, figure=True),
    Column("flags", remarks, figure=True),
)
