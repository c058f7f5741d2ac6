"""Texts of a row: one definition of every column, used by all tables, headlines and pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isclose
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from collbench.analysis.launches import WHERE_NONE, forced, known
from collbench.columns import value_columns
from collbench.machine.peak.ceiling import LEAST_RATE_BYTES, TOLERANCE, Ceiling, name_of_model
from collbench.plugin import measurement_mode
from collbench.report.frame import Column, printable
from collbench.report.plan import PlanSummary, differing_fields, is_several, operation_name
from collbench.results.flags import DOUBTFUL, WITHIN_A_LAUNCH, flag_names
from collbench.results.quality import half_width, is_unreliable, quality_of
from collbench.results.row import SERIES, UNDER_LOAD, CaseKey, Row
from collbench.units import format_percent, format_rate, format_size, format_time, plural

if TYPE_CHECKING:
    from collbench.analysis.best import JudgedChoice, Loss


NOTHING = "–"
ONE_RANK = "one rank: no bus"
_SAME_RATE = 0.001
_NAMES_ITS_KIND = ("given", "simulated")  # kinds of expected bandwidth that name their kind in the text


class CaseColumn(Column[Row], frozen=True):
    """A column of rows of cases: of tables in a terminal, if it has a key for `--columns`, and on pages and in Markdown.

    brief   the text in a terminal, where it is not that of pages
    shown   whether a plan needs the column on pages; None: they lack it
    figure  whether it is empty in an n/a row
    """

    brief: Callable[[Row], str] | None = None
    shown: Callable[[PlanSummary], object] | None = None
    figure: bool = True


def placing(row: Row) -> str:
    """Return "in place" or "out of place", or a dash if the operation moves no bytes."""
    if not row.size_bytes:
        return NOTHING
    return "in place" if row.in_place else "out of place"


def size_of(row: Row) -> str:
    """Return the message size, or a dash if the operation moves no bytes."""
    return format_size(row.size_bytes) if row.size_bytes else NOTHING


def name_of(row: Row) -> str:
    """Return a short name of the row: "allreduce 64 MiB", "barrier"."""
    name = operation_name(row.operation)
    return f"{name} {format_size(row.size_bytes)}" if row.size_bytes else name


def value_of(row: Row, name: str) -> str:
    """Return one of the fields that distinguish series, as text."""
    value = getattr(row, name)
    if name == "dtype" and not row.size_bytes:
        return NOTHING  # such rows have uint8 as a placeholder
    if name == "in_place":
        return placing(row)
    if name == "operation":
        return printable(operation_name(value))
    return WHERE_NONE.get(name, NOTHING) if value is None else printable(str(value))


def rate(bytes_per_s: float | None) -> str:
    """Return a rate in GB/s without its unit, or a dash."""
    return NOTHING if bytes_per_s is None else format_rate(bytes_per_s)


def group_rates(row: Row) -> tuple[list[float], float | None]:
    """Return the busbw of each group in bytes per second, and that of all together; ([], None) if the stored values are not numbers."""
    stored = row.groups.get("busbw_bytes_per_s")
    total = row.groups.get("total_busbw_bytes_per_s")
    rates = [float(rate) for rate in stored if known(rate)] if isinstance(stored, list | tuple) else []
    return rates, float(total) if total is not None and known(total) else None


def each_group(row: Row) -> str:
    """Return the busbw of the slowest and of the fastest group in GB/s: "9.41–9.45"; a dash if unknown."""
    rates, _ = group_rates(row)
    return "–".join(dict.fromkeys((format_rate(min(rates)), format_rate(max(rates))))) if rates else NOTHING


def format_groups(row: Row) -> str:
    """Return "2 groups of 4 ranks: 9.41–9.45 GB/s each, 18.9 GB/s in total"; "" for a single group."""
    count, ranks = (row.groups.get(name) for name in ("count", "ranks"))
    if not (known(count) and known(ranks)):
        return ""
    rates = {"each": each_group(row), "in total": rate(group_rates(row)[1])}
    texts = [f"{text} GB/s {scope}" for scope, text in rates.items() if text != NOTHING]
    return f"{count} groups of {ranks} ranks{': ' if texts else ''}{', '.join(texts)}"


def message_rate(row: Row) -> str:
    """Return the messages per second of all pairs together, to three digits: "912", "35.2k", "22.9M"; a dash if unknown."""
    if row.message_rate is None:
        return NOTHING
    unit, factor = next(((unit, factor) for unit, factor in (("M", 1e6), ("k", 1e3)) if row.message_rate >= factor), ("", 1.0))
    text = f"{row.message_rate / factor:#.3g}".removesuffix(".")
    return f"{row.message_rate / factor:.0f}{unit}" if "e" in text else f"{text}{unit}"


def times(row: Row, unit: str = "") -> str:
    """Return the median in µs, or both values of bimodal samples: "2.345", "2.345 82 % / 10.70 18 %"."""
    if row.time_s is None or row.time_s.p50 is None:
        return NOTHING
    modes = two_modes(row)
    if not modes:
        return f"{format_time(row.time_s.p50)}{unit}"
    return " / ".join(f"{format_time(time_s)}{unit} {format_percent(100 * share)}" for time_s, share in modes)


def figure_text(case: CaseKey, figure: float) -> str:
    """Return the figure that the gate holds for a case: a time in µs without its unit, of a case under load the factor "1.82×"."""
    return f"{figure:.3g}×" if case.mode == UNDER_LOAD else format_time(figure)


def two_modes(row: Row) -> list[tuple[float, float]]:
    """Return (seconds, share) of each mode of bimodal samples; nothing for one mode, or if the stored values are not numbers."""
    pairs = [(mode.get("time_s"), mode.get("share")) for mode in row.modes if isinstance(mode, dict)]
    modes = [(time, share) for time, share in pairs if isinstance(time, int | float) and isinstance(share, int | float)]
    return modes if len(modes) > 1 else []


def state_of(row: Row) -> str:
    """Return how far a row can be trusted: "wrong" (data), "na", "doubtful", or "" for a sound one."""
    if row.wrong:
        return "wrong"
    if row.na is not None:
        return "na"
    return "doubtful" if doubtful(row) or is_unreliable(row) else ""


def doubtful(row: Row) -> list[str]:
    """Return the flags that make the row's time or interval doubtful; several launches show some of these effects in their spread."""
    doubts = DOUBTFUL - WITHIN_A_LAUNCH if row.launches > 1 else DOUBTFUL
    return [flag for flag in row.flags if flag in doubts]


def interval(row: Row) -> str:
    """Return the confidence interval of the median in µs: "2390–2410"; "? 2390–2410" if a flag makes it doubtful."""
    time_s = row.time_s
    if time_s is None or time_s.ci_low is None or time_s.ci_high is None:
        return NOTHING
    return f"{'? ' if doubtful(row) else ''}{format_time(time_s.ci_low)}–{format_time(time_s.ci_high)}"


def of_ceiling(row: Row) -> str:
    """Return the rate with its percentages: "42.0 of 50.0 GB/s (84 %, hard limit 65 %)"; a dash if none is known.

    The first percentage is of the rate shown. A hard limit of the same rate has no percentage of its own. If the rate shown is that of a
    baseline, the row's own one follows: "0.0956 of 0.120 GB/s (80 %, 100 % of the 0.0956 GB/s expected now)".
    """
    if row.ranks == 1 and row.size_bytes:
        return ONE_RANK
    comparison = row.comparison
    if comparison is None:
        return NOTHING
    rates = f"{format_rate(comparison.busbw_bytes_per_s)} of {format_rate(comparison.expected_bytes_per_s)} GB/s"
    shares = [share(comparison.percent, comparison.ceiling)]
    bound = row.hard_bound
    if row.percent_of_hard_bound is not None and bound is not None and not _is_same(bound, comparison.expected_bytes_per_s):
        shares.append(f"hard limit {share(row.percent_of_hard_bound, bound)}")
    present = row.own.comparison if row.own is not None else None
    if present is not None:
        shares.append(f"{share(present.percent, present.ceiling)} of the {format_rate(present.expected_bytes_per_s)} GB/s expected now")
    return f"{rates} ({', '.join(shares)})"


def _is_same(bound: Ceiling, rate: float) -> bool:
    return isclose(bound.bytes_per_s or 0.0, rate, rel_tol=_SAME_RATE)


def share(percent: float, ceiling: Ceiling) -> str:
    """Return a percentage of the expected bandwidth as text; above 100 with what that means for its kind."""
    if percent <= 100 or (percent <= 100 * TOLERANCE and ceiling.kind != "measured"):
        return least_percent(percent)
    if ceiling.kind == "measured":  # a reference, not a limit: a higher rate is information about the library, not an error
        return "faster than measured reference"
    if ceiling.model == "bound":
        return "above the hard limit: its inputs are doubtful"
    return format_percent(percent)


def least_percent(percent: float) -> str:
    """Return a percentage, "<0.1 %" for one that would read as 0."""
    return format_percent(percent) if percent >= 0.05 else "<0.1 %"


def limited_by(row: Row) -> str:
    """Return the link or copy that limits and the kind of figure its rate is; without a rate, why there is none."""
    ceiling = row.ceiling
    if ceiling is None or row.ranks == 1:
        return NOTHING
    if ceiling.bytes_per_s is None or (row.comparison is None and not ceiling.disturbed):
        return printable(ceiling.limited_by)
    if ceiling.low_bytes_per_s is not None and ceiling.high_bytes_per_s is not None:
        span = "–".join(dict.fromkeys(map(format_rate, (ceiling.low_bytes_per_s, ceiling.high_bytes_per_s))))
        return printable(f"{ceiling.limited_by} (measured {span})")
    kind = basis(ceiling)
    if ceiling.model != "bound" and row.hard_bound is not None and _is_same(row.hard_bound, ceiling.bytes_per_s):
        kind = f"{kind} and hard limit"
    return printable(with_basis(ceiling, kind))


def with_basis(ceiling: Ceiling, kind: str) -> str:
    """Return what limits, with the kind of figure if the text lacks it: "NIC 4×100 Gb/s (ring)", "the given ceiling"."""
    return ceiling.limited_by if ceiling.kind in _NAMES_ITS_KIND else f"{ceiling.limited_by} ({kind})"


def basis(ceiling: Ceiling) -> str:
    """Return what kind of figure a ceiling is: "ring", "NVLS tree", "hard limit", "measured", "given"."""
    return name_of_model(ceiling.model) if ceiling.kind in ("network", "topology") else ceiling.kind


def expected_time(row: Row) -> str:
    """Return the time in µs that a model expects of the row's size, or a dash."""
    seconds = row.expectation.expected_time_s if row.expectation else None
    return NOTHING if seconds is None else format_time(seconds)


def of_expected_time(row: Row) -> str:
    """Return expected time / measured time, or a dash: "84 %" is slower than expected."""
    percent = row.expectation.percent_of_expected_time if row.expectation else None
    return NOTHING if percent is None else format_percent(percent)


def expected_from(row: Row) -> str:
    """Return the origin of the expected time, or why there is no model; a dash for rows that models do not describe."""
    return NOTHING if row.expectation is None else printable(row.expectation.expected_time_origin)


def wrong(row: Row) -> str:
    """Return the number of wrong elements: "0", "WRONG 3", or a dash if nothing was verified."""
    if row.wrong is None:
        return NOTHING
    return f"WRONG {row.wrong}" if row.wrong else "0"


def remarks(row: Row) -> str:
    """Return the names of the row's flags, and where the first wrong element was."""
    return printable(", ".join(filter(None, [*flag_names(row.flags), row.wrong_detail])))


def not_available(row: Row) -> str:
    """Return the reason of an n/a row, which replaces its figures."""
    return printable(f"n/a ({row.na})")


def shown_columns(plan: PlanSummary) -> list[CaseColumn]:
    """Return the columns that this plan needs, in order."""
    return [column for column in COLUMNS if column.shown and column.shown(plan)]


def same_for_all(plan: PlanSummary) -> str:
    """Return what is the same in all rows, which has no column: "cpu · isolated · out of place · fixed buffers · 4 ranks · 2 nodes"."""
    return printable(" · ".join(filter(None, facts_of_all(plan).values())))


def facts_of_all(plan: PlanSummary) -> dict[str, str]:
    """Return by name the facts that are the same in all rows; "" for a value that is not worth a text."""
    values = {name: plan.values.get(name, frozenset()) for name in FACTS if plan.moves or name not in PLACED}
    return {name: FACTS[name](next(iter(same))) for name, same in values.items() if len(same) == 1 and None not in same}


def name_value(row: Row, name: str) -> str:
    """Return a field that distinguishes series with its name where it needs one: "float32", "root 1"; "" without a value."""
    value = getattr(row, name)
    if value is None or (name in PLACED and not row.size_bytes):
        return ""
    text = value_of(row, name)
    if text == NOTHING:
        return ""
    if name in FACTS:
        return FACTS[name](value)
    return f"{name} {text}" if name in _BARE else text


_DECLARED = {column.name: column for column in value_columns(Row)}
_LARGE = 1 << 20  # from this size on a percentage below 1 is a finding
_TIME_WIDTH = 13  # room for both values of bimodal samples: "293.5 / 3733"


def identity_column(name: str, shown: Callable[[PlanSummary], object] | None = None) -> CaseColumn:
    """Return the column of a field that distinguishes series; without `shown`, for plans with several values of it."""
    field = _DECLARED[name]
    shown = shown or (lambda plan: plan.varies(name))
    return CaseColumn("", field.title or name, lambda row: value_of(row, name), right=field.right, shown=shown, figure=False)


def _figure(key: str, name: str, text: Callable[[Row], str] | None = None, **others: Any) -> CaseColumn:
    """Return the column of a declared field, by its name in CSV; without `text`, with its value in its unit."""
    return CaseColumn.of(_DECLARED[name], text, key=key, **others)


def _of_overlap(key: str, name: str, least: int) -> CaseColumn:
    """Return the column of a figure of the overlap; a dash for a row without one."""

    def text(row: Row) -> str:
        overlap = measurement_mode("overlap") if row.overlap else None
        return (overlap.text_of(row, key) if overlap else None) or NOTHING

    return _figure(key, name, text, least=least)


def _time(row: Row) -> str:
    """Return the median in µs, or both values of bimodal samples: "293.5 / 3733"."""
    if row.time_s is None or row.time_s.p50 is None:
        return NOTHING
    both = " / ".join(format_time(time_s) for time_s, _ in two_modes(row))
    return both if both and len(both) <= _TIME_WIDTH else format_time(row.time_s.p50)


def _has_rate(row: Row) -> bool:
    """Return whether a bandwidth means something: the message does not fit into one packet."""
    return row.size_bytes >= LEAST_RATE_BYTES and row.ranks > 1


def _percent(percent: float | None, row: Row) -> str:
    if not _has_rate(row) or (percent is not None and percent < 1 and row.size_bytes < _LARGE):
        return ""
    return NOTHING if percent is None else least_percent(percent)


def _half_width(row: Row) -> str:
    """Return the half width of the interval as a part of the median: "±1.6 %", ">100 %", or a dash."""
    width = half_width(row)
    if width is None:
        return NOTHING
    return f"±{format_percent(100 * width)}" if width <= 1 else ">100 %"


def quality_word(row: Row) -> str:
    """Return the quality of a row, or a dash."""
    quality = quality_of(row)
    return NOTHING if quality is None else quality.word


def _expected(row: Row) -> str:
    return rate(row.comparison and row.comparison.expected_bytes_per_s) if _has_rate(row) else ""


def if_groups(plan: PlanSummary) -> bool:
    """Return whether several groups, or pairs, ran at the same time."""
    return any(is_several(group) for group in plan.some("group"))


def if_messages(plan: PlanSummary) -> bool:
    """Return whether the figures are those of several pairs together, with a message rate."""
    return all(name.startswith("multipair_") for name in plan.some("operation"))


def _if_registered(plan: PlanSummary) -> bool:
    """Return whether buffers were registered. Libraries that cannot register buffers have None, which does not count as another value."""
    return plan.varies("registration") and plan.some("registration") != ["none"]


def _if_placings_differ(plan: PlanSummary) -> bool:
    """Return whether placings differ. None counts, too: there the library chooses, and may support only one."""
    return plan.varies("in_place") or None in plan.values.get("in_place", ())


def _group_fact(group: str) -> str:
    if group == "all":
        return ""
    if group.endswith((" pair", " pairs")):
        return group
    return f"pairs {group}" if group[:1].isdigit() else f"split {group}"


PLACED = ("in_place", "buffers", "registration")  # without meaning for operations without buffers
_REGISTRATIONS = {"registered": "buffers registered", "window": "buffers in a window", "symmetric": "buffers in a symmetric window"}
FACTS: dict[str, Callable[[Any], str]] = {
    "device": str,
    "mode": str,
    "in_place": lambda value: "in place" if value else "out of place",
    "buffers": lambda value: f"{value} buffers",
    "registration": lambda value: _REGISTRATIONS.get(value, ""),
    "window": lambda value: f"window {value}",
    "traffic": lambda value: f"{value} traffic" if value == "even" else f"traffic {value}",
    "streams": lambda value: plural(value, "stream"),
    "call": lambda value: f"{value} calls",
    "group": _group_fact,
    "ranks": lambda value: plural(value, "rank"),
    "nodes": lambda value: plural(value, "node"),
}

# A terminal without room drops the columns with the highest `drop` first; those with 0 are shown if --columns names them.
COLUMNS: tuple[CaseColumn, ...] = (
    identity_column("operation", lambda plan: True),
    _figure("size", "size_bytes", size_of, shown=attrgetter("moves"), figure=False),
    identity_column("backend", lambda plan: True),
    identity_column("device"),
    identity_column("dtype", attrgetter("moves")),
    identity_column("redop", lambda plan: plan.some("redop")),
    identity_column("root", lambda plan: plan.some("root")),
    identity_column("mode"),
    identity_column("in_place", _if_placings_differ),
    *map(identity_column, ("buffers", "window", "traffic", "streams")),
    identity_column("call", lambda plan: plan.some("call")),
    *map(identity_column, ("group", "ranks", "nodes")),
    identity_column("registration", _if_registered),
    identity_column("algorithm", lambda plan: plan.some("algorithm")),
    identity_column("protocol", lambda plan: plan.some("protocol")),
    _figure("time", "time_p50_s", times, brief=_time, least=_TIME_WIDTH, shown=lambda plan: True),
    CaseColumn("ci", "± CI", _half_width, right=True, least=7, drop=1),
    CaseColumn("interval", "95 % CI µs", lambda row: interval(row).removeprefix("? "), right=True, least=15, drop=8),
    CaseColumn("", "95 % interval", interval, right=True, shown=lambda plan: True),
    _figure(
        "algbw", "algbw_bytes_per_s", shown=attrgetter("moves"),
        brief=lambda row: rate(row.algbw_bytes_per_s) if row.size_bytes >= LEAST_RATE_BYTES else "",
    ),
    _figure(
        "busbw", "busbw_bytes_per_s", lambda row: rate(row.busbw_bytes_per_s if row.ranks > 1 else None), shown=attrgetter("moves"),
        brief=lambda row: rate(row.busbw_bytes_per_s) if _has_rate(row) else "",
    ),
    _figure("message_rate", "message_rate", message_rate, least=7, shown=if_messages),
    _figure("each_group", "groups_busbw_bytes_per_s", each_group, shown=if_groups),
    _figure(
        "all_groups", "groups_total_busbw_bytes_per_s", lambda row: rate(group_rates(row)[1]),
        shown=lambda plan: if_groups(plan) and not if_messages(plan),
    ),
    _figure("expected", "ceiling_bytes_per_s", _expected),
    _figure("percent", "percent_of_ceiling", lambda row: _percent(row.comparison and row.comparison.percent, row)),
    _figure("hard_limit", "percent_of_hard_bound", lambda row: _percent(row.percent_of_hard_bound, row)),
    _figure("n", "n", lambda row: str(row.n) if row.n else NOTHING),
    _figure("wrong", "wrong", wrong, brief=_DECLARED["wrong"].text, least=7, shown=lambda plan: True),
    CaseColumn("", "of expected", of_ceiling, shown=attrgetter("moves")),
    _figure("min", "time_min_s", least=8),
    _figure("p95", "time_p95_s", least=8),
    _figure("p99", "time_p99_s", least=8),
    _figure("max", "time_max_s", least=8),
    replace(_figure("modes", "modes", lambda row: times(row) if two_modes(row) else NOTHING, least=29), right=True),
    _figure("launches", "launches"),
    _figure("limited_by", "ceiling_limited_by", limited_by, least=40, shown=attrgetter("moves")),
    _figure("expected_time", "expected_time_s", least=11, shown=attrgetter("modelled")),
    _figure("percent_of_time", "percent_of_expected_time", least=18, shown=attrgetter("modelled")),
    _figure("expected_from", "expected_time_origin", expected_from, least=40, shown=attrgetter("modelled")),
    _figure("flags", "flags", remarks, least=60, shown=lambda plan: True),
    _of_overlap("communication", "overlap_communication_s", 8),
    _of_overlap("computation", "overlap_computation_s", 10),
    _of_overlap("overlap", "overlap_percent", 18),
    _of_overlap("exposed", "overlap_exposed_s", 10),
    _of_overlap("slowdown", "overlap_slowdown", 14),
    _of_overlap("assisted", "overlap_assisted_percent", 18),
    _of_overlap("outcome", "overlap_outcome", 14),
    CaseColumn("quality", "quality", quality_word, least=10, drop=1),
)  # fmt: skip
COLUMN_OF_KEY = {column.key: column for column in COLUMNS if column.key}


# By name the columns that `--columns` can select: those with a key, then the declared ones without one of that name.
SELECTABLE = COLUMN_OF_KEY | {
    name: replace(identity_column(name), key=name) if name in SERIES else replace(_figure(name, name), title=field.heading, drop=0)
    for name, field in _DECLARED.items()
    if name not in COLUMN_OF_KEY
}


# Lines below a sweep over algorithms and protocols: the sizes at which the library's own choice is slower.

CHOICE_TITLE = "the automatic choice of algorithm and protocol"
_CHOICE = ("algorithm", "protocol")
_BARE = ("root", "buffers", "window", "group", "ranks", "nodes", "registration")  # values that need their name
_MOST_SIZES = 4
_LEAST_MARGIN = 0.0005  # a smaller part is not shown


def choice_sentences(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each size at which a forced choice is faster, and one for the others; nothing if none was forced."""
    if not any(forced(row) for row in rows):
        return []
    from collbench.analysis.best import judged

    choices = judged(rows)
    varying = [name for name in differing_fields([choice.row for choice in choices]) if name not in _CHOICE]
    sentences: list[str] = []
    for choice in choices:
        values = {name: value_of(choice.row, name) for name in varying}
        words = " ".join(f"{name} {value}" if name in _BARE else value for name, value in values.items())
        sentences += [f"{words}: {text}" for text in _choice_texts(choice)]
    return sentences


def _choice_texts(judged: JudgedChoice) -> list[str]:
    texts = [_loss_text(loss) for loss in judged.losses]
    good = len(judged.as_good)
    unknown = judged.unknown
    within = f", or within {format_percent(100 * judged.within)} of the best" if judged.within >= _LEAST_MARGIN else ""
    best = f"the automatic choice is the best{within}"
    if good and judged.losses:
        texts.append(f"at {plural(good, 'other size')} {best}")
    elif good:
        texts.append(f"{best}{',' if within else ''} at {'' if unknown or good == 1 else 'all '}{plural(good, 'size')}")
    if unknown:
        sizes = ", ".join(map(format_size, unknown[:_MOST_SIZES])) + (" …" if len(unknown) > _MOST_SIZES else "")
        texts.append(f"inconclusive at {plural(len(unknown), 'size')} ({sizes}): no reliable times with intervals to compare")
    return texts


def _loss_text(loss: Loss) -> str:
    part, low, high = (format_percent(100 * ratio).removesuffix(" %") for ratio in (loss.part, loss.low, loss.high))
    size = format_size(loss.better.size_bytes)
    return f"the automatic choice loses {part} % ({low} to {high}) at {size}: {forced(loss.better)} is faster"
