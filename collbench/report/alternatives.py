"""Alternatives as text: which backend or run is the fastest at each size, or how an operation scales over ranks; in all formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import floor, log10
from pathlib import Path
from typing import Annotated, TextIO

from collbench.analysis.alternatives import BACKEND, NODES, RANKS, AlternativeGroup, Alternatives, AlternativeTime, Undecided, alternatives
from collbench.analysis.compare import side_of
from collbench.analysis.differences import differences
from collbench.analysis.launches import Launches, check_once, runs_in, sentence, time_of
from collbench.analysis.outcome import Outcome
from collbench.columns import column, declared
from collbench.errors import FINE, UsageError
from collbench.machine.peak.ceiling import LEAST_RATE_BYTES
from collbench.records import Record, RecordKind
from collbench.report.cases import NOTHING, same_for_all, size_of, value_of, wrong
from collbench.report.frame import Column, Frame, Line, csv_table, printable, table_lines
from collbench.report.frame import markdown_lines as markdown_of
from collbench.report.headlines import short
from collbench.report.outcome_text import format_margin
from collbench.report.plan import PlanSummary, operation_name
from collbench.report.screen import check_format, print_lines, wants_color, width_of, write_line
from collbench.results.estimate import Estimate
from collbench.results.quality import REMEDIES, quality_of
from collbench.results.row import SERIES, CaseKey, Row
from collbench.results.store import to_page
from collbench.stats.launches import Ratio
from collbench.units import first_of, format_percent, format_size, format_time, listed, plural

FORMATS = ("table", "csv", "json", "markdown")
FASTEST, UNRELIABLE, WRONG_DATA, NOT_MEASURED = "fastest", "unreliable", "wrong data", "n/a"
_COARSE = 0.1  # an interval that is wider, as a part of the value, supports two digits only
_MOST_SIDES = 4
_MOST_CHANGES = 3
_CAUSES: Mapping[Undecided | None, str] = {
    Undecided.NO_INTERVAL: "no interval",
    Undecided.ONE_LAUNCH: "one launch each of the same case, and another launch may differ by more",
    Undecided.STATE: "another state of the machine may explain the differences",
    Undecided.OVERLAP: "the intervals of the times overlap",
}
_OF_ROWS = {name: spec for name, spec, _ in declared(Row)}
_CASE = {name: _OF_ROWS[name] for name in CaseKey._fields}


class AlternativeRow(Record, frozen=True, kw_only=True):
    """A row of an alternative, and how it compares with the others of its group."""

    alternative: Annotated[str, column("The alternative: its backend, its number of ranks or nodes, or the name of its run.")]
    run: Annotated[str, column("The name of the run's folder.")]
    case: Annotated[CaseKey, column("", key="", parts=_CASE)]
    outcome: Annotated[
        str,
        column(
            "fastest, slower, no change, inconclusive, unreliable, wrong data or n/a, compared with the shortest time. Empty where "
            "efficiencies are compared."
        ),
    ]
    time_ratio: Annotated[Estimate, column("The time divided by the shortest one of the group.")] = Estimate()
    interval_over_launches: Annotated[bool, column("Whether the interval of the ratio is over several launches of both.")] = False
    efficiency: Annotated[
        Estimate, column("Of ranks and nodes: the bus bandwidth as a share of that of the smallest count; ideal is 1.")
    ] = Estimate()
    efficiency_by: Annotated[
        str, column("What the efficiency compares: `busbw`; or `time`, for small messages and operations without bus bandwidth.")
    ] = ""
    time_s: Annotated[Estimate, column("The median time.")] = Estimate()
    busbw_bytes_per_s: Annotated[float | None, _OF_ROWS["busbw_bytes_per_s"]] = None
    expected_bytes_per_s: Annotated[float | None, column("The expected bus bandwidth of the group: the highest of its rows.")] = None
    launches: Annotated[int, _OF_ROWS["launches"]] = 1
    wrong: Annotated[int | None, _OF_ROWS["wrong"]] = None
    na: Annotated[str | None, _OF_ROWS["na"]] = None
    flags: Annotated[tuple[str, ...], _OF_ROWS["flags"]] = ()


def records(found: Alternatives) -> list[AlternativeRow]:
    """Return a record for each row that is compared, group by group."""
    runs = {id(row): side.name for side in found.sides for row in side.rows}
    return [_record(found, group, name, runs[id(each.row)]) for group in found.groups for name, each in group.times.items()]


def _record(found: Alternatives, group: AlternativeGroup, name: str, run: str) -> AlternativeRow:
    each = group.times[name]
    row, times = each.row, each.row.time_s
    return AlternativeRow(
        alternative=name, run=run, case=CaseKey._make(getattr(row, field) for field in CaseKey._fields), outcome=outcome(group, name),
        time_ratio=_estimate(each.ratio.time if each.ratio else None), interval_over_launches=each.over_launches,
        efficiency=_estimate(each.efficiency), efficiency_by=_efficiency_by(group) if each.efficiency else "",
        time_s=Estimate(time_of(row), times.ci_low, times.ci_high) if times else Estimate(), busbw_bytes_per_s=row.busbw_bytes_per_s,
        expected_bytes_per_s=group.expected_bytes_per_s, launches=row.launches, wrong=row.wrong, na=row.na, flags=row.flags,
    )  # fmt: skip


def _estimate(ratio: Ratio | None) -> Estimate:
    return Estimate() if ratio is None else Estimate(ratio.value, ratio.low, ratio.high)


def _efficiency_by(group: AlternativeGroup) -> str:
    return "busbw" if group.by_bandwidth else "time"


ALTERNATIVES = RecordKind("compare", AlternativeRow)


def outcome(group: AlternativeGroup, name: str) -> str:
    """Return the outcome of a row in its group, in one of the words of the column `outcome`; "" if its group compares efficiencies."""
    each = group.times[name]
    if each.row.wrong:
        return WRONG_DATA
    if time_of(each.row) is None:
        return NOT_MEASURED
    if not each.is_sound:
        return UNRELIABLE
    if group.smallest is not None:
        return ""
    if each.outcome is not None:
        return each.outcome.value
    return FASTEST if group.fastest == name else Outcome.INCONCLUSIVE.value


# The answer in sentences.


def headline(found: Alternatives, *, has_badge: bool = False) -> str:
    """Return the answer: "mpi is 1.8 times as fast as gloo at 16 MiB (1.6–2.0)", or of ranks and nodes the efficiency.

    has_badge  whether the word "inconclusive" is printed with it
    """
    answer = _scaling_headline(found) if found.is_scaling else _fastest_headline(found)
    names = [name for name in found.names if any(name in group.times and group.times[name].row.wrong for group in found.groups)]
    if not is_decided(found) and (names or not has_badge):
        answer = f"inconclusive: {answer}"
    return f"WRONG DATA in {listed(names, 4)}; {answer}" if names else answer


def is_decided(found: Alternatives) -> bool:
    """Return whether one is the fastest in a case; of ranks and nodes whether there is an efficiency."""
    return bool(_ends(found)) if found.is_scaling else any(group.fastest for group in found.groups)


def _fastest_headline(found: Alternatives) -> str:
    decided = [group for group in found.groups if group.fastest]
    if not decided:
        tied = [group.as_fast for group in found.groups if len(group.as_fast) > 1]
        names = max(reversed(tied), key=len) if tied else found.names
        return f"no evidence which of {listed(names, 4)} is faster ({_why(found)})"
    main = max(decided, key=_size_and_lead)
    others = [group for group in decided if group.fastest != main.fastest]
    texts = [_lead(found, main, is_first=True)]
    if others:
        texts.append(_lead(found, max(others, key=_size_and_lead), is_first=False))
    largest = found.groups[-1]
    if _has_sizes_only(found) and not largest.fastest and largest.followers:
        is_tied = len(largest.as_fast) > 1
        undecided = first_of(largest.as_fast, 3) if is_tied else f"no interval of {first_of(largest.without_interval, 3)}"
        texts.append(f"undecided at {format_size(largest.row.size_bytes)}: {undecided}")
    return "; ".join(texts)


def _why(found: Alternatives) -> str:
    """Return the cause that most rows have: "4 of 6 rows are unreliable: there are more ranks and busy threads than cores"."""
    times = [each for group in found.groups for each in group.times.values()]
    unreliable = [each.row for each in times if not (each.is_sound or each.row.wrong) and time_of(each.row) is not None]
    causes = Counter(cause for group in found.groups for each in group.times.values() if (cause := _cause(found, group, each)))
    nothing = f"at most one {'count' if found.is_scaling else 'of them'} has a time in each case"
    cause, rows = causes.most_common(1)[0] if causes else (nothing, 0)
    if not unreliable or rows > len(unreliable):
        return cause
    remedies = Counter(remedy for row in unreliable if (quality := quality_of(row)) for remedy in quality.remedies[:1])
    reason = f": {REMEDIES[remedies.most_common(1)[0][0]].cause}" if remedies else ""
    verb = "is" if len(unreliable) == 1 else "are"
    return f"{len(unreliable)} of {plural(len(times), 'row')} {verb} unreliable{reason}"


def _cause(found: Alternatives, group: AlternativeGroup, each: AlternativeTime) -> str:
    """Return why a sound row is not ranked, or of ranks and nodes has no efficiency; "" for a row that is or has."""
    if found.is_scaling:
        if not each.is_sound or group.smallest is None or _count(each) == _count(group.times[group.smallest]):
            return ""
        return "a single rank sends nothing" if each.row.ranks == 1 else _CAUSES[Undecided.STATE]
    if each.undecided is not Undecided.SMALL:
        return _CAUSES.get(each.undecided, "")
    if each.over_launches:
        return "no interval excludes equal times"
    return f"{_one_launch(found)}, and no difference above {format_margin(found.margin)}"


def _size_and_lead(group: AlternativeGroup) -> tuple[int, float]:
    time = group.lead.time if group.lead else None
    return group.row.size_bytes, time.value if time else 0.0


def _lead(found: Alternatives, group: AlternativeGroup, *, is_first: bool) -> str:
    """Return "mpi is 1.8 times as fast as gloo at 16 MiB (1.6–2.0)", of three or more "mpi is the fastest of 3 at 16 MiB: …"."""
    lead = group.lead
    if lead is None or lead.time is None:
        return ""
    value, interval = factor_texts(lead.time)
    among = [name for name, each in group.times.items() if each.is_sound]
    scope = "" if lead.launches else f", {_one_launch(found)}"
    second, where = group.followers[0], _where(found, group)
    if is_first and len(among) > 2:
        return f"{group.fastest} is the fastest of {len(among)}{where}: {value} times as fast as {second} ({interval}{scope})"
    return f"{group.fastest} is {value} times as fast as {second}{where} ({interval}{scope})"


def _one_launch(found: Alternatives) -> str:
    return "one launch each" if len(found.sides) > 1 else "within one launch"


def _where(found: Alternatives, group: AlternativeGroup) -> str:
    """Return " in allreduce at 16 MiB", without the operation if there is only one."""
    names = [value_of(group.row, name) for name in _differing(found)]
    several = len(_operations(found)) > 1
    what = f" in {operation_name(group.row.operation)}" if several or not group.row.size_bytes else ""
    over = f" ({', '.join(name for name in names if name != NOTHING)})" if names else ""
    return f"{what}{f' at {format_size(group.row.size_bytes)}' if group.row.size_bytes else ''}{over}"


def _operations(found: Alternatives) -> list[str]:
    return list(dict.fromkeys(group.row.operation for group in found.groups))


def _has_sizes_only(found: Alternatives) -> bool:
    """Return whether the groups have a size and differ in nothing else."""
    return len(_operations(found)) == 1 and not _differing(found) and found.groups[-1].row.size_bytes > 0


def factor_texts(ratio: Ratio) -> tuple[str, str]:
    """Return a factor above 1 and its interval, with the digits that the interval supports: ("1.8", "1.6–2.0")."""
    if ratio.low is None or ratio.high is None:
        return _rounded(ratio.value, 2), "no interval"
    digits = 2 if ratio.high - ratio.low >= _COARSE * ratio.value else 3
    while digits < 5 and ratio.low > 1 and float(_rounded(ratio.low, digits).replace(",", "")) <= 1:
        digits += 1  # an interval above 1 must not read as one that includes it
    return _rounded(ratio.value, digits), f"{_rounded(ratio.low, digits)}–{_rounded(ratio.high, digits)}"


def _rounded(value: float, digits: int) -> str:
    """Return a number to so many digits, without an exponent: "1.80", "510", "2,700"."""
    places = digits - 1 - floor(log10(value))
    return f"{round(value, places):,.{max(0, places)}f}"


def _scaling_headline(found: Alternatives) -> str:
    """Return "4 ranks reach 93 % of the bus bandwidth of 2 ranks at 16 MiB (90–96 %)": the lowest of the largest counts and sizes."""
    ends = _ends(found)
    if not ends:
        return f"{listed(found.names, 4)} cannot be compared ({_why(found)})"
    lowest = min(ends, key=lambda end: end[2].value)
    texts = [_efficiency(found, *lowest)]
    if len(ends) > 1:
        group, name, ratio = max(ends, key=lambda end: end[2].value)
        of_run = "" if name == lowest[1] else f" with {name}"
        texts.append(f"the most is {format_percent(100 * ratio.value)}{of_run}{_where(found, group)}")
    if not any(name == found.names[-1] for _, name, _ in ends):
        texts.append(f"{found.names[-1]}: no efficiency")
    return "; ".join(texts)


def _ends(found: Alternatives) -> list[tuple[AlternativeGroup, str, Ratio]]:
    """Return the efficiency of the largest count that has one, at the largest size at which it has one, of each series and run."""
    fields = _differing(found)
    largest_size: dict[tuple[tuple[str, ...], str], tuple[AlternativeGroup, str, Ratio]] = {}
    largest_count: dict[tuple[str, ...], tuple[int, int]] = {}
    for group in found.groups:
        series = group.row.operation, *(value_of(group.row, name) for name in fields)
        for name, each in group.times.items():
            if each.efficiency is not None:
                largest_size[series, name] = group, name, each.efficiency
                largest_count[series] = max(_count(each), largest_count.get(series, (0, 0)))
    return [end for (series, name), end in largest_size.items() if _count(end[0].times[name]) == largest_count[series]]


def _count(each: AlternativeTime) -> tuple[int, int]:
    return each.row.nodes or 1, each.row.ranks


def _efficiency(found: Alternatives, group: AlternativeGroup, name: str, ratio: Ratio) -> str:
    scope = "" if min(group.times[each].row.launches for each in (name, str(group.smallest))) > 1 else f", {_one_launch(found)}"
    interval = "no interval" if ratio.low is None or ratio.high is None else _percents(ratio)
    if group.by_bandwidth:
        share = format_percent(100 * ratio.value)
        return f"{name} reach {share} of the bus bandwidth of {group.smallest}{_where(found, group)} ({interval}{scope})"
    longer = Ratio(1 / ratio.value, ratio.high and 1 / ratio.high, ratio.low and 1 / ratio.low, ratio.n)
    value, interval = factor_texts(longer)
    return f"{name} take {value} times as long as {group.smallest}{_where(found, group)} ({interval}{scope})"


def _percents(ratio: Ratio) -> str:
    """Return the interval of an efficiency: "90–96 %", "99.4–99.8 %"."""
    ends = [100 * (ratio.low or 0.0), 100 * (ratio.high or 0.0)]
    digits = 0 if round(ends[0]) != round(ends[1]) else 1
    return f"{ends[0]:.{digits}f}–{ends[1]:.{digits}f} %"


def operation_of_answer(found: Alternatives) -> str:
    """Return the operation that `headline` is about."""
    decided = [group for group in found.groups if group.fastest]
    if found.is_scaling and (ends := _ends(found)):
        group, _, _ = min(ends, key=lambda end: end[2].value)
        return group.row.operation
    return max(decided, key=_size_and_lead).row.operation if decided else found.groups[0].row.operation


def largest_differences(found: Alternatives) -> Iterator[tuple[str, str]]:
    """Yield (figure, what it is): ("1.8×", "as fast as gloo: mpi at 16 MiB").

    It is of the largest size of each operation; of a single operation of all sizes, the largest first.
    """
    if found.is_scaling:
        for group, name, ratio in _ends(found):
            if group.by_bandwidth:
                what = f"of the bus bandwidth of {group.smallest}: {name}"
                yield format_percent(100 * ratio.value), f"{what}{_where(found, group)}"
        return
    decided = [group for group in found.groups if group.fastest]
    if len(_operations(found)) > 1:
        decided = list({group.row.operation: group for group in decided}.values())
    else:
        decided.sort(key=_size_and_lead, reverse=True)
    for group in decided:
        if group.lead is not None and group.lead.time is not None:
            value, _ = factor_texts(group.lead.time)
            yield f"{value}×", f"as fast as {group.followers[0]}: {group.fastest}{_where(found, group)}"


def best_at(found: Alternatives) -> str:
    """Return "fastest: impi at 4 KiB to 64 KiB; undecided: 64 B", of several operations the numbers of cases; "" of ranks and nodes."""
    if found.is_scaling:
        return ""
    total = len(found.groups)
    names = [name for name in found.names if any(group.fastest == name for group in found.groups)]
    undecided = [group for group in found.groups if not group.fastest]
    if not _has_sizes_only(found):
        counts = Counter(group.fastest for group in found.groups)
        parts = [f"{name} in {counts[name]}" for name in names]
        texts = [f"fastest of {plural(total, 'case')}: {', '.join(parts) or 'none'}"]
        if undecided:
            texts.append(f"undecided: {len(undecided)}")
        return "; ".join(texts)
    sizes = [group.row.size_bytes for group in found.groups]
    parts = [f"{name} at {size_spans(_sizes_of(found, name), sizes)}" for name in names]
    texts = [f"fastest: {', '.join(parts) or 'none'}"]
    if undecided:
        texts.append(f"undecided: {size_spans(_sizes_of(found, None), sizes)}")
    return "; ".join(texts)


def _sizes_of(found: Alternatives, name: str | None) -> list[int]:
    return [group.row.size_bytes for group in found.groups if group.fastest == name]


def size_spans(some: Sequence[int], every: Sequence[int]) -> str:
    """Return some of the sizes as text; neighbors among all sizes as a span: "64 B, 64 KiB to 16 MiB"."""
    spans: list[list[int]] = []
    for place, size in enumerate(every):
        if size not in some:
            continue
        if spans and place and every[place - 1] == spans[-1][-1]:
            spans[-1].append(size)
        else:
            spans.append([size])
    return ", ".join(" to ".join(dict.fromkeys((format_size(span[0]), format_size(span[-1])))) for span in spans)


def fastest_backend(table: Launches) -> str:
    """Return "mpi is the fastest backend at all sizes from 64 KiB (1.2 to 5.1 times as fast as gloo)" for a run; "" if no one is.

    One backend must be the fastest in at least half of the cases, and no other one in any.
    """
    found = alternatives([table]) if len({row.backend for row in table.rows}) > 1 else None
    decided = [group for group in found.groups if group.fastest and not group.unranked] if found else []
    winners = {group.fastest for group in decided}
    if found is None or len(winners) != 1 or 2 * len(decided) < len(found.groups):
        return ""
    ratios = [group.lead.time for group in decided if group.lead and group.lead.time]
    low, high = (_rounded(end(ratio.value for ratio in ratios), 2) for end in (min, max))
    over = "" if all(group.lead and group.lead.launches for group in decided) else f", {_one_launch(found)}"
    times = f"{low} times" if low == high else f"{low} to {high} times"
    seconds = {group.followers[0] for group in decided}
    second = seconds.pop() if len(seconds) == 1 else "the next one"
    where, rest = _cases(found, decided)
    return f"{winners.pop()} is the fastest backend{where} ({times} as fast as {second}{over}){rest}"


def _cases(found: Alternatives, decided: Sequence[AlternativeGroup]) -> tuple[str, str]:
    """Return where an alternative is the fastest (" at all sizes from 64 KiB", " in 6 of 7 cases"), and a note on the other cases."""
    total = len(found.groups)
    if total == 1:
        return _where(found, decided[0]), ""
    has_sizes = _has_sizes_only(found)
    of_all = "at all sizes" if has_sizes else f"in all {total} cases"
    if len(decided) == total:
        return f" {of_all}", ""
    is_end = list(found.groups[-len(decided) :]) == list(decided)
    if has_sizes and is_end and len(decided) > 1:
        return f" {of_all} from {format_size(decided[0].row.size_bytes)}", ""
    where = f" at {len(decided)} of {total} sizes" if has_sizes else f" in {len(decided)} of {total} cases"
    return where, "; the others are undecided"


# The table: a line for each operation and size, a column for each alternative.


def frame(found: Alternatives, groups: Sequence[AlternativeGroup] | None = None) -> Frame[AlternativeGroup]:
    """Return the table of these groups, or of all: the fastest one and its lead, and the times of all alternatives."""
    shown = list(found.groups if groups is None else groups)
    columns: list[Column[AlternativeGroup]] = []
    if len(_operations(found)) > 1 or not any(group.row.size_bytes for group in shown):
        columns.append(Column("", "operation", lambda group: printable(operation_name(group.row.operation))))
    columns += [Column("", "placing" if name == "in_place" else name, _field(name)) for name in _differing(found)]
    columns.append(Column("", "size", lambda group: size_of(group.row), right=True))
    if not found.is_scaling:
        columns.append(Column("", "fastest", _fastest))
        columns.append(Column("", "times as fast", _lead_text, right=True))
    columns += [_column(found, name, place) for place, name in enumerate(found.names)]
    columns.append(Column("", "expected µs", _expected, right=True, drop=1))
    rows = [each.row for group in shown for each in group.times.values()]
    used = [name for name in columns if name.title not in ("expected µs", "size") or any(name.text(group) != NOTHING for group in shown)]
    return Frame(used, shown, title=same_for_all(PlanSummary.of(rows)), style=_style, names_hidden=True)


def _field(name: str) -> Callable[[AlternativeGroup], str]:
    return lambda group: short(value_of(group.row, name), 40)


def _differing(found: Alternatives) -> list[str]:
    """Return the fields besides the size that distinguish groups of one operation."""
    own = {BACKEND: ("registration", "streams"), RANKS: ("nodes", "group"), NODES: ("ranks", "group")}
    ignored = {"operation", found.field, *own.get(found.field, ("backend", "registration", "streams", "in_place"))}
    values: dict[str, dict[str, set[str]]] = {}
    for group in found.groups:
        if group.placings_differ:
            continue
        for name in SERIES:
            if name not in ignored:
                values.setdefault(name, {}).setdefault(group.row.operation, set()).add(value_of(group.row, name))
    return [name for name, of_operations in values.items() if any(len(those) > 1 for those in of_operations.values())]


def _fastest(group: AlternativeGroup) -> str:
    """Return the fastest alternative, or those of which it is undecided: "impi", "ucc or openmpi"; "no interval" if only that is why."""
    if group.fastest:
        return group.fastest
    if len(group.as_fast) > 1:
        return first_of(group.as_fast, 2, " or ")
    return _CAUSES[Undecided.NO_INTERVAL] if group.followers else NOTHING


def _lead_text(group: AlternativeGroup) -> str:
    if group.lead is None or group.lead.time is None:
        return NOTHING
    value, interval = factor_texts(group.lead.time)
    return f"{value} ({interval})"


def _expected(group: AlternativeGroup) -> str:
    return NOTHING if group.expected_s is None else format_time(group.expected_s)


def _column(found: Alternatives, name: str, place: int) -> Column[AlternativeGroup]:
    """Return the column of an alternative; a narrow terminal drops the slowest ones first, but never the first two."""
    usual = _usual_reference(found)

    def text(group: AlternativeGroup) -> str:
        each = group.times.get(name)
        if each is None:
            return NOTHING
        return _time(each, _scaling_note(group, each, usual) if found.is_scaling else _note(each))

    return Column("", f"{short(name, 40)} µs", text, right=True, drop=place + 1 if place > 1 else 0)


def _usual_reference(found: Alternatives) -> str | None:
    """Return the name with which most efficiencies compare; None without one."""
    references = Counter(group.smallest for group in found.groups for each in group.times.values() if each.efficiency is not None)
    return references.most_common(1)[0][0] if references else None


def _time(each: AlternativeTime, note: str) -> str:
    """Return "41.78 (5.1×)", "8.226", "3.250 (93 %)", "? 12.3", "n/a", "WRONG 3"."""
    if each.row.wrong:
        return wrong(each.row)
    time_s = time_of(each.row)
    if time_s is None:
        return NOT_MEASURED
    text = format_time(time_s)
    if not each.is_sound:
        return f"? {text}"
    return f"{text} ({note})" if note else text


def _scaling_note(group: AlternativeGroup, each: AlternativeTime, usual_reference: str | None) -> str:
    """Return "93 %" or "1.9×"; with the name of the reference where it is not the usual one."""
    if each.efficiency is None:
        return ""
    reference = "" if group.smallest == usual_reference else f" of {group.smallest}"
    value = format_percent(100 * each.efficiency.value) if group.by_bandwidth else f"{_rounded(1 / each.efficiency.value, 2)}×"
    return f"{value}{reference}"


def _note(each: AlternativeTime) -> str:
    if each.ratio is None or each.ratio.time is None:
        return ""
    if each.undecided is Undecided.NO_INTERVAL:
        return _CAUSES[Undecided.NO_INTERVAL]
    if each.outcome is Outcome.SLOWER:
        value, _ = factor_texts(each.ratio.time)
        return f"{value}×"
    return format_margin(each.ratio.margin) if each.outcome is Outcome.NO_CHANGE else "?"


def _style(group: AlternativeGroup) -> str:
    if any(each.row.wrong for each in group.times.values()):
        return "wrong"
    return "na" if group.leader is None else ""


def foot(found: Alternatives) -> list[str]:
    """Return how to read the table, how the intervals were made, and what is not compared."""
    texts = _reading(found)
    several = [each for group in found.groups for each in group.times.values() if each.ratio is not None]
    if any(each.over_launches for each in several):
        texts.append("intervals: 95 %, over the medians of the launches; of 100 equal pairs about 5 differ by chance")
    if not all(each.over_launches for each in several):
        counts = f", so only a difference above {format_margin(found.margin)} counts"
        if any(each.undecided is Undecided.ONE_LAUNCH for each in several):
            counts += ", and none between runs of the same case"
        if found.is_scaling:
            counts = ""
        texts.append(f"{_one_launch(found)}: intervals do not include what differs between launches{counts}. Measure with --launches 5")
    if any(outcome(group, name) == UNRELIABLE for group in found.groups for name in group.times):
        texts.append("? before a time: unreliable, so not compared (`collbench report RUN` has the reason)")
    if any(group.expected_s is not None for group in found.groups):
        texts.append("expected µs: the time at the expected bus bandwidth, the highest one of the line")
    if any(group.placings_differ for group in found.groups):
        texts.append(_placings(found))
    reasons = {f"{name}: {each.row.na}": None for group in found.groups for name, each in group.times.items() if each.row.na is not None}
    if reasons:
        texts.append(f"n/a: {first_of((short(text, 120) for text in reasons), 4, '; ')}")
    texts += _machines_differ(found)
    if found.others:
        texts.append(f"{plural(len(found.others), 'row')} without an alternative: not compared")
    return texts


def _reading(found: Alternatives) -> list[str]:
    if not found.is_scaling:
        return ["5.1×: the time as a multiple of the shortest one; ?: inconclusive; ±: no difference beyond this margin"]
    texts = []
    groups = [group for group in found.groups if any(each.efficiency is not None for each in group.times.values())]
    reference = _usual_reference(found)
    if any(group.smallest != reference for group in groups):
        reference = f"{reference} or the named count"
    if any(group.by_bandwidth for group in groups):
        texts.append(f"93 %: the bus bandwidth as a share of that with {reference}; ideal is 100 %")
    if not all(group.by_bandwidth for group in groups):
        where = f"below {format_size(LEAST_RATE_BYTES)}, and without bus bandwidth"
        texts.append(f"1.9×: the time as a multiple of that with {reference}, {where}; ideal is 1×")
    return texts


def _machines_differ(found: Alternatives) -> list[str]:
    """Return a sentence with how the hosts of the runs differ, which may explain the times; hosts are not compared for numbers of nodes."""
    first, *others = found.sides
    kinds = ("topology", "machine") if found.field == NODES else ("topology", "hosts", "machine")
    every = [change for side in others for change in differences(first.runs[0], side.runs[0]) if change.kind in kinds]
    changes = list(dict.fromkeys(short(change.sentence(), 160) for change in every))
    return [f"the runs differ in more, which may explain the times: {first_of(changes, _MOST_CHANGES, '; ')}"] if changes else []


def _placings(found: Alternatives) -> str:
    mixed = [group for group in found.groups if group.placings_differ]
    inside = dict.fromkeys(name for group in mixed for name, each in group.times.items() if each.row.in_place)
    others = dict.fromkeys(name for group in mixed for name, each in group.times.items() if not each.row.in_place)
    return f"no placing has all: {first_of(inside, 6)} in place, {first_of(others, 6)} out of place"


def runs_line(found: Alternatives) -> str:
    """Return the compared runs: "gloo (6 launches), mpich (6 launches)"; of many only the first."""
    titles = [f"{short(side.name, 60)} ({plural(len(side.runs), 'launch')})" for side in found.sides]
    return first_of(titles, _MOST_SIDES)


# The output.


def head(found: Alternatives, *, has_badge: bool = False) -> list[str]:
    """Return the sentences above the table: the answer, where each is the fastest, and the runs; `has_badge` as of `headline`."""
    return [text for text in (headline(found, has_badge=has_badge), best_at(found), runs_line(found)) if text]


def lines(found: Alternatives, format: str, width: int | None = None) -> Iterator[Line]:
    """Yield the comparison in one of FORMATS."""
    whole = replace(frame(found), head=head(found), foot=foot(found))
    if format == "csv":
        rows = (ALTERNATIVES.fields_of(each).values() for each in records(found))
        yield from csv_table([value.name for value in ALTERNATIVES.values], rows)
    elif format == "json":
        yield from (Line(text) for text in json_page(found).splitlines())
    elif format == "markdown":
        yield from markdown_of(whole)
    else:
        yield from table_lines(whole, width)


def json_page(found: Alternatives) -> str:
    """Return one object: {"schema", "compares": the field, "alternatives": names, "answer", "margin", "runs": [{name, launches}], "rows"}.

    A row has the fields of `AlternativeRow`, as CSV has them.
    """
    runs = [{"name": side.name, "launches": len(side.runs)} for side in found.sides]
    values = {"schema": 1, "compares": found.field, "alternatives": list(found.names), "answer": headline(found), "margin": found.margin}
    return to_page({**values, "runs": runs, "rows": [ALTERNATIVES.fields_of(each) for each in records(found)]})


def compare_alternatives(
    sides: Sequence[Launches], format: str, stream: TextIO, *, margin: float, err: TextIO, color: str, problem: UsageError | None = None
) -> int:
    """Print the comparison of runs that differ in one field of their cases, and warnings on `err`. Returns the exit code, 0.

    Raises `problem` if no two of their cases are alternatives, and UsageError for an unknown format.
    """
    check_format(format, FORMATS)
    found = alternatives(sides, margin)
    if found is None:
        raise problem or UsageError(f"{listed([side.name for side in sides], 4)} have no cases that differ in one field only")
    for side in sides:
        for warning in (warning for run in side.runs for warning in (*run.warnings, sentence(run)) if warning):
            write_line(err, printable(warning))
    width = width_of(stream) if format == "table" else None
    print_lines(lines(found, format, width), stream, wants_color(stream, color))
    return FINE


def sides_of(paths: Sequence[Path]) -> list[Launches]:
    """Return the launches in each of these folders. Raises UsageError for launches that do not belong together or are given twice."""
    runs = [runs_in(path) for path in paths]
    check_once(run for those in runs for run in those)
    return [side_of(those, str(path)) for those, path in zip(runs, paths, strict=True)]
