"""Synthetic matrices of pairs as the page has them: numbers for its script, and the classes of a drawing."""

import re

import numpy as np

from collbench.plugins.hunt.pairs import PairEffects
from collbench.plugins.hunt.pairs_page import COLORS, charts
from collbench.plugins.hunt.records import PairMatrix

RATE, LATENCY_S = 10e9, 20e-6


def even(n=6, names=(), hosts=()):
    """All alike, without noise: 10 GB/s and 20 µs."""
    off = np.where(np.eye(n, dtype=bool), np.nan, 1.0)
    places = tuple(names or (f"node{number + 1}" for number in range(n)))
    return PairMatrix(places, off * LATENCY_S, off * RATE, off * RATE * 0.99, off * RATE * 1.01, off * 0, 1 << 20, 8, hosts=tuple(hosts))


def slowed(matrix, sender=slice(None), receiver=slice(None), ratio=0.5):
    """Return the same matrix with scaled bandwidths from `sender` to `receiver`."""
    for figures in (matrix.bandwidth, matrix.low, matrix.high):
        figures[sender, receiver] *= ratio
    return matrix


def drawn(matrix, again=(), run=""):
    effects = PairEffects(matrix, again)
    return charts(effects, "pairs-0", run, "nodes", (60, 30))


def cell_values(chart):
    """The numbers of a chart by row and column, in its unit; NaN if there is none."""
    data = chart.data or {}
    n = len(data["places"])
    values = np.full((n, n), np.nan)
    for row, numbers in enumerate(data["values"]):
        values[row, n - len(numbers) :] = [np.nan if number is None else number for number in numbers]
    return np.fmax(values, values.T) if data["symmetric"] else values


def cell_classes(markup, side):
    """The classes of side × side cells of a drawing; -1: without a color."""
    classes = np.full((side, side), -1)
    for color, path in re.findall(r'<path class="cells" fill="([^"]+)" transform="[^"]+" d="([^"]+)"/>', markup):
        for first, row, length in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\d+z", path):
            cells = classes[int(row), int(first) : int(first) + int(length)]
            assert (cells == -1).all() and len(cells) == int(length)
            cells[:] = COLORS.index(color)
    return classes


def texts_in(markup):
    return re.findall(r"<text[^>]*>([^<]*)</text>", markup)
