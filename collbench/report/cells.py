"""What a row shows to people: one definition of every column, used by all tables and headlines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isclose
from typing import TYPE_CHECKING, Any

from collbench.analysis.launches import WHERE_NONE, forced
from collbench.machine.peak.ceiling import TOLERANCE, Ceiling
from collbench.report.frame import PlanSummary, group_rates, is_several, of_each_group
from collbench.results.row import SERIES, Row
from collbench.units import format_percent, format_rate, format_size, format_time

if TYPE_CHECKING:
    from collbench.analysis.best import Judged, Loss


# What the words in a row's `flags` mean, once, for every output.

FLAGS = {
    "slowed": "made slower on purpose by --slowed, as evidence.slowed says, to prove what a gate finds: no measurement of the machine",
    "oversubscribed": "more ranks than cores: waiting ranks hold the core that working ones need, so no percentage; use fewer, or Open MPI",
    "cpu_shared": "others took the CPUs: a hypervisor more than 2 %, or work that kept two ranks from running at once (silent canary)",
    "python_messages": "Python moved the bytes: on zmq always, as in programs that use it; on socket where the native code is not built, "
    "small sizes read 10 to 15 µs per message and stream too slow",
    "python_loop": "timed by a Python loop, since the native one is not built: small sizes read up to 0.5 µs too slow",
    "straggler": "a rank was not allowed to run at all for a second or more meanwhile (stopped, swapped out, its machine asleep): "
    "evidence.paused_s says which and for how long; measure again",
    "retransmits": "TCP of a host sent 0.1 % or more of its segments again meanwhile, so packets were lost: evidence.network has the "
    "counts by host; check cables, optics, switch ports and full queues",
    "link_flapped": "a host's link went down or up meanwhile: evidence.network says which interface and how often; measure again",
    "reference_disturbed": "the measured reference (memory copy, sum or loopback TCP) changed by more than 15 % between its repetitions: "
    "no percentage; measure on an idle machine",
    "above_bound": "faster than the link allows: the bytes took another path (shared memory?), or the link's rate was read wrongly",
    "two_modes": "the samples gather around two values, both are shown; busbw and percentage belong to the median: look for what "
    "changes between them (clocks, neighbours, a switch of algorithm)",
    "drift": "the median moved from the first to the last third of the samples: no interval holds; raise -w, look for heat and neighbours",
    "state_flip": "the machine's state changed during the cell (canary), and again when it was measured again: quieten the machine",
    "remeasured": "the machine's state changed during the cell (canary): the row is from the repeated measurement",
    "skew_limited": "the ranks left the synchronisation further apart than 10 % of the time shown: it may read too long by as much; "
    "use --mode batched or larger sizes",
    "constant": "all samples are equal: the clock is too coarse to see their spread; use --mode batched",
    "clock_stepped": "samples that no clock can give (NaN, negative) were left out, evidence has their number: look at the clock source",
    "budget_exceeded": "one iteration takes longer than --max-time: raise it",
    "few_samples": "fewer than 60 samples within the time given: the interval is wide; raise --max-time",
    "target_missed": "the interval is wider than asked for: raise --max-time or -n, or accept a larger --precision",
    "warmup_unsettled": "warm-up ended at its limit, not because the times had settled: raise -w",
    "missing_launches": "the cell is missing in some of the launches: the interval rests on the others; repeat those that broke off",
    "size_rounded": "the size asked for is no multiple of the element size times the parts, and was rounded down; or some part of uneven "
    "traffic is more than 1 % off its share",
    "imported": "read from what another tool printed: its own statistic, mostly without interval and samples; evidence names it",
    "ranks_doubtful": "the bandwidths that another tool printed contradict the number of ranks: check --ranks and the log",
    "their_tool": "said by another tool that ran here beside ours (iperf3, fi_pingpong, ucx_perftest, perftest): its own statistic; "
    "the JSON of its row says which, and has its version and commands",
    "simulated": "computed by a seeded model, not measured on this machine",
    "other_path": "bytes that had to cross between hosts are on none of their NICs: no percentage, evidence has the counts; "
    "an MPI may share memory between hosts that are namespaces or containers of one machine",
    "launch_bound": "the host needs 80 % or more of the device's time to enqueue the calls: it is them that are timed; --mode graph",
    "shared_gpu": "several ranks drive one GPU: results are right, rates say nothing of the machine",
    "no_interval": "fewer than 6 samples within the time given: the median has no interval; raise --max-time",
    "unverified": "the tool that moved the bytes does not compare what arrived",
    "path_unproven": "no counter shows which link carried the bytes, so there is no percentage",
    "wrong_data": "what arrived is not what was sent",
    "asynchronous": "no worker waits for another: times are those of a worker's round, the slowest worker's",
    "too_many_updates": "more updates than the type of the sums adds up exactly, so they were not verified: --dtype float64",
    "pairs_at_once": "all pairs ran at the same time and shared what lies between them",
}

_CELL_LETTERS = 32_767  # the most that a spreadsheet's cell holds
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")

# With one of these the time shown is not what an interval of 95 % promises.
DOUBTFUL = frozenset(
    {"two_modes", "drift", "state_flip", "skew_limited", "constant", "clock_stepped", "cpu_shared", "target_missed", "warmup_unsettled"}
)


# What one launch leaves open, the spread over several launches tells.
WITHIN_A_LAUNCH = frozenset({"drift", "target_missed", "warmup_unsettled"})


def printable(text: str) -> str:
    """`text` without anything that could move a cursor or reverse a line: such characters become "?"."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)


def defused(text: str) -> str:
    """`printable` text for a cell of a spreadsheet, which runs one that begins like a formula; in some countries with full-width signs.

    Cut where a spreadsheet's cell ends: readers of CSV refuse much longer ones.
    """
    text = printable(text if len(text) < _CELL_LETTERS else f"{text[: _CELL_LETTERS - 2]}…")
    return f"'{text}" if text.startswith(_FORMULA) else text


def explain(flags: Iterable[str]) -> list[str]:
    """One line for each flag that occurs and has a meaning here, in the order of FLAGS."""
    present = set(flags)
    return [f"{flag}: {meaning}" for flag, meaning in FLAGS.items() if flag in present]


NOTHING = "–"
ONE_RANK = "one rank: no bus"
_SAME_RATE = 0.001
_MODELS = {"bound": "hard limit"}  # the glossary's word
_NAMES_ITS_KIND = ("given", "simulated")  # kinds of ceiling whose text has the kind


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
        return "faster than measured reference"
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
    return printable(with_basis(ceiling, kind))


def with_basis(ceiling: Ceiling, kind: str) -> str:
    """Return what limits, with the kind of figure where the text does not have it: "NIC 4×100 Gb/s (ring)", "the given ceiling"."""
    return ceiling.limited_by if ceiling.kind in _NAMES_ITS_KIND else f"{ceiling.limited_by} ({kind})"


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


# A backend that measures nothing is one line, not a row for each size: for the formats that people read.


# What is said below the rows of a sweep over algorithms and protocols: where the library's own choice loses.

TITLE = "the automatic choice of algorithm and protocol"
_ALWAYS = ("operation", "backend")
_CHOICE = ("algorithm", "protocol")
_BARE = ("root", "buffers", "window", "group", "ranks", "nodes", "registration")  # say nothing without their name
_MOST_SIZES = 4
_SOMETHING = 0.0005


def sentences(rows: Sequence[Row]) -> list[str]:
    """One sentence for each size at which something forced is faster, and one for the others; nothing where nothing was forced."""
    if not any(forced(row) for row in rows):
        return []
    from collbench.analysis.best import judged

    found = judged(rows)
    telling = [n for n in SERIES if n not in _CHOICE and (n in _ALWAYS or len({getattr(each.row, n) for each in found}) > 1)]
    return [f"{' '.join(_word(each.row, name) for name in telling)}: {sentence}" for each in found for sentence in _of_one(each)]


def _word(row: Row, name: str) -> str:
    return f"{name} {value_of(row, name)}" if name in _BARE else value_of(row, name)


def _of_one(judged: Judged) -> list[str]:
    losses = [_lost(loss) for loss in judged.losses]
    good, unknown = len(judged.as_good), judged.unknown
    as_good = f", or as good within {format_percent(100 * judged.within)}" if judged.within >= _SOMETHING else ""
    best = f"the automatic choice is the best{as_good}"
    if good and losses:
        losses.append(f"at {good} other {_sizes(good)} {best}")
    elif good:
        losses.append(f"{best}{',' if as_good else ''} at {good if unknown or good == 1 else f'all {good}'} {_sizes(good)}")
    if unknown:
        shown = ", ".join(map(format_size, unknown[:_MOST_SIZES])) + (" …" if len(unknown) > _MOST_SIZES else "")
        losses.append(f"{len(unknown)} {_sizes(len(unknown))} cannot be judged ({shown}): no sound times with intervals to compare")
    return losses


def _lost(loss: Loss) -> str:
    part, low, high = (format_percent(100 * each).removesuffix(" %") for each in (loss.part, loss.low, loss.high))
    where = format_size(loss.better.size_bytes)
    return f"automatic choice loses {part} % ({low} to {high}) at {where}: {forced(loss.better)} is faster"


def _sizes(number: int) -> str:
    return "size" if number == 1 else "sizes"
