"""The matrix of bandwidths as a picture of characters: a row per sender, a column per receiver, in five classes below the median."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import expm1, log1p

import numpy as np
from numpy.typing import NDArray

from collbench.analysis.pair_statistics import quantile
from collbench.analysis.pairs import PairFinding, hosts_of
from collbench.report.flags import printable
from collbench.report.probe_wrap import wrapped
from collbench.report.table import Line
from collbench.results.rounds import PairMatrix

MOST_ROWS = 40  # of more places each row and column stands for several
CLASSES = 5
WRONG, UNKNOWN, ITSELF = CLASSES, -1, -2
_LEAST, _MOST = 0.05, 0.25  # the first class ends so far below the median, however little or much the cells scatter
_BLOCKS, _LETTERS = "·░▒▓█!", ".abcd!"
_CIVIDIS = (17, 60, 102, 143, 227)  # of the 256 colours those nearest to its fifths: dark blue to yellow, told apart by the colour-blind
_RED = 160
_LABEL, _NOTE = 16, 12  # columns: of a name at most, of what stands behind a row at least
_NEAR = 0.3186  # of a normal distribution, what a quarter is nearer to the middle than, in standard deviations
_TAILS = 8.0
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
Classes = NDArray[np.int64]


def heatmap(matrix: PairMatrix, found: Sequence[PairFinding], width: int | None, color: bool, blocks: bool) -> Iterator[Line]:
    """The picture within `width` columns (None: 40 places), with its legend; rows of findings are labelled.

    `blocks`: whether there may be block characters. Where several places share a cell, it shows the slowest pair of theirs.
    """
    classes, step = classes_of(matrix)
    size = -(-matrix.n // _most_rows(matrix, width))
    shown, marks = _shrunk(classes, size), _BLOCKS if blocks else _LETTERS
    labels = _labels(matrix, size)
    wide = max(map(len, labels))
    shared = [f"each stands for {size} places, a cell for their slowest pair"] if size > 1 else []
    yield from wrapped([Line(text, "head") for text in ("senders in rows, receivers in columns", *shared)], width)
    yield from (Line(f"{'':{wide}} {text}", "head") for text in _numbers(len(shown), size))
    for at, (label, row) in enumerate(zip(labels, shown, strict=True)):
        cells = "".join(_cell(int(each), marks, color) for each in row)
        note = _note(matrix, found, range(at * size, min(matrix.n, (at + 1) * size)))
        room = None if width is None else max(0, width - wide - 1 - 2 * len(row) - 1)
        yield Line(f"{label:{wide}} {cells} {note[:room]}".rstrip())
    what = " of the median of such paths" if len(kinds(matrix)) > 1 else " of the median"
    yield from _packed(_legend(shown, step, marks, color, what), width)


def classes_of(matrix: PairMatrix) -> tuple[Classes, float]:
    """The class of each directed pair, and the first class's depth below the median as a logarithm; each next one is twice as deep.

    The median is that of the pair's kind of path (inside a host, between hosts). The depth is such that chance alone would fill the
    first class only, by the quarter of the cells that are nearest to the median; but not more than a quarter below it.
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
    """How far each directed pair is above the median of its kind of path, as a logarithm; what is unknown is not finite."""
    with np.errstate(all="ignore"):
        speeds: NDArray[np.float64] = np.log(matrix.bandwidth)
    for kind in kinds(matrix):
        known = speeds[kind & np.isfinite(speeds)]
        speeds[kind] -= np.median(known) if len(known) else 0.0
    return speeds


def kinds(matrix: PairMatrix) -> list[NDArray[np.bool_]]:
    """The pairs between hosts, and those inside a host, as masks; only those that there are."""
    _, code = np.unique(np.array(hosts_of(matrix.places)), return_inverse=True)
    inside = code[:, None] == code[None, :]
    both = [~inside, inside & ~np.eye(matrix.n, dtype=bool)]
    return [kind for kind in both if kind.any()]


def _most_rows(matrix: PairMatrix, width: int | None) -> int:
    """How many rows and columns there is room for."""
    if width is None:
        return MOST_ROWS
    room = width - max(map(len, _labels(matrix, 1))) - 1
    return MOST_ROWS if 2 * matrix.n <= room else max(2, min(MOST_ROWS, (room - _NOTE) // 2))


def _shrunk(classes: Classes, size: int) -> Classes:
    starts = np.arange(0, len(classes), size)
    found: Classes = np.maximum.reduceat(np.maximum.reduceat(classes, starts, axis=0), starts, axis=1)
    return found


def _labels(matrix: PairMatrix, size: int) -> list[str]:
    if size == 1:
        wide = len(str(matrix.n - 1))
        return [f"{place:>{wide}} {_short(name)}" for place, name in enumerate(matrix.places)]
    ends = [(first, min(matrix.n, first + size) - 1) for first in range(0, matrix.n, size)]
    return [f"{first}–{last}" if last > first else str(first) for first, last in ends]


def _short(name: str) -> str:
    text = printable(name)
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"


def _numbers(columns: int, size: int) -> list[str]:
    """The columns' numbers, digit by digit downwards; of groups the first place of each."""
    firsts = [str(column * size) for column in range(columns)]
    high = max(map(len, firsts))
    return ["".join(f"{first.rjust(high)[digit]} " for first in firsts).rstrip() for digit in range(high)]


def _cell(each: int, marks: str, color: bool) -> str:
    if each == ITSELF:
        return "\\ "
    if each == UNKNOWN:
        return "? "
    if not color:
        return f"{marks[each]} " if marks[each] in "·.abcd" else marks[each] * 2
    return f"\x1b[48;5;{_RED}m!!\x1b[0m" if each == WRONG else f"\x1b[48;5;{_CIVIDIS[each]}m  \x1b[0m"


def _note(matrix: PairMatrix, found: Sequence[PairFinding], places: range) -> str:
    """Whose findings are in this row: a place's, or a pair's sender."""
    those = [each for each in found if each.places[0] in places]
    return f"◄ {printable(', '.join(each.name(matrix.places) for each in those))}" if those else ""


def _legend(shown: Classes, step: float, marks: str, color: bool, what: str) -> Iterator[str]:
    edges = [100 * float(np.exp(-step * factor)) for factor in (1, 2, 4, 8)]
    words = [f"from {edges[0]:.0f} % on", *(f"{low:.0f}–{high:.0f} %" for high, low in pairwise(edges)), f"below {edges[-1]:.0f} %"]
    yield from (f"{_cell(each, marks, color).rstrip(' ')} {word}{what * (each == 0)}" for each, word in enumerate(words))
    others = ((WRONG, "wrong data"), (UNKNOWN, "not measured"))
    yield from (f"{_cell(each, marks, color).rstrip(' ')} {word}" for each, word in others if (shown == each).any())


def _packed(words: Iterator[str], width: int | None) -> Iterator[Line]:
    """As many on a line as it holds; colours take no room."""
    line, used = "", 0
    for word in words:
        room = len(_ESCAPE.sub("", word)) + 2
        if line and width is not None and used + room - 2 > width:
            yield Line(line.rstrip())
            line, used = "", 0
        line, used = f"{line}{word}  ", used + room
    yield Line(line.rstrip())
