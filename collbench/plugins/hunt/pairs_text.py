"""Output of `collbench pairs`: a matrix of pairs as findings, a line per place and a heatmap; as CSV or JSON for programs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import expm1, log1p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.plugins.hunt.pair_statistics import quantile
from collbench.plugins.hunt.pairs import PairFinding
from collbench.plugins.hunt.records import DirectedPair, PairMatrix, StoredPairs
from collbench.records import RecordKind
from collbench.report.cases import NOTHING
from collbench.report.frame import Display, Frame, Line, printable, table_lines, text_columns
from collbench.report.screen import BLOCKS
from collbench.results.flags import explain, flag_name
from collbench.results.row import Row
from collbench.results.store import to_line
from collbench.units import format_rate, format_size, format_time

MOST_ROWS = 40  # with more places, each row and column shows several
CLASSES = 5
DEPTHS = (1, 2, 4, 8)  # where the classes but the last one end, in depths of the first one
WRONG, UNKNOWN, ITSELF = CLASSES, -1, -2
_LEAST, _MOST = 0.05, 0.25  # the first class ends so far below the median, at least and at most
_LETTERS = ".abcd!"  # instead of block characters
_CIVIDIS = (17, 60, 102, 143, 227)  # the nearest of the 256 colors to its fifths: dark blue to yellow, distinct for the color-blind
_RED = 160
_LABEL, _NOTE = 16, 12  # columns: of a name at most, of the text after a row at least
_NEAR = 0.3186  # of a normal distribution: a quarter of the values is nearer to the middle, in standard deviations
_TAILS = 8.0
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
Classes = NDArray[np.int64]


def heatmap(matrix: PairMatrix, findings: Sequence[PairFinding], display: Display) -> Iterator[Line]:
    """Yield the bandwidths as a picture of characters within the width (None: 40 places), with its legend; rows of findings are labeled.

    There is a row per sender and a column per receiver, in five classes below the median. Where several places share a character, it
    shows their slowest pair.
    """
    width = display.width
    classes, step = classes_of(matrix)
    size = -(-matrix.n // _most_rows(matrix, width))
    shown = highest(classes, range(0, matrix.n, size))
    marks = BLOCKS if display.blocks else _LETTERS
    labels = _labels(matrix, size)
    label_width = max(map(len, labels))
    yield Line("senders in rows, receivers in columns", "head")
    if size > 1:
        yield Line(f"each is {size} endpoints, and each cell their slowest pair", "head")
    numbers = [str(column * size) for column in range(len(shown))]  # digit by digit downwards; for groups the first place of each
    digits = max(map(len, numbers))
    for digit in range(digits):
        row_of_digits = "".join(f"{number.rjust(digits)[digit]} " for number in numbers).rstrip()
        yield Line(f"{'':{label_width}} {row_of_digits}", "head", whole=True)
    for number, (label, row) in enumerate(zip(labels, shown.tolist(), strict=True)):
        cells = "".join(_cell(cell_class, marks, display.color) for cell_class in row)
        # of a pair the sender has the name
        names = [finding.name(matrix.places) for finding in findings if number * size <= finding.places[0] < (number + 1) * size]
        note = f"◄ {printable(', '.join(names))}" if names else ""
        room = None if width is None else max(0, width - label_width - 1 - 2 * len(row) - 1)
        yield Line(f"{label:{label_width}} {cells} {note[:room]}".rstrip(), whole=True)
    yield from _packed(_legend(shown, step, marks, display.color, len(kinds(matrix)) > 1), width)


def highest(classes: Classes, starts: Sequence[int]) -> Classes:
    """Return the highest class of each pair of groups of neighbours, which begin at `starts`."""
    shown: Classes = np.maximum.reduceat(np.maximum.reduceat(classes, starts, axis=0), starts, axis=1)
    return shown


def classes_of(matrix: PairMatrix) -> tuple[Classes, float]:
    """Return the class of each directed pair, and the depth of the first class below the median, as a logarithm.

    Each further class is twice as deep. The median is that of the pair's kind of path (inside a host, between hosts). Chance alone would
    fill the first class only, as the quarter of the pairs nearest to the median shows; its depth is at most a quarter below the median.
    """
    speeds = above_median(matrix)
    apart = np.abs(speeds[np.isfinite(speeds)])
    scatter = float(np.quantile(apart, 0.25)) / _NEAR if len(apart) else 0.0
    step = -log1p(-min(max(_LEAST, -expm1(-scatter * quantile(1 / max(4, len(apart)), _TAILS))), _MOST))
    with np.errstate(all="ignore"):
        deep = np.floor(np.log2(np.maximum(-speeds / step, 0.5))) + 1
    classes = np.where(np.isfinite(speeds), np.clip(deep, 0, CLASSES - 1), UNKNOWN).astype(np.int64)
    classes[np.nan_to_num(matrix.wrong) > 0] = WRONG
    classes[np.eye(matrix.n, dtype=bool)] = ITSELF
    return classes, step


def above_median(matrix: PairMatrix) -> NDArray[np.float64]:
    """Return how far each directed pair is above the median of its kind of path, as a logarithm; unknown pairs are not finite."""
    with np.errstate(all="ignore"):
        speeds: NDArray[np.float64] = np.log(matrix.bandwidth)
    for kind in kinds(matrix):
        measured_speeds = speeds[kind & np.isfinite(speeds)]
        speeds[kind] -= np.median(measured_speeds) if len(measured_speeds) else 0.0
    return speeds


def kinds(matrix: PairMatrix) -> list[NDArray[np.bool_]]:
    """Return the pairs between hosts and those inside a host, as masks; only the kinds that exist."""
    masks = [~matrix.inside, matrix.inside & ~np.eye(matrix.n, dtype=bool)]
    return [mask for mask in masks if mask.any()]


def _most_rows(matrix: PairMatrix, width: int | None) -> int:
    """Return the number of rows and columns that fit."""
    if width is None:
        return MOST_ROWS
    room = width - max(map(len, _labels(matrix, 1))) - 1
    return MOST_ROWS if 2 * matrix.n <= room else max(2, min(MOST_ROWS, (room - _NOTE) // 2))


def _labels(matrix: PairMatrix, size: int) -> list[str]:
    if size == 1:
        wide = len(str(matrix.n - 1))
        names = map(printable, matrix.places)
        return [f"{place:>{wide}} {name if len(name) <= _LABEL else f'{name[: _LABEL - 1]}…'}" for place, name in enumerate(names)]
    ends = [(first, min(matrix.n, first + size) - 1) for first in range(0, matrix.n, size)]
    return [f"{first}–{last}" if last > first else str(first) for first, last in ends]


def _cell(number: int, marks: str, color: bool) -> str:
    """Return a cell of this class, two characters wide."""
    if number in (ITSELF, UNKNOWN):
        return "\\ " if number == ITSELF else "? "
    if color:
        return f"\x1b[48;5;{_RED}m!!\x1b[0m" if number == WRONG else f"\x1b[48;5;{_CIVIDIS[number]}m  \x1b[0m"
    return f"{marks[number]} " if marks[number] in "·.abcd" else marks[number] * 2


def _legend(shown: Classes, step: float, marks: str, color: bool, several_kinds: bool) -> Iterator[str]:
    """Yield the ranges of the classes, and what other cells mean where there are some."""
    median = "the median of such paths" if several_kinds else "the median"
    edges = [100 * float(np.exp(-step * factor)) for factor in DEPTHS]
    words = [f"from {edges[0]:.0f} % on of {median}", *(f"{low:.0f}–{high:.0f} %" for high, low in pairwise(edges))]
    entries = dict(enumerate([*words, f"below {edges[-1]:.0f} %"]))
    for number, meaning in ((WRONG, "wrong data"), (UNKNOWN, "not measured")):
        if (shown == number).any():
            entries[number] = meaning
    for number, meaning in entries.items():
        yield f"{_cell(number, marks, color).rstrip(' ')} {meaning}"


def _packed(words: Iterator[str], width: int | None) -> Iterator[Line]:
    """Yield lines with as many words as fit; colors take no space."""
    line = ""
    for word in words:
        if line and width is not None and len(_ESCAPE.sub("", line + word)) > width:
            yield Line(line.rstrip(), whole=True)
            line = ""
        line = f"{line}{word}  "
    yield Line(line.rstrip(), whole=True)


MOST_PLACES = 40
_WORST = 20  # of more places than MOST_PLACES, and all named ones
TITLES = ("place", "sends GB/s", "receives GB/s", "latency µs", "slowest with")


def place_frame(matrix: PairMatrix, findings: Sequence[PairFinding]) -> Frame[Sequence[str]]:
    """Return the table of places: what each sends and receives by the median, its latency, and its slowest partner.

    Of many places it has only the slowest and those with findings.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # places without known figures
        sends, receives, latency = (np.nanmedian(rates, axis=1) for rates in (matrix.bandwidth, matrix.bandwidth.T, matrix.latency_s))
    chosen = list(range(matrix.n))
    if matrix.n > MOST_PLACES:
        with_finding = list(dict.fromkeys(place for finding in findings for place in finding.places))[:MOST_PLACES]
        chosen = sorted({*with_finding, *np.argsort(np.fmin(sends, receives))[:_WORST].tolist()})
    rows = []
    for place in chosen:
        rates = [format_rate(float(rate)) if np.isfinite(rate) else NOTHING for rate in (sends[place], receives[place])]
        seconds = float(latency[place])
        time = format_time(seconds) if np.isfinite(seconds * 1e6) else NOTHING
        rows.append([printable(matrix.places[place]), *rates, time, _slowest(matrix, place)])
    named = {printable(matrix.places[place]) for finding in findings for place in finding.places if finding.kind != "pair"}
    columns = text_columns(TITLES, right=TITLES[1:-1], drop=TITLES[:1:-1], cut=TITLES[:1])
    hidden = matrix.n - len(chosen)
    foot = [f"medians over partners; {hidden} of {matrix.n} places, which are faster, are not shown"] if hidden else []
    return Frame(columns, rows, foot=foot, style=lambda texts: "doubtful" if texts[0] in named else "")


def _slowest(matrix: PairMatrix, place: int) -> str:
    """Return the partner and the direction of the lowest bandwidth."""
    ways = [("to", matrix.bandwidth[place]), ("from", matrix.bandwidth[:, place])]
    slowest = [(float(np.nanmin(rates)), word, int(np.nanargmin(rates))) for word, rates in ways if np.isfinite(rates).any()]
    if not slowest:
        return NOTHING
    rate, word, partner = min(slowest)
    return f"{format_rate(rate)} {word} {printable(matrix.places[partner])}"


_MOST_LINES = 40
_TITLES = ("from", "to", "tool", "of", "theirs", "ours", "flags")
_CUT = ("from", "to", "theirs", "flags")  # hosts, reasons and flags may be long
_OF_ALL = frozenset({"their_tool", "unverified"})


def external_lines(rows: Sequence[Row], matrix: PairMatrix, backend: str, width: int | None = None) -> Iterator[Line]:
    """Yield a table of the figures of external tools and collbench, the kind of each, and the flags' meanings; nothing without rows.

    Those of external tools are marked as such and never judged. backend: the one that measured ours.
    """
    if not rows:
        return
    yield Line("")
    records = [_cells(row, matrix) for row in rows[:_MOST_LINES]]
    columns = [column for column in text_columns(_TITLES, cut=_CUT) if any(map(column.text, records))]
    foot = [f"and {len(rows) - _MOST_LINES} more: see --format json"] if len(rows) > _MOST_LINES else []
    statistics: dict[tuple[str, str], str] = {}  # the first of each tool and operation: the others differ only in their seconds
    for row in rows:
        if not row.na:
            evidence = row.evidence.get("tool")
            version = str((evidence.get("version") if isinstance(evidence, dict) else "") or "")[:40]
            tool = f"{row.backend} {version}".strip()
            statistics.setdefault((tool, row.operation), f"{tool}: {row.evidence.get('statistic')}")
    foot += [*dict.fromkeys(statistics.values()), *explain(flag for row in rows for flag in row.flags)]
    yield from table_lines(Frame(columns, records, title=f"external tools compared with collbench over {backend}", foot=foot), width)


def _cells(row: Row, matrix: PairMatrix) -> tuple[str, ...]:
    ends = [str(row.evidence.get(name, NOTHING)) for name in ("from", "to")]
    latency = row.operation == "p2p_latency"

    def text(value: float | None) -> str:
        if value is None:
            return NOTHING
        return f"{format_time(value)} µs" if latency else f"{format_rate(value)} GB/s"

    external = f"n/a ({row.na})"
    if not row.na and row.time_s is not None:
        external = text(row.time_s.p50 if latency else row.algbw_bytes_per_s)
    measured_here = NOTHING
    size = matrix.latency_size_bytes if latency else matrix.size_bytes
    if row.size_bytes == size and all(name in matrix.places for name in ends):
        a, b = (matrix.places.index(name) for name in ends)
        figure = float((matrix.latency_s if latency else matrix.bandwidth)[a, b])
        measured_here = text(figure if np.isfinite(figure) else None)
    remarks = ["loopback"] if "path" in row.evidence else []  # only rows of two places on one host have it
    remarks += [flag_name(flag) for flag in row.flags if flag not in _OF_ALL]
    message = f"{format_size(row.size_bytes)} {'latency' if latency else 'bandwidth'}"
    return tuple(printable(cell[:200]) for cell in (*ends, row.backend, message, external, measured_here, ", ".join(remarks)))


MOST_SENTENCES = 20


def lines(stored: StoredPairs, display: Display) -> Iterator[Line]:
    """Yield what was measured, findings and doubts, a line per place, the picture, and the figures of external tools."""
    matrix = stored.effects.matrix
    findings = stored.effects.findings()
    about = stored.shown_about
    yield Line(printable(measured(matrix, about)), "head")
    yield from (Line(printable(sentence), "wrong") for sentence in wrong_data(matrix))
    yield from (Line(printable(sentence), "doubtful" if findings else "") for sentence in sentences(matrix, findings))
    yield from (Line(printable(sentence), "foot") for sentence in stored.effects.doubts())
    yield Line("")
    yield from table_lines(place_frame(matrix, findings), display.width)
    yield Line("")
    yield from heatmap(matrix, findings, display)
    yield from external_lines(stored.external, matrix, str(about.get("backend", "?")), display.width)


def wrong_data(matrix: PairMatrix) -> list[str]:
    """Return a sentence for each of the first pairs with wrong data, and how many more there are."""
    pairs = matrix.wrong_pairs()
    shown = [
        f"wrong data: {matrix.places[a]} and {matrix.places[b]}: {matrix.wrong[a, b]:.0f} elements are wrong"
        for a, b in pairs[:MOST_SENTENCES]
    ]
    return [*shown, *_more(len(pairs) - len(shown), "pairs with wrong data")]


def json_lines(stored: StoredPairs) -> Iterator[str]:
    """Yield one object in lines: what was measured, findings with their sentences, doubts, and the matrices row by row (null: unknown).

    Without rows of external tools the object lacks their key.
    """
    effects = stored.effects
    matrix = effects.matrix
    head = {
        "schema": 1,
        "places": matrix.places,
        "size_bytes": matrix.size_bytes,
        "latency_size_bytes": matrix.latency_size_bytes,
        "about": {name: value for name, value in stored.shown_about.items() if name != "places"},
        "findings": [finding.stored(matrix.places) for finding in effects.findings()],
        "doubts": effects.doubts(),
    }
    if stored.external:
        head["theirs"] = [row.as_json() for row in stored.external]
    yield to_line(head).removesuffix("}") + ","
    parts = {
        "bandwidth_bytes_per_s": matrix.bandwidth,
        "bandwidth_low_bytes_per_s": matrix.low,
        "bandwidth_high_bytes_per_s": matrix.high,
        "latency_s": matrix.latency_s,
        "wrong": matrix.wrong,
    }
    for number, (name, figures) in enumerate(parts.items()):
        rows = [to_line({"": row}).removeprefix('{"":').removesuffix("}") for row in figures]
        yield f'"{name}":[' + ",\n".join(rows) + ("]," if number < len(parts) - 1 else "]}")


def measured(matrix: PairMatrix, about: Mapping[str, Any]) -> str:
    """Return what was measured, in one line: "pairs of 8 nodes, over socket, bandwidth of 128 KiB, …, all 56 directed pairs, …"."""
    first = f"pairs of {matrix.n} {about.get('by', 'place')}s"
    width = about.get("ranks_per_place")
    if isinstance(width, int) and width > 1:
        first += f" of {width} ranks"
    measured_pairs = int(np.isfinite(matrix.bandwidth).sum())
    possible = matrix.n * (matrix.n - 1)
    parts = [
        first,
        _worded("over {}", about.get("backend")),
        f"bandwidth of {format_size(matrix.size_bytes)}, latency of {format_size(matrix.latency_size_bytes)}",
        f"{measured_pairs} of {possible} directed pairs" if measured_pairs < possible else f"all {possible} directed pairs",
        _worded("in one round" if about.get("rounds") == 1 else "in {} rounds", about.get("rounds")),
        _worded("{}", about.get("sampled")),
    ]
    return ", ".join(filter(None, parts))


def _worded(pattern: str, value: Any) -> str:
    """Return the words for a value of run.json; "" if it is missing or of another type."""
    return pattern.format(value) if isinstance(value, str | int) and not isinstance(value, bool) and value else ""


def sentences(matrix: PairMatrix, findings: Sequence[PairFinding]) -> list[str]:
    """Return a sentence for each of the first findings, or that there is none; nothing where there are too few figures."""
    if not findings:
        return ["no slow endpoint or pair found"] if matrix.n > 3 and np.isfinite(matrix.bandwidth).any() else []
    shown = [finding.sentence(matrix.places) for finding in findings[:MOST_SENTENCES]]
    return [*shown, *_more(len(findings) - MOST_SENTENCES, "findings")]


def _more(number: int, what: str) -> list[str]:
    return [f"and {number} more {what}: see --format json"] if number > 0 else []


DIRECTED_PAIRS = RecordKind("pairs", DirectedPair, records=lambda stored: stored.effects.matrix.pairs(), lines=lines, json=json_lines)
