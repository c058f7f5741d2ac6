"""Texts of a report above and below its rows: what was measured, the headlines, α–β fits, and the ranks that finish last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from collbench.analysis.best import Headline, differing, fits_cache, is_shown_as_time
from collbench.analysis.launches import Launches, forced
from collbench.report import cases as row_texts
from collbench.report.cases import CHOICE_TITLE, NOTHING, ONE_RANK, doubtful, of_ceiling, rate, share, state_of, times, value_of
from collbench.report.frame import Column, Frame, Line, printable, table_lines, text_columns, text_lines, without_empty
from collbench.report.guidelines import CONSISTENCY_TITLE, consistency_frame
from collbench.report.plan import differing_fields, plan_of
from collbench.results.flags import flag_name
from collbench.results.reader import Run
from collbench.results.row import Row, StartSkew
from collbench.units import first_of, format_bytes, format_percent, format_rate, format_size, format_time, plural
from collbench.untrusted import dict_of, list_of

if TYPE_CHECKING:
    from collbench.analysis.concerns import Concern
    from collbench.analysis.latency import LineFit
    from collbench.analysis.stragglers import Compared
    from collbench.stats.fit import Bounds


# Sections below the rows of `collbench report`: latency and bandwidth of each series, and the ranks that finish last.

_MOST_RANKS = 8
_BAR = 20  # characters of the longest bar
_TIMES = 9.0  # a larger residual is shown as a multiple, not in percent
EXPECTED_TIME_TITLE = "expected time of each size"
_FIRST_DROPPED = ("more than 10 % off", "switches at", "n½", "sizes", "of expected")  # that leave a narrow terminal, or are cut
FIT_TITLES = ("sizes", "α µs", "busbw GB/s of large messages", "of expected", "n½", "switches at", "more than 10 % off")


def lines(runs: Sequence[Run], rows: Sequence[Row], width: int | None = None) -> list[Line]:
    """Return the sections that are not empty, each after an empty line.

    `rows` are those shown (the combined ones of several launches), which are fitted. The ranks are those of the runs.
    `width`: of the terminal, None for a file.
    """
    from collbench.report.expected_time import series_frame

    sections = {
        CHOICE_TITLE: sentences(row_texts.choice_sentences(rows), width),
        "latency and bandwidth (α–β fit)": _fits(rows, width),
        EXPECTED_TIME_TITLE: _plain(series_frame(rows), width),
        CONSISTENCY_TITLE: _plain(consistency_frame(rows), width),
        "ranks that finish last": _slowest(runs, width),
    }
    return [line for title, texts in sections.items() if texts for line in (Line(""), Line(title, "head"), *texts)]


def sentences(texts: Iterable[str], width: int | None) -> list[Line]:
    """Return sentences as lines of at most `width` characters."""
    return [line for text in texts for line in text_lines(text, width)]


def _plain(frame: Frame[Any] | None, width: int | None) -> list[Line]:
    """Return a table without styles; nothing without one."""
    return [] if frame is None else [Line(line.text) for line in table_lines(frame, width)]


def _fits(rows: Sequence[Row], width: int | None) -> list[Line]:
    from collbench.analysis.latency import line_fits

    fits = line_fits(rows)
    if not fits:
        return []
    table = _plain(fit_frame(fits), width)
    remarks = left_out(fits)
    if FIT_TITLES[-1] in table[0].text and any(fit.fit.off for fit in fits):
        remarks.insert(0, "more than 10 % off: possibly a bad choice of algorithm at that size")
    return [*table, *sentences(remarks, width)]


def fit_frame(fits: Sequence[LineFit]) -> Frame[Sequence[str]]:
    """Return the table of fits: their latency α, the bandwidth of large messages, and where the library changes its algorithm."""
    varying = differing_fields([fit.row for fit in fits])
    titles = [*("placing" if name == "in_place" else name for name in varying), *FIT_TITLES]
    return _frame(titles, [[*(value_of(fit.row, name) for name in varying), *fit_cases(fit)] for fit in fits], _FIRST_DROPPED)


def _frame(titles: Sequence[str], cases: Sequence[Sequence[str]], drop: Sequence[str]) -> Frame[Sequence[str]]:
    """Return a table of texts without styles; the columns `drop` may be cut, and the first of them leave a narrow terminal first."""
    return Frame(without_empty(text_columns(titles, drop=drop, cut=drop), cases), cases, names_hidden=True)


def fit_cases(fit: LineFit) -> list[str]:
    """Return the texts of a fit, in the order of FIT_TITLES."""
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
    value, low, high = (text(figure) if isfinite(figure) else "?" for figure in (bounds.value, bounds.low, bounds.high))
    return f"{value} ({low}–{high})"


def _latency(alpha_s: Bounds) -> str:
    """Return α, or only its upper end if its interval includes 0 (the sizes are too large)."""
    if alpha_s.low > 0:
        return _bounds(alpha_s, format_time)
    return f"at most {format_time(alpha_s.high)}" if isfinite(alpha_s.high) and alpha_s.high > 0 else NOTHING


def _off(residual: float) -> str:
    if not isfinite(residual):
        return "slower"  # the fit is 0 there, so a ratio is not defined
    return f"{100 * residual:+.0f} %" if residual < _TIMES else f"{residual + 1:.0f} times"


def left_out(fits: Iterable[LineFit]) -> list[str]:
    """Return the sizes that were not fitted, a line per reason: a missing size may be the one that matters."""
    names: dict[str, list[str]] = {}
    for fit in fits:
        for size, reason in fit.left_out:
            parts = (fit.row.operation, format_size(size), fit.row.backend, forced(fit.row))
            names.setdefault(reason, []).append(" ".join(part for part in parts if part))
    return [f"not fitted, {flag_name(reason)}: {', '.join(cases)}" for reason, cases in names.items()]


def _slowest(runs: Sequence[Run], width: int | None) -> list[Line]:
    """Return the lines for each group of runs: launches of one allocation on the same hosts, where each rank runs on the same host."""
    from collbench.analysis.launches import allocation_of, grouped
    from collbench.analysis.stragglers import hosts_of

    groups = grouped(
        enumerate(runs), lambda numbered: (allocation_of(numbered[1]) or numbered[0], frozenset(hosts_of(numbered[1]).items()))
    )
    lines: list[Line] = []
    for members in groups.values():
        group = [run for _, run in members]
        rank_lines = _ranks(group, width)
        if rank_lines and len(groups) > 1:
            lines += sentences([f"{first_of((run.path.resolve().name for run in group), 1)}:"], width)
        lines += [line for line in rank_lines if line.text]
    return lines


def _ranks(runs: Sequence[Run], width: int | None) -> list[Line]:
    from collbench.analysis.stragglers import compared, hosts_of, slow_links, stragglers_in

    hosts = hosts_of(runs[0])
    rows = [row for run in runs for row in run.rows]
    cases = [case for run in runs for case in compared(run)]
    backends = list(dict.fromkeys(row.backend for row in rows))
    spreads = [text for backend in backends for text in (_spread(backend, cases), _start_skew(backend, rows)) if text]
    links = slow_links(runs[0]) if cases else []
    slow = [*(link.sentence() for link in links), *(straggler.sentence() for straggler in stragglers_in(cases, hosts, links))]
    return [*sentences(slow, width), *_histogram(hosts, cases, width), *sentences(spreads, width)]


def _histogram(hosts: Mapping[int, str], cases: list[Compared], width: int | None) -> list[Line]:
    """Return bars of how often each rank ended last: the most frequent ranks, and the share of each rank if all were equal."""
    from collbench.analysis.stragglers import histogram

    if not cases:
        return []
    ranks = histogram(cases)
    shown = [
        [str(rank), hosts.get(rank, NOTHING), f"{format_percent(100 * part):>5}  {'█' * max(1, round(_BAR * part))}"]
        for rank, part in ranks[:_MOST_RANKS]
    ]
    hidden = len(ranks) - _MOST_RANKS
    equal_share = format_percent(100 * sum(case.expected for case in cases) / len(cases))
    more = f"and {plural(hidden, 'more rank')}; " if hidden > 0 else ""
    table = _plain(_frame(("rank", "host", "finishes last in"), shown, ["host"]), width)
    return [*table, *sentences([f"{more}{plural(len(cases), 'case')} with equal weight; an equal share is {equal_share}"], width)]


def _spread(backend: str, cases: list[Compared]) -> str:
    """Return by how much the medians of the ranks differ, and where they differ most."""
    backend_cases = [case for case in cases if case.row.backend == backend]
    if not backend_cases:
        return ""
    spreads = sorted((float(case.medians_s.max() / case.medians_s.min()) - 1, place) for place, case in enumerate(backend_cases))
    largest, place = spreads[-1]
    worst = backend_cases[place]
    ordered = sorted(worst.medians_s.tolist())
    least, middle, most = map(format_time, (ordered[0], median(ordered), ordered[-1]))
    where = f"{row_texts.name_of(worst.row)}: min {least}, median {middle}, max {most} µs"
    typical = format_percent(100 * spreads[len(spreads) // 2][0])
    return f"{backend}: the medians of the ranks differ by {typical}, at most by {format_percent(100 * largest)} ({where})"


def _start_skew(backend: str, rows: Iterable[Row]) -> str:
    """Return the start skew, and where it is the largest part of the time of a sample."""
    timed = [(row, row.time_s.p50, StartSkew.of(row.evidence)) for row in rows if row.backend == backend and row.time_s and row.time_s.p50]
    skewed = [(row, time_s, skew) for row, time_s, skew in timed if skew]
    if not skewed:
        return ""
    worst, place = max((skew.p50 / (time_s * skew.messages), place) for place, (_, time_s, skew) in enumerate(skewed))
    worst_share = row_texts.least_percent(100 * worst)
    p50 = format_time(median(skew.p50 for _, _, skew in skewed))
    p95 = format_time(median(skew.p95 for _, _, skew in skewed))
    where = row_texts.name_of(skewed[place][0])
    return f"{backend}: start skew {p50} µs (95th percentile {p95} µs), at most {worst_share} of the time ({where})"


_MOST_NAMES = 4
_LONGEST = 300
_IMPORTED = ("file", "tool", "version", "statistic")
_AT = ("dtype", "redop", "root", "in_place", "buffers", "window", "registration", "algorithm", "protocol", "traffic", "streams", "call")
_BARE = ("root", "window", "streams")  # numbers, which need their name


def short(text: str, most: int = _LONGEST) -> str:
    """Return text from a file printable, and cut to `most` characters."""
    shown = printable(text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def subject(table: Launches) -> dict[str, str]:
    """Return what was measured, how, where, with what and when: {"measured": "allreduce over nccl, 8 B to 1 GiB (28 cases)", …}."""
    plan = plan_of(table, table.rows)
    operations, backends = (_several(sorted({getattr(row, name) for row in table.rows})) for name in ("operation", "backend"))
    sizes = sorted(size for size in plan.sizes if size > 0)
    span = f", {' to '.join(dict.fromkeys((format_size(sizes[0]), format_size(sizes[-1]))))}" if sizes else ""
    measured = f"{operations} over {backends}{span} ({plural(len(table.rows), 'case')})" if table.rows else "no cases"
    return {
        "measured": short(measured),
        "how": short(row_texts.same_for_all(plan)),
        **circumstances(table.runs[0]),
        "launches": _launches(table),
    }


def circumstances(run: Run) -> dict[str, str]:
    """Return where, with which software and when a run was made; "" for what is unknown."""
    facts = {
        "imported from": _imported(run),
        "hosts": _hosts(run),
        "first host": _machine(run),
        "software": _software(run.info),
        "date": _when(run.info),
    }
    return {name: short(text) for name, text in facts.items()}


def figure(row: Row) -> str:
    """Return the figure of a headline: "42.0 of 50.0 GB/s (84 %) limited by NIC 4×100 Gb/s (ring)", with "? " before a doubtful one."""
    if not has_share(row):
        return speed(row)
    from_user = row.ceiling is not None and row.ceiling.kind == "given"  # a ceiling from the command line is not a limit
    return f"{speed(row)}{', ' if from_user else ' limited by '}{row_texts.limited_by(row)}"


def has_share(row: Row) -> bool:
    """Return whether the row has a percentage: verified data, a known ceiling, and not a ping-pong."""
    return (
        row.na is None
        and not row.wrong
        and of_ceiling(row) not in (NOTHING, ONE_RANK)
        and not is_shown_as_time(row)
        and not fits_cache(row)
    )


def speed(row: Row) -> str:
    """Return the figure of a headline without its limit: "42.0 of 50.0 GB/s (84 %)"."""
    if row.na is not None:
        return row_texts.not_available(row)
    if row.wrong:
        return row_texts.wrong(row)
    mark = "? " if doubtful(row) else ""
    if has_share(row):
        return f"{mark}{of_ceiling(row)}"
    return f"{mark}{times(row, ' µs')}" if is_shown_as_time(row) else f"{mark}{rate(row.busbw_bytes_per_s)} GB/s"


def where(row: Row, rows: Sequence[Row]) -> str:
    """Return the size of a headline, and what distinguishes it from rows of the same operation and backend: "64 MiB, in place, tree"."""
    similar = [candidate for candidate in rows if (candidate.operation, candidate.backend) == (row.operation, row.backend)]
    differing = [name for name in _AT if len({getattr(candidate, name) for candidate in similar}) > 1 and getattr(row, name) is not None]
    values = [row_texts.size_of(row), *(f"{name} {value_of(row, name)}" if name in _BARE else value_of(row, name) for name in differing)]
    return short(", ".join(value for value in values if value != NOTHING) or NOTHING)


def latency(headline: Headline) -> str:
    """Return the time of the smallest message: "2.345 µs at 8 B"."""
    row = headline.smallest
    if row is None:
        return NOTHING
    chosen = f" ({forced(row)})" if forced(row) else ""
    return f"{'? ' if doubtful(row) else ''}{times(row, ' µs')} at {format_size(row.size_bytes)}{chosen}"


HeadlineRecord = tuple[Launches, Headline]


def headline_frame(best: Sequence[HeadlineRecord], figure_title: str = "bus bandwidth") -> Frame[HeadlineRecord]:
    """Return the table of headlines: the run if there are several, what differs, the figure with its flags, where, and the latency."""

    def field(name: str) -> Column[HeadlineRecord]:
        return Column("", name, lambda record: short(value_of(record[1].row, name), 80))

    def figure_with_flags(record: HeadlineRecord) -> str:
        row = record[1].row
        return short(" · ".join(filter(None, (figure(row), row_texts.remarks(row)))))

    columns: list[Column[HeadlineRecord]] = []
    if len({id(table) for table, _ in best}) > 1:
        columns.append(Column("", "run", lambda record: short(record[0].name, 80)))
    columns += map(field, ("operation", "backend", *differing(headline for _, headline in best)))
    columns.append(Column("", figure_title, figure_with_flags))
    columns.append(Column("", "at", lambda record: where(record[1].row, record[0].rows)))
    columns.append(Column("", "smallest message", lambda record: latency(record[1])))
    return Frame(columns, best, style=lambda record: state_of(record[1].row))


NO_CONCERNS = "No findings, no flags, nothing missing."


def concern_sentence(concern: Concern) -> str:
    """Return what a concern is and where it occurs; a flag by its name."""
    return concern.sentence() if concern.flag is None else replace(concern, what=flag_name(concern.flag)).sentence()


def _launches(table: Launches) -> str:
    """Return the number of launches, and what the intervals cover."""
    launches = plural(len(table.runs), "launch")
    if any(row.launches > 1 for row in table.rows):
        return f"{launches}: intervals are over their medians"
    bounded = any(row.time_s is not None and row.time_s.ci_low is not None for row in table.rows)
    return f"{launches}: intervals are within it, another may differ by more" if bounded and len(table.runs) == 1 else launches


def _several(names: Sequence[str]) -> str:
    return first_of((short(name, 40) for name in names), 12)


def _hosts(run: Run) -> str:
    """Return "2 hosts: node1, node2"."""
    names = list_of(run.info.get("hosts"), str)
    return f"{plural(len(names), 'host')}: {first_of((short(name, 60) for name in names), _MOST_NAMES)}" if names else ""


def _machine(run: Run) -> str:
    """Return "AMD EPYC, 2 CPUs, Debian GNU/Linux 12 (bookworm), kernel 6.1", the host that wrote the run."""
    facts = dict_of(run.info.get("host"))
    patterns = {"cpu_model": "{}", "cpus_online": "{} CPUs", "system": "{}", "kernel": "kernel {}"}
    values = {name: facts.get(name) for name in patterns}
    return ", ".join(patterns[name].format(value) for name, value in values.items() if isinstance(value, str | int) and value)


def _software(info: Mapping[str, Any]) -> str:
    """Return "mpi: MPICH 5.0.2", for each backend the first fact that it reports."""
    first = {
        name: next(iter(facts.items()))
        for name, facts in dict_of(info.get("backends")).items()
        if isinstance(facts, dict) and facts and "not measured" not in facts
    }
    return ", ".join(f"{name}: {key} {value}" if str(key) != name else f"{name}: {value}" for name, (key, value) in first.items())


def _imported(run: Run) -> str:
    """Return "nccl-tests 2.17.6: allreduce.log, broadcast.log (a time is the mean over 20 iterations)", for each tool and statistic."""
    files: dict[tuple[str, str], list[str]] = {}
    for table in list_of(dict_of(run.info.get("imported")).get("tables"), dict):
        values = [table.get(name) for name in _IMPORTED]
        file, tool, version, statistic = (short(value, 120) if isinstance(value, str) else "" for value in values)
        files.setdefault((f"{tool} {version}".strip(), statistic), []).append(file)
    return "; ".join(f"{tool}: {_several(list(dict.fromkeys(names)))} (a time is {meaning})" for (tool, meaning), names in files.items())


def _when(info: Mapping[str, Any]) -> str:
    """Return when the run began, or was imported (when the other tool measured is unknown)."""
    started = info.get("started_utc")
    version = info.get("collbench")
    texts = []
    if isinstance(started, str) and len(started) >= 16:
        texts.append(f"{'imported ' if 'imported' in info else ''}{started[:10]} {started[11:16]} UTC")
    if isinstance(version, str):
        texts.append(f"collbench {version}")
    return ", ".join(texts)
