"""What is said of each cell of a matrix, packed for the page's script (matrix.js): each text once, and per cell the number of its text."""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.report.html.quantity import Quantity

_DETAILED = 64  # places up to which each cell tells its interval, too: those make nearly every text another one
_UNKNOWN = "not measured"
Indices = NDArray[np.int64]
Part = tuple[Sequence[Any], Indices]  # the values that occur, and the number of its value for each cell


class _Cell(NamedTuple):
    """What makes a cell's text: its figure, its interval, how it stands to the median, and what happened to it."""

    figure: str
    interval: str
    share: int
    wrong: int
    again: bool


@dataclass(frozen=True)
class Texts:
    """book   each text once, the slowest first
    codes  [n × n] which of them a cell has; where the quantity has no direction above the diagonal only
    """

    book: list[str]
    codes: NDArray[np.uint32]

    def packed(self) -> dict[str, object]:
        """JSON-ready: zlib in base64. Of the codes all lowest bytes come first, then all next ones: `wide` bytes each."""
        wide = 1 if len(self.book) <= 1 << 8 else 2 if len(self.book) <= 1 << 16 else 4
        planes = self.codes.astype(f"<u{wide}").view(np.uint8).reshape(-1, wide).T
        return {"texts": _packed("\n".join(self.book).encode()), "codes": _packed(planes.tobytes()), "wide": wide}


def texts_of(quantity: Quantity, again: Collection[tuple[int, int]], order: Indices) -> Texts:
    """The texts of all cells, rows and columns in this order."""
    n = len(order)
    cells = np.triu_indices(n, 1) if quantity.symmetric else np.nonzero(~np.eye(n, dtype=bool))
    known, codes = _combined(_parts(quantity, again, order[cells[0]], order[cells[1]]))
    ranked = sorted(range(len(known)), key=lambda each: _slowness(quantity, known[each]))
    place = np.empty(len(ranked), np.uint32)
    place[ranked] = np.arange(len(ranked), dtype=np.uint32)
    matrix = np.zeros((n, n), np.uint32)
    matrix[cells] = place[codes]
    return Texts([_text(quantity, known[each]) for each in ranked], matrix)


def _parts(quantity: Quantity, again: Collection[tuple[int, int]], rows: Indices, columns: Indices) -> list[Part]:
    """The fields of `_Cell`, of these cells."""
    matrix = quantity.matrix
    twice = np.zeros((matrix.n, matrix.n), bool)
    for a, b in again:
        twice[a, b] = twice[b, a] = True
    wrong = np.clip(np.nan_to_num(matrix.wrong[rows, columns], posinf=0), 0, 1e15).astype(np.int64)
    others = (_different(each) for each in (quantity.shares()[rows, columns], wrong, twice[rows, columns]))
    return [_figures(quantity, rows, columns), _intervals(quantity, rows, columns), *others]


def _figures(quantity: Quantity, rows: Indices, columns: Indices) -> Part:
    """Ascending values have ascending texts: where the next text begins is found by halving, so that few are written."""
    values = quantity.values[rows, columns]
    order = np.argsort(values)  # NaN goes to the end
    ascending, texts, codes = values[order].tolist(), list[str](), np.empty(len(values), np.int64)
    at = 0
    while at < len(ascending):
        texts.append(quantity.figure(ascending[at]))
        end = bisect_left(ascending, True, lo=at, key=lambda value: quantity.figure(value) != texts[-1])
        codes[order[at:end]] = len(texts) - 1
        at = end
    return texts, codes


def _different(values: NDArray[Any]) -> Part:
    found, codes = np.unique(values, return_inverse=True)
    return found.tolist(), codes


def _intervals(quantity: Quantity, rows: Indices, columns: Indices) -> Part:
    if quantity.bounds is None or quantity.matrix.n > _DETAILED:
        return [""], np.zeros(len(rows), np.int64)
    low, high = ([quantity.figure(value) for value in each[rows, columns].tolist()] for each in quantity.bounds)
    return _different(np.array([f" ({first}–{last})" if first and last else "" for first, last in zip(low, high, strict=True)]))


def _combined(parts: Sequence[Part]) -> tuple[list[_Cell], Indices]:
    """The combinations that occur, and which of them each cell has."""
    numbers = np.zeros(len(parts[0][1]), np.int64)
    for values, codes in parts:
        _, numbers = np.unique(numbers * len(values) + codes, return_inverse=True)
    _, first = np.unique(numbers, return_index=True)
    return [_Cell(*(values[codes[cell]] for values, codes in parts)) for cell in first], numbers


def _slowness(quantity: Quantity, cell: _Cell) -> tuple[bool, int]:
    """What is unknown comes last."""
    return cell.figure == "", -cell.share if quantity.symmetric else cell.share


def _text(quantity: Quantity, cell: _Cell) -> str:
    compared = f", {quantity.against_median(cell.share)}" if cell.share >= 0 else ""
    said = [f"{cell.figure}{cell.interval} {quantity.unit}{compared}" if cell.figure else _UNKNOWN]
    said += [f"wrong data: {cell.wrong} elements are not what was sent"] if cell.wrong else []
    said += ["measured twice, the faster one counts"] if cell.again and cell.figure else []
    return "; ".join(said)


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode()
