"""The rows of a table as series to be drawn: one operation per chart, one line per series, at most eight lines to a chart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collbench.analysis.launches import is_time, known, time_of
from collbench.report.columns import NOTHING, doubtful, limited_by, not_available, of_ceiling, wrong
from collbench.report.html.names import cut, series_name, telling
from collbench.results.row import Row

if TYPE_CHECKING:
    from collbench.report.html.material import Material

_PER_CHART, _MOST_CHARTS, _MOST_STATISTICS = 8, 6, 3
_LARGEST = 1 << 62  # bytes: beyond, no message was ever sent, the file is broken or hostile
_SLOWEST, _FASTEST = 1e-3, 1e16  # bytes per second, likewise
# Flags without a percentage.
_WITHHOLDS = frozenset({"above_bound", "oversubscribed", "other_path", "path_unproven", "reference_disturbed", "shared_gpu"})


@dataclass(frozen=True)
class Series:
    """What differs in size only. `number` is how it is drawn (draw.line), `rows` ascend, one for each size: the one measured last."""

    number: int
    label: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Sheet:
    """What one chart shows: some series of one operation of one table.

    key    tells it from all others in the page: "0-2-0"
    title  "allreduce", "allreduce, part 2 of 3 (run-b)"
    """

    key: str
    title: str
    series: Sequence[Series]
    launches: int

    @property
    def rows(self) -> list[Row]:
        """All rows of all its series."""
        return [row for each in self.series for row in each.rows]

    @property
    def sizes(self) -> list[int]:
        """The message sizes that occur, in bytes, ascending."""
        return sorted({row.size_bytes for row in self.rows})


def sheets(material: Material) -> Iterator[Sheet]:
    """Everything that moves bytes, operation by operation; of one with more series than anybody reads, the first 48."""
    for number, table in enumerate(material.drawn):
        where = f" ({cut(table.name)})" if len(material.tables) > 1 else ""
        rows = [row for row in material.rows(table) if 0 < row.size_bytes < _LARGEST]
        backends = sorted({row.backend for row in rows})
        for place, operation in enumerate(dict.fromkeys(row.operation for row in rows)):
            series = series_of([row for row in rows if row.operation == operation], backends)
            parts = [series[first : first + _PER_CHART] for first in range(0, len(series), _PER_CHART)][:_MOST_CHARTS]
            for part, each in enumerate(parts):
                of = f", part {part + 1} of {len(parts)}" if len(parts) > 1 else ""
                yield Sheet(f"{number}-{place}-{part}", f"{cut(operation)}{of}{where}", each, len(table.runs))


def not_drawn(material: Material) -> list[str]:
    """A sentence on runs that have no charts, and one for each operation that has more series than are drawn."""
    runs, drawn = len(material.tables), len(material.drawn)
    texts = [f"Charts show the first {drawn} of {runs} runs: collbench report --csv has all."] if drawn < runs else []
    for table in material.drawn:
        rows = [row for row in material.rows(table) if 0 < row.size_bytes < _LARGEST]
        for operation in dict.fromkeys(row.operation for row in rows):
            many = len(series_of([row for row in rows if row.operation == operation], []))
            if many > _PER_CHART * _MOST_CHARTS:
                texts.append(
                    f"{cut(operation)} of {cut(table.name)} has {many} series, of which {_PER_CHART * _MOST_CHARTS} are drawn: "
                    "collbench report --csv has all"
                )
    return texts


def series_of(rows: Sequence[Row], backends: Sequence[str]) -> list[Series]:
    """The series of one operation; where each backend has one, it is drawn alike in all operations (by its place in `backends`)."""
    names = telling(rows)
    groups: dict[tuple[object, ...], dict[int, Row]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in names), {})[row.size_bytes] = row
    of_one = len({row.backend for row in rows}) == len(groups)
    return [
        Series(backends.index(row.backend) if of_one and row.backend in backends else number, series_name(row, names), list(sized.values()))
        for number, sized in enumerate(groups.values())
        for row in [next(iter(sized.values()))]
    ]


def rate_of(row: Row) -> float | None:
    """The row's bus bandwidth in bytes per second, None where there is none, no bus, or none that anything could have."""
    rate = row.busbw_bytes_per_s
    return rate if row.na is None and row.ranks > 1 and rate is not None and known(rate) and _SLOWEST < rate < _FASTEST else None


def sound_interval(row: Row) -> tuple[float | None, float | None]:
    """The interval of the row's time in seconds; None twice where there is none that holds the time."""
    time_s, times = time_of(row), row.time_s
    if time_s is None or times is None or not (is_time(times.ci_low) and is_time(times.ci_high)):
        return None, None
    low, high = times.ci_low or 0.0, times.ci_high or 0.0
    return (low, high) if low <= time_s <= high else (None, None)


def time_words(sheet: Sheet) -> str:
    """What a time is and what the bars are: "the median over iterations of the slowest rank; bars are 95 % intervals …"."""
    imported = [row for row in sheet.rows if "imported" in row.flags]
    ours = "the median over iterations of the slowest rank"
    if len(imported) == len(sheet.rows):
        bars = (
            "bars are 95 % intervals, where the tool printed single times"
            if any(map(_has_interval, imported))
            else "there are no intervals"
        )
        return f"the other tool's own statistic ({_statistics(imported)}); {bars}"
    told = f"{ours}, but of {len(imported)} imported rows the other tool's own statistic ({_statistics(imported)})" if imported else ours
    if sheet.launches > 1:
        return f"{told}; of {sheet.launches} launches the median, and bars are 95 % intervals over launches"
    return f"{told}; bars are 95 % intervals of the median within one launch, and another launch may differ by more"


def _has_interval(row: Row) -> bool:
    return row.time_s is not None and row.time_s.ci_low is not None


def _statistics(imported: Sequence[Row]) -> str:
    statistics = dict.fromkeys(cut(str(row.evidence.get("statistic") or "it is not said which"), 120) for row in imported)
    return " or ".join(list(statistics)[:_MOST_STATISTICS])


def state_of(row: Row) -> str:
    """How the row is to be taken: "wrong", "na", "doubtful", or "" for what it says."""
    return "wrong" if row.wrong else "na" if row.na is not None else "doubtful" if doubtful(row) else ""


def remark(row: Row) -> str:
    """What must be said beside the row's figure: "; WRONG 3", "; ? drift, two_modes"."""
    doubts = doubtful(row)
    words = [*([wrong(row)] if row.wrong else []), *([f"? {', '.join(doubts)}"] if doubts else [])]
    return "".join(f"; {word}" for word in words)


def against(row: Row) -> str:
    """The row against its ceiling: "42.0 of 50.0 GB/s (84 %)", or why there is no percentage."""
    figure = of_ceiling(row)
    if figure != NOTHING:
        return figure
    flag = next((flag for flag in row.flags if flag in _WITHHOLDS), None)
    why = flag if flag or row.ceiling is None or row.ceiling.bytes_per_s is not None else limited_by(row)
    return f"no percentage{f': {cut(why, 60)}' if why else ''}"


def missing(series: Iterable[Series]) -> str:
    """The series without a single figure, each with its reason: "nccl: n/a (no GPU here)"."""
    texts = [f"{each.label}: {cut(not_available(each.rows[0]), 120)}" for each in series if all(row.na is not None for row in each.rows)]
    return ". ".join(texts)
