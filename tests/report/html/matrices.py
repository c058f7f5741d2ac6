"""Synthetic matrices of pairs as the page stores them, and what its script unpacks."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.plugins.hunt.pairs import PairEffects
from collbench.plugins.hunt.pairs_page import MatrixInput, charts
from collbench.plugins.hunt.records import PairMatrix
from collbench.report.html.chart import Chart

RATE, LATENCY_S = 10e9, 20e-6


def even(n: int = 6, names: Sequence[str] = (), hosts: Sequence[str] = ()) -> PairMatrix:
    """All alike, without noise: 10 GB/s and 20 µs."""
    off = np.where(np.eye(n, dtype=bool), np.nan, 1.0)
    places = tuple(names or (f"node{number + 1}" for number in range(n)))
    return PairMatrix(places, off * LATENCY_S, off * RATE, off * RATE * 0.99, off * RATE * 1.01, off * 0, 1 << 20, 8, hosts=tuple(hosts))


def slowed(matrix: PairMatrix, sender: object = slice(None), receiver: object = slice(None), ratio: float = 0.5) -> PairMatrix:
    """Return the same matrix with scaled bandwidths from `sender` to `receiver`."""
    for figures in (matrix.bandwidth, matrix.low, matrix.high):
        figures[sender, receiver] *= ratio
    return matrix


def drawn(matrix: PairMatrix, again: Collection[tuple[int, int]] = (), run: str = "") -> list[Chart]:
    """Its charts."""
    effects = PairEffects(matrix, again)
    return charts(MatrixInput("pairs-0", run, "nodes", effects, effects.findings(), (60, 30)))


def cell_texts(chart: Chart) -> list[list[str]]:
    """Return the text of each entry by row and column, unpacked as matrix.js does it."""
    data: dict[str, Any] = chart.data or {}
    book, n = _unpacked(data["texts"]).decode().split("\n"), len(data["places"])
    codes = np.frombuffer(_unpacked(data["codes"]), np.uint8).reshape(4, n * n).T.copy().view("<u4").reshape(n, n)
    return [[book[code] for code in row] for row in codes.tolist()]


def pixels(markup: str) -> NDArray[np.uint8]:
    """The classes of the first image in it; 6 is clear."""
    found = re.search(r"data:image/png;base64,([^\"]+)", markup)
    assert found
    data = base64.b64decode(found[1])
    side, content = int.from_bytes(data[16:20], "big"), data.index(b"IDAT") + 4
    size = int.from_bytes(data[content - 8 : content - 4], "big")
    return np.frombuffer(zlib.decompress(data[content : content + size]), np.uint8).reshape(side, side + 1)[:, 1:]


def texts_in(markup: str) -> list[str]:
    """The words of a drawing, in order."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", markup)


def _unpacked(data: object) -> bytes:
    assert isinstance(data, str)
    return zlib.decompress(base64.b64decode(data))
