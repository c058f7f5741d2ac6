"""Alternatives as text: which backend or run is the fastest at each size, or how an operation scales over ranks; in all formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import floor, log10
from typing import Annotated, Any

from msgspec.structs import replace

from collbench.analysis.differences import differences
from collbench.analysis.launches import Launches, time_of
from collbench.analysis.outcome import Outcome
from collbench.columns import column, declared
from collbench.machine.peak.ceiling import LEAST_RATE_BYTES
from collbench.plugins.alternatives.analysis import (
    BACKEND,
    NODES,
    RANKS,
    AlternativeGroup,
    Alternatives,
    AlternativeTime,
    Undecided,
    alternatives,
)
from collbench.records import Record, RecordKind
from collbench.report.cases import NOTHING, same_for_all, size_of, value_of, wrong
from collbench.report.frame import Column, Frame, Line, csv_of, printable, table_lines
from collbench.report.frame import markdown_lines as markdown_of
from collbench.report.headlines import short
from collbench.report.outcome_text import format_margin
from collbench.report.plan import PlanSummary, operation_name
from collbench.results.estimate import Estimate
from collbench.results.quality import REMEDIES, quality_of
from collbench.results.row import SERIES, CaseKey, Row
from collbench.results.store import to_page
from collbench.stats.launches import Ratio
from collbench.units import first_of, format_percent, format_size, format_time, listed, plural

FORMATS = ("table", "csv", "json", "markdown")
FASTEST = "fastest"
UNRELIABLE = "unreliable"
WRONG_DATA = "wrong data"
NOT_MEASURED = "n/a"
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


def records(compared: Alternatives) -> list[AlternativeRow]:
    """Return a record for each row that is compared, group by group."""
    runs = {id(row): side.name for side in compared.sides for row in side.rows}
    return [_record(group, name, runs[id(group.times[name].row)]) for group in compared.groups for name in group.times]


def _record(group: AlternativeGroup, name: str, run: str) -> AlternativeRow:
    alternative = group.times[name]
    row = alternative.row
    efficiency_by = "busbw" if group.by_bandwidth else "time"
    return AlternativeRow(
        alternative=name, run=run, case=CaseKey._make(getattr(row, field) for field in CaseKey._fields), outcome=outcome(group, name),
        time_ratio=_estimate(alternative.ratio.time if alternative.ratio else None), interval_over_launches=alternative.over_launches,
        efficiency=_estimate(alternative.efficiency), efficiency_by=efficiency_by if alternative.efficiency else "",
        time_s=Estimate(time_of(row), row.time_s.ci_low, row.time_s.ci_high) if row.time_s else Estimate(),
        busbw_bytes_per_s=row.busbw_bytes_per_s, expected_bytes_per_s=group.expected_bytes_per_s, launches=row.launches, wrong=row.wrong,
        na=row.na, flags=row.flags,
    )  # fmt: skip


def _estimate(ratio: Ratio | None) -> Estimate:
    return Estimate() if ratio is None else Estimate(ratio.value, ratio.low, ratio.high)


ALTERNATIVES = RecordKind("compare", AlternativeRow)


def record_kinds() -> list[RecordKind[Any]]:
    """Return the kinds of records whose columns `explain` has."""
    return [ALTERNATIVES]


def outcome(group: AlternativeGroup, name: str) -> str:
    """Return the outcome of a row in its group, in one of the words of the column `outcome`; "" if its group compares efficiencies."""
    alternative = group.times[name]
    if alternative.row.wrong:
        return WRONG_DATA
    if time_of(alternative.row) is None:
        return NOT_MEASURED
    if not alternative.is_sound:
        return UNRELIABLE
    if group.smallest is not None:
        return ""
    if alternative.outcome is not None:
        return alternative.outcome.value
    return FASTEST if group.fastest == name else Outcome.INCONCLUSIVE.value


# The answer in sentences.


def headline(compared: Alternatives, *, has_badge: bool = False) -> str:
    """Return the answer: "mpi is 1.8 times as fast as gloo at 16 MiB (1.6–2.0)", or of ranks and nodes the efficiency.

    has_badge  whether the word "inconclusive" is printed with it
    """
    answer = _scaling_headline(compared) if compared.is_scaling else _fastest_headline(compared)
    names = [name for name in compared.names if any(name in group.times and group.times[name].row.wrong for group in compared.groups)]
    if not is_decided(compared) and (names or not has_badge):
        answer = f"inconclusive: {answer}"
    return f"WRONG DATA in {listed(names, 4)}; {answer}" if names else answer


def is_decided(compared: Alternatives) -> bool:
    """Return whether one is the fastest in a case; of ranks and nodes whether there is an efficiency."""
    return bool(_ends(compared)) if compared.is_scaling else any(group.fastest for group in compared.groups)


def _fastest_headline(compared: Alternatives) -> str:
    decided = [group for group in compared.groups if group.fastest]
    if not decided:
        tied = [group.as_fast for group in compared.groups if len(group.as_fast) > 1]
        names = max(reversed(tied), key=len) if tied else compared.names
        return f"no evidence which of {listed(names, 4)} is faster ({_why(compared)})"
    main = max(decided, key=_size_and_lead)
    others = [group for group in decided if group.fastest != main.fastest]
    texts = [_lead(compared, main, is_first=True)]
    if others:
        texts.append(_lead(compared, max(others, key=_size_and_lead), is_first=False))
    largest = compared.groups[-1]
    if _has_sizes_only(compared) and not largest.fastest and largest.followers:
        is_tied = len(largest.as_fast) > 1
        undecided = first_of(largest.as_fast, 3) if is_tied else f"no interval of {first_of(largest.without_interval, 3)}"
        texts.append(f"undecided at {format_size(largest.row.size_bytes)}: {undecided}")
    return "; ".join(texts)


def _why(compared: Alternatives) -> str:
    """Return the cause that most rows have: "4 of 6 rows are unreliable: there are more ranks and busy threads than cores"."""
    times = compared.times
    unreliable = [time.row for time in times if not (time.is_sound or time.row.wrong) and time_of(time.row) is not None]
    causes = Counter(_cause(compared, group, time) for group in compared.groups for time in group.times.values())
    del causes[""]
    nothing = f"at most one {'count' if compared.is_scaling else 'of them'} has a time in each case"
    cause, rows = causes.most_common(1)[0] if causes else (nothing, 0)
    if not unreliable or rows > len(unreliable):
        return cause
    qualities = [quality for quality in map(quality_of, unreliable) if quality]
    remedies = Counter(remedy for quality in qualities for remedy in quality.remedies[:1])
    reason = f": {REMEDIES[remedies.most_common(1)[0][0]].cause}" if remedies else ""
    verb = "is" if len(unreliable) == 1 else "are"
    return f"{len(unreliable)} of {plural(len(times), 'row')} {verb} unreliable{reason}"


def _cause(compared: Alternatives, group: AlternativeGroup, alternative: AlternativeTime) -> str:
    """Return why a sound row is not ranked, or of ranks and nodes has no efficiency; "" for a row that is or has."""
    if compared.is_scaling:
        if not alternative.is_sound or group.smallest is None or _count(alternative) == _count(group.times[group.smallest]):
            return ""
        return "a single rank sends nothing" if alternative.row.ranks == 1 else _CAUSES[Undecided.STATE]
    if alternative.undecided is not Undecided.SMALL:
        return _CAUSES.get(alternative.undecided, "")
    if alternative.over_launches:
        return "no interval excludes equal times"
    return f"{_one_launch(compared)}, and no difference above {format_margin(compared.margin)}"


def _size_and_lead(group: AlternativeGroup) -> tuple[int, float]:
    time = group.lead.time if group.lead else None
    return group.row.size_bytes, time.value if time else 0.0


def _lead(compared: Alternatives, group: AlternativeGroup, *, is_first: bool) -> str:
    """Return "mpi is 1.8 times as fast as gloo at 16 MiB (1.6–2.0)", of three or more "mpi is the fastest of 3 at 16 MiB: …"."""
    lead = group.lead
    if lead is None or lead.time is None:
        return ""
    value, interval = factor_texts(lead.time)
    among = sum(alternative.is_sound for alternative in group.times.values())
    scope = "" if lead.launches else f", {_one_launch(compared)}"
    second = group.followers[0]
    where = _where(compared, group)
    if is_first and among > 2:
        return f"{group.fastest} is the fastest of {among}{where}: {value} times as fast as {second} ({interval}{scope})"
    return f"{group.fastest} is {value} times as fast as {second}{where} ({interval}{scope})"


def _one_launch(compared: Alternatives) -> str:
    return "one launch each" if len(compared.sides) > 1 else "within one launch"


def _where(compared: Alternatives, group: AlternativeGroup) -> str:
    """Return " in allreduce at 16 MiB", without the operation if there is only one."""
    row = group.row
    names = [value_of(row, name) for name in _differing(compared)]
    operation = f" in {operation_name(row.operation)}" if len(_operations(compared)) > 1 or not row.size_bytes else ""
    size = f" at {format_size(row.size_bytes)}" if row.size_bytes else ""
    differing = f" ({', '.join(name for name in names if name != NOTHING)})" if names else ""
    return f"{operation}{size}{differing}"


def _operations(compared: Alternatives) -> list[str]:
    return list(dict.fromkeys(group.row.operation for group in compared.groups))


def _has_sizes_only(compared: Alternatives) -> bool:
    """Return whether the groups have a size and differ in nothing else."""
    return len(_operations(compared)) == 1 and not _differing(compared) and compared.groups[-1].row.size_bytes > 0


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


def _scaling_headline(compared: Alternatives) -> str:
    """Return "4 ranks reach 93 % of the bus bandwidth of 2 ranks at 16 MiB (90–96 %)": the lowest of the largest counts and sizes."""
    ends = _ends(compared)
    if not ends:
        return f"{listed(compared.names, 4)} cannot be compared ({_why(compared)})"
    lowest = min(ends, key=lambda end: end[2].value)
    texts = [_efficiency(compared, *lowest)]
    if len(ends) > 1:
        group, name, ratio = max(ends, key=lambda end: end[2].value)
        alternative = "" if name == lowest[1] else f" with {name}"
        texts.append(f"the most is {format_percent(100 * ratio.value)}{alternative}{_where(compared, group)}")
    if not any(name == compared.names[-1] for _, name, _ in ends):
        texts.append(f"{compared.names[-1]}: no efficiency")
    return "; ".join(texts)


def _ends(compared: Alternatives) -> list[tuple[AlternativeGroup, str, Ratio]]:
    """Return the efficiency of the largest count that has one, at the largest size at which it has one, of each series and run."""
    fields = _differing(compared)
    largest_size: dict[tuple[tuple[str, ...], str], tuple[AlternativeGroup, str, Ratio]] = {}
    largest_count: dict[tuple[str, ...], tuple[int, int]] = {}
    for group in compared.groups:
        series = group.row.operation, *(value_of(group.row, name) for name in fields)
        for name, alternative in group.times.items():
            if alternative.efficiency is not None:
                largest_size[series, name] = group, name, alternative.efficiency
                largest_count[series] = max(_count(alternative), largest_count.get(series, (0, 0)))
    return [end for (series, name), end in largest_size.items() if _count(end[0].times[name]) == largest_count[series]]


def _count(alternative: AlternativeTime) -> tuple[int, int]:
    return alternative.row.nodes or 1, alternative.row.ranks


def _efficiency(compared: Alternatives, group: AlternativeGroup, name: str, ratio: Ratio) -> str:
    launches = min(group.times[name].row.launches, group.times[str(group.smallest)].row.launches)
    scope = "" if launches > 1 else f", {_one_launch(compared)}"
    where = _where(compared, group)
    if not group.by_bandwidth:
        longer = Ratio(1 / ratio.value, ratio.high and 1 / ratio.high, ratio.low and 1 / ratio.low, ratio.n)
        value, interval = factor_texts(longer)
        return f"{name} take {value} times as long as {group.smallest}{where} ({interval}{scope})"
    interval = "no interval"
    if ratio.low is not None and ratio.high is not None:  # "90–96 %", "99.4–99.8 %"
        digits = 0 if round(100 * ratio.low) != round(100 * ratio.high) else 1
        interval = f"{100 * ratio.low:.{digits}f}–{100 * ratio.high:.{digits}f} %"
    return f"{name} reach {format_percent(100 * ratio.value)} of the bus bandwidth of {group.smallest}{where} ({interval}{scope})"


def operation_of_answer(compared: Alternatives) -> str:
    """Return the operation that `headline` is about."""
    ends = _ends(compared) if compared.is_scaling else []
    if ends:
        group, _, _ = min(ends, key=lambda end: end[2].value)
        return group.row.operation
    decided = [group for group in compared.groups if group.fastest]
    return max(decided, key=_size_and_lead).row.operation if decided else compared.groups[0].row.operation


def largest_differences(compared: Alternatives) -> Iterator[tuple[str, str]]:
    """Yield (figure, what it is): ("1.8×", "as fast as gloo: mpi at 16 MiB").

    It is of the largest size of each operation; of a single operation of all sizes, the largest first.
    """
    if compared.is_scaling:
        for group, name, ratio in _ends(compared):
            if group.by_bandwidth:
                label = f"of the bus bandwidth of {group.smallest}: {name}"
                yield format_percent(100 * ratio.value), f"{label}{_where(compared, group)}"
        return
    decided = [group for group in compared.groups if group.fastest]
    if len(_operations(compared)) > 1:
        decided = list({group.row.operation: group for group in decided}.values())
    else:
        decided.sort(key=_size_and_lead, reverse=True)
    for group in decided:
        if group.lead is not None and group.lead.time is not None:
            value, _ = factor_texts(group.lead.time)
            yield f"{value}×", f"as fast as {group.followers[0]}: {group.fastest}{_where(compared, group)}"


def best_at(compared: Alternatives) -> str:
    """Return "fastest: impi at 4 KiB to 64 KiB; undecided: 64 B", of several operations the numbers of cases; "" of ranks and nodes."""
    if compared.is_scaling:
        return ""
    sizes: dict[str | None, list[int]] = {}  # by the fastest alternative; None: undecided
    for group in compared.groups:
        sizes.setdefault(group.fastest, []).append(group.row.size_bytes)
    names = [name for name in compared.names if name in sizes]
    if _has_sizes_only(compared):
        every = [group.row.size_bytes for group in compared.groups]
        head = "fastest"
        parts = [f"{name} at {size_spans(sizes[name], every)}" for name in names]
        undecided = size_spans(sizes.get(None, ()), every)
    else:
        head = f"fastest of {plural(len(compared.groups), 'case')}"
        parts = [f"{name} in {len(sizes[name])}" for name in names]
        undecided = str(len(sizes.get(None, ())))
    text = f"{head}: {', '.join(parts) or 'none'}"
    return f"{text}; undecided: {undecided}" if None in sizes else text


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
    compared = alternatives([table]) if len({row.backend for row in table.rows}) > 1 else None
    decided = [group for group in compared.groups if group.fastest and not group.unranked] if compared else []
    winners = {group.fastest for group in decided}
    if compared is None or len(winners) != 1 or 2 * len(decided) < len(compared.groups):
        return ""
    ratios = [group.lead.time for group in decided if group.lead and group.lead.time]
    low, high = (_rounded(end(ratio.value for ratio in ratios), 2) for end in (min, max))
    over = "" if all(group.lead and group.lead.launches for group in decided) else f", {_one_launch(compared)}"
    times = f"{low} times" if low == high else f"{low} to {high} times"
    seconds = {group.followers[0] for group in decided}
    second = seconds.pop() if len(seconds) == 1 else "the next one"
    where, rest = _cases(compared, decided)
    return f"{winners.pop()} is the fastest backend{where} ({times} as fast as {second}{over}){rest}"


def _cases(compared: Alternatives, decided: Sequence[AlternativeGroup]) -> tuple[str, str]:
    """Return where an alternative is the fastest (" at all sizes from 64 KiB", " in 6 of 7 cases"), and a note on the other cases."""
    total = len(compared.groups)
    if total == 1:
        return _where(compared, decided[0]), ""
    has_sizes = _has_sizes_only(compared)
    everywhere = "at all sizes" if has_sizes else f"in all {total} cases"
    if len(decided) == total:
        return f" {everywhere}", ""
    is_end = list(compared.groups[-len(decided) :]) == list(decided)
    if has_sizes and is_end and len(decided) > 1:
        return f" {everywhere} from {format_size(decided[0].row.size_bytes)}", ""
    where = f" at {len(decided)} of {total} sizes" if has_sizes else f" in {len(decided)} of {total} cases"
    return where, "; the others are undecided"


# The table: a line for each operation and size, a column for each alternative.


def frame(compared: Alternatives, groups: Sequence[AlternativeGroup] | None = None) -> Frame[AlternativeGroup]:
    """Return the table of these groups, or of all: the fastest one and its lead, and the times of all alternatives."""
    shown = list(compared.groups if groups is None else groups)
    columns: list[Column[AlternativeGroup]] = []
    if len(_operations(compared)) > 1 or not any(group.row.size_bytes for group in shown):
        columns.append(Column("", "operation", lambda group: printable(operation_name(group.row.operation))))
    columns += [Column("", "placing" if name == "in_place" else name, partial(_value, name=name)) for name in _differing(compared)]
    if any(group.row.size_bytes for group in shown):
        columns.append(Column("", "size", lambda group: size_of(group.row), right=True))
    if not compared.is_scaling:
        columns.append(Column("", "fastest", _fastest))
        columns.append(Column("", "times as fast", _lead_text, right=True))
    columns += [_column(compared, name, place) for place, name in enumerate(compared.names)]
    if any(group.expected_s is not None for group in shown):
        columns.append(Column("", "expected µs", _expected, right=True, drop=1))
    rows = [alternative.row for group in shown for alternative in group.times.values()]
    return Frame(columns, shown, title=same_for_all(PlanSummary.of(rows)), style=_style, names_hidden=True)


def _value(group: AlternativeGroup, name: str) -> str:
    return short(value_of(group.row, name), 40)


def _differing(compared: Alternatives) -> list[str]:
    """Return the fields besides the size that distinguish groups of one operation."""
    dependent = {BACKEND: ("registration", "streams"), RANKS: ("nodes", "group"), NODES: ("ranks", "group")}
    ignored = {"operation", compared.field, *dependent.get(compared.field, ("backend", "registration", "streams", "in_place"))}
    values: dict[str, dict[str, set[str]]] = {}
    for group in compared.groups:
        if group.placings_differ:
            continue
        for name in SERIES:
            if name not in ignored:
                values.setdefault(name, {}).setdefault(group.row.operation, set()).add(value_of(group.row, name))
    return [name for name, by_operation in values.items() if any(len(different) > 1 for different in by_operation.values())]


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


def _column(compared: Alternatives, name: str, place: int) -> Column[AlternativeGroup]:
    """Return the column of an alternative; a narrow terminal drops the slowest ones first, but never the first two."""
    usual = _usual_reference(compared)

    def text(group: AlternativeGroup) -> str:
        alternative = group.times.get(name)
        if alternative is None:
            return NOTHING
        return _time(alternative, _scaling_note(group, alternative, usual) if compared.is_scaling else _note(alternative))

    return Column("", f"{short(name, 40)} µs", text, right=True, drop=place + 1 if place > 1 else 0)


def _usual_reference(compared: Alternatives) -> str | None:
    """Return the name with which most efficiencies compare; None without one."""
    groups = [group for group in compared.groups for alternative in group.times.values() if alternative.efficiency is not None]
    references = Counter(group.smallest for group in groups)
    return references.most_common(1)[0][0] if references else None


def _time(alternative: AlternativeTime, note: str) -> str:
    """Return "41.78 (5.1×)", "8.226", "3.250 (93 %)", "? 12.3", "n/a", "WRONG 3"."""
    if alternative.row.wrong:
        return wrong(alternative.row)
    time_s = time_of(alternative.row)
    if time_s is None:
        return NOT_MEASURED
    text = format_time(time_s)
    if not alternative.is_sound:
        return f"? {text}"
    return f"{text} ({note})" if note else text


def _scaling_note(group: AlternativeGroup, alternative: AlternativeTime, usual_reference: str | None) -> str:
    """Return "93 %" or "1.9×"; with the name of the reference where it is not the usual one."""
    if alternative.efficiency is None:
        return ""
    efficiency = alternative.efficiency.value
    reference = "" if group.smallest == usual_reference else f" of {group.smallest}"
    return f"{format_percent(100 * efficiency) if group.by_bandwidth else f'{_rounded(1 / efficiency, 2)}×'}{reference}"


def _note(alternative: AlternativeTime) -> str:
    if alternative.ratio is None or alternative.ratio.time is None:
        return ""
    if alternative.undecided is Undecided.NO_INTERVAL:
        return _CAUSES[Undecided.NO_INTERVAL]
    if alternative.outcome is Outcome.SLOWER:
        value, _ = factor_texts(alternative.ratio.time)
        return f"{value}×"
    return format_margin(alternative.ratio.margin) if alternative.outcome is Outcome.NO_CHANGE else "?"


def _style(group: AlternativeGroup) -> str:
    if any(alternative.row.wrong for alternative in group.times.values()):
        return "wrong"
    return "na" if group.leader is None else ""


def foot(compared: Alternatives) -> list[str]:
    """Return how to read the table, how the intervals were made, and what is not compared."""
    texts = _reading(compared)
    judged = [alternative for alternative in compared.times if alternative.ratio is not None]
    if any(alternative.over_launches for alternative in judged):
        texts.append("intervals: 95 %, over the medians of the launches; of 100 equal pairs about 5 differ by chance")
    if not all(alternative.over_launches for alternative in judged):
        counts = f", so only a difference above {format_margin(compared.margin)} counts"
        if any(alternative.undecided is Undecided.ONE_LAUNCH for alternative in judged):
            counts += ", and none between runs of the same case"
        if compared.is_scaling:
            counts = ""
        texts.append(f"{_one_launch(compared)}: intervals do not include what differs between launches{counts}. Measure with --launches 5")
    if any(outcome(group, name) == UNRELIABLE for group in compared.groups for name in group.times):
        texts.append("? before a time: unreliable, so not compared (`collbench report RUN` has the reason)")
    if any(group.expected_s is not None for group in compared.groups):
        texts.append("expected µs: the time at the expected bus bandwidth, the highest one of the line")
    placed = [entry for group in compared.groups if group.placings_differ for entry in group.times.items()]
    if placed:
        inside, outside = (dict.fromkeys(name for name, time in placed if time.row.in_place == in_place) for in_place in (True, False))
        texts.append(f"no placing has all: {first_of(inside, 6)} in place, {first_of(outside, 6)} out of place")
    named = [entry for group in compared.groups for entry in group.times.items()]
    reasons = dict.fromkeys(f"{name}: {time.row.na}" for name, time in named if time.row.na is not None)
    if reasons:
        texts.append(f"n/a: {first_of((short(text, 120) for text in reasons), 4, '; ')}")
    # hosts are not compared for numbers of nodes
    kinds = ("topology", "machine") if compared.field == NODES else ("topology", "hosts", "machine")
    first, *later = (side.runs[0] for side in compared.sides)
    all_changes = [change for run in later for change in differences(first, run) if change.kind in kinds]
    changes = list(dict.fromkeys(short(change.sentence(), 160) for change in all_changes))
    if changes:
        texts.append(f"the runs differ in more, which may explain the times: {first_of(changes, _MOST_CHANGES, '; ')}")
    if compared.others:
        texts.append(f"{plural(len(compared.others), 'row')} without an alternative: not compared")
    return texts


def _reading(compared: Alternatives) -> list[str]:
    if not compared.is_scaling:
        return ["5.1×: the time as a multiple of the shortest one; ?: inconclusive; ±: no difference beyond this margin"]
    texts = []
    groups = [group for group in compared.groups if any(time.efficiency is not None for time in group.times.values())]
    reference = _usual_reference(compared)
    if any(group.smallest != reference for group in groups):
        reference = f"{reference} or the named count"
    if any(group.by_bandwidth for group in groups):
        texts.append(f"93 %: the bus bandwidth as a share of that with {reference}; ideal is 100 %")
    if not all(group.by_bandwidth for group in groups):
        where = f"below {format_size(LEAST_RATE_BYTES)}, and without bus bandwidth"
        texts.append(f"1.9×: the time as a multiple of that with {reference}, {where}; ideal is 1×")
    return texts


# The output.


def head(compared: Alternatives, *, has_badge: bool = False) -> list[str]:
    """Return the sentences above the table: the answer, where each is the fastest, and the runs; `has_badge` as of `headline`."""
    runs = [f"{short(side.name, 60)} ({plural(len(side.runs), 'launch')})" for side in compared.sides]
    return [text for text in (headline(compared, has_badge=has_badge), best_at(compared), first_of(runs, _MOST_SIDES)) if text]


def lines(compared: Alternatives, format: str, width: int | None = None) -> Iterator[Line]:
    """Yield the comparison in one of FORMATS."""
    whole = replace(frame(compared), head=head(compared), foot=foot(compared))
    if format == "csv":
        yield from csv_of([ALTERNATIVES.fields_of(record) for record in records(compared)])
    elif format == "json":
        yield from (Line(text) for text in json_page(compared).splitlines())
    elif format == "markdown":
        yield from markdown_of(whole)
    else:
        yield from table_lines(whole, width)


def json_page(compared: Alternatives) -> str:
    """Return one object: {"schema", "compares": the field, "alternatives": names, "answer", "margin", "runs": [{name, launches}], "rows"}.

    A row has the fields of `AlternativeRow`, as CSV has them.
    """
    runs = [{"name": side.name, "launches": len(side.runs)} for side in compared.sides]
    values = {
        "schema": 1,
        "compares": compared.field,
        "alternatives": list(compared.names),
        "answer": headline(compared),
        "margin": compared.margin,
    }
    return to_page({**values, "runs": runs, "rows": [ALTERNATIVES.fields_of(record) for record in records(compared)]})
